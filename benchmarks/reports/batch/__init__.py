"""The report on BATCH (Ali, Pinciroli, Yan, Smirni: Machine Learning Inference Serving on Serverless Platforms, SC 2020).

`setting` says what stands for the paper's applications and its grid of plans; `services` measures how long batches take,
`demand` has the arrivals, `replay` what happens to them behind a buffer. The other modules measure, most of them for one of the
paper's figures; `sections` says what came of it, and `__main__` makes the page.
"""

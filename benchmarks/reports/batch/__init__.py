"""The report on BATCH (Ali, Pinciroli, Yan, Smirni: Machine Learning Inference Serving on Serverless Platforms, SC 2020).

`setting` says what stands for the paper's applications and its grid of plans; `services` measures how long batches take,
`demand` has the arrivals and what happens to them behind a buffer. `predictions` and `days` measure the paper's figures;
`accuracy`, `arrivals`, `cost` and `comparisons` say what came of them, and `__main__` makes the page.
"""

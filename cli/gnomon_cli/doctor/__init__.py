"""What an installation needs, one thing after the other: each says in a line whether it is there, and if not, what to do.

`findings` is what a check says and how a row of them is carried out, `examination` which ones there are for what; `machine`,
`cluster`, `permissions`, `rivals`, `openfaas`, `knative`, `batching`, `batched`, `shadows` and `wishes` are the checks; they read
`workloads` and `policies`. Looking changes nothing.
"""

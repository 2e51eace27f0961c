"""The checks of `gnomon doctor`: each reports in one line whether something that an installation needs is there, and what to do.

`findings` has the result of a check and runs checks in order; `examination` lists the checks of a platform. `machine`,
`cluster`, `shadows`, `openfaas` and `knative` are the checks. No check changes anything.
"""

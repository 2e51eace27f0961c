"""AWS Lambda without an account, for tests: moto keeps the functions, AWS's own runtime client runs them here.

`service` answers Invoke and hands everything else to moto's server; `sandboxes` are the processes that it starts, one for each
Invoke under way, each with the code, variables and handler that were deployed.
"""

from gnomon_platforms.aws_lambda.testing.service import LambdaService

__all__ = ["LambdaService"]

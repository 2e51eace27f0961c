"""The function that Gnomon deploys to AWS Lambda, under the name that Lambda's console looks for.

Gnomon itself names `gnomon_runtime.aws_lambda.handler`. Whoever builds a package by hand puts this file beside the packages
gnomon_core and gnomon_runtime and sets the variable GNOMON_LAUNCH; what it holds is described there.
"""

from gnomon_runtime.aws_lambda import handler as lambda_handler

__all__ = ["lambda_handler"]

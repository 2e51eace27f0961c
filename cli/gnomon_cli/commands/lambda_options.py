"""What every command that uses AWS Lambda is told about the account. Keys and the region are boto3's to find."""

from __future__ import annotations

from typing import Any

import click

from gnomon_platforms.aws_lambda.options import DEFAULT_CONCURRENCY, MAX_CONCURRENCY, LambdaOptions


def lambda_options(function: Any) -> Any:
    """Role, bucket, image, and how much at once."""
    for option in reversed(
        [
            click.option(
                "--lambda-role",
                default="",
                envvar="GNOMON_LAMBDA_ROLE",
                metavar="ARN",
                help="Role that functions run as on Lambda.",
            ),
            click.option(
                "--lambda-bucket",
                default="",
                envvar="GNOMON_LAMBDA_BUCKET",
                metavar="NAME",
                help="Bucket for models and for batches above 6 MB.",
            ),
            click.option(
                "--lambda-image",
                default="",
                envvar="GNOMON_LAMBDA_IMAGE",
                metavar="URI",
                help="Container image with torch that models run in.",
            ),
            click.option(
                "--lambda-concurrency",
                type=click.IntRange(1, MAX_CONCURRENCY),
                default=DEFAULT_CONCURRENCY,
                help=f"Batches under way at once; default {DEFAULT_CONCURRENCY}.",
            ),
        ]
    ):
        function = option(function)
    return function


def read_lambda_options(*, lambda_role: str, lambda_bucket: str, lambda_image: str, lambda_concurrency: int) -> LambdaOptions:
    """The options as a value.

    Raises:
        GnomonError: 400 with the option that is missing or wrong.

    """
    return LambdaOptions(lambda_role, lambda_bucket or None, lambda_image or None, concurrency=lambda_concurrency)

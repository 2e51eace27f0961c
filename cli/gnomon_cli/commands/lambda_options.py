"""What every command that uses AWS Lambda is told about the account. Keys and the region are boto3's to find."""

from __future__ import annotations

import click

from gnomon_cli.command import option_group
from gnomon_platforms.aws_lambda.options import DEFAULT_CONCURRENCY, MAX_CONCURRENCY, LambdaOptions

lambda_options = option_group(
    click.option(
        "--lambda-role",
        default="",
        envvar="GNOMON_LAMBDA_ROLE",
        show_envvar=True,
        metavar="ARN",
        help="Role that functions run as on Lambda.",
    ),
    click.option(
        "--lambda-bucket",
        default="",
        envvar="GNOMON_LAMBDA_BUCKET",
        show_envvar=True,
        metavar="NAME",
        help="Bucket for models and for batches above 6 MB.",
    ),
    click.option(
        "--lambda-image",
        default="",
        envvar="GNOMON_LAMBDA_IMAGE",
        show_envvar=True,
        metavar="URI",
        help="Container image with torch that models run in.",
    ),
    click.option(
        "--lambda-concurrency",
        type=click.IntRange(1, MAX_CONCURRENCY),
        default=DEFAULT_CONCURRENCY,
        help=f"Batches under way at once; default {DEFAULT_CONCURRENCY}.",
    ),
)
"""Role, bucket, image, and how much at once."""


def read_lambda_options(*, lambda_role: str, lambda_bucket: str, lambda_image: str, lambda_concurrency: int) -> LambdaOptions:
    """The options as a value.

    Raises:
        GnomonError: 400 with the option that is missing or wrong.

    """
    return LambdaOptions(lambda_role, lambda_bucket or None, lambda_image or None, concurrency=lambda_concurrency)

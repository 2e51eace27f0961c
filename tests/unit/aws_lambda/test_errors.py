"""What AWS refuses, in words that say what to do."""

import pytest
from botocore import exceptions

from gnomon_core.errors import GnomonError
from gnomon_platforms.aws_lambda.client import told
from gnomon_platforms.aws_lambda.resources import LambdaOptions

ROLE = "arn:aws:iam::123456789012:role/gnomon"


def client_error(code: str, message: str = "no") -> exceptions.ClientError:
    return exceptions.ClientError({"Error": {"Code": code, "Message": message}}, "CreateFunction")


@pytest.mark.parametrize(
    ("error", "code", "hint"),
    [
        (exceptions.NoCredentialsError(), "aws_credentials", "aws configure"),
        (exceptions.PartialCredentialsError(provider="env", cred_var="aws_secret_access_key"), "aws_credentials", "AWS_PROFILE"),
        (exceptions.NoRegionError(), "aws_region", "AWS_REGION"),
        (client_error("ExpiredTokenException"), "aws_credentials", "aws sso login"),
        (client_error("UnrecognizedClientException"), "aws_credentials", "AWS_PROFILE"),
        (
            client_error("AccessDeniedException", "not authorized to perform lambda:CreateFunction"),
            "aws_denied",
            "gateway-policy.json",
        ),
        (
            client_error("InvalidParameterValueException", "The role defined for the function cannot be assumed by Lambda."),
            "aws_role",
            "trust-policy.json",
        ),
        (
            client_error("InvalidParameterValueException", "Reserved keys used in this request: AWS_REGION"),
            "aws_refused",
            "Correct",
        ),
        (exceptions.EndpointConnectionError(endpoint_url="https://lambda.nowhere"), "aws_unreachable", "AWS_ENDPOINT_URL"),
        (
            exceptions.WaiterError("FunctionActiveV2", "failed", {"Configuration": {"StateReason": "The image is gone."}}),
            "aws_refused",
            "The image is gone.",
        ),
    ],
)
def test_one_line_says_what_to_do(error: Exception, code: str, hint: str) -> None:
    with pytest.raises(GnomonError) as refused, told("deploy f"):
        raise error
    assert (refused.value.status, refused.value.code) == (503, code)
    assert hint in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"role": ""}, "role_missing"),
        ({"role": "gnomon"}, "role_invalid"),
        ({"role": ROLE, "prefix": "a b"}, "prefix_invalid"),
        ({"role": ROLE, "concurrency": 0}, "concurrency_invalid"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_asked(options: dict[str, str], code: str) -> None:
    with pytest.raises(GnomonError) as refused:
        LambdaOptions(**options)  # type: ignore[arg-type]
    assert (refused.value.status, refused.value.code) == (400, code)

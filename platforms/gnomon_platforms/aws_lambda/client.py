"""Access to AWS: boto3's clients, and errors that say what to do about a refusal.

Each client is made once: making one reads service descriptions from disk, and their connections are pooled.

Credentials, region and endpoint come from where boto3 looks for them (AWS_PROFILE, AWS_REGION, AWS_ENDPOINT_URL, a role …).

botocore's own retries are off for Invoke: they repeat what timed out or ended in a 500, and so might execute a batch twice. And
because a client's read timeout is a setting of the client, there is a client for each power of two of seconds.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import boto3
from boto3.exceptions import Boto3Error
from botocore import exceptions
from botocore.config import Config

from gnomon_core.errors import GnomonError

POLICY = "deploy/lambda/gateway-policy.json"
_DENIED = frozenset({"AccessDenied", "AccessDeniedException", "UnauthorizedOperation", "403", "Forbidden"})
_UNKNOWN_KEY = frozenset({"InvalidClientTokenId", "UnrecognizedClientException", "InvalidAccessKeyId", "SignatureDoesNotMatch"})
_EXPIRED = frozenset({"ExpiredToken", "ExpiredTokenException", "RequestExpired"})


def error_code(error: exceptions.ClientError) -> str:
    """AWS's name of an error."""
    return str(error.response.get("Error", {}).get("Code", ""))


def http_status(error: exceptions.ClientError) -> int:
    """HTTP status of the error."""
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


@contextmanager
def aws_errors(action: str) -> Iterator[None]:
    """Convert boto3's exceptions in this block into a GnomonError. `action` completes "AWS does not let Gnomon …".

    Raises:
        GnomonError: 503 `aws_credentials`, `aws_region`, `aws_denied`, `aws_role`, `aws_unreachable` or `aws_refused`.

    """
    try:
        yield
    except (exceptions.NoCredentialsError, exceptions.PartialCredentialsError, exceptions.CredentialRetrievalError) as error:
        raise GnomonError(
            503,
            "aws_credentials",
            f"There are no AWS credentials to {action}: {error}.".replace("..", "."),
            "Set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or run `aws configure`.",
        ) from None
    except exceptions.NoRegionError:
        raise GnomonError(503, "aws_region", "No AWS region is named.", "Set AWS_REGION, such as eu-central-1.") from None
    except exceptions.ClientError as error:
        raise _refused(error, action) from error
    except exceptions.WaiterError as error:
        response = error.last_response if isinstance(error.last_response, dict) else {}
        state = response.get("Configuration", response)
        reason = state.get("StateReason") or state.get("LastUpdateStatusReason") or str(error)
        raise GnomonError(503, "aws_refused", f"AWS could not {action}: {reason}", "Correct what the message names.") from error
    except Boto3Error as error:
        raise GnomonError(503, "aws_refused", f"AWS refused to {action}: {error}", "Correct what the message names.") from error
    except exceptions.BotoCoreError as error:
        raise GnomonError(
            503,
            "aws_unreachable",
            f"AWS cannot be reached to {action}: {error}",
            "Check the network, AWS_REGION and AWS_ENDPOINT_URL.",
        ) from error


def _refused(error: exceptions.ClientError, action: str) -> GnomonError:
    code, text = error_code(error), str(error.response.get("Error", {}).get("Message", error))
    if code in _UNKNOWN_KEY:
        return GnomonError(
            503, "aws_credentials", f"AWS does not know these credentials: {text}", "Check AWS_PROFILE or the keys."
        )
    if code in _EXPIRED:
        return GnomonError(503, "aws_credentials", f"The AWS credentials have expired: {text}", "Log in again: `aws sso login`.")
    if code in _DENIED:
        return GnomonError(
            503, "aws_denied", f"AWS does not let Gnomon {action}: {text}", f"Attach {POLICY} to Gnomon's user or role."
        )
    if "role" in text.lower() and code in {"InvalidParameterValueException", "ValidationException", "NoSuchEntity"}:
        return GnomonError(
            503,
            "aws_role",
            f"The functions' role cannot be used: {text}",
            "Check --lambda-role, and that the role trusts lambda.amazonaws.com: deploy/lambda/trust-policy.json.",
        )
    return GnomonError(503, "aws_refused", f"AWS refused to {action}: {text} ({code})", "Correct what the message names.")


def is_role_not_ready(error: Any) -> bool:
    """True if Lambda refused a role that may be new: IAM propagates a role to Lambda within seconds."""
    return (
        isinstance(error, exceptions.ClientError)
        and error_code(error) == "InvalidParameterValueException"
        and "cannot be assumed by Lambda" in str(error)
    )


CONNECT_TIMEOUT_S = 5.0
LONGEST_S = 1024
"""Longest read timeout of an Invoke in seconds; Lambda's own bound is 900 s."""


class Clients:
    """The clients that the platform uses, for any thread. `connections` is how many each keeps open."""

    def __init__(self, connections: int) -> None:
        with aws_errors("reach Lambda"):
            self._session = boto3.Session()
        self._connections = connections
        self._made: dict[tuple[str, int], Any] = {}
        # Clients may be shared by threads, a Session may not (boto3 guide, "Multithreading or multiprocessing"): the lock is its.
        self._lock = threading.Lock()

    @property
    def region(self) -> str:
        return str(self.control.meta.region_name)

    @property
    def control(self) -> Any:
        """Lambda, for everything but Invoke: such calls can be repeated, so botocore does."""
        return self._client("lambda", 60, {"retries": {"mode": "adaptive", "total_max_attempts": 8}})

    @property
    def s3(self) -> Any:
        """S3, whose operations can be repeated. Addresses that it signs are of the version that every region takes."""
        return self._client("s3", 60, {"retries": {"mode": "standard"}, "signature_version": "s3v4"})

    @property
    def sts(self) -> Any:
        return self._client("sts", 10, {"retries": {"mode": "standard"}})

    @property
    def cloudwatch(self) -> Any:
        return self._client("cloudwatch", 30, {"retries": {"mode": "standard"}})

    def invoking(self, wait_s: float) -> Any:
        """Lambda, for an Invoke that is given up after `wait_s` at the earliest and twice that at the latest."""
        timeout_s = min(LONGEST_S, 2 ** max(0, math.ceil(math.log2(max(wait_s, 1.0)))))
        # One attempt: an Invoke that broke off may have executed the batch. Keep-alive: NAT gateways drop a connection that is
        # silent for 350 s (VPC guide), and an Invoke is silent until its answer, up to 900 s.
        return self._client("lambda", timeout_s, {"retries": {"total_max_attempts": 1}, "tcp_keepalive": True})

    def _client(self, service: str, timeout_s: int, settings: dict[str, Any]) -> Any:
        key = (f"{service} {sorted(settings)}", timeout_s)
        with self._lock:
            if key not in self._made:
                config = Config(
                    connect_timeout=CONNECT_TIMEOUT_S, read_timeout=timeout_s, max_pool_connections=self._connections, **settings
                )
                with aws_errors(f"use {service}"):
                    self._made[key] = self._session.client(service, config=config)
            return self._made[key]

r"""Invokes of AWS Lambda and their outcomes. An Invoke blocks: it runs in a thread.

    answered    frames came back
    throttled   Lambda did not begin it, and it may be asked again: too many at once, no network interface yet, connection refused
    refused     Lambda did not begin it and will not: the function is gone, the permission is missing
    lost        it may have run: a function error, a timeout, a broken connection, a 500 whose cause is not stated

Only what was certainly not begun is ever sent again from here. A lost batch is the dispatcher's: it executes a model's requests
once more, because computing them twice changes nothing, and answers a handler's with 502, which may have acted.

The answer brings the last 4 KB of the sandbox's log (LogType=Tail), with a report of time and memory:

    START RequestId: 8f50… Version: 3
    what the function wrote
    END RequestId: 8f50…
    REPORT RequestId: 8f50…\tDuration: 12.34 ms\tBilled Duration: 13 ms\tMemory Size: 1769 MB\tMax Memory Used: 180 MB\t

A function whose log is JSON has `platform.report` instead, with the same numbers. CloudWatch counts Invokes as well, minutes
later, also those of which no answer tells: given up here and completed there, throttled, failed.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Any

from botocore import exceptions

from gnomon_core.errors import GnomonError
from gnomon_core.lambda_envelope import INLINE_BYTES, Call, EnvelopeError, Reply
from gnomon_platforms.aws_lambda.client import Clients, aws_errors, error_code, http_status
from gnomon_platforms.aws_lambda.s3_transfer import ReplyKey, ReplyKeys, S3Transfer

_NUMBERS = {
    "duration_ms": re.compile(r"\tDuration: ([\d.]+) ms"),
    "billed_ms": re.compile(r"\tBilled Duration: ([\d.]+) ms"),
    "memory_mb": re.compile(r"\tMemory Size: (\d+) MB"),
    "used_mb": re.compile(r"\tMax Memory Used: (\d+) MB"),
    "init_ms": re.compile(r"\tInit Duration: ([\d.]+) ms"),
}
_JSON_NUMBERS = {
    "duration_ms": "durationMs",
    "billed_ms": "billedDurationMs",
    "memory_mb": "memorySizeMB",
    "used_mb": "maxMemoryUsedMB",
    "init_ms": "initDurationMs",
}
_PLATFORM_LINE = re.compile(r"(START|END|REPORT) RequestId: |INIT_START |XRAY TraceId: |INIT_REPORT ")


@dataclass(frozen=True, slots=True)
class Report:
    """Duration and memory of an Invoke. `init_ms` is 0 on a warm start."""

    duration_ms: float
    billed_ms: float
    memory_mb: int
    used_mb: int
    init_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class LogTail:
    """The function's own lines, and the report; None where the tail holds none."""

    lines: tuple[str, ...]
    report: Report | None


def read_tail(encoded: str | None) -> LogTail:
    """The tail as Invoke returns it, in base64; nothing of what cannot be read."""
    try:
        text = base64.b64decode(encoded or "").decode(errors="replace")
    except (binascii.Error, ValueError):
        return LogTail((), None)
    lines: list[str] = []
    report: Report | None = None
    for line in text.splitlines():
        found = _report(line)
        report = found or report
        if found is None and line.strip() and not _is_platform_line(line):
            lines.append(line)
    return LogTail(tuple(lines), report)


def _report(line: str) -> Report | None:
    if line.startswith("REPORT RequestId: "):
        found = {name: pattern.search(line) for name, pattern in _NUMBERS.items()}
        values = {name: match.group(1) for name, match in found.items() if match is not None}
    elif '"platform.report"' in line:
        metrics = _object(_object(_json(line).get("record")).get("metrics"))
        values = {name: str(metrics[key]) for name, key in _JSON_NUMBERS.items() if key in metrics}
    else:
        return None
    try:
        return Report(
            float(values["duration_ms"]),
            float(values["billed_ms"]),
            int(values["memory_mb"]),
            int(values["used_mb"]),
            float(values.get("init_ms", 0.0)),
        )
    except (KeyError, ValueError):
        return None


def _is_platform_line(line: str) -> bool:
    return bool(_PLATFORM_LINE.match(line)) or str(_json(line).get("type", "")).startswith("platform.")


def _json(line: str) -> dict[str, Any]:
    if not line.startswith("{"):
        return {}
    try:
        return _object(json.loads(line))
    except ValueError:
        return {}


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


_PERIOD_S = 60
_SUMS = ("Invocations", "Errors", "Throttles", "Duration")


@dataclass(frozen=True, slots=True)
class CloudWatchTotals:
    """Sums over a span of time; `duration_s` is that of all Invokes together."""

    invocations: int
    errors: int
    throttles: int
    duration_s: float


def counted(client: Any, function: str, begin: datetime, end: datetime) -> CloudWatchTotals:
    """The sums of a function between two points in time.

    Raises:
        GnomonError: 503 `aws_…`.

    """
    queries = [
        {
            "Id": name.lower(),
            "MetricStat": {
                "Metric": {
                    "Namespace": "AWS/Lambda",
                    "MetricName": name,
                    "Dimensions": [{"Name": "FunctionName", "Value": function}],
                },
                "Period": _PERIOD_S,
                "Stat": "Sum",
            },
        }
        for name in _SUMS
    ]
    sums = dict.fromkeys((name.lower() for name in _SUMS), 0.0)
    with aws_errors("read metrics"):
        pages = client.get_paginator("get_metric_data").paginate(MetricDataQueries=queries, StartTime=begin, EndTime=end)
        for page in pages:
            for result in page["MetricDataResults"]:
                sums[result["Id"]] += sum(result["Values"])
    return CloudWatchTotals(int(sums["invocations"]), int(sums["errors"]), int(sums["throttles"]), sums["duration"] / 1000)


RETRYABLE_ERRORS = frozenset(
    {
        "TooManyRequestsException", "ThrottlingException", "Throttling", "ProvisionedThroughputExceededException",
        "RequestLimitExceeded", "EC2ThrottledException", "EC2UnexpectedException", "EC2AccessDeniedException",
        "ENILimitReachedException", "SubnetIPAddressLimitReachedException", "ResourceNotReadyException",
        "ResourceConflictException", "SnapStartNotReadyException", "KMSThrottlingException", "EFSMountConnectivityException",
        "EFSMountTimeoutException",
    }
)  # fmt: skip
"""Errors by which Lambda says that it could not begin an Invoke now."""
INIT_ERRORS = frozenset(
    {"Runtime.ImportModuleError", "Runtime.HandlerNotFound", "Runtime.UserCodeSyntaxError", "Runtime.MalformedHandlerName"}
)
"""Function errors by which a sandbox says that it could not load the handler."""
_CLIENT_ERRORS = range(400, 500)
PROBE_S = 4.0


class OutcomeKind(StrEnum):
    """The outcome of an Invoke."""

    ANSWERED = "answered"
    THROTTLED = "throttled"
    REFUSED = "refused"
    LOST = "lost"
    TOO_LARGE = "too large"


@dataclass(frozen=True, slots=True)
class InvokeOutcome:
    """The result of an Invoke. `stale_keys` are keys to delete in S3."""

    kind: OutcomeKind
    frames: bytes = b""
    reason: str = ""
    tail: LogTail = field(default_factory=lambda: LogTail((), None))
    stale_keys: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Target:
    """The target of an Invoke: a published version of a function, which is immutable."""

    function: str
    version: str


class Invoker:
    """Makes Invokes, for any thread."""

    def __init__(self, clients: Clients, transfer: S3Transfer) -> None:
        self._clients = clients
        self._transfer = transfer

    def invoke(self, target: Target, data: bytes, reply_keys: ReplyKeys, wait_s: float) -> InvokeOutcome:
        """Send a frame and wait for the answer, at least `wait_s` seconds. AWS's errors become outcomes, not exceptions."""
        stale_keys: list[str] = []
        try:
            reply_key = reply_keys.for_result()
            call = self._call(data, reply_keys, reply_key, stale_keys)
        except GnomonError as error:
            return InvokeOutcome(OutcomeKind.REFUSED, reason=str(error), stale_keys=tuple(stale_keys))
        if call is None:
            return InvokeOutcome(OutcomeKind.TOO_LARGE, reason=f"a batch of {len(data)} bytes")
        outcome = replace(self._send(target, call.payload(), reply_key, wait_s, stale_keys), stale_keys=tuple(stale_keys))
        if reply_key is not None and _is_key_unused(reply_key, outcome):
            reply_keys.give_back(reply_key)
        return outcome

    def reachable(self, target: Target) -> bool:
        """True if Lambda would take an Invoke. It checks the function and the permission and runs nothing."""
        try:
            self._clients.invoking(PROBE_S).invoke(
                FunctionName=target.function, Qualifier=target.version, InvocationType="DryRun", Payload=b"{}"
            )
        except (exceptions.ClientError, exceptions.BotoCoreError) as error:
            # Throttled: Lambda looks the function up before it counts the Invoke, so the function exists.
            return _classify(error)[0] is OutcomeKind.THROTTLED and not isinstance(error, exceptions.ConnectionError)
        return True

    def _call(self, data: bytes, reply_keys: ReplyKeys, reply_key: ReplyKey | None, stale_keys: list[str]) -> Call | None:
        reply_to = reply_key.address if reply_key is not None else None
        if len(data) <= INLINE_BYTES:
            return Call(frame=data, reply_to=reply_to)
        key = reply_keys.for_batch()
        if key is None:
            return None
        stale_keys.append(key)
        return Call(source=self._transfer.give(key, data), reply_to=reply_to)

    def _send(
        self, target: Target, payload: bytes, reply_key: ReplyKey | None, wait_s: float, stale_keys: list[str]
    ) -> InvokeOutcome:
        try:
            answer = self._clients.invoking(wait_s).invoke(
                FunctionName=target.function, Qualifier=target.version, LogType="Tail", Payload=payload
            )
            document = answer["Payload"].read()
        except Exception as error:  # noqa: BLE001 - whatever boto3 or urllib3 raises is told apart below
            kind, reason = _classify(error)
            return InvokeOutcome(kind, reason=reason)
        tail = read_tail(answer.get("LogResult"))
        if "FunctionError" in answer:
            return _function_error(document, tail)
        return self._outcome(document, tail, reply_key, stale_keys)

    def _outcome(self, document: bytes, tail: LogTail, reply_key: ReplyKey | None, stale_keys: list[str]) -> InvokeOutcome:
        try:
            reply = Reply.from_json(json.loads(document))
            if reply.too_large is not None:
                return InvokeOutcome(OutcomeKind.TOO_LARGE, reason=f"a result of {reply.too_large} bytes", tail=tail)
            if reply.stored_bytes is None:
                frames = reply.frames or b""
            elif reply_key is None:
                return InvokeOutcome(OutcomeKind.LOST, reason="its answer was put somewhere, and nowhere was named", tail=tail)
            else:
                stale_keys.append(reply_key.key)
                frames = self._transfer.take(reply_key.key, reply.stored_bytes)
        except (EnvelopeError, ValueError, GnomonError) as error:
            return InvokeOutcome(OutcomeKind.LOST, reason=f"its answer cannot be read: {error}", tail=tail)
        return InvokeOutcome(OutcomeKind.ANSWERED, frames, tail=tail)


def _is_key_unused(reply_key: ReplyKey, outcome: InvokeOutcome) -> bool:
    """True if this Invoke never stores a result there: it was not started, or its result came back inside the answer."""
    return outcome.kind is OutcomeKind.THROTTLED or (
        outcome.kind is OutcomeKind.ANSWERED and reply_key.key not in outcome.stale_keys
    )


def _function_error(document: bytes, tail: LogTail) -> InvokeOutcome:
    try:
        error = json.loads(document)
        kind, text = str(error.get("errorType", "")), str(error.get("errorMessage", ""))
    except (ValueError, AttributeError):
        kind, text = "", document[:200].decode(errors="replace")
    kind = OutcomeKind.REFUSED if kind in INIT_ERRORS else OutcomeKind.LOST
    return InvokeOutcome(kind, reason=f"{kind}: {text}" if kind else text, tail=tail)


def _classify(error: Exception) -> tuple[OutcomeKind, str]:
    """Classify an exception of an Invoke: its outcome and a message."""
    if isinstance(error, exceptions.ClientError):
        code, status = error_code(error), http_status(error)
        if code in RETRYABLE_ERRORS or status == 429:  # noqa: PLR2004 - too many requests
            return OutcomeKind.THROTTLED, f"{code}: {error}"
        kind = OutcomeKind.REFUSED if status in _CLIENT_ERRORS else OutcomeKind.LOST
        return kind, _message(error) if kind is OutcomeKind.REFUSED else f"{code}: {error}"
    # ConnectTimeoutError is a ConnectionError and was not connected; ConnectionClosedError was.
    connecting = (exceptions.EndpointConnectionError, exceptions.ConnectTimeoutError, exceptions.ProxyConnectionError)
    if isinstance(error, connecting):
        return OutcomeKind.THROTTLED, f"Lambda cannot be reached: {error}"
    if isinstance(error, (exceptions.NoCredentialsError, exceptions.CredentialRetrievalError, exceptions.NoRegionError)):
        return OutcomeKind.REFUSED, _message(error)
    return OutcomeKind.LOST, f"{type(error).__name__}: {error}"


def _message(error: Any) -> str:
    """The message for users about an error."""
    try:
        with aws_errors("invoke functions"):
            raise error
    except GnomonError as refusal:
        return str(refusal)

r"""What Lambda says of an Invoke in the last 4 KB of its log, which come back with the answer (LogType=Tail).

    START RequestId: 8f50… Version: 3
    what the function wrote
    END RequestId: 8f50…
    REPORT RequestId: 8f50…\tDuration: 12.34 ms\tBilled Duration: 13 ms\tMemory Size: 1769 MB\tMax Memory Used: 180 MB\t

A function whose log is JSON has `platform.report` instead, with the same numbers.

What CloudWatch has counted of a function: a second opinion on what answers said, minutes later.

It also counts what no answer told of: Invokes that were given up here and ran on, throttles, errors.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from gnomon_platforms.aws_lambda.errors import told

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
_OF_THE_PLATFORM = re.compile(r"(START|END|REPORT) RequestId: |INIT_START |XRAY TraceId: |INIT_REPORT ")


@dataclass(frozen=True, slots=True)
class Report:
    """What an Invoke took and used. `init_ms` is 0 where a sandbox was there already."""

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
        if found is None and line.strip() and not _is_of_the_platform(line):
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


def _is_of_the_platform(line: str) -> bool:
    return bool(_OF_THE_PLATFORM.match(line)) or str(_json(line).get("type", "")).startswith("platform.")


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
class Counted:
    """Sums over a span of time; `duration_s` is that of all Invokes together."""

    invocations: int
    errors: int
    throttles: int
    duration_s: float


def counted(client: Any, function: str, begin: datetime, end: datetime) -> Counted:
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
    with told("read metrics"):
        pages = client.get_paginator("get_metric_data").paginate(MetricDataQueries=queries, StartTime=begin, EndTime=end)
        for page in pages:
            for result in page["MetricDataResults"]:
                sums[result["Id"]] += sum(result["Values"])
    return Counted(int(sums["invocations"]), int(sums["errors"]), int(sums["throttles"]), sums["duration"] / 1000)

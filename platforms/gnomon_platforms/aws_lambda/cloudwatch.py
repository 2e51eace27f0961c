"""What CloudWatch has counted of a function: a second opinion on what answers said, minutes later.

It also counts what no answer told of: Invokes that were given up here and ran on, throttles, errors.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from gnomon_platforms.aws_lambda.errors import told

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

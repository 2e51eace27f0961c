"""What a function's requests did, counted in plain Python: a few hundred nanoseconds a request.

A Prometheus collector reads it when it is scraped; nothing is labelled, locked or formatted before that.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
"""The upper bounds of prometheus_client's default histogram."""


@dataclass(slots=True)
class CodeMetrics:
    """The answers with one status code. `buckets` are counts per bucket, not cumulative; the last is for everything longer."""

    count: int
    sum_s: float
    buckets: list[int]


class FunctionMetrics:
    """The counters of one function.

    `started` counts requests received, `left` those whose client went away before an answer. `by_code` holds count and durations
    of the answers by status code, the function's and ours alike.
    """

    __slots__ = ("by_code", "left", "started")

    def __init__(self) -> None:
        self.started = 0
        self.left = 0
        self.by_code: dict[int, CodeMetrics] = {}

    def answered(self, code: int, duration_s: float) -> None:
        """An answer has been written."""
        metrics = self.by_code.get(code)
        if metrics is None:
            metrics = self.by_code[code] = CodeMetrics(0, 0.0, [0] * (len(BUCKETS_S) + 1))
        metrics.count += 1
        metrics.sum_s += duration_s
        metrics.buckets[bisect_left(BUCKETS_S, duration_s)] += 1

    @property
    def invocations(self) -> int:
        """How many requests have been answered."""
        return sum(metrics.count for metrics in self.by_code.values())

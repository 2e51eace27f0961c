"""What a function's requests did, counted in plain Python: a few hundred nanoseconds a request.

A Prometheus collector reads it when it is scraped; nothing is labelled, locked or formatted before that.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

from gnomon_core.errors import GnomonError
from gnomon_gateway.histogram import Histogram
from gnomon_gateway.queueing.batch import Batch
from gnomon_gateway.serving.pair_metrics import PairMetrics

BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
"""The upper bounds of prometheus_client's default histogram."""
BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
MOST_CODES = 20
"""Status codes of a function that are told apart: one could answer with any number of them, and each costs the page 17 lines."""
QUEUE_BOUNDS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


@dataclass(slots=True)
class CodeMetrics:
    """The answers with one status code. `buckets` are counts per bucket, not cumulative; the last is for everything longer."""

    count: int
    sum_s: float
    buckets: list[int]


class FunctionMetrics:
    """The counters of one function.

    `started` counts requests received, `left` those whose client went away before an answer. `by_code` holds count and durations
    of the answers by status code, the function's and ours alike; `rejections` counts ours by the error's code.
    `batch_sizes` are samples of the batches that were sent, `queue_s` how long their members had waited; `pairs` is what Shadows
    did of them.
    """

    __slots__ = ("batch_sizes", "by_code", "left", "pairs", "queue_s", "rejections", "started")

    def __init__(self) -> None:
        self.started = 0
        self.left = 0
        self.by_code: dict[int, CodeMetrics] = {}
        self.rejections: dict[str, int] = {}
        self.batch_sizes = Histogram(BATCH_SIZES)
        self.queue_s = Histogram(QUEUE_BOUNDS_S)
        self.pairs = PairMetrics()

    def sent(self, batch: Batch) -> None:
        """A batch is on its way to an instance."""
        self.batch_sizes.observe(batch.size)
        for request in batch.requests:
            self.queue_s.observe(batch.sent_s - request.arrived_s)

    def refused(self, error: GnomonError, duration_s: float) -> None:
        """The platform has answered in the function's place."""
        self.rejections[error.code] = self.rejections.get(error.code, 0) + 1
        self.answered(error.status, duration_s)

    def answered(self, code: int, duration_s: float) -> None:
        """An answer has been written. Beyond `MOST_CODES`, a new code counts as the first of its class: 418 as 400."""
        metrics = self.by_code.get(code)
        if metrics is None and len(self.by_code) >= MOST_CODES:
            code = code // 100 * 100
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

"""What a function's requests did, counted in plain Python: a few hundred nanoseconds a request.

A Prometheus collector reads it when it is scraped; nothing is labelled, locked or formatted before that.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

from gnomon_core.errors import GnomonError
from gnomon_core.wire import read_shadow_share
from gnomon_gateway.histogram import Histogram
from gnomon_gateway.queueing.batch import Batch

BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
"""The upper bounds of prometheus_client's default histogram."""
BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
QUEUE_BOUNDS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


@dataclass(slots=True)
class CodeMetrics:
    """The answers with one status code. `buckets` are counts per bucket, not cumulative; the last is for everything longer."""

    count: int
    sum_s: float
    buckets: list[int]


RATIO_BOUNDS = (0.5, 0.75, 0.9, 0.95, 1.05, 1.1, 1.25, 1.5, 2.0, 3.0)


class PairMetrics:
    """What Bodies did together with their Shadows.

    `batches` were sent to a Body with a Shadow; of their samples `offloaded` were computed by it; `misses` are the runs in which
    it was too late and the Body recomputed its share. `predicted_s` and `measured_s` are sums over the same batches, `ratios` the
    histogram of measured by predicted.
    """

    __slots__ = ("batches", "measured_s", "misses", "offloaded", "predicted_s", "ratios")

    def __init__(self) -> None:
        self.batches = 0
        self.offloaded = 0
        self.misses = 0
        self.predicted_s = 0.0
        self.measured_s = 0.0
        self.ratios = Histogram(RATIO_BOUNDS)

    def done(self, batch: Batch, shadow: int, now_s: float) -> None:
        """A batch of a pair has its result, which says what the Shadow did of it."""
        samples, misses = read_shadow_share(shadow)
        self.batches += 1
        # The Body runs a user's model: it may claim anything.
        self.offloaded += min(samples, batch.size)
        self.misses += misses
        predicted_s = batch.expected_end_s - batch.sent_s
        if predicted_s > 0:
            self.predicted_s += predicted_s
            self.measured_s += now_s - batch.sent_s
            self.ratios.observe((now_s - batch.sent_s) / predicted_s)


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

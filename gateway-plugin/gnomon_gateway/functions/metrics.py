"""Request metrics of a function, counted in plain Python: a few hundred nanoseconds a request.

A Prometheus collector reads them at a scrape; nothing is labelled, locked or formatted before that. A histogram is a list of
counts, for code that must not wait for labels or locks.

Metrics of pairs are counted from the Bodies' own reports. The head of a result that a pair computed has a list under "pair": an
entry for each hand-over, with the number of samples, how it ended (`outcome`) and its times. A Body runs a user's model, so its
report is not trusted: no more samples than the batch had, only known outcomes, only finite times.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gnomon_core.errors import GnomonError
from gnomon_core.wire import Frame, WireError
from gnomon_gateway.queueing.request import Batch


class Histogram:
    """Counts by upper bound. `counts` are per bucket, not cumulative; the last is for everything above the last bound."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


ANSWERED = "answered"
OUTCOMES = (ANSWERED, "late", "hurried", "failed", "refused", "nonsense", "full", "gone")
"""The outcomes of a hand-over. After all but the first, the Body has computed the Shadow's samples itself."""
RATIO_BOUNDS = (0.5, 0.75, 0.9, 0.95, 1.05, 1.1, 1.25, 1.5, 2.0, 3.0)
_LONGEST_MS = 1e9
_MOST_HEAD_BYTES = 1 << 16
"""A hand-over takes some 150 bytes. A longer list is not parsed, because it would block the event loop."""


class PairMetrics:
    """The counters of one function's pairs.

    `batches` were sent to a Body with a Shadow, which computed `offloaded` of their samples. `hand_overs` counts hand-overs by
    outcome, `waited_s` the time that Bodies waited. `predicted_s` and `measured_s` are the summed latencies of the
    same batches, and `ratios` the histogram of measured by predicted latency.
    """

    __slots__ = ("batches", "hand_overs", "measured_s", "offloaded", "predicted_s", "ratios", "waited_s")

    def __init__(self) -> None:
        self.batches = 0
        self.offloaded = 0
        self.hand_overs = dict.fromkeys(OUTCOMES, 0)
        self.waited_s = 0.0
        self.predicted_s = 0.0
        self.measured_s = 0.0
        self.ratios = Histogram(RATIO_BOUNDS)

    @property
    def misses(self) -> int:
        """Hand-overs that a Shadow did not answer as it should have."""
        return sum(self.hand_overs.values()) - self.hand_overs[ANSWERED]

    def done(self, batch: Batch, result: Frame, now_s: float) -> None:
        """Count the result of a pair's batch."""
        self.batches += 1
        offloaded: dict[str, int] = {}
        """By Shadow: of its hand-overs in this batch, one for each run, the largest."""
        for one in _hand_overs(result):
            outcome, samples, waited_ms = str(one.get("outcome")), one.get("samples"), one.get("waited_ms")
            if outcome not in self.hand_overs or type(samples) is not int:
                continue
            self.hand_overs[outcome] += 1
            if outcome == ANSWERED:
                shadow = str(one.get("shadow"))
                offloaded[shadow] = max(offloaded.get(shadow, 0), samples)
            if isinstance(waited_ms, int | float) and 0 <= waited_ms < _LONGEST_MS:
                self.waited_s += waited_ms / 1e3
        self.offloaded += max(0, min(sum(offloaded.values()), batch.size))
        predicted_s, measured_s = batch.expected_end_s - batch.sent_s, now_s - batch.sent_s
        if predicted_s > 0:
            self.predicted_s += predicted_s
            self.measured_s += measured_s
            self.ratios.observe(measured_s / predicted_s)


def _hand_overs(result: Frame) -> list[Mapping[str, Any]]:
    if len(result.head) > _MOST_HEAD_BYTES:
        return []
    try:
        found = result.head_json().get("pair")
    except (WireError, RecursionError):
        return []
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
"""The upper bounds of prometheus_client's default histogram."""
BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
MOST_CODES = 20
"""The most status codes of a function that are counted separately: each costs 17 lines of the metrics page."""
QUEUE_BOUNDS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


@dataclass(slots=True)
class CodeMetrics:
    """The answers with one status code. `buckets` are counts per bucket, not cumulative; the last is for everything longer."""

    count: int
    sum_s: float
    buckets: list[int]


class FunctionMetrics:
    """The counters of one function.

    `started` counts received requests, `left` those whose client disconnected before the answer. `by_code` holds count and
    durations of the answers by status code, the function's and the gateway's alike; `rejections` counts the gateway's by error
    code. `batch_sizes` are the samples of the batches sent, `queue_s` the waiting times of their members; `pairs` are the
    counters of batches with Shadows.
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
        """Count a batch that is sent to an instance."""
        self.batch_sizes.observe(batch.size)
        for request in batch.requests:
            self.queue_s.observe(batch.sent_s - request.arrived_s)

    def refused(self, error: GnomonError, duration_s: float) -> None:
        """Count an error with which the platform answered instead of the function."""
        self.rejections[error.code] = self.rejections.get(error.code, 0) + 1
        self.answered(error.status, duration_s)

    def answered(self, code: int, duration_s: float) -> None:
        """Count an answer that was written. Beyond `MOST_CODES`, a new code counts as the first of its class: 418 as 400."""
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
        """The number of answered requests."""
        return sum(metrics.count for metrics in self.by_code.values())

"""What Bodies did together with their Shadows, counted from what they say of it.

The head of a result that a pair computed has a list under "pair": an entry for each hand-over, with the number of samples, how it
ended (`outcome`) and its times. A Body runs a user's model, so nothing of that is believed beyond what it may be: no more samples
than the batch had, no outcomes that there are not, no times but finite ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gnomon_core.wire import Frame, WireError
from gnomon_gateway.histogram import Histogram
from gnomon_gateway.queueing.batch import Batch

ANSWERED = "answered"
OUTCOMES = (ANSWERED, "late", "hurried", "failed", "refused", "nonsense", "full", "gone")
"""How a hand-over ends. Of all but the first the Body has computed the Shadow's samples itself."""
RATIO_BOUNDS = (0.5, 0.75, 0.9, 0.95, 1.05, 1.1, 1.25, 1.5, 2.0, 3.0)
_LONGEST_MS = 1e9
_MOST_HEAD_BYTES = 1 << 16
"""A hand-over takes some 150 bytes. What is longer is not read: it would keep the event loop."""


class PairMetrics:
    """The counters of one function's pairs.

    `batches` were sent to a Body with a Shadow; of their samples `offloaded` were computed by it. `hand_overs` counts runs by how
    they ended, `waited_s` is what Bodies waited in them. `predicted_s` and `measured_s` are latencies of the same batches,
    summed, and `ratios` the histogram of measured by predicted.
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
        """A batch of a pair has its result."""
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

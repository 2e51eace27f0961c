"""`immediate`: what waits leaves as soon as an instance is idle.

No instance idles while a request waits. Batches form by themselves while all instances are busy, as large as the load makes them
and no larger than is worth it: where a larger batch answers no more samples a second, it only makes all of them wait longer.

Example, EfficientNet-Lite0 on one core: batches of 1, 2, 4 and 8 take 19, 35, 77 and 164 ms, that is 52, 58, 52 and 49 samples a
second. Eight that wait are answered by 138 ms in four batches of 2, the first of them after 35, and by 164 in one.
"""

from __future__ import annotations

from collections.abc import Sequence

from gnomon_core.scheduling import Dispatch, FleetView, QueueView, ScheduleAction, Slot
from gnomon_core.seams import LatencyModel
from gnomon_gateway.scheduling.filling import fill

NEAR = 0.95
"""Of the highest rate: a size that comes so near to it is as good, and the largest of those is taken. Means of what was measured
differ by some percent from one size to the next; and a size that was never tried is thought to be as good as its neighbours."""
SHORT_S = 0.005
"""What is said of shorter batches is mostly what surrounds them, and each batch has its own price for the gateway."""


class Immediate:
    """Work-conserving, smallest instance first."""

    name = "immediate"

    def next(self, queue: QueueView, fleet: FleetView, latency: LatencyModel, now_s: float) -> Sequence[ScheduleAction]:
        del now_s
        if not fleet.idle or not queue.samples:
            return ()
        slot = fleet.idle[0]
        most = worthwhile(min(queue.samples, slot.max_batch), queue.variant, slot, latency)
        return (Dispatch(slot.instance_id, fill(queue.requests, most)),)


def worthwhile(most: int, variant: str, slot: Slot, latency: LatencyModel) -> int:
    """The largest batch up to `most` that answers about as many samples a second as the best one does."""
    whole_s = latency.seconds(variant, slot.size, most, slot.pair) if most > 1 else None
    if whole_s is None or whole_s < SHORT_S:
        return most
    rates = [_rate(size, latency.seconds(variant, slot.size, size, slot.pair)) for size in range(1, most + 1)]
    enough = NEAR * max(rates)
    return max(size for size, rate in enumerate(rates, start=1) if rate >= enough)


def _rate(size: int, seconds: float | None) -> float:
    return size / seconds if seconds else 0.0

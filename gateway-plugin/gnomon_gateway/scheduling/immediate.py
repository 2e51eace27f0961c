"""`immediate`: what waits leaves as soon as an instance is idle.

No instance idles while a request waits. Batches form by themselves while all instances are busy, as large as the load makes them
and no larger than is worth it: where a larger batch answers no more samples a second, it only makes all of them wait longer.
Several idle instances share what waits where that answers it sooner.

Example, EfficientNet-Lite0 on one core: batches of 1, 2, 4 and 8 take 19, 35, 77 and 164 ms, that is 52, 58, 52 and 49 samples a
second. Eight that wait are answered by 138 ms in four batches of 2, the first of them after 35, and by 164 in one.
"""

from __future__ import annotations

from collections.abc import Sequence

from gnomon_core.scheduling import Dispatch, FleetView, QueueView, ScheduleAction
from gnomon_core.seams import LatencyModel
from gnomon_gateway.scheduling.filling import batch_size, fill


class Immediate:
    """Work-conserving, smallest instance first."""

    name = "immediate"

    def next(self, queue: QueueView, fleet: FleetView, latency: LatencyModel, now_s: float) -> Sequence[ScheduleAction]:
        if not fleet.idle or not queue.samples:
            return ()
        slot = fleet.idle[0]
        return (Dispatch(slot.instance_id, fill(queue.requests, batch_size(queue, fleet, slot, latency, now_s))),)

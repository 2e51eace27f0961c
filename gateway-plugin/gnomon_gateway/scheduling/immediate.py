"""`immediate`: whatever waits leaves as soon as an instance is idle.

No instance idles while a request waits. Batches form by themselves while all instances are busy, as large as the load makes them.
"""

from __future__ import annotations

from collections.abc import Sequence

from gnomon_core.scheduling import Dispatch, FleetView, QueueView, ScheduleAction
from gnomon_core.seams import LatencyModel
from gnomon_gateway.scheduling.filling import fill


class Immediate:
    """Work-conserving, smallest instance first."""

    name = "immediate"

    def next(self, queue: QueueView, fleet: FleetView, latency: LatencyModel, now_s: float) -> Sequence[ScheduleAction]:
        del latency, now_s
        if not fleet.idle or not queue.samples:
            return ()
        slot = fleet.idle[0]
        return (Dispatch(slot.instance_id, fill(queue.requests, slot.max_batch)),)

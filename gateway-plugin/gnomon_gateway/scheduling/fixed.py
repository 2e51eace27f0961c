"""`fixed`: a buffer (B, T). A batch leaves when it is full or when its oldest request has waited T.

B is `gnomon/max-batch`, T is `gnomon/max-wait-ms`; an instance that takes fewer than B gets its own largest batch.
"""

from __future__ import annotations

from collections.abc import Sequence

from gnomon_core.scheduling import Dispatch, FleetView, QueueView, ScheduleAction, WaitUntil
from gnomon_core.seams import LatencyModel
from gnomon_gateway.scheduling.filling import fill, in_time


class Fixed:
    """Batches of `max_batch` samples, or of what came within `max_wait_s`."""

    name = "fixed"

    def __init__(self, max_batch: int, max_wait_s: float) -> None:
        self._max_batch = max_batch
        self._max_wait_s = max_wait_s

    def next(self, queue: QueueView, fleet: FleetView, latency: LatencyModel, now_s: float) -> Sequence[ScheduleAction]:
        if not fleet.idle or not queue.samples:
            return ()
        due_s = queue.requests[0].arrived_s + self._max_wait_s
        full = queue.samples >= self._max_batch
        # An idle instance that is full earlier than B is not kept waiting; of those that are not, the smallest sufficient one.
        slot = next((slot for slot in fleet.idle if slot.max_batch >= min(queue.samples, self._max_batch)), fleet.idle[-1])
        if full or queue.samples >= slot.max_batch or now_s >= due_s:
            most = in_time(min(slot.max_batch, self._max_batch), queue, slot, latency, now_s)
            return (Dispatch(slot.instance_id, fill(queue.requests, most)),)
        return (WaitUntil(due_s),)

"""`adaptive`: AsyFunc's Algorithm 3. A batch leaves when waiting for one more request would miss the objective.

For each idle instance, smallest first (a Body with its Shadow is one: quicker, and with a larger batch than alone), *t_s* = how
long the oldest request has waited + how long the batch takes there. The batch leaves for that instance when

    t_s ≤ SLO < t_s·(1 + n)/n        n samples wait; t_s/n stands for the time until the next request
    n has reached the largest batch of the instance, or
    the timer at SLO − t_l has come (arrivals alone would leave the last requests of a burst waiting), or
    `gnomon/max-wait-ms` is set and has passed: at low load the algorithm spends the whole objective on waiting.

Example: SLO 100 ms, 4 samples wait, the oldest for 45 ms, a batch takes 40 ms. t_s = 85 ms and 85·5/4 = 106 ms: it leaves now.
`adaptive` counts a tenth of the batch's time on top there, because what is predicted is a mean; `adaptive-paper` does not.

When no idle instance meets the objective, the largest one takes what still has a chance: `adaptive` keeps every request that can
meet its own deadline and rejects the others; `adaptive-paper` measures by the SLO, takes the latest requests and drops the
earlier ones. While no instance is idle it waits; while nothing is known about latency it sends at once, because that is how one
learns.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import islice

from gnomon_core.pairs import Pair
from gnomon_core.scheduling import Dispatch, FleetView, QueueView, Reject, ScheduleAction, Slot, Waiting, WaitUntil
from gnomon_core.seams import LatencyModel
from gnomon_gateway.scheduling.filling import fill

TIMER_SLACK_S = 0.002
"""The timer is set this much early: event loops wake a millisecond or so late, and late here means the objective is missed."""


class Adaptive:
    """Algorithm 3; rejection by the requests' own deadlines. `max_wait_s` bounds a wait that the objective would allow."""

    name = "adaptive"
    spare = 0.1
    """Of a batch's predicted time, left over when deciding how long to wait. A prediction is a mean: without it every second
    batch that the timer sends would be late."""

    def __init__(self, slo_s: float, max_wait_s: float | None = None) -> None:
        self._slo_s = slo_s
        self._max_wait_s = math.inf if max_wait_s is None else max_wait_s

    def next(self, queue: QueueView, fleet: FleetView, latency: LatencyModel, now_s: float) -> Sequence[ScheduleAction]:
        if not fleet.idle or not queue.samples:
            return ()
        oldest_s = queue.requests[0].arrived_s
        wake_s = float("inf")
        before: tuple[int, int, Pair | None] | None = None
        for slot in fleet.idle:
            size = (slot.max_batch, slot.size, slot.pair)
            if size == before:
                continue  # what was found for its equal holds for it as well
            before = size
            batch_s = latency.seconds(queue.variant, slot.size, min(queue.samples, slot.max_batch), slot.pair)
            if batch_s is None:
                return (Dispatch(slot.instance_id, fill(queue.requests, slot.max_batch)),)
            stay_s = now_s - oldest_s + batch_s
            if stay_s > self._slo_s:
                continue
            spare_s = self.spare * batch_s
            due_s = oldest_s + min(self._slo_s - batch_s - spare_s - TIMER_SLACK_S, self._max_wait_s)
            one_more_s = (stay_s + spare_s) * (1 + queue.samples) / queue.samples
            if one_more_s > self._slo_s or queue.samples >= slot.max_batch or now_s >= due_s:
                return (Dispatch(slot.instance_id, fill(queue.requests, slot.max_batch)),)
            wake_s = min(wake_s, due_s)
        if wake_s < float("inf"):
            return (WaitUntil(wake_s),)
        return self._rescue(queue, fleet.idle[-1], latency, now_s)

    def _rescue(self, queue: QueueView, slot: Slot, latency: LatencyModel, now_s: float) -> Sequence[ScheduleAction]:
        """The objective is missed everywhere: send what meets its deadline, oldest first, and give up what cannot even alone."""
        kept: list[Waiting] = []
        hopeless: list[Waiting] = []
        samples, earliest_s = 0, float("inf")
        for request in islice(queue.requests, 2 * slot.max_batch):
            size = samples + request.size
            if now_s + _seconds(latency, queue, slot, request.size) > request.deadline_s:
                hopeless.append(request)
                continue
            if kept and size > slot.max_batch:
                break
            if kept and now_s + _seconds(latency, queue, slot, size) > min(earliest_s, request.deadline_s):
                break
            kept.append(request)
            samples, earliest_s = size, min(earliest_s, request.deadline_s)
        actions: list[ScheduleAction] = []
        if hopeless:
            actions.append(Reject(tuple(hopeless), "Executing the request takes longer than its deadline leaves."))
        if kept:
            actions.append(Dispatch(slot.instance_id, tuple(kept)))
        return actions


class AdaptivePaper(Adaptive):
    """Algorithm 3 as printed: the latest requests that can meet the SLO leave, the earlier ones are dropped."""

    name = "adaptive-paper"
    spare = 0.0

    def _rescue(self, queue: QueueView, slot: Slot, latency: LatencyModel, now_s: float) -> Sequence[ScheduleAction]:
        kept: list[Waiting] = []
        samples = 0
        for request in reversed(queue.requests):
            size = samples + request.size
            late = now_s - request.arrived_s + _seconds(latency, queue, slot, size) > self._slo_s
            if late or (kept and size > slot.max_batch):
                break
            kept.append(request)
            samples = size
        kept.reverse()
        dropped = tuple(islice(queue.requests, len(queue.requests) - len(kept)))
        actions: list[ScheduleAction] = []
        if dropped:
            actions.append(Reject(dropped, "The request cannot be answered within the latency objective (gnomon/slo-ms)."))
        if kept:
            actions.append(Dispatch(slot.instance_id, tuple(kept)))
        return actions


def _seconds(latency: LatencyModel, queue: QueueView, slot: Slot, samples: int) -> float:
    return latency.seconds(queue.variant, slot.size, samples, slot.pair) or 0.0

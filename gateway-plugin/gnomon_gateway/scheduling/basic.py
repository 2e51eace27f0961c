"""The policies `fixed` and `immediate`, and the batch size that all policies share.

`fixed`: a buffer (B, T). A batch leaves when it is full or when its oldest request has waited T. B is `gnomon/max-batch`, T is
`gnomon/max-wait-ms`; an instance whose largest batch is below B gets that.

`immediate`: waiting requests leave as soon as an instance is idle. Batches form while all instances are busy, as large as the
load makes them, but no larger than pays off: where a larger batch answers no more samples a second, it only delays all of them.
Several idle instances share the waiting requests if that answers them sooner.

Example, EfficientNet-Lite0 on one core: batches of 1, 2, 4 and 8 take 19, 35, 77 and 164 ms, that is 52, 58, 52 and 49 samples a
second. Eight that wait are answered by 138 ms in four batches of 2, the first of them after 35, and by 164 in one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gnomon_core.interfaces import LatencyModel
from gnomon_core.scheduling import Dispatch, FleetView, QueueView, ScheduleAction, Slot, Waiting, WaitUntil

NEAR = 0.95
"""Share of the highest rate from which a size counts as equally good; the largest of these is taken. Measured means differ by
some percent from one size to the next, and a size that was never measured is assumed to be as good as its neighbours."""
SHORT_S = 0.005
"""Below this time sizes are not compared: measured latency is mostly overhead, and each batch costs the gateway time."""


def fill(requests: Iterable[Waiting], max_batch: int) -> tuple[Waiting, ...]:
    """The first requests that fit into `max_batch` samples together.

    Order is kept: a small request does not overtake a large one. The first always goes, so that a request which became larger
    than the largest batch while it waited (an operator lowered the bound) is not stuck for ever.
    """
    taken: list[Waiting] = []
    samples = 0
    for request in requests:
        samples += request.size
        if taken and samples > max_batch:
            break
        taken.append(request)
        if samples >= max_batch:
            break
    return tuple(taken)


def batch_size(queue: QueueView, fleet: FleetView, slot: Slot, latency: LatencyModel, now_s: float) -> int:
    """The number of waiting samples that this idle instance should take now.

    The largest size with about the best rate; fewer if other idle instances answer the rest sooner; and no more than meet the
    deadline of the first request, which is the earliest.
    """
    most = worthwhile(min(queue.samples, slot.max_batch), queue.variant, slot, latency)
    if most <= 1:
        return most
    return in_time(shared(most, queue, fleet, slot, latency), queue, slot, latency, now_s)


def worthwhile(most: int, variant: str, slot: Slot, latency: LatencyModel) -> int:
    """The largest batch up to `most` that answers about as many samples a second as the best one does."""
    whole_s = latency.seconds(variant, slot.size, most, slot.pair) if most > 1 else None
    if whole_s is None or whole_s < SHORT_S:
        return most
    rates = [_rate(size, latency.seconds(variant, slot.size, size, slot.pair)) for size in range(1, most + 1)]
    enough = NEAR * max(rates)
    return max(size for size, rate in enumerate(rates, start=1) if rate >= enough)


def shared(most: int, queue: QueueView, fleet: FleetView, slot: Slot, latency: LatencyModel) -> int:
    """The largest batch up to `most` that takes about as long as this instance's share if every idle one took as many.

    Example: eight samples, eight idle instances. In 160 ms for one and 1.28 s for eight each takes one; in 160 ms for one and
    165 ms for eight, the first takes them all and the others stay idle for what comes next.
    """
    share = -(-queue.samples // (fleet.room or len(fleet.idle)))
    if share >= most:
        return most
    share_s, whole_s = (latency.seconds(queue.variant, slot.size, size, slot.pair) for size in (share, most))
    if share_s is None or whole_s is None or whole_s < SHORT_S:
        return most
    while most > share and (latency.seconds(queue.variant, slot.size, most, slot.pair) or 0.0) * NEAR > share_s:
        most -= 1
    return most


def in_time(most: int, queue: QueueView, slot: Slot, latency: LatencyModel, now_s: float) -> int:
    """The largest batch up to `most` that is over by the deadline of the first request; `most` where not even one sample is."""
    left_s = queue.requests[0].deadline_s - now_s
    for size in range(most, 0, -1):
        if (latency.seconds(queue.variant, slot.size, size, slot.pair) or 0.0) <= left_s:
            return size
    return most


def _rate(size: int, seconds: float | None) -> float:
    return size / seconds if seconds else 0.0


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


class Immediate:
    """Work-conserving, smallest instance first."""

    name = "immediate"

    def next(self, queue: QueueView, fleet: FleetView, latency: LatencyModel, now_s: float) -> Sequence[ScheduleAction]:
        if not fleet.idle or not queue.samples:
            return ()
        slot = fleet.idle[0]
        return (Dispatch(slot.instance_id, fill(queue.requests, batch_size(queue, fleet, slot, latency, now_s))),)

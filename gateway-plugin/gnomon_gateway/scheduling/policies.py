"""The built-in scheduling policies: `fixed`, `immediate`, `adaptive` and its variants. All make batches by `batch_size`.

`fixed`: a buffer (B, T). A batch leaves when it is full or when its oldest request has waited T. B is `gnomon/max-batch`, T is
`gnomon/max-wait-ms`; an instance whose largest batch is below B gets that.

`immediate`: waiting requests leave as soon as an instance is idle. Batches form while all instances are busy, as large as the
load makes them, but no larger than pays off: where a larger batch answers no more samples a second, it only delays all of them.
Several idle instances share the waiting requests if that answers them sooner.

Example, EfficientNet-Lite0 on one core: batches of 1, 2, 4 and 8 take 19, 35, 77 and 164 ms, that is 52, 58, 52 and 49 samples a
second. Eight that wait are answered by 138 ms in four batches of 2, the first of them after 35, and by 164 in one.

`adaptive`: a batch leaves as soon as an instance is idle, unless waiting for further requests lowers the total latency.

**Which instance.** The smallest idle one (a Body with its Shadow is one: quicker, and with a larger batch than alone) on
which the request that has waited longest meets the objective, as in AsyFunc's Algorithm 3. If none meets it, the largest
instance takes the requests whose deadlines it meets, and those that it cannot answer even alone are rejected.

**When.** While another instance is idle too, the next request has an instance of its own: no request waits. For the last idle
instance, n samples wait for one more if that lowers the sum of all latencies. The next request is expected after a gap of g, and
an instance would be idle again after f, when this batch or another ends:

    n · (g + t(n + 1) − t(n))  <  max(0, f − g) + t(1) − t(n + 1)
    loss of the waiting samples   gain of the next request

Example: any batch takes 160 ms. At 20 requests/s, g is 50 ms: one sample loses 50 ms by waiting and the next request gains 110,
two lose 100, three lose 150: they leave. At 2 requests/s waiting gains nothing, nor does it if a batch of n takes n times as long
as one sample.

**How long.** At most half of the batch's execution time, or `gnomon/max-wait-ms` if set, and never so long that the batch would
miss the objective, with a margin of a tenth of its time, because predictions are means. Even if the rate is misjudged, a single
request is answered within 1.5 times its execution time.

`adaptive-paper` is Algorithm 3 as printed, which spends the whole objective on waiting. For each idle instance, smallest first,
*t_s* = how long the oldest request has waited + how long the batch takes there, and the batch leaves for that instance when

    t_s ≤ SLO < t_s·(1 + n)/n        n samples wait; t_s/n stands for the time until the next request
    n has reached the largest batch of the instance, or
    the timer at SLO − t_l has come (arrivals alone would leave the last requests of a burst waiting).

Example: SLO 100 ms, 4 samples wait, the oldest for 45 ms, a batch takes 40 ms. t_s = 85 ms and 85·5/4 = 106 ms: it leaves now.
Where no idle instance meets the SLO, the largest takes the latest requests that do, and the earlier ones are dropped.

`adaptive-fill` waits as the paper does, less a tenth of the batch's time, or for `gnomon/max-wait-ms`, and rejects no request
that can still meet its deadline. It makes the fewest batches: for platforms billed by the batch, such as Lambda, and for
`batch+`, whose plans assume full batches.

All three wait while no instance is idle, and dispatch at once while the latency is unknown, because only batches measure it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from math import ceil, inf

from gnomon_core.interfaces import LatencyModel
from gnomon_core.pairs import Pair
from gnomon_core.scheduling import (
    Dispatch,
    FleetView,
    QueueView,
    Reject,
    ScheduleAction,
    Slot,
    Waiting,
    WaitUntil,
    growing_batch,
)

NEAR = 0.95
"""Share of the highest rate from which a size counts as equally good; the largest such size is taken. Measured means differ by
some percent between sizes, and a size that was never measured is assumed to be as good as its neighbours."""
SHORT_S = 0.005
"""Below this time sizes are not compared: measured latency is mostly overhead, and each batch costs the gateway time."""


def fill(requests: Iterable[Waiting], max_batch: int) -> tuple[Waiting, ...]:
    """The first requests that fit into `max_batch` samples together.

    Order is kept: a small request does not overtake a large one. The first request is always included, so that a request larger
    than the largest batch (an operator lowered the bound while it waited) is not stuck forever.
    """
    batch: list[Waiting] = []
    samples = 0
    for request in requests:
        samples += request.size
        if batch and samples > max_batch:
            break
        batch.append(request)
        if samples >= max_batch:
            break
    return tuple(batch)


def batch_size(queue: QueueView, fleet: FleetView, slot: Slot, latency: LatencyModel, now_s: float) -> int:
    """The number of waiting samples that this idle instance should take now.

    The largest size with about the best rate; fewer if other idle instances answer the remaining samples sooner; no more than
    meet the deadline of the first request.
    """
    limit = min(queue.samples, slot.max_batch)
    if limit <= 1:
        return limit
    limit = worthwhile(limit, queue.variant, slot, latency)
    return in_time(shared(limit, queue, fleet, slot, latency), queue, slot, latency, now_s)


def worthwhile(limit: int, variant: str, slot: Slot, latency: LatencyModel) -> int:
    """The largest batch up to `limit` that answers about as many samples a second as the best one does."""
    whole_s = latency.seconds(variant, slot.size, limit, slot.pair) if limit > 1 else None
    if whole_s is None or whole_s < SHORT_S:
        return limit
    rates = [_rate(size, latency.seconds(variant, slot.size, size, slot.pair)) for size in range(1, limit + 1)]
    enough = NEAR * max(rates)
    return max(size for size, rate in enumerate(rates, start=1) if rate >= enough)


def shared(limit: int, queue: QueueView, fleet: FleetView, slot: Slot, latency: LatencyModel) -> int:
    """The largest batch up to `limit` that takes about as long as this instance's equal share among the idle instances.

    Example: eight samples, eight idle instances. If one sample takes 160 ms and eight 1.28 s, each instance takes one; if eight
    take 165 ms, the first instance takes them all and the others stay idle for the next requests.
    """
    share = -(-queue.samples // (fleet.room or len(fleet.idle)))
    if share >= limit:
        return limit
    share_s, whole_s = (latency.seconds(queue.variant, slot.size, size, slot.pair) for size in (share, limit))
    if share_s is None or whole_s is None or whole_s < SHORT_S:
        return limit
    while limit > share and (latency.seconds(queue.variant, slot.size, limit, slot.pair) or 0.0) * NEAR > share_s:
        limit -= 1
    return limit


def in_time(limit: int, queue: QueueView, slot: Slot, latency: LatencyModel, now_s: float) -> int:
    """The largest batch up to `limit` that ends by the first request's deadline; `limit` if not even one sample does."""
    left_s = queue.requests[0].deadline_s - now_s
    for size in range(limit, 0, -1):
        if (latency.seconds(queue.variant, slot.size, size, slot.pair) or 0.0) <= left_s:
            return size
    return limit


def _rate(size: int, seconds: float | None) -> float:
    return size / seconds if seconds else 0.0


class Fixed:
    """A buffer: batches of `max_batch` samples, or of the requests that arrived within `max_wait_s`."""

    name = "fixed"

    def __init__(self, max_batch: int, max_wait_s: float) -> None:
        self._max_batch = max_batch
        self._max_wait_s = max_wait_s

    def next(self, queue: QueueView, fleet: FleetView, latency: LatencyModel, now_s: float) -> Sequence[ScheduleAction]:
        if not fleet.idle or not queue.samples:
            return ()
        due_s = queue.requests[0].arrived_s + self._max_wait_s
        full = queue.samples >= self._max_batch
        # The smallest idle instance whose largest batch suffices; if none does, the largest, whose batch is full before B.
        slot = next((slot for slot in fleet.idle if slot.max_batch >= min(queue.samples, self._max_batch)), fleet.idle[-1])
        if full or queue.samples >= slot.max_batch or now_s >= due_s:
            most = in_time(min(slot.max_batch, self._max_batch), queue, slot, latency, now_s)
            return (Dispatch(slot.instance_id, fill(queue.requests, most)),)
        return (WaitUntil(due_s),)


class Immediate:
    """Work-conserving dispatch to the smallest idle instance."""

    name = "immediate"

    def next(self, queue: QueueView, fleet: FleetView, latency: LatencyModel, now_s: float) -> Sequence[ScheduleAction]:
        if not fleet.idle or not queue.samples:
            return ()
        slot = fleet.idle[0]
        return (Dispatch(slot.instance_id, fill(queue.requests, batch_size(queue, fleet, slot, latency, now_s))),)


TIMER_SLACK_S = 0.002
"""The timer is set this much early: event loops wake about a millisecond late, and a late batch misses the objective."""
LONGEST_WAIT = 0.5
"""The longest wait for further requests, relative to the batch's execution time."""
MARGIN = 0.1
"""The safety margin of a wait, relative to the batch's predicted time. A prediction is a mean: without a margin every second
batch that the timer sends would miss the objective."""


class Adaptive:
    """Work-conserving except for the last idle instance. `max_wait_s` bounds the wait instead of half of a batch's time."""

    name = "adaptive"

    def __init__(self, slo_s: float, max_wait_s: float | None = None) -> None:
        self._slo_s = slo_s
        self._max_wait_s = max_wait_s

    def next(self, queue: QueueView, fleet: FleetView, latency: LatencyModel, now_s: float) -> Sequence[ScheduleAction]:
        if not fleet.idle or not queue.samples:
            return ()
        oldest_s = queue.requests[0].arrived_s
        before: tuple[int, int, Pair | None] | None = None
        for slot in fleet.idle:
            size = (slot.max_batch, slot.size, slot.pair)
            if size == before:
                continue  # an equal instance was examined already
            before = size
            batch = batch_size(queue, fleet, slot, latency, now_s)
            batch_s = latency.seconds(queue.variant, slot.size, batch, slot.pair)
            if batch_s is None or now_s - oldest_s + batch_s <= self._slo_s:
                due_s = self._due_s(queue, fleet, slot, latency, now_s)
                if due_s > now_s:
                    return (WaitUntil(due_s),)
                return (Dispatch(slot.instance_id, fill(queue.requests, batch)),)
        return _rescue(queue, fleet.idle[-1], latency, now_s)

    def _due_s(self, queue: QueueView, fleet: FleetView, slot: Slot, latency: LatencyModel, now_s: float) -> float:
        """The time until which the lane should wait for one more sample for this instance; at most `now_s` for no wait."""
        samples = queue.samples
        if (fleet.room or len(fleet.idle)) > 1 or samples >= slot.max_batch:
            return now_s
        gap_s = queue.gap_s
        one_s, batch_s, larger_s = (
            latency.seconds(queue.variant, slot.size, size, slot.pair) for size in (1, samples, samples + 1)
        )
        if one_s is None or batch_s is None or larger_s is None:
            return now_s
        # When an instance is idle again if this batch leaves now: after this batch, or after an earlier one elsewhere.
        idle_s = min(batch_s, max(0.0, fleet.free_s - now_s))
        # Every waiting sample loses the gap and the longer batch; the next one gains the time that it would wait for an instance.
        lost_s = samples * (gap_s + larger_s - batch_s)
        gained_s = max(0.0, idle_s - gap_s) + one_s - larger_s
        if lost_s >= gained_s:
            return now_s
        oldest_s = queue.requests[0].arrived_s
        longest_s = LONGEST_WAIT * batch_s if self._max_wait_s is None else self._max_wait_s
        return oldest_s + min(longest_s, self._slo_s - (1 + MARGIN) * larger_s - TIMER_SLACK_S)


CALM = 0.6
"""The share of the borrowable cores that a batch takes while no request waits. On fewer cores a batch takes longer and costs
less, because a part of the work is serial."""
PRESSED = 0.2
"""The share of the objective after which a waiting request's batch takes all borrowable cores."""


class Economical:
    """Work-conserving first-in-first-out dispatch in batches of bounded size, on no more cores than a batch needs.

    No request waits for others: `growing_batch` bounds a batch because the remaining samples go to the next idle instance.
    If an instance borrows cores for each batch (`Slot.idle_cores`), a batch takes more cores the longer its oldest request has
    waited, and as many as its deadline needs.
    Example: objective 500 ms, up to 26 cores: 16 cores without a wait, 21 after 50 ms, 26 after 100 ms and more.
    """

    name = "economical"

    def __init__(self, slo_s: float) -> None:
        self._slo_s = slo_s

    def next(self, queue: QueueView, fleet: FleetView, latency: LatencyModel, now_s: float) -> Sequence[ScheduleAction]:
        if not fleet.idle or not queue.samples:
            return ()
        slot = fleet.idle[0]
        most = min(queue.samples, slot.max_batch)
        if most > 1:

            def seconds(batch: int) -> float | None:
                return latency.seconds(queue.variant, slot.size, batch, slot.pair)

            if seconds(1) is not None:
                left_s = queue.requests[0].deadline_s - now_s
                most = min(most, growing_batch(seconds, slot.max_batch, self._slo_s, left_s))
            most = in_time(most, queue, slot, latency, now_s)
        cores = None if slot.idle_cores is None else self._cores(queue, slot, latency, most, now_s)
        return (Dispatch(slot.instance_id, fill(queue.requests, most), cores),)

    def _cores(self, queue: QueueView, slot: Slot, latency: LatencyModel, batch: int, now_s: float) -> int:
        """The number of cores by the wait of the oldest request, and more if its deadline requires them."""
        oldest = queue.requests[0]
        pressure = min(1.0, max(0.0, now_s - oldest.arrived_s) / (PRESSED * self._slo_s))
        cores, left_s = ceil((CALM + (1 - CALM) * pressure) * slot.cores - 1e-9), oldest.deadline_s - now_s
        while cores < slot.cores and (latency.seconds(queue.variant, cores, batch, slot.pair) or 0.0) > left_s:
            cores += 1
        return cores


class AdaptivePaper:
    """AsyFunc's Algorithm 3 as printed."""

    name = "adaptive-paper"
    margin = 0.0
    """Share of a batch's predicted time by which a wait ends early."""

    def __init__(self, slo_s: float, max_wait_s: float | None = None) -> None:
        self._slo_s = slo_s
        self._max_wait_s = inf if max_wait_s is None else max_wait_s

    def next(self, queue: QueueView, fleet: FleetView, latency: LatencyModel, now_s: float) -> Sequence[ScheduleAction]:
        if not fleet.idle or not queue.samples:
            return ()
        oldest_s = queue.requests[0].arrived_s
        wake_s = float("inf")
        before: tuple[int, int, Pair | None] | None = None
        for slot in fleet.idle:
            size = (slot.max_batch, slot.size, slot.pair)
            if size == before:
                continue  # an equal instance was examined already
            before = size
            batch_s = latency.seconds(queue.variant, slot.size, min(queue.samples, slot.max_batch), slot.pair)
            if batch_s is None:
                return (Dispatch(slot.instance_id, fill(queue.requests, slot.max_batch)),)
            stay_s = now_s - oldest_s + batch_s
            if stay_s > self._slo_s:
                continue
            margin_s = self.margin * batch_s
            due_s = oldest_s + min(self._slo_s - batch_s - margin_s - TIMER_SLACK_S, self._max_wait_s)
            one_more_s = (stay_s + margin_s) * (1 + queue.samples) / queue.samples
            if one_more_s > self._slo_s or queue.samples >= slot.max_batch or now_s >= due_s:
                return (Dispatch(slot.instance_id, fill(queue.requests, slot.max_batch)),)
            wake_s = min(wake_s, due_s)
        if wake_s < float("inf"):
            return (WaitUntil(wake_s),)
        return self._rescue(queue, fleet.idle[-1], latency, now_s)

    def _rescue(self, queue: QueueView, slot: Slot, latency: LatencyModel, now_s: float) -> Sequence[ScheduleAction]:
        """Dispatch the latest requests that can meet the SLO, and reject the earlier ones."""
        on_time: list[Waiting] = []
        samples = 0
        # From the newest: Algorithm 3 drops the oldest requests, so that those that can still meet the SLO do.
        for request in reversed(queue.requests):
            size = samples + request.size
            late = now_s - request.arrived_s + _seconds(latency, queue, slot, size) > self._slo_s
            if late or (on_time and size > slot.max_batch):
                break
            on_time.append(request)
            samples = size
        on_time.reverse()
        dropped = tuple(islice(queue.requests, len(queue.requests) - len(on_time)))
        actions: list[ScheduleAction] = []
        if dropped:
            actions.append(Reject(dropped, "The request cannot be answered within the latency objective (gnomon/slo-ms)."))
        if on_time:
            actions.append(Dispatch(slot.instance_id, tuple(on_time)))
        return actions


class AdaptiveFill(AdaptivePaper):
    """The wait of Algorithm 3, bounded by `max_wait_s` too; rejection by the requests' own deadlines."""

    name = "adaptive-fill"
    margin = MARGIN

    def _rescue(self, queue: QueueView, slot: Slot, latency: LatencyModel, now_s: float) -> Sequence[ScheduleAction]:
        return _rescue(queue, slot, latency, now_s)


def _rescue(queue: QueueView, slot: Slot, latency: LatencyModel, now_s: float) -> Sequence[ScheduleAction]:
    """Dispatch requests that meet their deadlines, oldest first, and reject the others, while no instance meets the objective."""
    batch: list[Waiting] = []
    late: list[Waiting] = []
    samples, earliest_s = 0, float("inf")
    # Bounded: under overload the queue is long, and this runs at each dispatch.
    for request in islice(queue.requests, 2 * slot.max_batch):
        size = samples + request.size
        if now_s + _seconds(latency, queue, slot, request.size) > request.deadline_s:
            late.append(request)
            continue
        if batch and size > slot.max_batch:
            break
        # One more sample makes the whole batch slower, so the earliest deadline in it decides.
        if batch and now_s + _seconds(latency, queue, slot, size) > min(earliest_s, request.deadline_s):
            break
        batch.append(request)
        samples, earliest_s = size, min(earliest_s, request.deadline_s)
    actions: list[ScheduleAction] = []
    if late:
        actions.append(Reject(tuple(late), "Executing the request takes longer than its deadline leaves."))
    if batch:
        actions.append(Dispatch(slot.instance_id, tuple(batch)))
    return actions


def _seconds(latency: LatencyModel, queue: QueueView, slot: Slot, samples: int) -> float:
    return latency.seconds(queue.variant, slot.size, samples, slot.pair) or 0.0

"""Admission control: accept a request, or refuse it before it costs anything, by a prediction that the dispatcher shares.

A request is refused if it would make the queue infeasible, whatever the order of dispatch. If an instance is idle and could
execute the request within its deadline, the request is admitted without a margin: otherwise a wrong prediction could refuse all
requests, and would never be corrected.

An instance that takes a batch of b samples in t(b) answers n samples, in batches of at most B, at the earliest after

    T(0) = 0,    T(n) = min { t(b) + T(n − b) },    1 ≤ b ≤ min(B, n)

and by a deadline d as many as T allows after the instance is free: cap(d) = max { n | T(n) ≤ d − free }. Instances work in
parallel, so the fleet answers Σ cap(d). A set of requests is *feasible* if for each of their deadlines no more samples are due by
then than the fleet can answer. In an infeasible set some request is late in any order of dispatch; a feasible set is answered in
time in the order of deadlines.

Example: t(b) = 20 + 10·b ms, B = 8, two instances, one idle and one free in 60 ms. By 150 ms the first answers 10 samples
(100 ms for 8, then 40 for 2), the second 7 (90 ms): 17 samples.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from heapq import heapify, heapreplace
from typing import NamedTuple, Protocol

from gnomon_core.errors import GnomonError
from gnomon_core.interfaces import LatencyModel
from gnomon_core.pairs import Pair
from gnomon_gateway.queueing.queue import FunctionQueue, Lane, Request

TIMER_SLACK_S = 0.002
"""The time by which timers are set early, because event loops wake about a millisecond late."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """The number of samples that a fleet executes in one round of batches, as large as the scheduling policy makes them.

    `samples` is the sum over all `instances`; `batch`, `size` and `pair` are those of the smallest instance.
    """

    instances: int
    samples: int
    batch: int
    size: int
    pair: Pair | None = None


class Fleet(Protocol):
    """The interface through which admission reads the instances."""

    def capacity(self) -> Capacity: ...

    def places(self, now_s: float) -> Sequence[Place]:
        """All instances except the draining ones."""
        ...

    def idle_sizes(self) -> Sequence[tuple[int, Pair | None]]:
        """Sizes and Shadows of the instances that can take a batch now."""
        ...

    def largest_idle(self) -> Place | None:
        """The largest instance that can take a batch now; None if all are busy."""
        ...


class Admission:
    """The admission control of one queue, by the prediction for one fleet."""

    __slots__ = ("_fleet", "_latency", "_prediction", "_queue")

    def __init__(self, queue: FunctionQueue, fleet: Fleet, latency: Predicted) -> None:
        self._queue = queue
        self._fleet = fleet
        self._latency = latency
        self._prediction = Prediction(fleet, latency)

    def refusal(self, request: Request, now_s: float, *, settled: bool = True) -> GnomonError | None:
        """The error if this request is refused; None if it is admitted.

        `settled` says that no waiting request can be dispatched: an idle instance is free for this request.
        """
        queue = self._queue
        if not queue.has_room(request.body_bytes):
            return self.queue_full(request)
        # The checks are in order of cost: nearly every request is admitted by one look-up of a latency.
        budget_s = request.deadline_s - now_s
        if budget_s <= 0:
            return _too_short("The deadline of the request has passed.")
        capacity = self._fleet.capacity()
        if not capacity.instances:
            # Nothing can be predicted. The request waits for the first instance, bounded by the queue's limits and its deadline.
            return None
        full_s = self._latency.seconds(request.lane.variant, capacity.size, capacity.batch, capacity.pair)
        # Rounded up: the last round may be short, but takes an instance all the same.
        rounds = -(-(queue.samples + request.size) // capacity.samples)
        if full_s is None or MAX_MARGIN * (rounds + 1) * full_s <= budget_s:
            return None  # fast path, nearly always taken: in time even if all batches were full, by a single look-up
        return self._exact_refusal(request, now_s, settled=settled)

    def _exact_refusal(self, request: Request, now_s: float, *, settled: bool) -> GnomonError | None:
        """The result of `refusal` by the exact prediction, after the fast path failed."""
        budget_s = request.deadline_s - now_s
        if settled:
            # The usual case: an idle instance meets the deadline, and the exact prediction is not needed.
            for size, pair in self._fleet.idle_sizes():
                seconds = self._latency.seconds(request.lane.variant, size, request.size, pair)
                if seconds is None or seconds <= budget_s:
                    return None
        prediction = self._prediction
        places = prediction.places(now_s)
        soonest_s = prediction.alone_s(request, places)
        if soonest_s is None:
            return None
        if soonest_s <= budget_s and prediction.admits(request, self._queue, places, now_s):
            return None
        least_s = min([self._seconds(request, place) for place in places])
        if least_s > budget_s:
            return _too_short(f"The request takes about {least_s * 1e3:.0f} ms, its deadline leaves {budget_s * 1e3:.0f} ms.")
        finish_s = max(budget_s, prediction.finish_s(request, self._queue, places))
        return GnomonError(
            503,
            "overloaded",
            f"{self._queue.requests} requests wait; this one would be answered in about {finish_s * 1e3:.0f} ms, "
            f"its deadline leaves {budget_s * 1e3:.0f} ms.",
            "Send it again later, allow it more time, or let the function have more instances (com.openfaas.scale.max).",
            retry_after_s=finish_s - budget_s,
        )

    def would_be_late(self, lane: Lane, now_s: float) -> Late | None:
        """The reason why the lane's first request would be late although an instance is idle; None if it would not be late.

        Either the request is late even in a batch of its own, on the instance that answers it first. Or it is late in a full
        batch, enough others wait to fill one, and a smaller batch for this request would make some of them late.
        """
        request = lane.head()
        left_s = request.deadline_s - now_s
        capacity = self._fleet.capacity()
        full_s = self._latency.seconds(lane.variant, capacity.size, max(capacity.batch, request.size), capacity.pair)
        if full_s is None or full_s <= left_s:
            return None
        places = self._prediction.places(now_s)
        soonest_s = self._prediction.alone_s(request, places)
        if soonest_s is None:
            return None
        if soonest_s > left_s:
            ever_s = min([self._seconds(request, place) for place in places])
            return Late.EVER if ever_s > request.deadline_s - request.arrived_s else Late.NOW
        idle = [place for place in places if place.idle]
        if lane.solo or not idle or lane.samples - request.size < sum([place.most for place in idle]):
            return None
        return None if self._stays_feasible(lane, places, idle[-1], left_s, now_s) else Late.NOW

    def _stays_feasible(self, lane: Lane, places: Sequence[Place], idle: Place, left_s: float, now_s: float) -> bool:
        """Return whether the other requests stay feasible if this instance's next batch must end within `left_s`."""
        first = lane.head()
        batch = largest_within(self._latency, lane.variant, idle, left_s)
        if batch < first.size:
            return False
        if batch >= idle.most:
            return True  # without this request the batch would be no larger
        seconds = self._latency.seconds(lane.variant, idle.size, batch, idle.pair) or 0.0
        after = [place for place in places if place is not idle]
        after.append(idle._replace(free_in_s=seconds, idle=False))
        return self._all_in_time(lane, after, now_s, skip=batch)

    def sort_if_late(self, lane: Lane, now_s: float) -> None:
        """Keep the lane in order of arrival; sort it by deadline if some requests would be late otherwise."""
        if lane.overtaken and not self._all_in_time(lane, self._prediction.places(now_s), now_s):
            lane.sort_by_deadline()

    def _all_in_time(self, lane: Lane, places: Sequence[Place], now_s: float, *, skip: int = 0) -> bool:
        ends = self._prediction.predicted_ends_s(lane, places, skip=skip)
        return all(now_s + end_s <= request.deadline_s for request, end_s in ends)

    def _seconds(self, request: Request, place: Place) -> float:
        """The execution time of the request alone, in seconds; 0 if unknown."""
        return self._latency.seconds(request.lane.variant, place.size, request.size, place.pair) or 0.0

    def dispatch_by_s(self, lane: Lane) -> float:
        """The latest time to dispatch the lane's batch to an idle instance, with a margin for the spread of latencies.

        A batch dispatched then, to the largest idle instance, ends at the first request's deadline.
        """
        first, place = lane.head(), self._fleet.largest_idle()
        if place is None:
            return float("inf")
        batch = max(first.size, min(lane.samples, 1 if lane.solo else place.most))
        seconds = self._latency.seconds(lane.variant, place.size, batch, place.pair) or 0.0
        return first.deadline_s - self._prediction.margin(lane.variant, place) * seconds - TIMER_SLACK_S

    def queue_full(self, request: Request) -> GnomonError:
        """429: the queue is full. Retry-After is the time in which a full batch is executed."""
        queue, capacity = self._queue, self._fleet.capacity()
        full_s = self._latency.seconds(request.lane.variant, capacity.size, capacity.batch, capacity.pair) or 1.0
        return GnomonError(
            429,
            "queue_full",
            f"{queue.requests} requests wait, {queue.bytes} bytes; "
            f"there is room for {queue.max_requests}, {queue.max_bytes} bytes.",
            "Send it again later, or raise gnomon/queue-max-requests or gnomon/queue-max-bytes.",
            retry_after_s=full_s,
        )


class Late(Enum):
    """The reason why a waiting request would be late."""

    NOW = "it has waited too long"
    EVER = "it takes longer than its deadline ever left"


def largest_within(latency: LatencyModel, variant: str, place: Place, seconds: float) -> int:
    """The largest batch that takes no longer than this; 0 if not even one sample does."""
    for batch in range(place.most, 0, -1):
        if (latency.seconds(variant, place.size, batch, place.pair) or 0.0) <= seconds:
            return batch
    return 0


def _too_short(message: str) -> GnomonError:
    return GnomonError(
        504,
        "deadline_cannot_be_met",
        message,
        "Allow it more time (gnomon/deadline-ms, or a longer X-Gnomon-Deadline-Ms within it).",
        retry_after_s=1.0,
    )


MIN_MARGIN, MAX_MARGIN = 1.25, 1.5
SPREADS = 4.0
EXACT_S = 1e-6
"""The rounding error of sums of predicted times, in seconds. An answer exactly at its deadline counts as late."""
MANY_SIZES = 32
"""T considers every batch size up to this one; beyond, multiples of eight."""
NEAR = 0.95
"""The share of the highest rate from which a batch size counts as losing no throughput."""
ROUNDS = 4
"""T is exact up to this number of largest batches; beyond, further samples form batches of the size with the best rate."""
CHECKED_DEADLINES = 16
"""The number of deadlines that are checked among the requests that are due after a new one."""


class Place(NamedTuple):
    """An instance that can take waiting requests: its size and Shadows, its largest batch, and when it is free (0 for now)."""

    size: int
    pair: Pair | None
    most: int
    free_in_s: float
    idle: bool


class Predicted(LatencyModel, Protocol):
    """A latency model that reports the error of its predictions, and when they change."""

    @property
    def revision(self) -> int:
        """Grows whenever a prediction may have changed."""
        ...

    def spread(self, variant: str, cores: int, pair: Pair | None = None) -> float | None:
        """The mean error as a share of the prediction; 0 while unknown, None where predictions are exact by definition."""
        ...


class Prediction:
    """Predicted answer times of a fleet. Caches T for each kind of instance until a latency changes."""

    __slots__ = ("_fleet", "_latency", "_revision", "_times")

    def __init__(self, fleet: Fleet, latency: Predicted) -> None:
        self._fleet = fleet
        self._latency = latency
        self._revision = latency.revision
        self._times: dict[tuple[str, int, Pair | None, int], BatchTimes | None] = {}

    def margin(self, variant: str, place: Place) -> float:
        """The factor by which predicted times are multiplied in admission.

        Latencies are means, and under overload a queue stays filled up to its deadlines, so that slow batches would make many
        requests late. The margin grows with the error of the predictions:

            1 + 4 · spread, at least 1.25, at most 1.5

        Example: a mean error of 8 % gives 1.32. The margin costs no goodput as long as the queue is never empty. Beyond 1.5 the
        queue would become empty: with half of its deadline for two batches, none would wait while one runs.
        """
        spread = self._latency.spread(variant, place.size, place.pair)
        return 1.0 if spread is None else min(MAX_MARGIN, max(MIN_MARGIN, 1 + SPREADS * spread))

    def places(self, now_s: float) -> Sequence[Place]:
        """The current instances, as arguments of the other methods."""
        return self._fleet.places(now_s)

    def alone_s(self, request: Request, places: Iterable[Place]) -> float | None:
        """Seconds until the answer if the request is dispatched next, in a batch of its own, to the best of these instances.

        Infinity without instances; None if the latency on one of them is not known.
        """
        best_s = float("inf")
        for place in places:
            seconds = self._latency.seconds(request.lane.variant, place.size, request.size, place.pair)
            if seconds is None:
                return None
            best_s = min(best_s, place.free_in_s + seconds)
        return best_s

    def admits(self, request: Request, queue: FunctionQueue, places: Sequence[Place], now_s: float) -> bool:
        """Return whether the queue is feasible with this request, with the margin for the spread of latencies.

        True if a latency is unknown: only executed requests make it known.
        """
        places = self._behind_other_lanes(request, queue, places)
        lane = queue.lanes.get(request.lane)
        if not lane:
            return self.feasible(request, places, request.size, request.deadline_s - now_s)
        if lane.latest_s <= request.deadline_s:
            return self.feasible(request, places, lane.samples + request.size, request.deadline_s - now_s)
        # Some requests are due later: those due before this one go first, and those due after it must stay feasible.
        return all(
            self.feasible(request, places, samples + request.size, deadline_s - now_s)
            for deadline_s, samples in due_by(lane, request.deadline_s)
        )

    def feasible(self, request: Request, places: Iterable[Place], samples: int, within_s: float) -> bool:
        """Return whether this number of samples of the request's kind can be answered within this time."""
        remaining = samples
        for place in places:
            times = self._times_of(request, place)
            if times is None:
                return True
            available_s = within_s / self.margin(request.lane.variant, place) - EXACT_S - place.free_in_s
            if available_s > 0:
                remaining -= times.within(available_s, remaining)
                if remaining <= 0:
                    return True
        return remaining <= 0

    def efficient(self, request: Request, place: Place) -> int:
        """The smallest batch of such requests that loses no throughput on this instance."""
        times = self._times_of(request, place)
        return times.efficient if times is not None else place.most

    def predicted_ends_s(self, lane: Lane, places: Iterable[Place], *, skip: int = 0) -> Iterator[tuple[Request, float]]:
        """The requests of a lane in their order, each with the seconds until its answer.

        Batches have a size that loses no throughput, and go to the first free instance. Requests within the first `skip` samples
        are omitted.
        """
        # The number decides between instances that are free at the same time, as places cannot be compared.
        free = [(place.free_in_s, number, place) for number, place in enumerate(places)]
        heapify(free)
        vacant, end_s = 0, 0.0
        for request in lane.waiting():
            if skip > 0:
                skip -= request.size
                continue
            if request.size > vacant:
                free_s, number, place = free[0]
                vacant = max(self.efficient(request, place), request.size)
                takes_s = self._latency.seconds(lane.variant, place.size, vacant, place.pair) or 0.0
                end_s = free_s + self.margin(lane.variant, place) * takes_s
                heapreplace(free, (end_s, number, place))
            vacant -= request.size
            yield request, end_s

    def finish_s(self, request: Request, queue: FunctionQueue, places: Sequence[Place]) -> float:
        """The estimated time in the system if the request were admitted, in seconds. For the error's text and Retry-After."""
        places = self._behind_other_lanes(request, queue, places)
        lane = queue.lanes.get(request.lane)
        samples = (lane.samples if lane else 0) + request.size
        share = -(-samples // max(1, len(places)))
        return min([self._takes_s(request, place, share) for place in places], default=0.0)

    def _takes_s(self, request: Request, place: Place, samples: int) -> float:
        times = self._times_of(request, place)
        seconds = times.least_s(samples) if times is not None else 0.0
        return self.margin(request.lane.variant, place) * (place.free_in_s + seconds)

    def _behind_other_lanes(self, request: Request, queue: FunctionQueue, places: Sequence[Place]) -> Sequence[Place]:
        """The instances, each free later by its share of the work in other lanes."""
        others_s = 0.0
        for lane in queue.lanes.values():
            if lane and lane.key != request.lane:
                times = self._times_of(lane.head(), places[0])
                others_s += times.least_s(lane.samples) if times is not None else 0.0
        if not others_s:
            return places
        return [place._replace(free_in_s=place.free_in_s + others_s / len(places)) for place in places]

    def _times_of(self, request: Request, place: Place) -> BatchTimes | None:
        # T depends on every latency up to the largest batch, so that one changed prediction invalidates all of it.
        if self._latency.revision != self._revision:
            self._revision = self._latency.revision
            self._times.clear()
        variant = request.lane.variant
        # A request that is larger than the largest batch is a batch of its own.
        # The key includes the size of an oversized request only through `most`.
        most = max(1 if request.lane.solo else place.most, request.size)
        key = (variant, place.size, place.pair, most)
        if key not in self._times:
            self._times[key] = self._new_times(variant, place, most)
        return self._times[key]

    def _new_times(self, variant: str, place: Place, most: int) -> BatchTimes | None:
        seconds = self._latency.seconds
        if seconds(variant, place.size, most, place.pair) is None:
            return None
        return BatchTimes(lambda batch: seconds(variant, place.size, batch, place.pair) or 0.0, most)


class BatchTimes:
    """T of one kind of instance, computed as far as needed.

    `efficient` is the smallest batch with about the highest rate, in samples a second.
    """

    __slots__ = ("_best", "_best_s", "_exact_to", "_least_s", "_most", "_seconds", "_sizes", "efficient")

    def __init__(self, seconds: Callable[[int], float], most: int) -> None:
        self._seconds = seconds
        self._most = most
        sizes = [size for size in range(1, most + 1) if size <= MANY_SIZES or size % 8 == 0 or size == most]
        self._sizes = [(size, seconds(size)) for size in sizes]
        self._best, self._best_s = min(self._sizes, key=lambda sized: sized[1] / sized[0])
        self.efficient = min(size for size, took_s in self._sizes if NEAR * took_s / size <= self._best_s / self._best)
        self._exact_to = ROUNDS * most
        self._least_s = [0.0]

    def within(self, seconds: float, enough: int) -> int:
        """The number of samples that are answered within this time, at most `enough`."""
        least_s = self._least_s
        while len(least_s) <= enough and least_s[-1] <= seconds:
            self._extend()
        return min(enough, bisect_right(least_s, seconds) - 1)

    def least_s(self, samples: int) -> float:
        """T of this number of samples, in seconds."""
        while len(self._least_s) <= samples:
            self._extend()
        return self._least_s[samples]

    def _extend(self) -> None:
        least_s = self._least_s
        number = len(least_s)
        if number > self._exact_to:
            seconds = least_s[number - self._best] + self._best_s
        else:
            seconds = min(took_s + least_s[number - size] for size, took_s in self._sizes if size <= number)
            if number <= self._most:
                seconds = min(seconds, self._seconds(number))
        # More samples never take less: measured latencies may fall with the batch size, and `within` needs a sorted list.
        least_s.append(max(least_s[-1], seconds))


def due_by(lane: Lane, deadline_s: float) -> Iterator[tuple[float, int]]:
    """The given deadline and some later ones in the lane, including the last, each with the number of samples due by then."""
    waiting = sorted(((request.deadline_s, request.size) for request in lane.requests), key=lambda due: due[0])
    samples, later = 0, 0
    while later < len(waiting) and waiting[later][0] <= deadline_s:
        samples += waiting[later][1]
        later += 1
    yield deadline_s, samples
    # A sample of the later deadlines: checking all of them would make admission quadratic in the queue's length.
    stride = -(-(len(waiting) - later) // CHECKED_DEADLINES)
    for number, (due_s, size) in enumerate(waiting[later:], 1):
        samples += size
        if number % stride == 0 or later + number == len(waiting):
            yield due_s, samples

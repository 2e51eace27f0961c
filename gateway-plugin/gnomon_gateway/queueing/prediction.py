"""When what waits can be answered at the earliest: the one prediction that admission and dispatch share.

An instance that takes a batch of b samples in t(b) answers n samples, in batches of at most B, at the earliest after

    T(0) = 0,    T(n) = min { t(b) + T(n − b) },    1 ≤ b ≤ min(B, n)

and by a deadline d as many as T allows after the instance is free: cap(d) = max { n | T(n) ≤ d − free }. Instances work side by
side, so the fleet answers Σ cap(d). A set of requests is *feasible* if for each of their deadlines no more samples are due by
then than the fleet can answer. Whatever the order of dispatch, an infeasible set has a request that is late; the order by
deadlines answers a feasible one.

Example: t(b) = 20 + 10·b ms, B = 8, two instances, one idle and one free in 60 ms. By 150 ms the first answers 10 samples
(100 ms for 8, then 40 for 2), the second 7 (90 ms): 17 samples.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import heapify, heapreplace
from typing import NamedTuple, Protocol

from gnomon_core.interfaces import LatencyModel
from gnomon_core.pairs import Pair
from gnomon_gateway.queueing.queue import FunctionQueue, Lane
from gnomon_gateway.queueing.request import Request

LEAST_MARGIN, MOST_MARGIN = 1.25, 1.5
SPREADS = 4.0
EXACT_S = 1e-6
"""What sums of predicted times may be off by arithmetic alone. An answer at the very moment of its deadline is late."""
MANY_SIZES = 32
"""Up to here every batch size is tried in T; of larger ones each eighth more."""
NEAR = 0.95
"""Of the highest rate: a batch size that comes so near to it loses no throughput."""
ROUNDS = 4
"""T is exact for so many of the largest batches; beyond, each further sample joins batches of the size with the best rate."""
CHECKED = 16
"""Of the requests that are due after a newcomer, so many deadlines are looked at."""


class Place(NamedTuple):
    """An instance that what waits can count on: its size and Shadow, its largest batch, and when it is free (0 if it is now)."""

    size: int
    pair: Pair | None
    most: int
    free_in_s: float
    idle: bool


class Predicted(LatencyModel, Protocol):
    """A latency model that knows how far its predictions are off, and when they have changed."""

    @property
    def revision(self) -> int:
        """Grows whenever a prediction may have changed."""
        ...

    def spread(self, variant: str, cores: int, pair: Pair | None = None) -> float | None:
        """As a share of the prediction; 0 while nothing is known, None where predictions are right by definition."""
        ...


class Fleet(Protocol):
    """The interface through which the prediction reads the instances."""

    def places(self, now_s: float) -> Sequence[Place]:
        """Everything but the draining instances."""
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
        """By how much longer than predicted what waits is expected to take at most.

        Latencies are means, and a queue that is filled up to its deadline stays there under overload, so that slow batches would
        make many late. The margin leaves room, the more the farther batches are from what was predicted:

            1 + 4 · spread, at least 1.25, at most 1.5

        Example: batches that are 8 % off in the mean get 1.32. It costs no goodput, because the queue is still never empty;
        beyond 1.5 it would be: with half of its deadline for two batches, none would wait while one runs.
        """
        spread = self._latency.spread(variant, place.size, place.pair)
        return 1.0 if spread is None else min(MOST_MARGIN, max(LEAST_MARGIN, 1 + SPREADS * spread))

    def places(self, now_s: float) -> Sequence[Place]:
        """The instances as they are now: what the other methods are given."""
        return self._fleet.places(now_s)

    def alone_s(self, request: Request, places: Iterable[Place]) -> float | None:
        """Until the answer, if the request is the next to be dispatched, in a batch of its own, to the best of these instances.

        Infinity if there are none; None where the latency of one is not known.
        """
        best_s = float("inf")
        for place in places:
            seconds = self._latency.seconds(request.lane.variant, place.size, request.size, place.pair)
            if seconds is None:
                return None
            best_s = min(best_s, place.free_in_s + seconds)
        return best_s

    def admits(self, request: Request, queue: FunctionQueue, places: Sequence[Place], now_s: float) -> bool:
        """Whether what waits is still feasible with this request, with room for the spread of latencies.

        True where nothing is known of a latency: that is how it becomes known.
        """
        places = self._less_others(request, queue, places)
        lane = queue.lanes.get(request.lane)
        if not lane:
            return self.feasible(request, places, request.size, request.deadline_s - now_s)
        if lane.latest_s <= request.deadline_s:
            return self.feasible(request, places, lane.samples + request.size, request.deadline_s - now_s)
        # Others are due later than this request: those before it come first, and those after it must bear it.
        return all(
            self.feasible(request, places, samples + request.size, deadline_s - now_s)
            for deadline_s, samples in due_by(lane, request.deadline_s)
        )

    def feasible(self, request: Request, places: Iterable[Place], samples: int, within_s: float) -> bool:
        """Whether so many samples of the request's kind can be answered within this time."""
        left = samples
        for place in places:
            times = self._times_of(request, place)
            if times is None:
                return True
            room_s = within_s / self.margin(request.lane.variant, place) - EXACT_S - place.free_in_s
            if room_s > 0:
                left -= times.within(room_s, left)
                if left <= 0:
                    return True
        return left <= 0

    def efficient(self, request: Request, place: Place) -> int:
        """The smallest batch of such requests that loses no throughput on this instance."""
        times = self._times_of(request, place)
        return times.efficient if times is not None else place.most

    def in_batches(self, lane: Lane, places: Iterable[Place], *, skip: int = 0) -> Iterator[tuple[Request, float]]:
        """The requests of a lane and the time until their answers, in their order, in batches on the first free instance.

        Batches of a size that loses no throughput. Without those that make up the first `skip` samples.
        """
        free = [(place.free_in_s, number, place) for number, place in enumerate(places)]
        heapify(free)
        room, end_s = 0, 0.0
        for request in lane.waiting():
            if skip > 0:
                skip -= request.size
                continue
            if request.size > room:
                free_s, number, place = free[0]
                room = max(self.efficient(request, place), request.size)
                takes_s = self._latency.seconds(lane.variant, place.size, room, place.pair) or 0.0
                end_s = free_s + self.margin(lane.variant, place) * takes_s
                heapreplace(free, (end_s, number, place))
            room -= request.size
            yield request, end_s

    def finish_s(self, request: Request, queue: FunctionQueue, places: Sequence[Place]) -> float:
        """About how long this request would stay if it were let in. It is there to be told; nothing is decided by it."""
        places = self._less_others(request, queue, places)
        lane = queue.lanes.get(request.lane)
        samples = (lane.samples if lane else 0) + request.size
        share = -(-samples // max(1, len(places)))
        return min([self._takes_s(request, place, share) for place in places], default=0.0)

    def _takes_s(self, request: Request, place: Place, samples: int) -> float:
        times = self._times_of(request, place)
        seconds = times.least_s(samples) if times is not None else 0.0
        return self.margin(request.lane.variant, place) * (place.free_in_s + seconds)

    def _less_others(self, request: Request, queue: FunctionQueue, places: Sequence[Place]) -> Sequence[Place]:
        """The instances, later by what waits in other lanes, of which each does its share."""
        others_s = 0.0
        for lane in queue.lanes.values():
            if lane and lane.key != request.lane:
                times = self._times_of(lane.head(), places[0])
                others_s += times.least_s(lane.samples) if times is not None else 0.0
        if not others_s:
            return places
        return [place._replace(free_in_s=place.free_in_s + others_s / len(places)) for place in places]

    def _times_of(self, request: Request, place: Place) -> BatchTimes | None:
        if self._latency.revision != self._revision:
            self._revision = self._latency.revision
            self._times.clear()
        variant = request.lane.variant
        # A request that is larger than the largest batch is a batch of its own.
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
    """T of one kind of instance, as far as it has been asked for.

    `efficient` is the smallest batch that answers about as many samples a second as the best one does.
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
        """How many samples are answered within this time; not more than are `enough`."""
        least_s = self._least_s
        while len(least_s) <= enough and least_s[-1] <= seconds:
            self._extend()
        return min(enough, bisect_right(least_s, seconds) - 1)

    def least_s(self, samples: int) -> float:
        """The least time for so many samples."""
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
        least_s.append(max(least_s[-1], seconds))


def due_by(lane: Lane, deadline_s: float) -> Iterator[tuple[float, int]]:
    """This deadline and some of the later ones in the lane, the last among them, each with the samples that are due by then."""
    waiting = sorted(((request.deadline_s, request.size) for request in lane.requests), key=lambda one: one[0])
    samples, later = 0, 0
    while later < len(waiting) and waiting[later][0] <= deadline_s:
        samples += waiting[later][1]
        later += 1
    yield deadline_s, samples
    stride = -(-(len(waiting) - later) // CHECKED)
    for number, (due_s, size) in enumerate(waiting[later:], 1):
        samples += size
        if number % stride == 0 or later + number == len(waiting):
            yield due_s, samples

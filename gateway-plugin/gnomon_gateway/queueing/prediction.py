"""The earliest times at which waiting requests can be answered: the prediction that admission and dispatch share.

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
from heapq import heapify, heapreplace
from typing import NamedTuple, Protocol

from gnomon_core.interfaces import LatencyModel
from gnomon_core.pairs import Pair
from gnomon_gateway.queueing.queue import FunctionQueue, Lane
from gnomon_gateway.queueing.request import Request

LEAST_MARGIN, MOST_MARGIN = 1.25, 1.5
SPREADS = 4.0
EXACT_S = 1e-6
"""Rounding error of sums of predicted times, in seconds. An answer exactly at its deadline is late."""
MANY_SIZES = 32
"""T tries every batch size up to this one; beyond, multiples of eight."""
NEAR = 0.95
"""Share of the highest rate from which a batch size counts as losing no throughput."""
ROUNDS = 4
"""T is exact up to this number of largest batches; beyond, further samples form batches of the size with the best rate."""
CHECKED = 16
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


class Fleet(Protocol):
    """The interface through which the prediction reads the instances."""

    def places(self, now_s: float) -> Sequence[Place]:
        """All instances except the draining ones."""
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
        return 1.0 if spread is None else min(MOST_MARGIN, max(LEAST_MARGIN, 1 + SPREADS * spread))

    def places(self, now_s: float) -> Sequence[Place]:
        """The current instances, as the other methods take them."""
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
        """Whether the queue is feasible with this request, with the margin for the spread of latencies.

        True if a latency is unknown: only executed requests make it known.
        """
        places = self._less_others(request, queue, places)
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
        """Whether this number of samples of the request's kind can be answered within this time."""
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
        """The requests of a lane in their order, each with the seconds until its answer.

        Batches have a size that loses no throughput, and go to the first free instance. Requests within the first `skip` samples
        are omitted.
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
        """The estimated time in the system if the request were admitted, in seconds. For the error's text and Retry-After."""
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
        """The instances, each free later by its share of the requests in other lanes."""
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
        least_s.append(max(least_s[-1], seconds))


def due_by(lane: Lane, deadline_s: float) -> Iterator[tuple[float, int]]:
    """This deadline and some later ones in the lane, including the last, each with the number of samples due by then."""
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

"""Admission: accept a request, or refuse it before it costs anything.

A request is refused if it would make the queue infeasible, whatever the order of dispatch (`prediction`). Predicted latencies are
means, and are multiplied by a margin there. If an instance is idle and could execute the request within its deadline, the request
is admitted without a margin: otherwise a wrong prediction would refuse all requests, and never be corrected.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from gnomon_core.errors import GnomonError
from gnomon_core.interfaces import LatencyModel
from gnomon_core.pairs import Pair
from gnomon_gateway.queueing.prediction import MOST_MARGIN, Place, Predicted, Prediction
from gnomon_gateway.queueing.prediction import Fleet as Places
from gnomon_gateway.queueing.queue import FunctionQueue, Lane
from gnomon_gateway.queueing.request import Request

TIMER_SLACK_S = 0.002
"""Event loops wake about a millisecond late."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """The samples that a fleet takes in one round under load, in batches as the scheduling policy makes them.

    That is `samples` over all `instances`; `batch`, `size` and `pair` are those of the smallest.
    """

    instances: int
    samples: int
    batch: int
    size: int
    pair: Pair | None = None


class Fleet(Places, Protocol):
    """The interface through which admission reads the instances."""

    def capacity(self) -> Capacity: ...


class Admission:
    """Admission to one queue, by the prediction for one fleet."""

    __slots__ = ("_fleet", "_latency", "_prediction", "_queue")

    def __init__(self, queue: FunctionQueue, fleet: Fleet, latency: Predicted) -> None:
        self._queue = queue
        self._fleet = fleet
        self._latency = latency
        self._prediction = Prediction(fleet, latency)

    def refusal(self, request: Request, now_s: float, *, settled: bool = True) -> GnomonError | None:
        """The error if this request is refused; None if it is admitted.

        `settled` says that all waiting requests that could be dispatched have been: an idle instance is free for this request.
        """
        queue = self._queue
        if not queue.has_room(request.body_bytes):
            return self.queue_full(request)
        budget_s = request.deadline_s - now_s
        if budget_s <= 0:
            return _hopeless("The deadline of the request has passed.")
        capacity = self._fleet.capacity()
        if not capacity.instances:
            return None  # wait for the first instance to be ready
        full_s = self._latency.seconds(request.lane.variant, capacity.size, capacity.batch, capacity.pair)
        rounds = -(-(queue.samples + request.size) // capacity.samples)
        if full_s is None or MOST_MARGIN * (rounds + 1) * full_s <= budget_s:
            return None  # fast path, nearly always taken: in time even if all batches were full, by a single look-up
        return self._judged(request, now_s, settled=settled)

    def _judged(self, request: Request, now_s: float, *, settled: bool) -> GnomonError | None:
        """The result of `refusal` by the exact prediction, after the fast path failed."""
        budget_s = request.deadline_s - now_s
        prediction = self._prediction
        places = prediction.places(now_s)
        soonest_s = prediction.alone_s(request, places)
        if soonest_s is None:
            return None
        if soonest_s <= budget_s:
            if settled and (prediction.alone_s(request, [place for place in places if place.idle]) or 0.0) <= budget_s:
                return None
            if prediction.admits(request, self._queue, places, now_s):
                return None
        least_s = min([self._seconds(request, place) for place in places])
        if least_s > budget_s:
            return _hopeless(f"The request takes about {least_s * 1e3:.0f} ms, its deadline leaves {budget_s * 1e3:.0f} ms.")
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
        """Why the first request of a lane would be late although an instance is idle; None if it would not.

        Either the request is late even alone, on the instance that answers it first. Or it is late in a full batch, enough others
        wait to fill one, and a smaller batch for this request would make some of them late.
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
        return None if self._bears(lane, places, idle[-1], left_s, now_s) else Late.NOW

    def _bears(self, lane: Lane, places: Sequence[Place], idle: Place, left_s: float, now_s: float) -> bool:
        """Whether the other requests stay feasible if this instance's next batch is small enough to end within `left_s`."""
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

    def put_in_order(self, lane: Lane, now_s: float) -> None:
        """Keep the lane in order of arrival; sort it by deadline if some requests would be late otherwise."""
        if lane.overtaken and not self._all_in_time(lane, self._prediction.places(now_s), now_s):
            lane.by_deadline()

    def _all_in_time(self, lane: Lane, places: Sequence[Place], now_s: float, *, skip: int = 0) -> bool:
        ends = self._prediction.in_batches(lane, places, skip=skip)
        return all(now_s + end_s <= request.deadline_s for request, end_s in ends)

    def _seconds(self, request: Request, place: Place) -> float:
        """The execution time of the request alone, in seconds; 0 if unknown."""
        return self._latency.seconds(request.lane.variant, place.size, request.size, place.pair) or 0.0

    def leave_by_s(self, lane: Lane, now_s: float) -> float:
        """The time by which the lane's batch must leave for an idle instance, with a margin for the spread of latencies.

        By then, the batch on the largest idle instance takes just as long as the first request's deadline allows.
        """
        first = lane.head()
        idle = [place for place in self._prediction.places(now_s) if place.idle]
        if not idle:
            return float("inf")
        place = idle[-1]
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
    """Why a waiting request would be late."""

    NOW = "it has waited too long"
    EVER = "it takes longer than its deadline ever left"


def largest_within(latency: LatencyModel, variant: str, place: Place, seconds: float) -> int:
    """The largest batch that takes no longer than this; 0 if not even one sample does."""
    for batch in range(place.most, 0, -1):
        if (latency.seconds(variant, place.size, batch, place.pair) or 0.0) <= seconds:
            return batch
    return 0


def _hopeless(message: str) -> GnomonError:
    return GnomonError(
        504,
        "deadline_cannot_be_met",
        message,
        "Allow it more time (gnomon/deadline-ms, or a longer X-Gnomon-Deadline-Ms within it).",
        retry_after_s=1.0,
    )

"""Whether a request is let in, or refused before anything is spent on it.

A request that arrives at a busy function waits for the first running batch to end, then for the rounds of batches before its own,
then for its own. With instances that take *S* samples together, B each where more wait, and a batch of b taking t(b):

    finish = until the first is free + (ceil(n/S) − 1)·t(B) + t(min(B, n)),    n = samples waiting with this one

Example: 2 instances, B = 8, t(8) = 80 ms, 40 samples waiting, a batch ends in 30 ms: 30 + (ceil(41/16) − 1)·80 + 80 = 270 ms.

The latencies are means, and a queue that is filled up to its deadline stays there under overload, so that slow batches would make
many late. A margin leaves room, the more the farther batches are from what was foretold:

    margin = 1 + 4 · spread, at least 1.25, at most 1.5

Example: batches that are 8 % off in the mean get 1 + 4·0.08 = 1.32. It costs no goodput, because the queue is still never empty;
beyond 1.5 it would be: with half of its deadline for two batches, none would wait while one runs.
An instance that is idle now is tried even if the prediction says no by the margin: predictions must be able to be wrong.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from gnomon_core.errors import GnomonError
from gnomon_core.pairs import Pair
from gnomon_core.seams import LatencyModel
from gnomon_gateway.queueing.queue import FunctionQueue, Lane
from gnomon_gateway.queueing.request import Request

LEAST_MARGIN, MOST_MARGIN = 1.25, 1.5
SPREADS = 4.0


@dataclass(frozen=True, slots=True)
class Capacity:
    """What a fleet takes in one round while more waits, in batches as the scheduling policy makes them.

    That is `samples` over all `instances`; `batch`, `size` and `pair` are those of the smallest.
    """

    instances: int
    samples: int
    batch: int
    size: int
    pair: Pair | None = None


class Fleet(Protocol):
    """What admission asks of the instances."""

    @property
    def any_idle(self) -> bool: ...

    def capacity(self) -> Capacity: ...

    def free_in_s(self, now_s: float) -> float:
        """Until an instance can take a batch, as predicted; 0 if one can now."""
        ...


class Foretelling(LatencyModel, Protocol):
    """A latency model that knows how far its predictions are off."""

    def spread(self, variant: str, cores: int, pair: Pair | None = None) -> float:
        """As a share of the prediction; 0 while nothing is known."""
        ...


def refusal(request: Request, queue: FunctionQueue, fleet: Fleet, latency: Foretelling, now_s: float) -> GnomonError | None:
    """Why this request is not let in; None if it is."""
    if not queue.has_room(request.body_bytes):
        return queue_full(request, queue, fleet, latency)
    budget_s = request.deadline_s - now_s
    if budget_s <= 0:
        return _hopeless("The deadline of the request has passed.")
    capacity = fleet.capacity()
    if not capacity.instances:
        return None  # it is held until the first instance is ready
    full_s = latency.seconds(request.lane.variant, capacity.size, capacity.batch, capacity.pair)
    rounds = -(-(queue.samples + request.size) // capacity.samples)
    if full_s is None or MOST_MARGIN * (rounds + 1) * full_s <= budget_s:
        return None  # in time even if every batch were a full one: nearly always, and one look-up
    return _judged(request, queue, fleet, latency, now_s, before_s=(rounds - 1) * full_s)


def _judged(
    request: Request, queue: FunctionQueue, fleet: Fleet, latency: Foretelling, now_s: float, *, before_s: float
) -> GnomonError | None:
    """The careful answer. `before_s` is what the rounds before the request's own take."""
    capacity = fleet.capacity()
    budget_s = request.deadline_s - now_s
    variant, size, pair = request.lane.variant, capacity.size, capacity.pair
    alone_s = latency.seconds(variant, size, request.size, pair) or 0.0
    if alone_s > budget_s:
        return _hopeless(f"The request takes about {alone_s * 1e3:.0f} ms, its deadline leaves {budget_s * 1e3:.0f} ms.")
    if fleet.any_idle and not queue.requests:
        return None
    own_s = latency.seconds(variant, size, min(capacity.batch, queue.samples + request.size), pair) or 0.0
    margin = min(MOST_MARGIN, max(LEAST_MARGIN, 1 + SPREADS * latency.spread(variant, size, pair)))
    finish_s = margin * (fleet.free_in_s(now_s) + before_s + own_s)
    if finish_s <= budget_s:
        return None
    return GnomonError(
        503,
        "overloaded",
        f"{queue.requests} requests wait; this one would be answered in about {finish_s * 1e3:.0f} ms, "
        f"its deadline leaves {budget_s * 1e3:.0f} ms.",
        "Send it again later, allow it more time, or let the function have more instances (com.openfaas.scale.max).",
        retry_after_s=finish_s - budget_s,
    )


class Late(Enum):
    """Why a waiting request would be late."""

    NOW = "it has waited too long"
    EVER = "it takes longer than its deadline ever left"


def would_be_late(request: Request, lane: Lane, capacity: Capacity, latency: LatencyModel, now_s: float) -> Late | None:
    """Whether the oldest request of a lane would be late if it were sent now.

    Even alone; or, where the others fill a whole batch without it, in a whole batch: a smaller one for its sake would cost the
    others more.
    """
    crowded = not lane.solo and lane.samples - request.size >= capacity.batch
    takes_s = latency.seconds(lane.variant, capacity.size, capacity.batch if crowded else request.size, capacity.pair)
    if takes_s is None or now_s + takes_s <= request.deadline_s:
        return None
    return Late.EVER if not crowded and takes_s > request.deadline_s - request.arrived_s else Late.NOW


def queue_full(request: Request, queue: FunctionQueue, fleet: Fleet, latency: LatencyModel) -> GnomonError:
    """429: there is no room for this request. It may be sent again when a full batch has been executed."""
    capacity = fleet.capacity()
    full_s = latency.seconds(request.lane.variant, capacity.size, capacity.batch, capacity.pair) or 1.0
    return GnomonError(
        429,
        "queue_full",
        f"{queue.requests} requests wait, {queue.bytes} bytes; there is room for {queue.max_requests}, {queue.max_bytes} bytes.",
        "Send it again later, or raise gnomon/queue-max-requests or gnomon/queue-max-bytes.",
        retry_after_s=full_s,
    )


def _hopeless(message: str) -> GnomonError:
    return GnomonError(
        504,
        "deadline_cannot_be_met",
        message,
        "Allow it more time (gnomon/deadline-ms, or a longer X-Gnomon-Deadline-Ms within it).",
        retry_after_s=1.0,
    )

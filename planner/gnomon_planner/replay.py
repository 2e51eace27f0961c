"""BATCH's buffer and the instances behind it, event by event: what the planner's mathematics is checked against.

A batch opens with its first request. It is sent when it holds B requests, or T after it opened, whichever comes first; T = 0 or
B = 1 sends at once. It then takes S_k for its k requests on one of infinitely many instances. A request's latency is the wait
from its arrival until its batch is sent, and S_k.

    times 0.00 0.01 0.50 s, B = 2, T = 0.1 s, S = (0.02, 0.03) s
    the first two are sent at 0.01 (full), the third at 0.60 (its batch's time is up): latencies 40, 30 and 120 ms

Where the batch that opens at request i ends depends on i alone, so the ends for all i are one vectorised search; then the batches
that really open are followed from one to the next. A million requests take about 0.1 s.

The bounds may change (`rebuffered`). What waits then goes by the new ones: at once, where it is as many as the new B or has
waited as long as the new T.

**Instances that are held** serve batches in the order in which they are sent: with two instances and batches of 0.25 s sent at
0.0, 0.1 and 0.2 s the third waits from 0.2 to 0.25 s for the first one's. With instances enough, three are in service then.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gnomon_core.errors import bad_request

Vector = npt.NDArray[np.float64]
Indices = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Buffered:
    """Of each request, in order of arrival: seconds until its batch was sent, and that batch's size; `first` opened one."""

    wait_s: Vector
    sizes: Indices
    first: Indices

    def latency_s(self, service_s: Sequence[float] | Vector) -> Vector:
        """Wait and service of each request; `service_s[k − 1]` is what a batch of k takes."""
        latency_s: Vector = self.wait_s + np.asarray(service_s, dtype=float)[self.sizes - 1]
        return latency_s


@dataclass(frozen=True, slots=True)
class Bounds:
    """(B, T) from `since_s` on."""

    since_s: float
    batch: int
    timeout_s: float


def buffered(times_s: Sequence[float] | Vector, batch: int, timeout_s: float) -> Buffered:
    """Send requests that arrive at `times_s` (ascending) through the buffer of (B, T).

    After the last request nothing arrives: a batch that is open then waits for its timeout.

    Raises:
        GnomonError: 400 `bad_buffer` for times that descend, a batch below 1 or a timeout below 0.

    """
    return rebuffered(times_s, (Bounds(-math.inf, batch, timeout_s),))


def rebuffered(times_s: Sequence[float] | Vector, bounds: Sequence[Bounds]) -> Buffered:
    """The same under bounds that change: each holds from its `since_s` to the next one's, the first for all before it too.

    Raises:
        GnomonError: 400 `bad_buffer` for times that descend, a batch below 1, a timeout below 0, or no bounds.

    """
    times = np.asarray(times_s, dtype=float)
    starts = [each.since_s for each in bounds]
    wrong = any(each.batch < 1 or not each.timeout_s >= 0.0 for each in bounds) or not bounds
    if wrong or (np.diff(times) < 0.0).any() or sorted(starts) != starts:
        raise bad_request("bad_buffer", "The buffer cannot do that.", "Times ascend, B is at least 1 and T at least 0.")
    opened: list[Indices] = []
    sent: list[Vector] = []
    index = 0
    for each, since_s, until_s in zip(bounds, [-math.inf, *starts[1:]], [*starts[1:], math.inf], strict=True):
        first, sent_s, index = _sent(times, index, each, since_s, until_s)
        opened.append(first)
        sent.append(sent_s)
    first = np.concatenate(opened)
    sizes = np.diff(first, append=len(times))
    return Buffered(np.repeat(np.concatenate(sent), sizes) - times, np.repeat(sizes, sizes), first)


def busy_quantile(sent_s: Vector, service_s: Vector, stretch_s: tuple[float, float], share: float = 0.999) -> int:
    """The least n such that for this share of the stretch at most n batches are in service, with instances enough; at least 1."""
    begin_s, end_s = stretch_s
    times = np.concatenate([sent_s, sent_s + service_s])
    steps = np.repeat([1, -1], len(sent_s))
    order = np.argsort(times, kind="stable")
    edges = np.clip(np.concatenate([[begin_s], times[order], [end_s]]), begin_s, end_s)
    busy = np.concatenate([[0], np.cumsum(steps[order])])
    lasting_s = np.bincount(busy, weights=np.diff(edges))
    return max(1, int(np.searchsorted(np.cumsum(lasting_s), share * (end_s - begin_s) * (1.0 - 1e-12))))


def instance_waits(sent_s: Vector, service_s: Vector, instances: Sequence[tuple[float, int]]) -> Vector:
    """How long each batch waits for an instance, of which there are so many since these moments (the first: before it too).

    One that is taken away while it serves ends its batch first.
    """
    moments = [*(since_s for since_s, _ in instances[1:]), math.inf]
    counts = [count for _, count in instances]
    waits = np.empty(len(sent_s))
    ends: list[float] = []
    place, now_s = 0, -math.inf
    for number, (sent, lasts_s) in enumerate(zip(sent_s.tolist(), service_s.tolist(), strict=True)):
        now_s = max(now_s, sent)
        while True:
            while moments[place] <= now_s:
                place += 1
            while ends and ends[0] <= now_s:
                heapq.heappop(ends)
            if len(ends) < counts[place]:
                break
            now_s = min(moments[place], ends[0] if ends else math.inf)
        waits[number] = now_s - sent
        heapq.heappush(ends, now_s + lasts_s)
    return waits


def _sent(times: Vector, index: int, bounds: Bounds, since_s: float, until_s: float) -> tuple[Indices, Vector, int]:
    """The batches from request `index` on that these bounds send, when each is sent, and the request that opens the next."""
    begun = times[index : int(np.searchsorted(times, until_s, side="right"))]
    numbers = index + np.arange(len(begun))
    full = np.minimum(numbers + bounds.batch, len(times))
    expired = np.searchsorted(times, np.maximum(begun + bounds.timeout_s, since_s), side="right")
    ends = np.minimum(full, expired)
    # A batch that is full was sent by its last request, any other one by its timer.
    sent_s = np.where(ends - numbers == bounds.batch, times[ends - 1], begun + bounds.timeout_s)
    sent_s = np.maximum(sent_s, since_s)
    # Whoever opens later is sent later, so that those who are sent in time are the first.
    count = int(np.searchsorted(sent_s, until_s, side="right"))
    first = np.array(_followed((ends[:count] - index).tolist()), dtype=np.intp)
    return first + index, sent_s[first], int(ends[first[-1]]) if len(first) else index


def _followed(ends: list[int]) -> list[int]:
    opened, index, count = [], 0, len(ends)
    while index < count:
        opened.append(index)
        index = ends[index]
    return opened

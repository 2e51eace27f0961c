"""A plan tried on the very arrivals that it was made from, and its neighbours where it does not hold.

A fit has a few phases, and arrivals have habits that are not in it: on Azure's trace of LLM requests plans met 85 to 90 % of a
P95 on the very hour that they were made from. So the window is *replayed*: its arrivals, placed within their bins, go event by
event through the buffer (B, T) and wait for one of the held instances. A plan holds if no more than 1 − `MARGIN` of
the requests that may be late are late, for a P95 4 %, because the next hour is never quite the last one.

Where it does not hold, neighbours are tried, the cheap ones first: T one or two steps shorter, B one step smaller or larger or
the largest, which cost nothing where instances are held; then one instance more with the best of these, and so on, `REPLAYS`
times at most. The first that holds is taken, or the one with the fewest late requests. A plan that holds is left alone: that
fewer instances did in this window says nothing about the 999 moments of 1000 that its number is for.

Counts per second do not say when within it requests arrived: they are placed by a hash of their number,
which is as uneven as chance and the same each time.

**Replay.** `buffered` is BATCH's buffer and `instance_waits` the instances behind it, event by event; the planner's formulas are
checked against both. A batch opens with its first request. It is sent when it holds B requests, or T after it opened, whichever
comes first; T = 0 or B = 1 sends at once. It then takes S_k for its k requests on one of infinitely many instances. A request's
latency is the wait from its arrival until its batch is sent, and S_k.

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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from gnomon_core.errors import bad_request
from gnomon_planner.buffer import BufferPlan
from gnomon_planner.numerics import Vector
from gnomon_planner.plans import LambdaPrice, Size

MARGIN = 0.2
MOST_ARRIVALS = 60_000
"""The most arrivals that are simulated. Of more, this many are taken from intervals spread evenly over the window."""
STRETCHES = 20
REPLAYS = 16
MOST_BATCHES = 200_000
"""Bound on the work of all replays, about 0.3 s of one core: none starts beyond it, because a decision has a second."""
STEPS = 2
_MIX = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
"""The constants of splitmix64."""


@dataclass(frozen=True, slots=True)
class Goal:
    """P`percent` within `slo_s`, for arrivals shared among `queues`, with at most `most` instances, None for no bound.

    Where a buffer may be changed, B is one of `batches` and T one of `timeouts_s`, both ascending.
    """

    slo_s: float
    percent: float
    batches: Sequence[int]
    timeouts_s: Sequence[float]
    queues: int = 1
    most: int | None = None

    @property
    def allowed(self) -> float:
        """The share of requests that may be late in a replay."""
        return (1.0 - self.percent / 100.0) * (1.0 - MARGIN)


@dataclass(frozen=True, slots=True)
class Trial:
    """A buffer for each queue and so many instances for all, None for unlimited ones.

    What a replay says of it is the share of requests that are late, and dollars per request where calls are paid.
    """

    buffer: BufferPlan
    instances: int | None
    late: float = 0.0
    usd_per_request: float = 0.0


class Window:
    """Arrivals to replay, by their counts per bin, the oldest first; `batches` counts those of all replays."""

    def __init__(self, counts: Sequence[float], bin_s: float, queues: int = 1) -> None:
        # Fractions, as shares of counts have them, add up instead of being lost.
        whole = np.diff(np.rint(np.cumsum(np.asarray(counts, dtype=float))), prepend=0.0).astype(np.int64)
        whole = _spread(whole)
        self.batches = 0
        number = np.arange(int(whole.sum()), dtype=np.uint64)
        times = (np.repeat(np.arange(len(whole)), whole) + _share(number)) * bin_s
        order = np.argsort(times, kind="stable")
        queue = (_share(number + np.uint64(len(number))) * queues).astype(np.int64)[order]
        self.times_s: Vector = times[order]
        self.queues = [self.times_s[queue == one] for one in range(queues)] if queues > 1 else [self.times_s]

    def replayed(self, trial: Trial, size: Size, slo_s: float, price: LambdaPrice | None = None) -> Trial:
        """The trial after a replay of the arrivals through this buffer and size."""
        opened, sizes, late_after = [], [], []
        for times in self.queues:
            run = buffered(times, trial.buffer.batch, trial.buffer.timeout_s)
            opened.append(times[run.first] + run.wait_s[run.first])
            sizes.append(run.sizes[run.first])
            late_after.append(run.wait_s)
        sent_s, batch = np.concatenate(opened), np.concatenate(sizes)
        self.batches += len(batch)
        ratios = np.asarray(size.ratios)
        drawn = ratios[(_share(np.arange(len(batch), dtype=np.uint64)) * len(ratios)).astype(np.int64)]
        service_s = np.asarray(size.service_s)[batch - 1] * drawn
        taken_s = service_s
        if trial.instances is not None:
            order = np.argsort(sent_s, kind="stable")
            waits = np.empty(len(sent_s))
            waits[order] = instance_waits(sent_s[order], service_s[order], ((-math.inf, trial.instances),))
            taken_s = service_s + waits
        latency_s = np.concatenate(late_after) + np.repeat(taken_s, batch)
        usd = 0.0 if price is None else float(price.per_call(size.memory_mb, service_s).sum()) / max(1, len(latency_s))
        return replace(trial, late=float(np.mean(latency_s > slo_s)) if len(latency_s) else 0.0, usd_per_request=usd)


def validated(window: Window, plan: Trial, size: Size, goal: Goal, price: LambdaPrice | None = None) -> Trial:
    """The plan if it holds on the window; else the first neighbour that does, or the one with the fewest late requests."""
    best = window.replayed(plan, size, goal.slo_s, price)
    replays = 1
    while best.late > goal.allowed and replays < REPLAYS and window.batches < MOST_BATCHES:
        tried = []
        for buffer in _neighbours(best.buffer, goal):
            tried.append(window.replayed(replace(best, buffer=buffer), size, goal.slo_s, price))
            replays += 1
        holding = [one for one in tried if one.late <= goal.allowed]
        if holding:
            return min(holding, key=lambda one: (one.usd_per_request, one.late))
        better = min([best, *tried], key=lambda one: one.late)
        if better.instances is None:
            if better is best:
                break
            best = better
            continue
        if goal.most is not None and better.instances >= goal.most:
            return better
        # As many more as queues, so that each has its share of them.
        best = window.replayed(replace(better, instances=better.instances + goal.queues), size, goal.slo_s, price)
        replays += 1
    return best


def _neighbours(buffer: BufferPlan, goal: Goal) -> Iterator[BufferPlan]:
    """Shorter waits; the next smaller and larger batches and the largest, which wait as long."""
    shorter = [one for one in goal.timeouts_s if one < buffer.timeout_s]
    for timeout_s in shorter[: -STEPS - 1 : -1]:
        yield BufferPlan(buffer.batch, timeout_s)
    smaller = [one for one in goal.batches if one < buffer.batch]
    larger = [one for one in goal.batches if one > buffer.batch]
    for batch in dict.fromkeys((*smaller[-1:], *larger[:1], *larger[-1:])):
        yield BufferPlan(batch, buffer.timeout_s)


def _spread(counts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The bins, or evenly spread stretches of them with about `MOST_ARRIVALS` arrivals in total."""
    share = MOST_ARRIVALS / max(1, int(counts.sum()))
    length = math.ceil(len(counts) / STRETCHES * share)
    if share >= 1.0 or length * STRETCHES >= len(counts):
        return counts
    starts = np.linspace(0, len(counts) - length, STRETCHES).astype(np.int64)
    found: npt.NDArray[np.int64] = counts[(starts[:, None] + np.arange(length)).reshape(-1)]
    return found


def _share(numbers: npt.NDArray[np.uint64]) -> Vector:
    """A number from 0 to below 1 for each: splitmix64, as evenly and unevenly spread as chance."""
    mixed = (numbers + np.uint64(1)) * _MIX[0]
    mixed = (mixed ^ (mixed >> np.uint64(30))) * _MIX[1]
    mixed = (mixed ^ (mixed >> np.uint64(27))) * _MIX[2]
    mixed ^= mixed >> np.uint64(31)
    found: Vector = (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return found


Indices = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Buffered:
    """For each request in order of arrival: seconds until its batch was sent and the batch's size; `first` opened a batch."""

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
    """Like `buffered`, with bounds that change: each holds from its `since_s` to the next one's, the first also before.

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
    duration_s = np.bincount(busy, weights=np.diff(edges))
    return max(1, int(np.searchsorted(np.cumsum(duration_s), share * (end_s - begin_s) * (1.0 - 1e-12))))


def instance_waits(sent_s: Vector, service_s: Vector, instances: Sequence[tuple[float, int]]) -> Vector:
    """Seconds that each batch waits for an instance; each count of instances holds from its time on, the first also before.

    An instance that is removed while it serves finishes its batch first.
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
    # A batch that opens later is sent later, so that the batches sent in time come first.
    count = int(np.searchsorted(sent_s, until_s, side="right"))
    first = np.array(_followed((ends[:count] - index).tolist()), dtype=np.intp)
    return first + index, sent_s[first], int(ends[first[-1]]) if len(first) else index


def _followed(ends: list[int]) -> list[int]:
    opened, index, count = [], 0, len(ends)
    while index < count:
        opened.append(index)
        index = ends[index]
    return opened

"""A plan tried on the very arrivals that it was made from, and its neighbours where it does not hold.

A fit has a few phases, and arrivals have habits that are not in it: on Azure's trace of LLM requests plans met 85 to 90 % of a
P95 on the very hour that they were made from. So the window is *replayed*: its arrivals, placed within their bins, go event by
event through the buffer (B, T) and wait for one of the held instances (`replay`). A plan holds if no more than 1 − `MARGIN` of
the requests that may be late are late, for a P95 4 %, because the next hour is never quite the last one.

Where it does not hold, neighbours are tried, the cheap ones first: T one or two steps shorter, B one step smaller or larger or
the largest, which cost nothing where instances are held; then one instance more with the best of these, and so on, `REPLAYS`
times at most. The first that holds is taken, or the one with the fewest late requests. A plan that holds is left alone: that
fewer instances did in this window says nothing about the 999 moments of 1000 that its number is for.

Where arrivals were counted by the second nobody knows when within it they came: they are placed by a hash of their number,
which is as uneven as chance and the same each time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from gnomon_planner.buffer import BufferPlan
from gnomon_planner.costs import LambdaPrice
from gnomon_planner.plans import Size
from gnomon_planner.replay import Vector, buffered, instance_waits

MARGIN = 0.2
MOST_ARRIVALS = 60_000
"""Of more, as many are taken from stretches that are spread evenly over the window."""
STRETCHES = 20
REPLAYS = 16
MOST_BATCHES = 200_000
"""All replays together, about 0.3 s of one core: no other one is begun beyond it, because a decision has a second."""
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
        """What becomes of the arrivals."""
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
    """All of the bins, or stretches of them, spread evenly, that have about `MOST_ARRIVALS` together."""
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

"""Validation of a plan on the arrivals that it was made from: if the plan fails, its neighbours are tried.

A fitted process has a few phases and misses some patterns of real arrivals: on Azure's trace of LLM requests plans met 85 to 90 %
of a P95 on the very hour that they were made from. So the window is replayed (`buffer_replay`): its arrivals, placed within their
bins, go through the buffer (B, T) and wait for a provisioned instance. A plan passes if the share of late requests is at most
1 − `MARGIN` of what the objective allows (4 % for a P95), because the next hour differs from the last one.

If the plan fails, neighbours are tried, the cheap ones first: T one or two steps shorter; B one step smaller, one step larger, or
the largest, which cost nothing where instances are provisioned. Then one instance more with the best of these, and so on, in at
most `MAX_REPLAYS` replays. The result is the first plan that passes, or the one with the fewest late requests. A plan that passes
is not made cheaper: one window with fewer instances says nothing about the 99.9 % quantile that their number is for.

Counts per second do not say when within the second requests arrived. A hash of the request's number places them: as uneven as
random times, and the same in each run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from gnomon_planner.billing import LambdaPrice
from gnomon_planner.buffer import BufferPlan
from gnomon_planner.buffer_replay import instance_waits, replay_buffer
from gnomon_planner.numerics import Vector
from gnomon_planner.plans import Size

MARGIN = 0.2
"""The part of the allowed late requests that a plan must leave unused."""
MAX_ARRIVALS = 60_000
"""The most arrivals that are replayed. Of more, about this many are taken from segments spread evenly over the window."""
SEGMENTS = 20
MAX_REPLAYS = 16
MAX_BATCHES = 200_000
"""Bound on the work of all replays, about 0.3 s of one core: none starts beyond it, because a decision has a second."""
TIMEOUT_STEPS = 2
_SPLITMIX64 = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))


@dataclass(frozen=True, slots=True)
class Objective:
    """P`percent` within `slo_s`, for arrivals shared among `queues`, with at most `max_instances`, None for no bound.

    Neighbours of a plan have one of `batches` as B and one of `timeouts_s` (seconds) as T, both ascending.
    """

    slo_s: float
    percent: float
    batches: Sequence[int]
    timeouts_s: Sequence[float]
    queues: int = 1
    max_instances: int | None = None

    @property
    def allowed_late_share(self) -> float:
        """The share of requests that may be late in a replay."""
        return (1.0 - self.percent / 100.0) * (1.0 - MARGIN)


@dataclass(frozen=True, slots=True)
class Trial:
    """A buffer per queue and the number of instances for all queues (None for unlimited), with the result of its replay.

    The result is the share of late requests, and dollars per request where calls are paid.
    """

    buffer: BufferPlan
    instances: int | None
    late_share: float = 0.0
    usd_per_request: float = 0.0


class Window:
    """Arrivals to replay, from counts per bin of `bin_s` seconds, oldest first; `replayed_batches` sums over all replays."""

    def __init__(self, counts: Sequence[float], bin_s: float, queues: int = 1) -> None:
        # Rounding the cumulative counts keeps the sum of fractions, which a queue's share of the arrivals has.
        whole = np.diff(np.rint(np.cumsum(np.asarray(counts, dtype=float))), prepend=0.0).astype(np.int64)
        whole = _sampled_bins(whole)
        self.replayed_batches = 0
        number = np.arange(int(whole.sum()), dtype=np.uint64)
        times = (np.repeat(np.arange(len(whole)), whole) + _uniform(number)) * bin_s
        order = np.argsort(times, kind="stable")
        queue = (_uniform(number + np.uint64(len(number))) * queues).astype(np.int64)[order]
        self.times_s: Vector = times[order]
        self.queues = [self.times_s[queue == index] for index in range(queues)] if queues > 1 else [self.times_s]

    def replay(self, trial: Trial, size: Size, slo_s: float, price: LambdaPrice | None = None) -> Trial:
        """The trial with the result of a replay of all arrivals through its buffers, on instances of this size."""
        sent, batch_sizes, waits = [], [], []
        for times in self.queues:
            run = replay_buffer(times, trial.buffer.batch, trial.buffer.timeout_s)
            sent.append(times[run.first] + run.wait_s[run.first])
            batch_sizes.append(run.sizes[run.first])
            waits.append(run.wait_s)
        sent_s, batch = np.concatenate(sent), np.concatenate(batch_sizes)
        self.replayed_batches += len(batch)
        ratios = np.asarray(size.ratios)
        drawn = ratios[(_uniform(np.arange(len(batch), dtype=np.uint64)) * len(ratios)).astype(np.int64)]
        service_s = np.asarray(size.service_s)[batch - 1] * drawn
        after_buffer_s = service_s
        if trial.instances is not None:
            order = np.argsort(sent_s, kind="stable")
            queued_s = np.empty(len(sent_s))
            queued_s[order] = instance_waits(sent_s[order], service_s[order], ((-math.inf, trial.instances),))
            after_buffer_s = service_s + queued_s
        latency_s = np.concatenate(waits) + np.repeat(after_buffer_s, batch)
        late_share = float(np.mean(latency_s > slo_s)) if len(latency_s) else 0.0
        usd = 0.0 if price is None else float(price.per_call(size.memory_mb, service_s).sum()) / max(1, len(latency_s))
        return replace(trial, late_share=late_share, usd_per_request=usd)


def validate_plan(window: Window, plan: Trial, size: Size, objective: Objective, price: LambdaPrice | None = None) -> Trial:
    """The plan if it passes on the window; else the first neighbour that passes, or the one with the fewest late requests.

    With `price` calls are paid, and the cheapest of the neighbours that pass is taken.
    """
    best = window.replay(plan, size, objective.slo_s, price)
    replays = 1
    while best.late_share > objective.allowed_late_share and replays < MAX_REPLAYS and window.replayed_batches < MAX_BATCHES:
        trials = []
        for buffer in _neighbours(best.buffer, objective):
            trials.append(window.replay(replace(best, buffer=buffer), size, objective.slo_s, price))
            replays += 1
        passing = [trial for trial in trials if trial.late_share <= objective.allowed_late_share]
        if passing:
            return min(passing, key=lambda trial: (trial.usd_per_request, trial.late_share))
        better = min([best, *trials], key=lambda trial: trial.late_share)
        if better.instances is None:
            if better is best:
                break
            best = better
            continue
        if objective.max_instances is not None and better.instances >= objective.max_instances:
            return better
        # As many more as there are queues, so that each has its share of them.
        more = replace(better, instances=better.instances + objective.queues)
        best = window.replay(more, size, objective.slo_s, price)
        replays += 1
    return best


def _neighbours(buffer: BufferPlan, objective: Objective) -> Iterator[BufferPlan]:
    """Shorter timeouts with the same B; the next smaller, the next larger and the largest B with the same timeout."""
    shorter = [timeout_s for timeout_s in objective.timeouts_s if timeout_s < buffer.timeout_s]
    for timeout_s in shorter[: -TIMEOUT_STEPS - 1 : -1]:
        yield BufferPlan(buffer.batch, timeout_s)
    smaller = [batch for batch in objective.batches if batch < buffer.batch]
    larger = [batch for batch in objective.batches if batch > buffer.batch]
    for batch in dict.fromkeys((*smaller[-1:], *larger[:1], *larger[-1:])):
        yield BufferPlan(batch, buffer.timeout_s)


def _sampled_bins(counts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The bins, or evenly spread segments of them with about `MAX_ARRIVALS` arrivals in total."""
    share = MAX_ARRIVALS / max(1, int(counts.sum()))
    length = math.ceil(len(counts) / SEGMENTS * share)
    if share >= 1.0 or length * SEGMENTS >= len(counts):
        return counts
    starts = np.linspace(0, len(counts) - length, SEGMENTS).astype(np.int64)
    sampled: npt.NDArray[np.int64] = counts[(starts[:, None] + np.arange(length)).reshape(-1)]
    return sampled


def _uniform(numbers: npt.NDArray[np.uint64]) -> Vector:
    """A pseudo-random number in [0, 1) for each number, by the hash splitmix64; same shape."""
    mixed = (numbers + np.uint64(1)) * _SPLITMIX64[0]
    mixed = (mixed ^ (mixed >> np.uint64(30))) * _SPLITMIX64[1]
    mixed = (mixed ^ (mixed >> np.uint64(27))) * _SPLITMIX64[2]
    mixed ^= mixed >> np.uint64(31)
    # The upper 53 bits are the digits of a double.
    uniform: Vector = (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return uniform

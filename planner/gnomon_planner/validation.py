"""Validation of a plan on the arrivals that it was made from: if the plan fails, its neighbours are tried.

A fitted process has a few phases and misses some patterns of real arrivals: on Azure's trace of LLM requests plans met 85 to 90 %
of a P95 on the very hour that they were made from. So the window is replayed (`replay_buffer`): its arrivals, placed within their
bins, go through the buffer (B, T) and wait for a provisioned instance. A plan passes if the share of late requests is at most
1 − `MARGIN` of what the objective allows (4 % for a P95), because the next hour differs from the last one.

If the plan fails, neighbours are tried, the cheap ones first: T one or two steps shorter; B one step smaller, one step larger, or
the largest, which cost nothing where instances are provisioned. Then one instance more with the best of these, and so on, in at
most `MAX_REPLAYS` replays. The result is the first plan that passes, or the one with the fewest late requests. A plan that passes
is not made cheaper: one window with fewer instances says nothing about the 99.9 % quantile that their number is for.

Counts per second do not say when within the second requests arrived. A hash of the request's number places them: as uneven as
random times, and the same in each run.

**Replay** of recorded arrivals through BATCH's buffer and the instances behind it, event by event. The planner's formulas are
checked against this replay. A batch opens with its first request. The buffer sends the batch when it holds B requests (the batch
size), or T seconds after it opened (the buffer timeout), whichever comes first; T = 0 or B = 1 sends at once. A batch of k
requests then takes the service time S_k on an instance. A request's latency is its wait in the buffer plus S_k.

    arrivals at 0.00, 0.01 and 0.50 s, B = 2, T = 0.1 s, S = (0.02, 0.03) s
    the first two are sent at 0.01 s (full), the third at 0.60 s (timeout): latencies 40, 30 and 120 ms

The end of the batch that opens at request i depends on i alone. One vectorised search therefore finds the ends for all i, and
the batches that really open are followed from one to the next. A million requests take about 0.1 s.

B and T may change during a replay (`replay_changing_buffer`). The new values apply to a batch that is open at that time: it is
sent at once if it holds the new B requests or is as old as the new T.

**Provisioned instances** (`instance_waits`) serve batches first come, first served. Example: two instances, batches of 0.25 s
sent at 0.0, 0.1 and 0.2 s; the third batch waits from 0.2 to 0.25 s for the instance of the first one. Without a limit three
batches are in service then (`concurrency_quantile`).
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from gnomon_core.errors import bad_request
from gnomon_planner.billing import LambdaPrice
from gnomon_planner.buffer import BufferPlan
from gnomon_planner.numerics import Indices, Vector
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


@dataclass(frozen=True, slots=True)
class BufferReplay:
    """The result of a replay, for requests in order of arrival.

    `wait_s` is each request's time in the buffer and `sizes` the size of its batch, both of shape (requests). `first` has the
    indices of the requests that opened a batch, shape (batches).
    """

    wait_s: Vector
    sizes: Indices
    first: Indices

    def latency_s(self, service_s: Sequence[float] | Vector) -> Vector:
        """Wait and service of each request in seconds, shape (requests); `service_s[k − 1]` is S_k."""
        latency_s: Vector = self.wait_s + np.asarray(service_s, dtype=float)[self.sizes - 1]
        return latency_s


@dataclass(frozen=True, slots=True)
class BufferChange:
    """The batch size B and the timeout T (seconds) that hold from `since_s` on."""

    since_s: float
    batch: int
    timeout_s: float


def replay_buffer(times_s: Sequence[float] | Vector, batch: int, timeout_s: float) -> BufferReplay:
    """Send requests that arrive at `times_s` (ascending) through the buffer (B, T).

    Nothing arrives after the last request: a batch that is still open then waits for its timeout.

    Raises:
        GnomonError: 400 `bad_buffer` for times that descend, a batch below 1 or a timeout below 0.

    """
    return replay_changing_buffer(times_s, (BufferChange(-math.inf, batch, timeout_s),))


def replay_changing_buffer(times_s: Sequence[float] | Vector, changes: Sequence[BufferChange]) -> BufferReplay:
    """Like `replay_buffer`, with B and T that change: each holds from its `since_s` to the next one's, the first also before.

    Raises:
        GnomonError: 400 `bad_buffer` for times that descend, a batch below 1, a timeout below 0, or no B and T at all.

    """
    times = np.asarray(times_s, dtype=float)
    starts = [change.since_s for change in changes]
    invalid = any(change.batch < 1 or not change.timeout_s >= 0.0 for change in changes) or not changes
    if invalid or (np.diff(times) < 0.0).any() or sorted(starts) != starts:
        raise bad_request(
            "bad_buffer", "The times, a batch size or a timeout are invalid.", "Times ascend, B is at least 1 and T at least 0."
        )
    opened: list[Indices] = []
    sent: list[Vector] = []
    next_request = 0
    for change, since_s, until_s in zip(changes, [-math.inf, *starts[1:]], [*starts[1:], math.inf], strict=True):
        first, sent_s, next_request = _send_batches(times, next_request, change, since_s, until_s)
        opened.append(first)
        sent.append(sent_s)
    first = np.concatenate(opened)
    sizes = np.diff(first, append=len(times))
    return BufferReplay(np.repeat(np.concatenate(sent), sizes) - times, np.repeat(sizes, sizes), first)


def concurrency_quantile(sent_s: Vector, service_s: Vector, interval_s: tuple[float, float], share: float = 0.999) -> int:
    """The least n ≥ 1 such that for this share of the interval at most n batches are in service, with unlimited instances.

    `sent_s` and `service_s` are in seconds, shape (batches).
    """
    begin_s, end_s = interval_s
    times = np.concatenate([sent_s, sent_s + service_s])
    steps = np.repeat([1, -1], len(sent_s))
    order = np.argsort(times, kind="stable")
    edges = np.clip(np.concatenate([[begin_s], times[order], [end_s]]), begin_s, end_s)
    concurrency = np.concatenate([[0], np.cumsum(steps[order])])
    duration_s = np.bincount(concurrency, weights=np.diff(edges))
    # The factor keeps rounding in the sum of durations from adding an instance.
    return max(1, int(np.searchsorted(np.cumsum(duration_s), share * (end_s - begin_s) * (1.0 - 1e-12))))


def instance_waits(sent_s: Vector, service_s: Vector, instances: Sequence[tuple[float, int]]) -> Vector:
    """The seconds that each batch waits for an instance, shape (batches); batches are in the order in which they are sent.

    `instances` are pairs (since_s, count): each count holds from its time on, the first also before. An instance that is removed
    while it serves finishes its batch first.
    """
    changes_s = [*(since_s for since_s, _ in instances[1:]), math.inf]
    counts = [count for _, count in instances]
    waits = np.empty(len(sent_s))
    ends_s: list[float] = []
    current, now_s = 0, -math.inf
    for number, (batch_sent_s, batch_service_s) in enumerate(zip(sent_s.tolist(), service_s.tolist(), strict=True)):
        # First come, first served: a batch starts no earlier than the batch before it.
        now_s = max(now_s, batch_sent_s)
        while True:
            while changes_s[current] <= now_s:
                current += 1
            while ends_s and ends_s[0] <= now_s:
                heapq.heappop(ends_s)
            if len(ends_s) < counts[current]:
                break
            now_s = min(changes_s[current], ends_s[0] if ends_s else math.inf)
        waits[number] = now_s - batch_sent_s
        heapq.heappush(ends_s, now_s + batch_service_s)
    return waits


def _send_batches(
    times: Vector, next_request: int, change: BufferChange, since_s: float, until_s: float
) -> tuple[Indices, Vector, int]:
    """The batches that this B and T send: the request that opens each, when each is sent, and the first request left over."""
    arrived = times[next_request : int(np.searchsorted(times, until_s, side="right"))]
    opening = next_request + np.arange(len(arrived))
    full = np.minimum(opening + change.batch, len(times))
    timed_out = np.searchsorted(times, np.maximum(arrived + change.timeout_s, since_s), side="right")
    ends = np.minimum(full, timed_out)
    # A full batch is sent by its last request, any other one by its timeout.
    sent_s = np.where(ends - opening == change.batch, times[ends - 1], arrived + change.timeout_s)
    sent_s = np.maximum(sent_s, since_s)
    # A batch that opens later is sent later, so that the batches sent before `until_s` come first.
    count = int(np.searchsorted(sent_s, until_s, side="right"))
    first = np.array(_opened((ends[:count] - next_request).tolist()), dtype=np.intp)
    return first + next_request, sent_s[first], int(ends[first[-1]]) if len(first) else next_request


def _opened(ends: list[int]) -> list[int]:
    """The requests that open a batch, where the batch opened by request i ends before request `ends[i]`."""
    opened, index, count = [], 0, len(ends)
    while index < count:
        opened.append(index)
        index = ends[index]
    return opened

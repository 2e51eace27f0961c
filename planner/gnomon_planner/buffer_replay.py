"""Replay of recorded arrivals through BATCH's buffer and the instances behind it, event by event.

The planner's formulas are checked against this replay. A batch opens with its first request. The buffer sends the batch when it
holds B requests (the batch size), or T seconds after it opened (the buffer timeout), whichever comes first; T = 0 or B = 1 sends
at once. A batch of k requests then takes the service time S_k on an instance. A request's latency is its wait in the buffer plus
S_k.

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
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gnomon_core.errors import bad_request
from gnomon_planner.numerics import Indices, Vector


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

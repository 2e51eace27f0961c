"""BATCH's buffer, event by event: what the planner's mathematics is checked against.

A batch opens with its first request. It is sent when it holds B requests, or T after it opened, whichever comes first; T = 0 or
B = 1 sends at once. It then takes S_k for its k requests on one of infinitely many instances. A request's latency is the wait
from its arrival until its batch is sent, and S_k.

    times 0.00 0.01 0.50 s, B = 2, T = 0.1 s, S = (0.02, 0.03) s
    the first two are sent at 0.01 (full), the third at 0.60 (its batch's time is up): latencies 40, 30 and 120 ms

Where the batch that opens at request i ends depends on i alone, so the ends for all i are one vectorised search; then the batches
that really open are followed from one to the next. A million requests take about 0.1 s.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gnomon_core.errors import bad_request

Vector = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Buffered:
    """Of each request, in order of arrival: seconds until its batch was sent, and that batch's size; `first` opened one."""

    wait_s: Vector
    sizes: npt.NDArray[np.intp]
    first: npt.NDArray[np.intp]

    def latency_s(self, service_s: Sequence[float]) -> Vector:
        """Wait and service of each request; `service_s[k − 1]` is what a batch of k takes."""
        latency_s: Vector = self.wait_s + np.asarray(service_s, dtype=float)[self.sizes - 1]
        return latency_s


def buffered(times_s: Sequence[float] | Vector, batch: int, timeout_s: float) -> Buffered:
    """Send requests that arrive at `times_s` (ascending) through the buffer of (B, T).

    After the last request nothing arrives: a batch that is open then waits for its timeout.

    Raises:
        GnomonError: 400 `bad_buffer` for times that descend, a batch below 1 or a timeout below 0.

    """
    times = np.asarray(times_s, dtype=float)
    if batch < 1 or not timeout_s >= 0.0 or (np.diff(times) < 0.0).any():
        raise bad_request("bad_buffer", "The buffer cannot do that.", "Times ascend, B is at least 1 and T at least 0.")
    count = len(times)
    full = np.minimum(np.arange(batch, count + batch), count)
    expired = np.searchsorted(times, times + timeout_s, side="right")
    ends = np.minimum(full, expired)
    first = np.array(_followed(ends.tolist()), dtype=np.intp)
    sizes = ends[first] - first
    # A batch that is full was sent by its last request, any other one by its timer.
    sent_s = np.where(sizes == batch, times[ends[first] - 1], times[first] + timeout_s)
    return Buffered(np.repeat(sent_s, sizes) - times, np.repeat(sizes, sizes), first)


def _followed(ends: list[int]) -> list[int]:
    opened, index, count = [], 0, len(ends)
    while index < count:
        opened.append(index)
        index = ends[index]
    return opened

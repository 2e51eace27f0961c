"""The number of instances that a platform with limited ones needs, and how long batches wait for one.

With instances enough, a batch of service S is in service for S seconds, so the number of concurrent batches is the number of
batches that left the buffer in the last S seconds. It follows from the time between two of them: until the next request
comes, and then until the batch is together. That time depends on the phase; its distribution is put on a grid, and T_c is the
time of c of them:

    P(N ≥ c) = r·∫_0^S [P(T_{c−1} ≤ u) − P(T_c ≤ u)] du       r batches leave per second; Palm's inversion

The fleet is the least c with P(N ≤ c) ≥ 99.9 %. With c instances a batch waits for the one that left c batches before it:
P(wait > x) = P(T_c < S − x), where the wait of that one is left out: it waits in 1 of 1000.
S is the mean service time of a batch, so that the mean number, r·S, is exact (Little).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gnomon_core.errors import GnomonError
from gnomon_planner.buffer import Buffer
from gnomon_planner.maps import Counting
from gnomon_planner.numerics import Array

CONCURRENCY_QUANTILE = 0.999
STEPS = 512
"""Steps of the grid of times from 0 to the service time."""
WAIT_STEPS = 16
"""Different waits for an instance: the latency is a mixture over them, and its cost grows with their number."""
MOST_INSTANCES = 10_000


class TooManyInstancesError(GnomonError):
    """400 `too_many_instances`: such a fleet is not held, nor is its number found in time. `nearest` says what comes nearest."""

    def __init__(self, nearest: str = "") -> None:
        text = f"More than {MOST_INSTANCES} instances would be busy at once{nearest}."
        super().__init__(400, "too_many_instances", text, "Let batches be larger.")


@dataclass(frozen=True, slots=True)
class Fleet:
    """A number of instances, and the wait of a batch for one as (seconds, probability) pairs that sum to 1."""

    instances: int
    waits: tuple[tuple[float, float], ...]


def fleet_for(buffer: Buffer, service_s: float) -> Fleet:
    """The fleet for a buffer whose batches take `service_s` seconds in the mean.

    Raises:
        TooManyInstancesError: 400 `too_many_instances`: more than 10,000.

    """
    if service_s <= 0.0:
        return Fleet(1, ((0.0, 1.0),))
    rate = buffer.process.rate_rps / buffer.mean_size  # r, batches per second
    if rate * service_s > MOST_INSTANCES:
        raise TooManyInstancesError
    between, phases = _between_batches(buffer, service_s)
    # Padded to twice the length, so that the circular convolution of the transforms is the plain one.
    transformed = np.fft.rfft(between, 2 * (STEPS + 1), axis=0)
    step_s = service_s / STEPS
    reached = np.zeros((STEPS + 1, len(phases)))
    reached[0] = phases
    earlier = np.ones(STEPS + 1)
    for count in range(MOST_INSTANCES + 1):
        reached = _followed(reached, transformed)
        times = np.minimum(np.cumsum(reached.sum(axis=1)), earlier)  # P(T_{count + 1} ≤ u)
        gap = earlier - times
        exceeds = rate * step_s * float((gap[1:] + gap[:-1]).sum() / 2.0)  # P(N ≥ count + 1)
        if count >= 1 and exceeds <= 1.0 - CONCURRENCY_QUANTILE:
            return Fleet(count, _waits(earlier, service_s))
        earlier = times
    raise TooManyInstancesError


def _followed(reached: Array, transformed: npt.NDArray[np.complex128]) -> Array:
    """Masses of the time after one more batch, on the grid and by phase, shape (STEPS + 1, n)."""
    product = (np.fft.rfft(reached, 2 * (STEPS + 1), axis=0)[:, None, :] @ transformed)[:, 0]
    found: Array = np.fft.irfft(product, 2 * (STEPS + 1), axis=0)[: STEPS + 1]
    return np.clip(found, 0.0, None)


def _waits(within: Array, service_s: float) -> tuple[tuple[float, float], ...]:
    """The distribution of waits S − T_c, from P(T_c ≤ u) on the grid of u; no wait is rounded down."""
    places = np.linspace(0, STEPS, WAIT_STEPS + 1).astype(int)
    longer = within[STEPS - places]  # P(wait ≥ x) for x at these places
    masses = longer[:-1] - longer[1:]
    rows = [(float(place) / STEPS * service_s, float(mass)) for place, mass in zip(places[1:], masses, strict=True)]
    waiting = [(wait_s, mass) for wait_s, mass in rows if mass > 0.0]
    return ((0.0, 1.0 - sum(mass for _, mass in waiting)), *waiting)


def _between_batches(buffer: Buffer, service_s: float) -> tuple[Array, Array]:
    """The time between batches, as masses on the grid, shape (STEPS + 1, n, n); and the phase as a batch leaves."""
    process, batch, timeout_s = buffer.process, buffer.plan.batch, buffer.timeout_s
    order = process.order
    grid = np.linspace(0.0, service_s, STEPS + 1)
    step = np.asarray(np.linalg.solve(-process.D0, process.D1), dtype=np.float64)
    idle = step - Counting(process, 1).at(grid)[:, 0] @ step
    waiting = _masses(idle)
    filling = np.zeros((STEPS + 1, order, order))
    if batch == 1:
        filling[0] = np.eye(order)
        phases = buffer.phases
    else:
        counts = Counting(process, batch - 1).at(np.append(np.minimum(grid, timeout_s), timeout_s))
        full = np.broadcast_to(np.eye(order), counts[:, 0].shape)
        for number in range(batch - 1):
            full = np.clip((full - counts[:, number]) @ step, 0.0, None)
        filling = _masses(full[:-1])
        place = timeout_s / service_s * STEPS
        low = int(min(place, STEPS + 1))
        timed_out = counts[-1].sum(axis=0)
        for number, share in ((low, low + 1.0 - place), (low + 1, place - low)):
            if number <= STEPS:
                filling[number] += share * timed_out
        phases = buffer.phases @ (full[-1] + timed_out)
    product = np.fft.rfft(waiting, 2 * (STEPS + 1), axis=0) @ np.fft.rfft(filling, 2 * (STEPS + 1), axis=0)
    found = np.fft.irfft(product, 2 * (STEPS + 1), axis=0)[: STEPS + 1]
    return np.clip(found, 0.0, None), phases


def _masses(cumulative: Array) -> Array:
    """Probability mass at each grid point: half of the increment to either neighbour."""
    between = np.diff(cumulative, axis=0) / 2.0
    found = np.zeros(cumulative.shape)
    found[:-1] += between
    found[1:] += between
    return found

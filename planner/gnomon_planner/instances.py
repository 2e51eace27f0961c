"""The number of instances that a buffer needs where instances are provisioned, and the wait of a batch for an instance.

With unlimited instances a batch is in service for S seconds, so the number N of concurrent batches is the number of batches that
left the buffer in the last S seconds. N follows from the time between two batches: the time to the next arrival, plus the time
to fill the buffer. That time depends on the phase; its distribution is discretised on a grid, and T_c is the sum of c of them:

    P(N ≥ c) = r·∫_0^S [P(T_{c−1} ≤ u) − P(T_c ≤ u)] du       r batches leave per second; Palm's inversion

The fleet is the least c with P(N ≤ c) ≥ 99.9 %. With c instances a batch waits for the one that left c batches before it:
P(wait > x) = P(T_c < S − x), which neglects the wait of that batch itself: 1 of 1000 batches waits.
S is the mean service time of a batch, so that the mean of N, r·S, is exact (Little's law).
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
GRID_STEPS = 512
"""Steps of the grid of times from 0 to the service time."""
WAIT_STEPS = 16
"""The number of different waits for an instance: the latency is a mixture over them, whose cost grows with their number."""
MAX_INSTANCES = 10_000


class TooManyInstancesError(GnomonError):
    """400 `too_many_instances`: the number would not be found in time. `nearest` describes the nearest plan."""

    def __init__(self, nearest: str = "") -> None:
        text = f"More than {MAX_INSTANCES} instances would be busy at once{nearest}."
        super().__init__(400, "too_many_instances", text, "Let batches be larger.")


@dataclass(frozen=True, slots=True)
class Fleet:
    """A number of instances, and the wait of a batch for one as (seconds, probability) pairs that sum to 1."""

    instances: int
    waits: tuple[tuple[float, float], ...]


def fleet_for(buffer: Buffer, service_s: float) -> Fleet:
    """The least number of instances for a buffer whose mean service time is `service_s` seconds, with the waits for one.

    Raises:
        TooManyInstancesError: 400 `too_many_instances`: more than 10,000.

    """
    if service_s <= 0.0:
        return Fleet(1, ((0.0, 1.0),))
    rate = buffer.process.rate_rps / buffer.mean_size  # r, batches per second
    if rate * service_s > MAX_INSTANCES:
        raise TooManyInstancesError
    interval, phases = _time_between_batches(buffer, service_s)
    # Padded to twice the length, so that the circular convolution of the transforms is the plain one.
    transformed = np.fft.rfft(interval, 2 * (GRID_STEPS + 1), axis=0)
    step_s = service_s / GRID_STEPS
    time_masses = np.zeros((GRID_STEPS + 1, len(phases)))
    time_masses[0] = phases
    previous = np.ones(GRID_STEPS + 1)
    for count in range(MAX_INSTANCES + 1):
        time_masses = _one_batch_later(time_masses, transformed)
        within = np.minimum(np.cumsum(time_masses.sum(axis=1)), previous)  # P(T_{count + 1} ≤ u)
        concurrent = previous - within
        exceeds = rate * step_s * float((concurrent[1:] + concurrent[:-1]).sum() / 2.0)  # P(N ≥ count + 1)
        if count >= 1 and exceeds <= 1.0 - CONCURRENCY_QUANTILE:
            return Fleet(count, _wait_distribution(previous, service_s))
        previous = within
    raise TooManyInstancesError


def _one_batch_later(time_masses: Array, interval_transform: npt.NDArray[np.complex128]) -> Array:
    """Masses of the time after one more batch, on the grid and by phase, shape (STEPS + 1, n)."""
    product = (np.fft.rfft(time_masses, 2 * (GRID_STEPS + 1), axis=0)[:, None, :] @ interval_transform)[:, 0]
    later: Array = np.fft.irfft(product, 2 * (GRID_STEPS + 1), axis=0)[: GRID_STEPS + 1]
    return np.clip(later, 0.0, None)


def _wait_distribution(within: Array, service_s: float) -> tuple[tuple[float, float], ...]:
    """The distribution of waits S − T_c, from P(T_c ≤ u) on the grid of u; waits are rounded up to the grid."""
    grid_points = np.linspace(0, GRID_STEPS, WAIT_STEPS + 1).astype(int)
    exceeding = within[GRID_STEPS - grid_points]  # P(wait ≥ x) for x at these places
    masses = exceeding[:-1] - exceeding[1:]
    wait_masses = [
        (float(grid_point) / GRID_STEPS * service_s, float(mass))
        for grid_point, mass in zip(grid_points[1:], masses, strict=True)
    ]
    waiting = [(wait_s, mass) for wait_s, mass in wait_masses if mass > 0.0]
    return ((0.0, 1.0 - sum(mass for _, mass in waiting)), *waiting)


def _time_between_batches(buffer: Buffer, service_s: float) -> tuple[Array, Array]:
    """The time between batches, as masses on the grid, shape (STEPS + 1, n, n); and the phase when a batch is sent, shape (n)."""
    process, batch, timeout_s = buffer.process, buffer.plan.batch, buffer.timeout_s
    order = process.order
    grid = np.linspace(0.0, service_s, GRID_STEPS + 1)
    step = np.asarray(np.linalg.solve(-process.D0, process.D1), dtype=np.float64)
    next_arrival = step - Counting(process, 1).at(grid)[:, 0] @ step
    waiting = _grid_masses(next_arrival)
    filling = np.zeros((GRID_STEPS + 1, order, order))
    if batch == 1:
        filling[0] = np.eye(order)
        phases = buffer.phases
    else:
        counts = Counting(process, batch - 1).at(np.append(np.minimum(grid, timeout_s), timeout_s))
        full = np.broadcast_to(np.eye(order), counts[:, 0].shape)
        for level in range(batch - 1):
            full = np.clip((full - counts[:, level]) @ step, 0.0, None)
        filling = _grid_masses(full[:-1])
        timeout_steps = timeout_s / service_s * GRID_STEPS
        grid_point = int(min(timeout_steps, GRID_STEPS + 1))
        timed_out = counts[-1].sum(axis=0)
        for level, weight in ((grid_point, grid_point + 1.0 - timeout_steps), (grid_point + 1, timeout_steps - grid_point)):
            if level <= GRID_STEPS:
                filling[level] += weight * timed_out
        phases = buffer.phases @ (full[-1] + timed_out)
    product = np.fft.rfft(waiting, 2 * (GRID_STEPS + 1), axis=0) @ np.fft.rfft(filling, 2 * (GRID_STEPS + 1), axis=0)
    interval = np.fft.irfft(product, 2 * (GRID_STEPS + 1), axis=0)[: GRID_STEPS + 1]
    return np.clip(interval, 0.0, None), phases


def _grid_masses(cumulative: Array) -> Array:
    """Probability mass at each grid point: half of the increment to either neighbour."""
    halves = np.diff(cumulative, axis=0) / 2.0
    masses = np.zeros(cumulative.shape)
    masses[:-1] += halves
    masses[1:] += halves
    return masses

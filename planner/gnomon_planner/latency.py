"""The latency of a request: its wait in the buffer and the service of its batch, as a distribution with any percentile.

With N requests per batch in the mean, and batches of k served in S_k,

    F(t) = Σ_k [members_k(t − S_k) + p_k·1{k < B, t ≥ S_k + T}] / N

A service time is one number per batch size, or several with their probabilities. F has atoms, where many requests
have one latency (S_k + T: the first of incomplete batches; S_B: the last of full ones), and flat stretches where no latency
falls. The percentile of q is the least t with F(t) ≥ q, so that at an atom it is the atom's place, exactly.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np

from gnomon_core.errors import bad_request
from gnomon_planner.buffer import Buffer, BufferPlan
from gnomon_planner.maps import Map
from gnomon_planner.numerics import Array, Curves, crossings, interpolated

ROUNDING = 1e-12  # F may miss q by so much and still reach it
EXACT = 1e-13  # of a percentile
PARTS = 32  # a round leaves a 32nd of the stops; one call with 31 points costs little more than with one


Times: TypeAlias = Sequence[tuple[float, float]]
"""(seconds, probability) pairs."""


class Latency(Protocol):
    """A distribution of latencies."""

    def cdf(self, times_s: Array) -> Array:
        """F(t) = P(latency ≤ t) at each time in seconds; same shape."""
        ...

    def percentile(self, percent: float) -> float:
        """The least t in seconds with F(t) ≥ percent/100; 0 < percent ≤ 100."""
        ...


@dataclass(frozen=True, slots=True)
class ServiceTimes:
    """S_k for k = 1 … B: for each batch size its times in seconds, one if service is deterministic.

    `shares` tells how likely the first, second, … of each size is; without them a size's are equally likely.

    Raises:
        GnomonError: 400 `bad_service_times`.

    """

    seconds: tuple[tuple[float, ...], ...]
    shares: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if not self.seconds or not all(self.seconds):
            raise bad_request("bad_service_times", "A batch size has no service time.", "Give one or more for every batch size.")
        if not all(math.isfinite(one) and one >= 0.0 for row in self.seconds for one in row):
            raise bad_request("bad_service_times", "A service time is not a number of at least 0.")
        if self.shares and not (min(self.shares) >= 0.0 and math.isclose(sum(self.shares), 1.0)):
            raise bad_request("bad_service_times", "The shares of service times do not sum to 1.")
        if self.shares and any(len(row) != len(self.shares) for row in self.seconds):
            raise bad_request("bad_service_times", "A batch size has not as many service times as there are shares.")

    @staticmethod
    def fixed(seconds: Sequence[float], batch: int | None = None) -> ServiceTimes:
        """A constant time in seconds for each batch size; a single value holds for all sizes up to `batch`."""
        given = list(seconds)
        if batch is not None and len(given) == 1:
            given *= batch
        return ServiceTimes(tuple((float(one),) for one in given))

    def upto(self, batch: int) -> ServiceTimes:
        """The service times of batch sizes up to `batch`.

        Raises:
            GnomonError: 400 `bad_service_times`: fewer are known.

        """
        if len(self.seconds) < batch:
            raise bad_request(
                "bad_service_times",
                f"Service times for batches up to {len(self.seconds)}, and a largest batch of {batch}.",
                f"Give {batch} times, one for each batch size, or one time for all.",
            )
        return ServiceTimes(self.seconds[:batch], self.shares)

    @property
    def likely(self) -> tuple[tuple[tuple[float, float], ...], ...]:
        """The (seconds, probability) pairs of each batch size."""
        return tuple(tuple(zip(row, self.shares or (1.0 / len(row),) * len(row), strict=True)) for row in self.seconds)

    @property
    def means(self) -> Array:
        """E[S_k] in seconds for k = 1 … B, shape (B)."""
        return np.array([_mean(row) for row in self.likely])


class Mixture:
    """A sum of atoms and of shifted curves that rise from 0: F, and its percentiles between atoms."""

    def __init__(
        self, atoms: Mapping[float, float], curves: Curves | None, shifts: Array, functions: Array, weights: Array
    ) -> None:
        self._places = np.array(sorted(atoms))
        self._masses = np.concatenate([[0.0], np.cumsum([atoms[place] for place in sorted(atoms)])])
        self._curves, self._shifts, self._functions, self._weights = curves, shifts, functions, weights
        self._starts = np.zeros(len(shifts))
        length = 0.0
        if curves is not None:
            self._starts = curves.at(np.zeros(len(shifts)), functions)
            length = float(curves.edges[-1])
        self._stops = np.unique(np.concatenate([self._places, shifts, shifts + length]))

    def cdf(self, times_s: Array) -> Array:
        """F(t) at each time in seconds, shape (times)."""
        times = np.asarray(times_s, dtype=float)
        atoms = self._masses[np.searchsorted(self._places, times, side="right")]
        return np.clip(atoms + self._smooth(times), 0.0, 1.0)

    def percentile(self, percent: float) -> float:
        """The least t in seconds with F(t) ≥ percent/100.

        Raises:
            GnomonError: 400 `bad_percentile`.

        """
        goal = quantile(percent)
        number = self._first_stop(goal)
        stop = float(self._stops[number])
        below = float(self._masses[np.searchsorted(self._places, stop, side="left")])
        if number == 0 or self._smooth(self._stops[number : number + 1])[0] + below < goal:
            return stop
        low, high = self._stops[number - 1 : number], self._stops[number : number + 1]
        return float(crossings(lambda _, at: self._smooth(at) + below - goal, low, high, close=EXACT)[0])

    def _first_stop(self, goal: float) -> int:
        """Index of the first stop at which F reaches the goal; the last stop if rounding keeps F below it."""
        first, last = -1, len(self._stops) - 1
        while last - first > 1:
            between = np.unique(np.linspace(first, last, PARTS + 1).round().astype(int))[1:-1]
            places = self._stops[between]
            reached = self._smooth(places) + self._masses[np.searchsorted(self._places, places, side="right")] >= goal
            number = int(np.argmax(np.append(reached, True)))
            first, last = int(between[number - 1]) if number else first, int(between[number]) if number < len(between) else last
        return last

    def _smooth(self, times: Array) -> Array:
        """The weighted increase of the curves at each time, shape (times)."""
        if self._curves is None:
            return np.zeros(len(times))
        waits = times[:, None] - self._shifts
        functions = np.broadcast_to(self._functions, waits.shape)
        gained: Array = (self._curves.at(waits, functions) - self._starts) @ self._weights
        return gained


class ExactLatency(Mixture):
    """The latency behind a buffer whose batches find an instance at once, or after one of several waits (seconds, probability).

    Few batches wait where there are enough instances: those that do count with their mean service time.

    Raises:
        GnomonError: 400 `bad_service_times`: not one for each batch size.

    """

    def __init__(self, process: Map, plan: BufferPlan, service: ServiceTimes, instance_waits: Times = ((0.0, 1.0),)) -> None:
        self.buffer = buffer = Buffer(process, plan)
        batch, timeout_s, mean_size = plan.batch, buffer.timeout_s, buffer.mean_size
        rows = [_delays(row, instance_waits) for row in service.upto(batch).likely]
        atoms: dict[float, float] = {}
        for size, row in enumerate(rows, start=1):
            members = 1.0 if batch == 1 else float(buffer.sizes[size - 1]) / mean_size
            for seconds, share in row:
                place = seconds + (timeout_s if size < batch else 0.0)
                atoms[place] = atoms.get(place, 0.0) + members * share
        curves = None
        if batch > 1 and timeout_s > 0.0:
            curves = interpolated(lambda waits: buffer.members(waits) / mean_size, timeout_s, 1.0 / buffer.rate)
        super().__init__(
            atoms,
            curves,
            shifts=np.array([seconds for row in rows for seconds, _ in row]),
            functions=np.array([number for number, row in enumerate(rows) for _ in row]),
            weights=np.array([share for row in rows for _, share in row]),
        )


def _delays(times: Times, waits: Times) -> list[tuple[float, float]]:
    """Seconds from the moment a batch leaves the buffer to its end, with probabilities."""
    mean = ((_mean(times), 1.0),)
    found = []
    for wait_s, share in waits:
        found += [(seconds + wait_s, share * likely) for seconds, likely in (times if wait_s == 0.0 else mean)]
    return found


def _mean(times: Times) -> float:
    return sum(seconds * share for seconds, share in times)


def quantile(percent: float) -> float:
    """The q that F has to reach, less what rounding takes.

    Raises:
        GnomonError: 400 `bad_percentile`.

    """
    if not 0.0 < percent <= 100.0:  # noqa: PLR2004 - percent
        raise bad_request("bad_percentile", f"A percentile of {percent:g}.", "Percentiles are above 0 and at most 100.")
    return percent / 100.0 - ROUNDING

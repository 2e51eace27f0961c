"""The latency distribution of a request, its wait in the buffer plus the service time of its batch, and its percentiles.

With a mean batch size of N and a service time of S_k for batches of k (BATCH, Eq. 9),

    F(t) = Σ_k [members_k(t − S_k) + p_k·1{k < B, t ≥ S_k + T}] / N

A service time is one number per batch size, or several with their probabilities. F has atoms, latencies with positive
probability (S_k + T: the first request of incomplete batches; S_B: the last of full ones), and is flat between latencies that do
not occur. The percentile of q is the least t with F(t) ≥ q: exactly the atom where an atom crosses q.

**`PaperLatency`** is BATCH's own latency distribution (Section IV, Eqs. 4–16), for comparison with the exact one. What is printed
is kept wherever it can be computed: the guess of the phase at a batch's first request (Eqs. 13, 14), waits that are uniform
between the first request and the last (case 2 of Eq. 9), and a full batch that always takes the mean time τ to fill (Eqs. 10,
15). Where the text contradicts itself or is incomplete, it is read as it must mean; decision 0019 works an example for each:

- Eq. 7: the last entry is 1 minus the others, to B − 2. Eq. 8: ρ_k, the share of requests in a batch of k, is k·π_{k−1} / Σ
  i·π_{i−1}.
- Eq. 9: the windows of different sizes overlap, so F(t) = Σ_k ρ_k·F_k(t), each F_k over its own window. The first request of an
  incomplete batch waits exactly T, the last of a full one not at all: 1/k of its members each. `literal` leaves these two among
  the uniform ones, as case 2 and 3 are printed; only a batch of one waits exactly T there.
- Eqs. 10, 15: τ = (B − 1)/λ may exceed T: min(T, τ).
- Eq. 13: λ_m/ω_m, the arrivals while in phase m, is proportional to θ_m·λ_m (θ the stationary phase, λ_m the rate in it), which
  exists for a MAP of any order as well. Eq. 14 names the entries of the buffer's first state; the others are 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np

from gnomon_core.errors import bad_request
from gnomon_planner.buffer import Buffer, BufferPlan
from gnomon_planner.maps import Counting, Map
from gnomon_planner.numerics import Array, Curves, crossings, interpolated

CDF_TOLERANCE = 1e-12  # F counts as having reached q from q minus this on
PERCENTILE_TOLERANCE = 1e-13  # relative width of the bracket around a percentile
SEARCH_PARTS = 32  # a search step leaves 1/32 of the stops: F at 31 points costs little more than at one


WeightedTimes: TypeAlias = Sequence[tuple[float, float]]
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

    `shares` are the probabilities of the first, second, … time of each size; without them all times of a size are equally likely.

    Raises:
        GnomonError: 400 `bad_service_times`.

    """

    seconds: tuple[tuple[float, ...], ...]
    shares: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if not self.seconds or not all(self.seconds):
            raise bad_request("bad_service_times", "A batch size has no service time.", "Give one or more for every batch size.")
        if not all(math.isfinite(seconds) and seconds >= 0.0 for row in self.seconds for seconds in row):
            raise bad_request("bad_service_times", "A service time is not a number of at least 0.")
        if self.shares and not (min(self.shares) >= 0.0 and math.isclose(sum(self.shares), 1.0)):
            raise bad_request("bad_service_times", "The shares of service times do not sum to 1.")
        if self.shares and any(len(row) != len(self.shares) for row in self.seconds):
            raise bad_request("bad_service_times", "A batch size has not as many service times as there are shares.")

    @staticmethod
    def fixed(seconds: Sequence[float], batch: int | None = None) -> ServiceTimes:
        """A constant time in seconds for each batch size; a single value holds for all sizes up to `batch`."""
        times_s = list(seconds)
        if batch is not None and len(times_s) == 1:
            times_s *= batch
        return ServiceTimes(tuple((float(time_s),) for time_s in times_s))

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
    """A distribution as a sum of atoms and of weighted, shifted curves: F(t) = Σ atoms ≤ t + Σ weight·curve(t − shift).

    `shifts` (seconds), `functions` (index of the curve) and `weights` have shape (terms). `atoms` maps a latency in seconds to
    its probability.
    """

    def __init__(
        self, atoms: Mapping[float, float], curves: Curves | None, shifts: Array, functions: Array, weights: Array
    ) -> None:
        self._places = np.array(sorted(atoms))
        self._masses = np.concatenate([[0.0], np.cumsum([atoms[place] for place in sorted(atoms)])])
        self._curves, self._shifts, self._functions, self._weights = curves, shifts, functions, weights
        self._starts = np.zeros(len(shifts))
        curve_length_s = 0.0
        if curves is not None:
            self._starts = curves.at(np.zeros(len(shifts)), functions)
            curve_length_s = float(curves.edges[-1])
        self._stops = np.unique(np.concatenate([self._places, shifts, shifts + curve_length_s]))

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
        target = quantile(percent)
        stop_index = self._first_stop(target)
        stop_s = float(self._stops[stop_index])
        atoms_below = float(self._masses[np.searchsorted(self._places, stop_s, side="left")])
        if stop_index == 0 or self._smooth(self._stops[stop_index : stop_index + 1])[0] + atoms_below < target:
            return stop_s
        low, high = self._stops[stop_index - 1 : stop_index], self._stops[stop_index : stop_index + 1]
        return float(crossings(lambda _, at: self._smooth(at) + atoms_below - target, low, high, close=PERCENTILE_TOLERANCE)[0])

    def _first_stop(self, target: float) -> int:
        """Index of the first stop at which F reaches the goal; the last stop if rounding keeps F below it."""
        first, last = -1, len(self._stops) - 1
        while last - first > 1:
            probes = np.unique(np.linspace(first, last, SEARCH_PARTS + 1).round().astype(int))[1:-1]
            probe_times_s = self._stops[probes]
            reaches_target = (
                self._smooth(probe_times_s) + self._masses[np.searchsorted(self._places, probe_times_s, side="right")] >= target
            )
            first_reached = int(np.argmax(np.append(reaches_target, True)))
            first, last = (
                int(probes[first_reached - 1]) if first_reached else first,
                int(probes[first_reached]) if first_reached < len(probes) else last,
            )
        return last

    def _smooth(self, times: Array) -> Array:
        """The weighted increase of the curves at each time, shape (times)."""
        if self._curves is None:
            return np.zeros(len(times))
        waits = times[:, None] - self._shifts
        functions = np.broadcast_to(self._functions, waits.shape)
        increase: Array = (self._curves.at(waits, functions) - self._starts) @ self._weights
        return increase


class ExactLatency(Mixture):
    """The latency of requests behind a buffer, with the wait of a batch for an instance as (seconds, probability) pairs.

    A batch that waits counts with its mean service time: few batches wait where there are enough instances.

    Raises:
        GnomonError: 400 `bad_service_times`: not one for each batch size.

    """

    def __init__(
        self, process: Map, plan: BufferPlan, service: ServiceTimes, instance_waits: WeightedTimes = ((0.0, 1.0),)
    ) -> None:
        self.buffer = buffer = Buffer(process, plan)
        batch, timeout_s, mean_size = plan.batch, buffer.timeout_s, buffer.mean_size
        rows = [_delays_after_buffer(times, instance_waits) for times in service.upto(batch).likely]
        atoms: dict[float, float] = {}
        for size, times in enumerate(rows, start=1):
            member_share = 1.0 if batch == 1 else float(buffer.sizes[size - 1]) / mean_size
            for seconds, share in times:
                latency_s = seconds + (timeout_s if size < batch else 0.0)
                atoms[latency_s] = atoms.get(latency_s, 0.0) + member_share * share
        curves = None
        if batch > 1 and timeout_s > 0.0:
            curves = interpolated(lambda waits: buffer.members(waits) / mean_size, timeout_s, 1.0 / buffer.rate)
        super().__init__(
            atoms,
            curves,
            shifts=np.array([seconds for times in rows for seconds, _ in times]),
            functions=np.array([number for number, times in enumerate(rows) for _ in times]),
            weights=np.array([share for times in rows for _, share in times]),
        )


def _delays_after_buffer(times: WeightedTimes, waits: WeightedTimes) -> list[tuple[float, float]]:
    """(seconds, probability) pairs of the time from sending a batch to its end: wait for an instance plus service time."""
    mean = ((_mean(times), 1.0),)
    delays = []
    for wait_s, wait_probability in waits:
        delays += [
            (seconds + wait_s, wait_probability * probability) for seconds, probability in (times if wait_s == 0.0 else mean)
        ]
    return delays


def _mean(times: WeightedTimes) -> float:
    return sum(seconds * share for seconds, share in times)


def quantile(percent: float) -> float:
    """The q = percent/100 that F has to reach, less a tolerance for rounding.

    Raises:
        GnomonError: 400 `bad_percentile`.

    """
    if not 0.0 < percent <= 100.0:  # noqa: PLR2004 - percent
        raise bad_request(
            "bad_percentile", f"The percentile {percent:g} is out of range.", "Percentiles are above 0 and at most 100."
        )
    return percent / 100.0 - CDF_TOLERANCE


class PaperLatency(Mixture):
    """The latency as BATCH predicts it; `literal` without the readings of Eq. 9's cases 2 and 3.

    Raises:
        GnomonError: 400 `bad_service_times`: not one for each batch size.

    """

    def __init__(self, process: Map, plan: BufferPlan, service: ServiceTimes, *, literal: bool = False) -> None:
        rows = service.upto(plan.batch).likely
        self.phases = first_phases(process, plan)
        shares = member_shares(process, plan, self.phases)
        fill_s = min(plan.timeout_s, (plan.batch - 1) / process.rate_rps)
        atoms: dict[float, float] = {}
        windows: list[tuple[float, float, float]] = []
        for size, (row, share) in enumerate(zip(rows, shares, strict=True), start=1):
            full = size == plan.batch
            window_s = fill_s if full else plan.timeout_s
            apart = 1.0 if size == 1 or window_s == 0.0 else 0.0 if literal else 1.0 / size
            for seconds, likely in row if share > 0.0 else ():
                if apart < 1.0:
                    windows.append((seconds, window_s, (1.0 - apart) * share * likely))
                if apart > 0.0:
                    place = seconds + (0.0 if full else window_s)
                    atoms[place] = atoms.get(place, 0.0) + apart * share * likely
        lengths = np.array(sorted({window_s for _, window_s, _ in windows}))
        super().__init__(
            atoms,
            _uniform(lengths) if windows else None,
            shifts=np.array([start for start, _, _ in windows]),
            functions=np.array([int(np.searchsorted(lengths, length)) for _, length, _ in windows], dtype=int),
            weights=np.array([weight for _, _, weight in windows]),
        )


def first_phases(process: Map, plan: BufferPlan) -> Array:
    """π(0) of Eqs. 13 and 14: distribution of the phase at a batch's first request, shape (n)."""
    rates = process.D1.sum(axis=1)
    # Nothing arrives in a phase without a rate, however long T is: 0·∞ would be no number.
    within = np.multiply(rates, plan.timeout_s, out=np.zeros(len(rates)), where=rates > 0.0)
    batches = process.stationary * rates / np.minimum(plan.batch, within + 1.0)
    found: Array = batches / batches.sum()
    return found


def member_shares(process: Map, plan: BufferPlan, phases: Array) -> Array:
    """ρ_1 … ρ_B of Eqs. 5–8: the share of all requests that are in a batch of each size, shape (B)."""
    ends = np.zeros(plan.batch)
    if plan.batch > 1 and math.isfinite(plan.timeout_s):
        within = Counting(process, plan.batch - 1).at(np.array([plan.timeout_s]))[0]
        ends[:-1] = (phases @ within).sum(axis=-1)
    ends[-1] = max(0.0, 1.0 - ends[:-1].sum())
    members = np.arange(1, plan.batch + 1) * ends
    found: Array = members / members.sum()
    return found


def _uniform(lengths: Array) -> Curves:
    """min(w/length, 1) for each length, one straight piece between any two of them."""
    edges = np.concatenate([[0.0], lengths])
    left, right = (np.minimum(1.0, points[:, None] / lengths) for points in (edges[:-1], edges[1:]))
    return Curves(edges, np.stack([(left + right) / 2.0, (right - left) / 2.0], axis=1))

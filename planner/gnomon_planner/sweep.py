"""Latency percentiles of all plans of a grid (service times × buffer timeouts × batch sizes), vectorised.

The waits in the buffer do not depend on the service time. They are computed once per (B, T), for all B and T from one table of
arrival counts (`Waits`): for each batch size k, members_k(w) as polynomials of w/T on panels that all (B, T) share. The table
itself is interpolated from some hundred times instead of computed at thousands.

`WaitsOfBatch.percentiles` then finds the percentile of each combination, all side by side; the percentiles of a few rows of
service times give the brackets for the other rows. Where service times vary, F is a mixture over a few ratios, and the work grows
with their number. The formulas are those of `buffer.py`. Eight nodes per panel leave an error of about 1e-5 in F; the chosen plan
is evaluated by `ExactLatency`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gnomon_planner.buffer import Buffer, BufferPlan, first_phases_of
from gnomon_planner.maps import Counting, Map
from gnomon_planner.numerics import Array, Indices, crossings, interpolated
from gnomon_planner.service_time import DETERMINISTIC, Spread

NODES = 8
MIN_GUESSED_ROWS = 12  # with fewer rows each is solved without a guess
SOLVED_ROWS = 7
GUESS_WIDTH = 2e-3  # half the width of the bracket around a guess, relative to the guess
CDF_TOLERANCE = 1e-9  # F counts as having reached q from q minus this on
ROUNDING = 1e-12
MIN_TIMEOUT_S = 1e-300  # avoids 0/0 in w/T where T = 0
TABLE_NUMBERS = 1 << 18  # numbers in a table of counts, so that it fits the processor's cache
CHUNK_VALUES = 1 << 14  # values of F at once: their coefficients, 64 bytes each, fit the processor's cache

_ANGLES = (np.arange(NODES) + 0.5) * np.pi / NODES
_POINTS = -np.cos(_ANGLES)
# From the values at _POINTS to the coefficients of 1, x, … x⁷ on [−1, 1].
_TO_POWERS = np.linalg.inv(np.vander(_POINTS, NODES, increasing=True)).T


@dataclass(frozen=True, slots=True)
class WaitsOfBatch:
    """The distribution of the wait in the buffer for one batch size B and all timeouts.

    `sizes` is p_k, the probability of a batch of k, shape (timeouts, B). `polynomials` are members_k(w)/N as functions of w/T, N
    the mean batch size, shape (timeouts, B, panels, NODES), on the panels between `edges`.
    """

    batch: int
    timeouts_s: Array
    edges: Array
    sizes: Array
    polynomials: Array

    @property
    def mean_sizes(self) -> Array:
        """N, mean requests per batch, shape (timeouts)."""
        mean_sizes: Array = self.sizes @ np.arange(1.0, self.batch + 1.0)
        return mean_sizes

    def percentiles(self, service_s: Array, percent: float, spread: Spread | None = None, limit_s: float = math.inf) -> Array:
        """The percentile of each combination, shape (rows, timeouts), in seconds; infinite where it is above `most_s`.

        `service_s` is S_k, shape (rows, B): one row for each memory size or number of cores. A batch takes one of a few
        ratios times that, as `spread` tells; without it service is deterministic.
        """
        spread = Spread.of([DETERMINISTIC] * len(service_s)) if spread is None else spread
        percentiles_s = np.full((len(service_s), len(self.timeouts_s)), math.inf)
        by_service = np.argsort(service_s.mean(axis=1), kind="stable")
        if limit_s < math.inf or len(by_service) < MIN_GUESSED_ROWS:
            mask = self.within(service_s, percent, spread, limit_s) if limit_s < math.inf else np.isinf(percentiles_s)
            percentiles_s[mask] = self._solved(service_s, percent, spread, mask, None)
            return percentiles_s
        # Percentiles are nearly linear in the mean service time: those of a few rows give good guesses for the others.
        sampled = by_service[np.unique(np.linspace(0, len(by_service) - 1, SOLVED_ROWS).round().astype(int))]
        interpolated_rows = np.setdiff1d(by_service, sampled)
        mean_service_s = service_s.mean(axis=1)
        mask = np.zeros(percentiles_s.shape, dtype=bool)
        mask[sampled] = True
        percentiles_s[mask] = self._solved(service_s, percent, spread, mask, None)
        guesses = np.stack(
            [
                np.interp(mean_service_s[interpolated_rows], mean_service_s[sampled], column)
                for column in percentiles_s[sampled].T
            ],
            axis=1,
        )
        # `interpolated_rows` ascend, so that the guesses are in the order in which the mask selects combinations.
        percentiles_s[~mask] = self._solved(service_s, percent, spread, ~mask, guesses.ravel())
        return percentiles_s

    def within(self, service_s: Array, percent: float, spread: Spread, limit_s: float) -> npt.NDArray[np.bool_]:
        """Return whether the percentile of each combination is at most `at_s`, shape (rows, timeouts)."""
        row, timeout = np.indices((len(service_s), len(self.timeouts_s))).reshape(2, -1)
        cdf = self.cdf(service_s[row], spread.among(row), timeout, np.full(len(row), limit_s))
        within_limit = (cdf - percent / 100.0 + CDF_TOLERANCE >= 0.0).reshape(len(service_s), -1)
        # By the longest wait plus the longest service every request is answered, whatever rounding leaves of F.
        max_latency_s = (service_s.max(axis=1) * spread.ratios.max(axis=1))[:, None] + self.timeouts_s
        all_answered: npt.NDArray[np.bool_] = max_latency_s <= limit_s
        return within_limit | all_answered

    def _solved(
        self, service_s: Array, percent: float, spread: Spread, mask: npt.NDArray[np.bool_], guesses: Array | None
    ) -> Array:
        """The percentiles of the masked combinations, flat; `guesses` are in the same order, None where there are none."""
        quantile = percent / 100.0
        row, timeout = np.nonzero(mask)
        service, spreads = service_s[row], spread.among(row)
        low = (np.min(service, axis=1) * np.min(spreads.ratios, axis=1)) * (1.0 - ROUNDING) - ROUNDING
        high = np.max(service, axis=1) * np.max(spreads.ratios, axis=1) + self.timeouts_s[timeout]

        def excess(some: Indices, times_s: Array) -> Array:
            """F(t) − q of some of the combinations; not below 0 from q minus the tolerance on."""
            return self.cdf(service[some], spreads.among(some), timeout[some], times_s) - quantile + CDF_TOLERANCE

        bracket = None if guesses is None else (guesses * (1.0 + GUESS_WIDTH), guesses * (1.0 - GUESS_WIDTH))
        return crossings(excess, low, high, bracket)

    def cdf(self, service_s: Array, spread: Spread, timeout: Indices, times_s: Array) -> Array:
        """F(t) of n combinations, shape (n): median service times (n, B) in s, spread, timeout indices (n), t (n) in s."""
        chunk_size = max(1, CHUNK_VALUES // (self.batch * spread.ratios.shape[1]))
        chunks = (slice(start, start + chunk_size) for start in range(0, max(1, len(times_s)), chunk_size))
        return np.concatenate(
            [self._cdf(service_s[chunk], spread.among(chunk), timeout[chunk], times_s[chunk]) for chunk in chunks]
        )

    def _cdf(self, service_s: Array, spread: Spread, timeout: Indices, times_s: Array) -> Array:
        """`cdf` of combinations few enough to stay in the processor's cache."""
        batch_service_s = service_s[:, None] * spread.ratios[:, :, None]
        timeouts = self.timeouts_s[timeout][:, None, None]
        waits_s = times_s[:, None, None] - batch_service_s
        fraction = np.clip(waits_s / np.maximum(timeouts, MIN_TIMEOUT_S), 0.0, 1.0)
        panels = len(self.edges) - 1
        panel = np.clip(np.searchsorted(self.edges, fraction, side="right") - 1, 0, panels - 1)
        left, right = self.edges[panel], self.edges[panel + 1]
        x = (2.0 * fraction - left - right) / (right - left)
        polynomial = timeout[:, None, None] * self.batch + np.arange(self.batch)
        coefficients = self.polynomials.reshape(-1, NODES).take(polynomial * panels + panel, axis=0)
        # Horner's rule.
        value = coefficients[..., NODES - 1]
        for power in range(NODES - 2, -1, -1):
            value = value * x + coefficients[..., power]
        cdf = np.where(waits_s >= 0.0, value, 0.0).sum(axis=2)
        if self.batch > 1:
            # The first request of an incomplete batch waits exactly T: an atom at S_k + T.
            first_shares = (self.sizes / self.mean_sizes[:, None])[timeout, None, :-1]
            timed_out = times_s[:, None, None] >= batch_service_s[..., :-1] + timeouts
            cdf += np.where(timed_out, first_shares, 0.0).sum(axis=2)
        mixture: Array = (cdf * spread.shares).sum(axis=1)
        return mixture


class Waits:
    """The distribution of the wait in the buffer for all combinations of batch sizes and timeouts (seconds, may be infinite)."""

    def __init__(self, process: Map, batches: Sequence[int], timeouts_s: Sequence[float]) -> None:
        largest = max(batches)
        self.batches = tuple(batches)
        longest_s = Buffer(process, BufferPlan(largest, max(timeouts_s))).timeout_s if largest > 1 else 0.0
        self.timeouts_s = np.minimum(np.array(timeouts_s, dtype=float), max(longest_s, 0.0))
        step = np.asarray(np.linalg.solve(-process.D0, process.D1), dtype=np.float64)
        counting = Counting(process, max(1, largest - 1))
        self.edges = _panel_edges(counting.rate * float(self.timeouts_s.max()))
        counts_within_timeout = counting.at(self.timeouts_s)
        phases = first_phases_of(counts_within_timeout, step, process.embedded)
        sizes = {batch: _size_probabilities(batch, counts_within_timeout, phases) for batch in self.batches}
        members = self._members(counting, step, phases, sizes)
        self._rows = {batch: self._row(batch, sizes[batch], members[batch]) for batch in self.batches}

    def __getitem__(self, batch: int) -> WaitsOfBatch:
        return self._rows[batch]

    def _members(self, counting: Counting, step: Array, phases: Array, sizes: Mapping[int, Array]) -> dict[int, Array]:
        """members_k(w) of each B, shape (timeouts, B, nodes); in chunks of timeouts, whose tables fit the processor's cache."""
        middles, halves = (self.edges[1:] + self.edges[:-1]) / 2.0, (self.edges[1:] - self.edges[:-1]) / 2.0
        fractions = (middles[:, None] + halves[:, None] * _POINTS).reshape(-1)
        timeouts, batches = len(self.timeouts_s), [batch for batch in self.batches if batch > 1]
        members = {batch: np.ones((timeouts, batch, len(fractions))) for batch in self.batches}
        counts = _InterpolatedCounts(counting, float(self.timeouts_s.max()))
        chunk_size = max(1, TABLE_NUMBERS // (counts.functions * len(fractions)))
        for start in range(0, timeouts, chunk_size) if batches else ():
            chunk = slice(start, start + chunk_size)
            tables = _MemberSums(counts.at(self.timeouts_s[chunk, None] * fractions), step, batches)
            for batch in batches:
                of_batch = tables.members(batch, phases[batch - 2, chunk], sizes[batch][chunk, -1])
                members[batch][chunk] = np.moveaxis(of_batch, 0, 1)
        return members

    def _row(self, batch: int, sizes: Array, members: Array) -> WaitsOfBatch:
        mean_sizes = sizes @ np.arange(1, batch + 1)
        relative_members = (members / mean_sizes[:, None, None]).reshape(len(sizes), batch, len(self.edges) - 1, NODES)
        return WaitsOfBatch(batch, self.timeouts_s, self.edges, sizes, relative_members @ _TO_POWERS)


class _MemberSums:
    """The sums of `buffer.py` for members_k(w), over the counts before and after T − w, before weighting by the first phase α.

    `counts` is P_j(w), shape (levels, n, n, timeouts, nodes). The nodes are symmetric in [0, T], so that the reversed nodes are
    T − w.
    """

    def __init__(self, counts: Array, step: Array, batches: Sequence[int]) -> None:
        self._early = np.ascontiguousarray(counts[..., ::-1])
        self._late = counts.sum(axis=2)
        self._at_least = 1.0 - np.concatenate([np.zeros_like(self._late[:1]), np.cumsum(self._late, axis=0)])
        self._incomplete = self._of_incomplete()
        self._full = self._of_full(step, batches)

    def members(self, batch: int, phases: Array, full_share: Array) -> Array:
        """members_k(w), shape (B, timeouts, nodes), for B > 1, phases α (timeouts, n) and p_B (timeouts)."""
        members = np.empty((batch, *self._incomplete.shape[2:]))
        members[:-1] = np.einsum("ta,katg->ktg", phases, self._incomplete[: batch - 1])
        members[-1] = full_share[:, None] + np.einsum("ta,atg->tg", phases, self._full[batch])
        return members

    def _of_incomplete(self) -> Array:
        """Σ_i i·P_{j−i}(T − w)·P_i(w)e for j = k − 1, shape (levels, n, timeouts, nodes)."""
        levels, order = self._late.shape[:2]
        sums: Array = np.zeros(self._late.shape)
        for after in range(1, levels):
            for phase in range(order):
                sums[after:] += self._early[: levels - after, :, phase] * (after * self._late[after, phase])
        return sums

    def _of_full(self, step: Array, batches: Sequence[int]) -> dict[int, Array]:
        """The factor of α in members_B(w) − p_B, by B; shape (n, timeouts, nodes)."""
        levels, order = self._late.shape[:2]
        phases_at_arrival = np.broadcast_to(np.eye(order)[:, :, None, None], self._early.shape[1:])
        arrived = np.empty_like(self._early)
        for level in range(levels):
            not_arrived = (phases_at_arrival - self._early[level]).reshape(order, order, -1)
            phases_at_arrival = np.clip(step.T @ not_arrived, 0.0, None).reshape(self._early.shape[1:])
            arrived[level] = phases_at_arrival
        sums = {}
        for batch in batches:
            total = self._at_least[batch - 1].copy()
            for after in range(1, batch):
                # (i − 1)·P_{B−1−i} + E_{B−2−i}, both at T − w: i = B − 1 has the first of them alone.
                before = (after - 1.0) * self._early[batch - 1 - after]
                if after < batch - 1:
                    before += arrived[batch - 2 - after]
                for phase in range(order):
                    total += before[:, phase] * self._at_least[after, phase]
            sums[batch] = total
        return sums


def _panel_edges(steps: float) -> Array:
    """Edges of panels on [0, 1], symmetric: 1/`steps` long at both ends, and twice as long with each panel inwards."""
    lower_edges = [0.0]
    step = min(0.25, 1.0 / max(steps, 4.0))
    while step < 0.499:  # noqa: PLR2004 - the middle, but for rounding
        lower_edges.append(step)
        step *= 2.0
    lower_half = np.array(lower_edges)
    return np.concatenate([lower_half, [0.5], 1.0 - lower_half[::-1]])


def _size_probabilities(batch: int, within: Array, phases: Array) -> Array:
    """p_k of one B, shape (timeouts, B), from P_j(T) and the first phases α of each B."""
    sizes = np.zeros((len(within), batch))
    if batch > 1:
        sizes[:, :-1] = np.einsum("ta,tkab->tk", phases[batch - 2], within[:, : batch - 1])
    sizes[:, -1] = np.clip(1.0 - sizes.sum(axis=1), 0.0, None)
    return sizes


class _InterpolatedCounts:
    """P_j(t) for 0 ≤ t ≤ `longest_s`, interpolated: cheaper than `Counting` for many times."""

    def __init__(self, counting: Counting, longest_s: float) -> None:
        self._shape = (counting.levels, counting.process.order, counting.process.order)
        self.functions = math.prod(self._shape)
        self._curves = interpolated(
            lambda times_s: counting.at(times_s).reshape(len(times_s), -1), longest_s or 1.0 / counting.rate, 1.0 / counting.rate
        )

    def at(self, times_s: Array) -> Array:
        """Shape (levels, n, n, …) for times of shape (…)."""
        return self._curves.every(times_s.ravel()).reshape(*self._shape, *times_s.shape)

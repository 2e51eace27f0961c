"""The percentile of every plan in a grid of service times × timeouts × largest batches, at once.

Nothing in the buffer depends on how fast an instance is, so the waits are worked out once per (B, T), for all B and T from
one table of arrival counts: `Waits` keeps, for each, the members of every batch size as polynomials of w/T on panels that are
the same for all. The table is interpolated: some hundred times tell the counts at all of the thousands that there are.
`WaitsOfBatch.percentiles` then finds the percentile of each combination, all of them side by side; a few rows of service times
tell where to look for those of the others. Where service varies, F is a mixture over a few ratios, which takes as many times as
long. The formulas are those of `buffer.py`; eight nodes to a panel leave an error of some 1e-5 in F, and `ExactLatency` says the
chosen plan's percentiles exactly.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gnomon_planner.buffer import Buffer, BufferPlan, first_phases_of
from gnomon_planner.maps import Counting, Map
from gnomon_planner.numerics import Array, crossings, interpolated
from gnomon_planner.service_time import ALWAYS, Spread

NODES = 8
FEW_ROWS = 12  # so many are solved each by itself
SOLVED_ROWS = 7
NEAR = 2e-3  # of a guess, relative to it
REACHED = 1e-9  # F may miss q by so much and still reach it
ROUNDING = 1e-12
SHORTEST_S = 1e-300  # keeps w/T a number where T = 0
TABLE = 1 << 18  # numbers in a table of counts, which a processor keeps near
AT_ONCE = 1 << 14  # values whose terms, 64 bytes each, a processor keeps near

Indices = npt.NDArray[np.intp]

_ANGLES = (np.arange(NODES) + 0.5) * np.pi / NODES
_POINTS = -np.cos(_ANGLES)
# From the values at _POINTS to the coefficients of 1, x, … x⁷ on [−1, 1].
_TO_POWERS = np.linalg.inv(np.vander(_POINTS, NODES, increasing=True)).T


@dataclass(frozen=True, slots=True)
class WaitsOfBatch:
    """The waits behind the buffers of one B: `sizes` p is (timeouts, B).

    `polynomials` are of the members of each size, divided by N, over w/T: (timeouts, B, panels, NODES) on the panels of `edges`.
    """

    batch: int
    timeouts_s: Array
    edges: Array
    sizes: Array
    polynomials: Array

    @property
    def mean_sizes(self) -> Array:
        """N, mean requests per batch, shape (timeouts)."""
        found: Array = self.sizes @ np.arange(1.0, self.batch + 1.0)
        return found

    def percentiles(self, service_s: Array, percent: float, spread: Spread | None = None, most_s: float = math.inf) -> Array:
        """The percentile of each combination, shape (rows, timeouts), in seconds; infinite where it is above `most_s`.

        `service_s` is S_k, shape (rows, B): one row for each memory size or number of cores. A batch takes one of a few
        ratios times that, as `spread` tells; without it service is deterministic.
        """
        spread = Spread.of([ALWAYS] * len(service_s)) if spread is None else spread
        found = np.full((len(service_s), len(self.timeouts_s)), math.inf)
        by_length = np.argsort(service_s.mean(axis=1), kind="stable")
        if most_s < math.inf or len(by_length) < FEW_ROWS:
            wanted = self.reached(service_s, percent, spread, most_s) if most_s < math.inf else np.isinf(found)
            found[wanted] = self._solved(service_s, percent, spread, wanted, None)
            return found
        # A few rows tell where the others' percentiles will be: they lie between, nearly on straight lines.
        some = by_length[np.unique(np.linspace(0, len(by_length) - 1, SOLVED_ROWS).round().astype(int))]
        remaining = np.setdiff1d(by_length, some)
        lengths = service_s.mean(axis=1)
        wanted = np.zeros(found.shape, dtype=bool)
        wanted[some] = True
        found[wanted] = self._solved(service_s, percent, spread, wanted, None)
        guesses = np.stack([np.interp(lengths[remaining], lengths[some], column) for column in found[some].T], axis=1)
        # The numbers of `remaining` ascend, as those of what is asked for do.
        found[~wanted] = self._solved(service_s, percent, spread, ~wanted, guesses.ravel())
        return found

    def reached(self, service_s: Array, percent: float, spread: Spread, at_s: float) -> npt.NDArray[np.bool_]:
        """Return whether the percentile of each combination is at most `at_s`, shape (rows, timeouts)."""
        row, number = np.indices((len(service_s), len(self.timeouts_s))).reshape(2, -1)
        found = self.cdf(service_s[row], spread.among(row), number, np.full(len(row), at_s))
        reached = (found - percent / 100.0 + REACHED >= 0.0).reshape(len(service_s), -1)
        # Every request is answered by then, whatever is missing of F.
        longest_s = (service_s.max(axis=1) * spread.ratios.max(axis=1))[:, None] + self.timeouts_s
        answered: npt.NDArray[np.bool_] = longest_s <= at_s
        return reached | answered

    def _solved(
        self, service_s: Array, percent: float, spread: Spread, wanted: npt.NDArray[np.bool_], guesses: Array | None
    ) -> Array:
        """The percentiles of the combinations that are asked for, one after the other, looked for around guesses."""
        goal = percent / 100.0
        row, number = np.nonzero(wanted)
        service, parts = service_s[row], spread.among(row)
        low = (np.min(service, axis=1) * np.min(parts.ratios, axis=1)) * (1.0 - ROUNDING) - ROUNDING
        high = np.max(service, axis=1) * np.max(parts.ratios, axis=1) + self.timeouts_s[number]

        def above(which: Indices, at: Array) -> Array:
            """F(t) − q of some of the combinations, counted as reached within rounding."""
            return self.cdf(service[which], parts.among(which), number[which], at) - goal + REACHED

        near = None if guesses is None else (guesses * (1.0 + NEAR), guesses * (1.0 - NEAR))
        return crossings(above, low, high, near)

    def cdf(self, service_s: Array, spread: Spread, number: Indices, at: Array) -> Array:
        """F(t) of n configurations, shape (n): service times (n, B) in s, spread, timeout index (n), t (n) in s."""
        each = max(1, AT_ONCE // (self.batch * spread.ratios.shape[1]))
        parts = (slice(begin, begin + each) for begin in range(0, max(1, len(at)), each))
        return np.concatenate([self._cdf(service_s[some], spread.among(some), number[some], at[some]) for some in parts])

    def _cdf(self, service_s: Array, spread: Spread, number: Indices, at: Array) -> Array:
        """F(`at`), shape (n), of n combinations at once: few enough to stay in the processor's cache."""
        delays = service_s[:, None] * spread.ratios[:, :, None]
        timeouts = self.timeouts_s[number][:, None, None]
        waited = at[:, None, None] - delays
        place = np.clip(waited / np.maximum(timeouts, SHORTEST_S), 0.0, 1.0)
        panels = len(self.edges) - 1
        panel = np.clip(np.searchsorted(self.edges, place, side="right") - 1, 0, panels - 1)
        left, right = self.edges[panel], self.edges[panel + 1]
        x = (2.0 * place - left - right) / (right - left)
        curve = number[:, None, None] * self.batch + np.arange(self.batch)
        terms = self.polynomials.reshape(-1, NODES).take(curve * panels + panel, axis=0)
        value = terms[..., NODES - 1]
        for power in range(NODES - 2, -1, -1):
            value = value * x + terms[..., power]
        found = np.where(waited >= 0.0, value, 0.0).sum(axis=2)
        if self.batch > 1:
            firsts = (self.sizes / self.mean_sizes[:, None])[number, None, :-1]
            late = at[:, None, None] >= delays[..., :-1] + timeouts
            found += np.where(late, firsts, 0.0).sum(axis=2)
        mixed: Array = (found * spread.shares).sum(axis=1)
        return mixed


class Waits:
    """The waits behind all buffers of some largest batches and timeouts (seconds, may be infinite)."""

    def __init__(self, process: Map, batches: Sequence[int], timeouts_s: Sequence[float]) -> None:
        largest = max(batches)
        self.batches = tuple(batches)
        limit_s = Buffer(process, BufferPlan(largest, max(timeouts_s))).timeout_s if largest > 1 else 0.0
        self.timeouts_s = np.minimum(np.array(timeouts_s, dtype=float), max(limit_s, 0.0))
        step = np.asarray(np.linalg.solve(-process.D0, process.D1), dtype=np.float64)
        counting = Counting(process, max(1, largest - 1))
        self.edges = _edges(counting.rate * float(self.timeouts_s.max()))
        within = counting.at(self.timeouts_s)
        phases = first_phases_of(within, step, process.embedded)
        sizes = {batch: _sizes(batch, within, phases) for batch in self.batches}
        members = self._members(counting, step, phases, sizes)
        self._rows = {batch: self._row(batch, sizes[batch], members[batch]) for batch in self.batches}

    def __getitem__(self, batch: int) -> WaitsOfBatch:
        return self._rows[batch]

    def _members(self, counting: Counting, step: Array, phases: Array, sizes: Mapping[int, Array]) -> dict[int, Array]:
        """members_k(w) of each B, shape (timeouts, B, nodes); for some timeouts after the other, whose tables are small."""
        middles, halves = (self.edges[1:] + self.edges[:-1]) / 2.0, (self.edges[1:] - self.edges[:-1]) / 2.0
        fractions = (middles[:, None] + halves[:, None] * _POINTS).reshape(-1)
        count, several = len(self.timeouts_s), [batch for batch in self.batches if batch > 1]
        found = {batch: np.ones((count, batch, len(fractions))) for batch in self.batches}
        counts = _Counts(counting, float(self.timeouts_s.max()))
        width = max(1, TABLE // (counts.functions * len(fractions)))
        for begin in range(0, count, width) if several else ():
            some = slice(begin, begin + width)
            tables = _Tables(counts.at(self.timeouts_s[some, None] * fractions), step, several)
            for batch in several:
                members = tables.members(batch, phases[batch - 2, some], sizes[batch][some, -1])
                found[batch][some] = np.moveaxis(members, 0, 1)
        return found

    def _row(self, batch: int, sizes: Array, members: Array) -> WaitsOfBatch:
        means = sizes @ np.arange(1, batch + 1)
        values = (members / means[:, None, None]).reshape(len(sizes), batch, len(self.edges) - 1, NODES)
        return WaitsOfBatch(batch, self.timeouts_s, self.edges, sizes, values @ _TO_POWERS)


class _Tables:
    """Sums over pairs of counts before and after a moment, not yet weighed by the phase at the first request.

    `counts` is P_j(w), shape (levels, n, n, timeouts, nodes); the nodes lie symmetrically, so that reversed they are those of
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
        found = np.empty((batch, *self._incomplete.shape[2:]))
        found[:-1] = np.einsum("ta,katg->ktg", phases, self._incomplete[: batch - 1])
        found[-1] = full_share[:, None] + np.einsum("ta,atg->tg", phases, self._full[batch])
        return found

    def _of_incomplete(self) -> Array:
        """Σ_i i·P_{j−i}(T − w)·P_i(w)e for j = k − 1, shape (levels, n, timeouts, nodes)."""
        levels, order = self._late.shape[:2]
        found: Array = np.zeros(self._late.shape)
        for after in range(1, levels):
            for phase in range(order):
                found[after:] += self._early[: levels - after, :, phase] * (after * self._late[after, phase])
        return found

    def _of_full(self, step: Array, batches: Sequence[int]) -> dict[int, Array]:
        """The factor of α in members_B(w) − p_B, by B; shape (n, timeouts, nodes)."""
        levels, order = self._late.shape[:2]
        reached = np.broadcast_to(np.eye(order)[:, :, None, None], self._early.shape[1:])
        arrived = np.empty_like(self._early)
        for number in range(levels):
            left = (reached - self._early[number]).reshape(order, order, -1)
            reached = np.clip(step.T @ left, 0.0, None).reshape(self._early.shape[1:])
            arrived[number] = reached
        found = {}
        for batch in batches:
            total = self._at_least[batch - 1].copy()
            for after in range(1, batch):
                # (i − 1)·P_{B−1−i} + E_{B−2−i}, both at T − w: i = B − 1 has the first of them alone.
                before = (after - 1.0) * self._early[batch - 1 - after]
                if after < batch - 1:
                    before += arrived[batch - 2 - after]
                for phase in range(order):
                    total += before[:, phase] * self._at_least[after, phase]
            found[batch] = total
        return found


def _edges(steps: float) -> Array:
    """Panels of [0, 1], symmetric; those at the ends are as short as one step of `steps`, and double inwards."""
    half = [0.0]
    step = min(0.25, 1.0 / max(steps, 4.0))
    while step < 0.499:  # noqa: PLR2004 - the middle, but for rounding
        half.append(step)
        step *= 2.0
    lower = np.array(half)
    return np.concatenate([lower, [0.5], 1.0 - lower[::-1]])


def _sizes(batch: int, within: Array, phases: Array) -> Array:
    """The sizes p of one B, shape (timeouts, B), from P_j(T) and from α of each B."""
    sizes = np.zeros((len(within), batch))
    if batch > 1:
        sizes[:, :-1] = np.einsum("ta,tkab->tk", phases[batch - 2], within[:, : batch - 1])
    sizes[:, -1] = np.clip(1.0 - sizes.sum(axis=1), 0.0, None)
    return sizes


class _Counts:
    """P_j(t) up to the longest time, interpolated: many times lie in one stretch."""

    def __init__(self, counting: Counting, longest_s: float) -> None:
        self._shape = (counting.levels, counting.process.order, counting.process.order)
        self.functions = math.prod(self._shape)
        self._curves = interpolated(
            lambda times_s: counting.at(times_s).reshape(len(times_s), -1), longest_s or 1.0 / counting.rate, 1.0 / counting.rate
        )

    def at(self, times_s: Array) -> Array:
        """Shape (levels, n, n, …) for times of shape (…)."""
        return self._curves.every(times_s.ravel()).reshape(*self._shape, *times_s.shape)

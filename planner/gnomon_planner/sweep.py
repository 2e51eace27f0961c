"""The percentile of every plan in a grid of service times × timeouts × largest batches, at once.

Nothing in the buffer depends on how fast an instance is, so the waits are worked out once per (B, T), for all B and T from
one table of arrival counts: `Waits` keeps, for each, the members of every batch size as polynomials of w/T on panels that are
the same for all. `WaitsOfBatch.percentiles` then finds the percentile of each combination, all of them side by side; a few rows
of service times tell where to look for those of the others. Where service varies, F is the mean over its ratios and takes as
many times as long. The formulas are those of `buffer.py`; eight nodes to a panel leave an error of some 1e-5 in F, and
`ExactLatency` says the chosen plan's percentiles exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gnomon_planner.buffer import Buffer, BufferPlan, first_phases_of
from gnomon_planner.counting import Array, Counting
from gnomon_planner.crossings import crossings
from gnomon_planner.maps import Map

NODES = 8
FEW_ROWS = 12  # so many are solved each by itself
SOLVED_ROWS = 7
NEAR = 2e-3  # of a guess, relative to it
REACHED = 1e-9  # F may miss q by so much and still reach it
ROUNDING = 1e-12
SHORTEST_S = 1e-300  # keeps w/T a number where T = 0

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
        """N, requests per batch, for each timeout."""
        found: Array = self.sizes @ np.arange(1.0, self.batch + 1.0)
        return found

    def percentiles(self, service_s: Array, percent: float, ratios: Array | None = None) -> Array:
        """The percentile of each combination, shape (rows, timeouts), in seconds.

        `service_s` is S_k, shape (rows, B): one row for each memory size or number of cores. A batch takes one of `ratios` times
        that, each as likely, shape (rows, several); without them service is deterministic.
        """
        ratios = np.ones((len(service_s), 1)) if ratios is None else ratios
        by_length = np.argsort(service_s.mean(axis=1), kind="stable")
        if len(by_length) < FEW_ROWS:
            return self._solved(service_s, percent, ratios, None)
        # A few rows tell where the others' percentiles will be: they lie between, nearly on straight lines.
        some = by_length[np.unique(np.linspace(0, len(by_length) - 1, SOLVED_ROWS).round().astype(int))]
        rest = np.setdiff1d(by_length, some)
        lengths = service_s.mean(axis=1)
        found = np.empty((len(service_s), len(self.timeouts_s)))
        found[some] = self._solved(service_s[some], percent, ratios[some], None)
        guesses = np.stack([np.interp(lengths[rest], lengths[some], column) for column in found[some].T], axis=1)
        found[rest] = self._solved(service_s[rest], percent, ratios[rest], guesses)
        return found

    def _solved(self, service_s: Array, percent: float, ratios: Array, guesses: Array | None) -> Array:
        """The percentiles, looked for around guesses of the same shape."""
        goal = percent / 100.0
        rows, count = len(service_s), len(self.timeouts_s)
        service = np.repeat(service_s, count, axis=0)
        number: Indices = np.tile(np.arange(count), rows)
        parts = np.repeat(ratios, count, axis=0)
        low = (np.min(service, axis=1) * np.min(parts, axis=1)) * (1.0 - ROUNDING) - ROUNDING
        high = np.max(service, axis=1) * np.max(parts, axis=1) + self.timeouts_s[number]

        def above(which: Indices, at: Array) -> Array:
            """F(t) − q of some of the combinations, counted as reached within rounding."""
            rows, which_number = service[which], number[which]
            each = [self.cdf(rows * ratio[:, None], which_number, at) for ratio in parts[which].T]
            reached: Array = sum(each[1:], each[0]) / len(each)
            return reached - goal + REACHED

        near = None if guesses is None else (guesses.ravel() * (1.0 + NEAR), guesses.ravel() * (1.0 - NEAR))
        found: Array = crossings(above, low, high, near).reshape(rows, count)
        return found

    def cdf(self, service_s: Array, number: Indices, at: Array) -> Array:
        """F(t) of several configurations: services (configurations, B), the number of the timeout of each, and its t."""
        timeouts = self.timeouts_s[number][:, None]
        waited = at[:, None] - service_s
        place = np.clip(waited / np.maximum(timeouts, SHORTEST_S), 0.0, 1.0)
        panel = np.clip(np.searchsorted(self.edges, place, side="right") - 1, 0, len(self.edges) - 2)
        left, right = self.edges[panel], self.edges[panel + 1]
        x = (2.0 * place - left - right) / (right - left)
        terms = self.polynomials[number[:, None], np.arange(self.batch), panel]
        value = terms[..., NODES - 1]
        for power in range(NODES - 2, -1, -1):
            value = value * x + terms[..., power]
        found: Array = np.where(waited >= 0.0, value, 0.0).sum(axis=1)
        if self.batch > 1:
            firsts = (self.sizes / self.mean_sizes[:, None])[number, :-1]
            found += np.where(at[:, None] >= service_s[:, :-1] + timeouts, firsts, 0.0).sum(axis=1)
        return found


class Waits:
    """The waits behind all buffers of some largest batches and timeouts (seconds, may be infinite)."""

    def __init__(self, process: Map, batches: Sequence[int], timeouts_s: Sequence[float]) -> None:
        largest = max(batches)
        self.batches = tuple(batches)
        limit_s = Buffer(process, BufferPlan(largest, max(timeouts_s))).timeout_s if largest > 1 else 0.0
        self.timeouts_s = np.minimum(np.array(timeouts_s, dtype=float), max(limit_s, 0.0))
        self._levels = max(1, largest - 1)
        self._step = np.asarray(np.linalg.solve(-process.D0, process.D1), dtype=np.float64)
        counting = Counting(process, self._levels)
        self.edges = _edges(counting.rate * float(self.timeouts_s.max()))
        middles, halves = (self.edges[1:] + self.edges[:-1]) / 2.0, (self.edges[1:] - self.edges[:-1]) / 2.0
        fractions = (middles[:, None] + halves[:, None] * _POINTS).reshape(-1)
        times = np.concatenate([(self.timeouts_s[:, None] * fractions).reshape(-1), self.timeouts_s])
        counts = counting.at(times)
        within = counts[-len(self.timeouts_s) :]
        shape = (len(self.timeouts_s), len(fractions))
        late = np.ascontiguousarray(np.moveaxis(counts[: -len(self.timeouts_s)], 0, -1)).reshape(*counts.shape[1:], *shape)
        self._tables = _Tables(late, self._step, [batch for batch in self.batches if batch > 1])
        phases = first_phases_of(within, self._step, process.embedded)
        self._rows = {batch: self._row(batch, within, phases) for batch in self.batches}

    def __getitem__(self, batch: int) -> WaitsOfBatch:
        return self._rows[batch]

    def _row(self, batch: int, within: Array, all_phases: Array) -> WaitsOfBatch:
        count = len(self.timeouts_s)
        sizes = np.zeros((count, batch))
        if batch > 1:
            phases = all_phases[batch - 2]
            sizes[:, :-1] = np.einsum("ta,tkab->tk", phases, within[:, : batch - 1])
        sizes[:, -1] = np.clip(1.0 - sizes.sum(axis=1), 0.0, None)
        mean_sizes = sizes @ np.arange(1, batch + 1)
        if batch == 1:
            members = np.ones((1, count, (len(self.edges) - 1) * NODES))
        else:
            members = self._tables.members(batch, phases, sizes[:, -1])
        values = np.moveaxis(members / mean_sizes[:, None], 0, 1).reshape(count, batch, len(self.edges) - 1, NODES)
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
        """What α is to be multiplied with for members_B(w) − p_B, by B; shape (n, timeouts, nodes)."""
        levels, order = self._late.shape[:2]
        reached = np.broadcast_to(np.eye(order)[:, :, None, None], self._early.shape[1:])
        arrived = np.empty_like(self._early)
        for number in range(levels):
            reached = np.clip(np.einsum("abtg,bc->actg", reached - self._early[number], step), 0.0, None)
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

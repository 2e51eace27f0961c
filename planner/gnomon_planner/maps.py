"""The Markovian arrival process (MAP): how the planner describes arrivals.

A Markov chain moves among phases. D0 has the rates of transitions without an arrival (its diagonal makes all rows of D0 + D1 sum
to 0), D1 those with an arrival, per second. One phase is a Poisson process; a diagonal D1 is an MMPP, whose phase sets the rate
and does not change with arrivals; two phases are what BATCH uses (Section IV, Eqs. 11, 12 and 16).

    bursts = Map.mmpp2(rates_rps=(10, 200), leave_per_s=(0.01, 0.01))    # published as W16
    bursts.rate_rps       105: half of the time in either phase
    bursts.scv            10.0: the gaps' variance is that many times their mean's square
    bursts.dispersion()   about 8,600: counts of long windows vary that much more than a Poisson process's

Two stationary views matter. `stationary` is the phase at an arbitrary moment (θ with θ(D0 + D1) = 0), `embedded` the phase just
after an arrival (φ ∝ θD1). Gaps between arrivals are seen from arrivals, so their moments use φ; counts in a window use θ.

**Counts.** `Counting` says how many arrivals there are within a time, and in which phase the process is then. P_j(t), an n × n
matrix, holds the probabilities of exactly j arrivals within t seconds, from one phase to another:

    Σ_j P_j(t)·z^j = e^((D0 + z·D1)·t),   here for j = 0 … levels − 1

Uniformisation (Reibman and Trivedi; BATCH, Eqs. 5 and 6): with q the largest rate, P_j(t) = Σ_m Poisson(m; qt)·M_j,m, where
M_j,m sums the products of m factors, j of them D1/q and the others I + D0/q. M does not depend on t, so that one table serves
all times, and has no negative entries. Times beyond `BASE_STEPS`/q are halved until they are not; the polynomials in z
are then squared as often. A worked number: for a Poisson process of 10/s, P_2(0.1) = e^−1/2 = 0.184.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gnomon_core.errors import GnomonError, bad_request
from gnomon_planner.numerics import Array, Matrix, Vector, expm_generator, irreducible, stationary_of

# Rates may be rounded to six decimals: a row sum of 0 may then be off by this, relative to the largest rate.
ROW_TOLERANCE = 1e-5
# Third powers of rates and gaps, as moments have them, must not overflow.
MAX_RATE = 1e100
HINT = 'A MAP is {"D0": [[…]], "D1": [[…]]} in arrivals per second; the rows of D0 + D1 sum to 0.'


@dataclass(frozen=True, slots=True, eq=False)
class Map:
    """D0 and D1, n × n, per second. Immutable; the diagonal of D0 is set so that rows sum to 0 exactly.

    Raises:
        GnomonError: 400 `bad_map` for matrices that are not square and alike, hold NaN or infinities, have negative rates or rows
            that do not sum to 0, or whose phases cannot all be reached from one another; also if nothing ever arrives, or if
            the largest rate is not between 1e-100 and 1e100.

    """

    D0: Matrix
    D1: Matrix

    def __post_init__(self) -> None:
        d0, d1 = _validated_matrices(self.D0, self.D1)
        object.__setattr__(self, "D0", d0)
        object.__setattr__(self, "D1", d1)

    @classmethod
    def poisson(cls, rate_rps: float) -> Map:
        """Independent exponential gaps."""
        return cls(np.array([[-rate_rps]]), np.array([[rate_rps]]))

    @classmethod
    def mmpp2(cls, rates_rps: Sequence[float], leave_per_s: Sequence[float]) -> Map:
        """BATCH's Eq. 12: λ1, λ2 arrivals per second while in phase 1, 2, which is left ω1, ω2 times per second."""
        (first_rps, second_rps), (leave_first, leave_second) = rates_rps, leave_per_s
        moves = np.array([[-leave_first, leave_first], [leave_second, -leave_second]], dtype=float)
        arrivals = np.diag(np.array([first_rps, second_rps], dtype=float))
        return cls(moves - arrivals, arrivals)

    @classmethod
    def from_json(cls, document: object) -> Map:
        """The MAP of `{"D0": [[…]], "D1": [[…]]}`; other keys are not looked at.

        Raises:
            GnomonError: 400 `bad_map`.

        """
        if not isinstance(document, Mapping) or not {"D0", "D1"} <= document.keys():
            raise bad_request("bad_map", "D0 and D1 are missing.", HINT)
        try:
            d0, d1 = (np.array(document[name], dtype=float) for name in ("D0", "D1"))
        except (ValueError, TypeError, OverflowError):
            raise bad_request("bad_map", "D0 and D1 are not matrices of numbers.", HINT) from None
        return cls(d0, d1)

    def to_json(self) -> dict[str, Any]:
        """`{"D0": [[…]], "D1": [[…]]}`."""
        return {"D0": self.D0.tolist(), "D1": self.D1.tolist()}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Map) and np.array_equal(self.D0, other.D0) and np.array_equal(self.D1, other.D1)

    def __hash__(self) -> int:
        return hash((self.D0.tobytes(), self.D1.tobytes()))

    @property
    def order(self) -> int:
        """Number of phases, n."""
        return len(self.D0)

    @property
    def stationary(self) -> Vector:
        """θ: the distribution of the phase at an arbitrary time, shape (n)."""
        return stationary_of(self.D0 + self.D1)

    @property
    def embedded(self) -> Vector:
        """φ: the distribution of the phase just after an arrival, shape (n)."""
        arriving: Vector = self.stationary @ self.D1
        phases: Vector = arriving / arriving.sum()
        return phases

    @property
    def rate_rps(self) -> float:
        """λ = θ·D1·e: arrivals per second in the long run."""
        return float((self.stationary @ self.D1).sum())

    def moments(self, count: int) -> list[float]:
        """E[X], E[X²], … E[X^count] of a gap X in s, s² …: k!·φ·(−D0)^−k·e."""
        moments: list[float] = []
        powers: Vector = np.ones(self.order)
        for power in range(1, count + 1):
            powers = np.asarray(np.linalg.solve(-self.D0, powers), dtype=float)
            moments.append(math.factorial(power) * float(self.embedded @ powers))
        return moments

    @property
    def mean_s(self) -> float:
        """The mean gap in seconds, 1/λ."""
        return 1.0 / self.rate_rps

    @property
    def scv(self) -> float:
        """c² = Var[X]/E[X]²: 1 for a Poisson process, 0 for equal gaps."""
        first, second = self.moments(2)
        return second / first**2 - 1.0

    @property
    def skewness(self) -> float:
        """E[(X − E[X])³] / Var[X]^1.5: 2 for a Poisson process."""
        first, second, third = self.moments(3)
        variance = second - first**2
        return float((third - 3.0 * first * variance - first**3) / variance**1.5)

    def autocorrelation(self, lag: int = 1) -> float:
        """ρ_k: the correlation of a gap with the k-th gap after it; 0 for renewal processes."""
        inverse = np.linalg.inv(-self.D0)
        steps = np.linalg.matrix_power(inverse @ self.D1, lag)
        first, second = self.moments(2)
        joint = float(self.embedded @ inverse @ steps @ inverse.sum(axis=1))
        return (joint - first**2) / (second - first**2)

    def dispersion(self, window_s: float | None = None) -> float:
        """I(t) = Var[N(t)] / E[N(t)] of the number of arrivals in a window of seconds; None: its limit for long ones.

        After Fischer and Meier-Hellstern (1993): with d = θD1 and R = (eθ − Q)⁻¹,
        Var[N(t)] = (λ − 2λ² + 2dRD1e)·t − 2d·(I − e^(Qt))·R²·D1e.
        """
        theta, moves = self.stationary, self.D0 + self.D1
        arriving, arrival_rates = theta @ self.D1, self.D1.sum(axis=1)
        rate = float(arriving.sum())
        resolvent = np.linalg.inv(np.outer(np.ones(self.order), theta) - moves)
        limit = 1.0 - 2.0 * rate + 2.0 * float(arriving @ resolvent @ arrival_rates) / rate
        if window_s is None:
            return limit
        transient = np.eye(self.order) - expm_generator(moves, window_s)
        return limit - 2.0 * float(arriving @ transient @ resolvent @ resolvent @ arrival_rates) / (rate * window_s)

    def rescaled(self, rate_rps: float) -> Map:
        """The process with its time scaled to another rate: c², skewness, correlations and the limit of I are unchanged."""
        if not (math.isfinite(rate_rps) and rate_rps > 0.0):
            raise bad_request("bad_rate", f"The rate {rate_rps} requests/s is invalid.", "A rate is a positive number.")
        factor = rate_rps / self.rate_rps
        return Map(self.D0 * factor, self.D1 * factor)

    def thinned(self, share: float) -> Map:
        """The process of requests that are kept independently with probability `share`, such as those of one of several queues.

        A request that is not kept is a transition without an arrival: D1' = share·D1, D0' = D0 + (1 − share)·D1 (independent
        marks of arrivals; He and Neuts, 1998, on marked transitions). So λ' = share·λ, and of any window I' − 1 = share·(I − 1).
        Half of W16 above: 52.5 requests/s, I' about 4,300.

        Raises:
            GnomonError: 400 `bad_share`: not above 0, or above 1.

        """
        if not 0.0 < share <= 1.0:
            raise bad_request("bad_share", f"The share {share} of the requests is invalid.", "A share is above 0 and at most 1.")
        return Map(self.D0 + (1.0 - share) * self.D1, share * self.D1)


def _validated_matrices(d0_given: Matrix, d1_given: Matrix) -> tuple[Matrix, Matrix]:
    d0, d1 = np.array(d0_given, dtype=float), np.array(d1_given, dtype=float)
    if d0.ndim != 2 or d0.shape[0] != d0.shape[1] or d0.shape != d1.shape or not d0.size:  # noqa: PLR2004 - a matrix
        raise _bad(f"D0 and D1 have the shapes {d0.shape} and {d1.shape}; both are n × n")
    if not (np.isfinite(d0).all() and np.isfinite(d1).all()):
        raise _bad("A rate is NaN or infinite")
    moves = d0.copy()
    np.fill_diagonal(moves, 0.0)
    if moves.min() < 0.0 or d1.min() < 0.0:
        raise _bad("A rate is negative")
    exit_rates = moves.sum(axis=1) + d1.sum(axis=1)
    if exit_rates.min() <= 0.0:
        raise _bad("A phase is never left and has no arrivals")
    if not 1.0 / MAX_RATE <= exit_rates.max() <= MAX_RATE:
        raise _bad(f"A largest rate of {exit_rates.max():g} per second")
    largest_sum = float(np.abs(exit_rates + d0.diagonal()).max())
    if largest_sum > ROW_TOLERANCE * exit_rates.max():
        raise _bad(f"A row of D0 + D1 sums to {largest_sum:g} instead of 0")
    if not irreducible(moves + d1):
        raise _bad("The phases cannot all be reached from one another")
    if d1.max() <= 0.0:
        raise _bad("There are no arrivals: D1 is 0")
    np.fill_diagonal(moves, -exit_rates)
    for matrix in (moves, d1):
        matrix.flags.writeable = False
    return moves, d1


def _bad(problem: str) -> GnomonError:
    return bad_request("bad_map", f"{problem}.", HINT)


MAX_BASE_STEPS = 128.0  # the largest qt of the sum; 400 terms then reach a tail below 1e-17
MAX_TABLE_NUMBERS = 4_000_000  # numbers in the table M; more phases or levels lower the largest qt


class Counting:
    """P_j(t) of one process for j below `levels`, at any times."""

    def __init__(self, process: Map, levels: int) -> None:
        self.process = process
        self.levels = levels
        self._rate = float(-process.D0.diagonal().min())
        row = levels * process.order**2
        self._base = max(1.0, min(MAX_BASE_STEPS, MAX_TABLE_NUMBERS / (4.0 * row)))
        self._table_rows = np.zeros((0, row))

    @property
    def rate(self) -> float:
        """q: the largest total rate of moves and arrivals of a phase, per second."""
        return self._rate

    def at(self, times_s: Array) -> Array:
        """P_j(t), shape (times, levels, n, n). Times in seconds are finite and not negative."""
        steps = self._rate * np.asarray(times_s, dtype=float)
        halvings = np.ceil(np.log2(np.maximum(steps, self._base) / self._base))
        base = steps / 2.0**halvings
        weights = poisson(base, _terms_needed(float(base.max(initial=0.0))))
        order = self.process.order
        counts: Array = (weights @ self._table(weights.shape[1])).reshape(-1, self.levels, order, order)
        for doubling in range(int(halvings.max(initial=0.0))):
            still_halved = halvings > doubling
            counts[still_halved] = _squared(counts[still_halved])
        return counts

    def _table(self, terms: int) -> Array:
        """The first `terms` rows of M, flattened; computed on demand."""
        known = len(self._table_rows)
        if terms > known:
            stay = np.clip(np.eye(self.process.order) + self.process.D0 / self._rate, 0.0, None)
            arrive = self.process.D1 / self._rate
            table = np.empty((terms, self._table_rows.shape[1]))
            table[:known] = self._table_rows
            shape = (self.levels, self.process.order, self.process.order)
            for term in range(known, terms):
                if term == 0:
                    row = np.zeros(shape)
                    row[0] = np.eye(self.process.order)
                else:
                    last = table[term - 1].reshape(shape)
                    row = last @ stay
                    row[1:] += last[:-1] @ arrive
                table[term] = row.reshape(-1)
            self._table_rows = table
        return self._table_rows[:terms]


def poisson(means: Array, count: int) -> Array:
    """Poisson probabilities of m = 0 … count − 1 for each mean, shape (means, count)."""
    numbers = np.arange(count)
    log_factorials = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, count)))])
    logs = np.log(np.maximum(means, 1e-300))[:, None] * numbers - log_factorials - means[:, None]
    weights: Array = np.exp(logs)
    return weights


def convolved(left: Array, right: Array) -> Array:
    """Σ_l left_l·right_(j−l) for j = 0 … levels − 1: of rows, shape (…, levels, n), with columns of the same shape."""
    levels = left.shape[-2]
    size = _fast_size(2 * levels - 1)
    spectrum = (np.fft.rfft(left, size, axis=-2) * np.fft.rfft(right, size, axis=-2)).sum(axis=-1)
    convolution: Array = np.fft.irfft(spectrum, size, axis=-1)[..., :levels]
    return convolution


def _squared(polynomials: Array) -> Array:
    """The squares of matrix polynomials, shape (times, levels, n, n), without the powers from `levels` on."""
    levels = polynomials.shape[1]
    size = _fast_size(2 * levels - 1)
    # Times and frequencies are the last axes: one product of small matrices costs numpy as much as a hundred along an axis.
    spectra = np.fft.rfft(np.moveaxis(polynomials, 1, -1).transpose(1, 2, 0, 3), size)
    spectrum = np.einsum("abtf,bctf->actf", spectra, spectra)
    squares: Array = np.fft.irfft(spectrum, size)[..., :levels].transpose(2, 3, 0, 1)
    return np.clip(squares, 0.0, None)


def _terms_needed(mean: float) -> int:
    return math.ceil(mean + 9.0 * math.sqrt(mean) + 24.0)


def _fast_size(least: int) -> int:
    return 1 << (least - 1).bit_length()

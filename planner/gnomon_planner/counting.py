"""How many arrivals there are within a time, and in which phase the process is then.

P_j(t), an n × n matrix, holds the probabilities of exactly j arrivals within t seconds, from one phase to another:

    Σ_j P_j(t)·z^j = e^((D0 + z·D1)·t),   here for j = 0 … levels − 1

Uniformisation (Reibman and Trivedi; BATCH, Eqs. 5 and 6): with q the largest rate, P_j(t) = Σ_m Poisson(m; qt)·M_j,m, where
M_j,m sums the products of m factors, j of them D1/q and the others I + D0/q. M knows no time, so that one table of it serves
all times, and nothing negative occurs in it. Times beyond `BASE_STEPS`/q are halved until they are not; the polynomials in z
are then squared as often. A worked number: for a Poisson process of 10/s, P_2(0.1) = e^−1/2 = 0.184.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from gnomon_planner.maps import Map

Array = npt.NDArray[np.float64]

BASE_STEPS = 128.0  # the largest qt of the sum; 400 words then reach a tail below 1e-17
MOST_WORDS = 4_000_000  # numbers in the table M; more phases or levels lower the base


class Counting:
    """P_j(t) of one process for j below `levels`, at any times."""

    def __init__(self, process: Map, levels: int) -> None:
        self.process = process
        self.levels = levels
        self._rate = float(-process.D0.diagonal().min())
        row = levels * process.order**2
        self._base = max(1.0, min(BASE_STEPS, MOST_WORDS / (4.0 * row)))
        self._words = np.zeros((0, row))

    @property
    def rate(self) -> float:
        """q: the largest rate at which a phase is left or something arrives, per second."""
        return self._rate

    def at(self, times_s: Array) -> Array:
        """P_j(t), shape (times, levels, n, n). Times are finite and not negative."""
        steps = self._rate * np.asarray(times_s, dtype=float)
        halvings = np.ceil(np.log2(np.maximum(steps, self._base) / self._base))
        base = steps / 2.0**halvings
        weights = poisson(base, _words_needed(float(base.max(initial=0.0))))
        order = self.process.order
        found: Array = (weights @ self._table(weights.shape[1])).reshape(-1, self.levels, order, order)
        for turn in range(int(halvings.max(initial=0.0))):
            longer = halvings > turn
            found[longer] = _squared(found[longer])
        return found

    def _table(self, words: int) -> Array:
        """The first `words` rows of M, flat, made as far as they are needed."""
        have = len(self._words)
        if words > have:
            stay = np.clip(np.eye(self.process.order) + self.process.D0 / self._rate, 0.0, None)
            arrive = self.process.D1 / self._rate
            grown = np.empty((words, self._words.shape[1]))
            grown[:have] = self._words
            shape = (self.levels, self.process.order, self.process.order)
            for number in range(have, words):
                if number == 0:
                    row = np.zeros(shape)
                    row[0] = np.eye(self.process.order)
                else:
                    last = grown[number - 1].reshape(shape)
                    row = last @ stay
                    row[1:] += last[:-1] @ arrive
                grown[number] = row.reshape(-1)
            self._words = grown
        return self._words[:words]


def poisson(means: Array, count: int) -> Array:
    """Poisson(m; mean) for m = 0 … count − 1, shape (means, count)."""
    numbers = np.arange(count)
    log_factorials = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, count)))])
    logs = np.log(np.maximum(means, 1e-300))[:, None] * numbers - log_factorials - means[:, None]
    weights: Array = np.exp(logs)
    return weights


def convolved(left: Array, right: Array) -> Array:
    """Σ_l left_l·right_(j−l) for j = 0 … levels − 1: of rows, shape (…, levels, n), with columns of the same shape."""
    levels = left.shape[-2]
    size = _fast_size(2 * levels - 1)
    product = (np.fft.rfft(left, size, axis=-2) * np.fft.rfft(right, size, axis=-2)).sum(axis=-1)
    found: Array = np.fft.irfft(product, size, axis=-1)[..., :levels]
    return found


def _squared(polynomials: Array) -> Array:
    """The squares of matrix polynomials, shape (times, levels, n, n), without the powers from `levels` on."""
    levels = polynomials.shape[1]
    size = _fast_size(2 * levels - 1)
    # Times and powers last: the matrices are small, and numpy takes as long for one of 2 × 2 as for a hundred products.
    transformed = np.fft.rfft(np.moveaxis(polynomials, 1, -1).transpose(1, 2, 0, 3), size)
    product = np.einsum("abtf,bctf->actf", transformed, transformed)
    found: Array = np.fft.irfft(product, size)[..., :levels].transpose(2, 3, 0, 1)
    return np.clip(found, 0.0, None)


def _words_needed(mean: float) -> int:
    return math.ceil(mean + 9.0 * math.sqrt(mean) + 24.0)


def _fast_size(least: int) -> int:
    return 1 << (least - 1).bit_length()

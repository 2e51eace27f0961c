"""More phases for gaps: Kronecker products of two-phase processes (KPC), and steps for gaps more regular than two allow.

**KPC** (Casale, Zhang and Smirni, 2010). D0 = −D0ᵃ ⊗ D0ᵇ, D1 = D1ᵃ ⊗ D1ᵇ is a MAP if D0ᵇ is diagonal, and multiplies what gaps
are made of: with f_k = E[X^k]/k!, f_k = f_kᵃ·f_kᵇ, and E[X_i·X_(i+k)] likewise. A factor here is hyperexponential with D0 =
−diag(l1, l2) and P = γI + (1 − γ)eφ, so that E[X_i·X_(i+k)] = 1 + γᵏ(c² − 1)/2 at mean 1.

Factors share the moments by weights that sum to 1: f2 of a factor is f2^weight, f3 is f3^weight; if n3 > n2² holds for the
whole, it holds for each. Weights and decays are taken from a grid, all combinations at once, where the products are nearest to
the sample's at its lags; ρ1, which the fit is asked for, counts as much as all others together.

Worked example: c² = 4 is f2 = 2.5; two factors of equal weight have f2 = 1.58 and so c² = 2.16 each.

**Regular gaps.** c² < 1/2 needs more than two phases: a mixture of k − 1 and k exponential steps of one rate has any 1/k ≤ c² ≤
1/(k − 1). With eight phases c² is at least 1/8; equal gaps get that, and a fit says so.
"""

from __future__ import annotations

import itertools
import math

import numpy as np

from gnomon_planner.maps import Map
from gnomon_planner.matrices import Vector
from gnomon_planner.samples import GapStatistics
from gnomon_planner.two_phases import QUICKEST, Shape, map2

MOST_PHASES = 8
DECAYS: tuple[float, ...] = (0.0, *(1.0 - np.geomspace(0.7, 1e-5, 20)).tolist())
SHARES = 8
SLIGHT = 1.01


def kronecker(first: Map, second: Map) -> Map:
    """The composition of two MAPs, the second with a diagonal D0; both have their time in units of their mean gap."""
    d0, d1 = (np.asarray(np.kron(*pair), dtype=float) for pair in ((first.D0, second.D0), (first.D1, second.D1)))
    return Map(-d0, d1)


def hyperexponential(shape: Shape) -> Map:
    """Two phases at mean 1 with diagonal D0 and correlations of decay γ ≥ 0; c² > 1 and a skewness above its bound."""
    renewal, _ = map2(1.0, Shape(shape.scv, shape.skewness))
    rates = -renewal.D0.diagonal()
    # The density at 0 is φ1·l1 + φ2·l2, for any representation.
    density = float(renewal.embedded @ renewal.D1.sum(axis=1))
    share = (density - rates[1]) / (rates[0] - rates[1])
    chosen = np.array([share, 1.0 - share])
    back = shape.decay * np.eye(2) + (1.0 - shape.decay) * np.outer(np.ones(2), chosen)
    return Map(-np.diag(rates), rates[:, None] * back)


def composed(mean_s: float, gaps: GapStatistics, factors: int) -> Map | None:
    """The KPC with 2^factors phases; None where c² or the skewness has no room for so many factors, or no lag was measured."""
    second = (1.0 + gaps.scv.value) / 2.0
    third = (gaps.skewness.value * gaps.scv.value**1.5 + 3.0 * gaps.scv.value + 1.0) / 6.0
    if second < SLIGHT**factors or third < second**2 * (1.0 + QUICKEST) ** SHARES or not gaps.lags:
        return None
    products = 1.0 + gaps.scv.value * np.array([max(estimate.value, 0.0) for estimate in gaps.correlations])
    deviations = gaps.scv.value * np.array([max(estimate.deviation, 1e-9) for estimate in gaps.correlations])
    weights = 1.0 / deviations
    weights[0] = max(weights[0], math.sqrt(float((weights[1:] ** 2).sum())))
    chosen = _nearest(second, np.array(gaps.lags), products, weights, factors)
    process: Map | None = None
    for share, decay in chosen:
        part_second, part_third = second**share, third**share
        scv = 2.0 * part_second - 1.0
        skewness = (6.0 * part_third - 3.0 * scv - 1.0) / scv**1.5
        part = hyperexponential(Shape(scv, skewness, decay))
        process = part if process is None else kronecker(process, part)
    return None if process is None else process.rescaled(1.0 / mean_s)


def _nearest(second: float, lags: Vector, products: Vector, weights: Vector, factors: int) -> list[tuple[float, float]]:
    """(weight, γ) of each factor: those whose products of 1 + γᵏ(f2^weight − 1) are nearest."""

    def search(shares: tuple[float, ...], grids: list[Vector]) -> tuple[float, tuple[float, ...], list[float]]:
        together = np.ones((1, len(lags)))
        for share, grid in zip(shares, grids, strict=True):
            table = 1.0 + np.power.outer(grid, lags) * (second**share - 1.0)
            together = (together[:, None, :] * table).reshape(-1, len(lags))
        errors = (((together - products) * weights) ** 2).sum(axis=-1)
        place = int(np.argmin(errors))
        places = np.unravel_index(place, [len(grid) for grid in grids])
        return float(errors[place]), shares, [float(grid[index]) for grid, index in zip(grids, places, strict=True)]

    best: tuple[float, tuple[float, ...], list[float]] = (math.inf, (), [])
    for shares in _compositions(factors):
        found = search(shares, [np.array(DECAYS)] * factors)
        for _ in range(2):
            found = search(shares, [_around(decay) for decay in found[2]])
        best = min(best, found)
    return list(zip(best[1], best[2], strict=True))


def _around(decay: float) -> Vector:
    """Nine decays between the neighbours of one on the grid, on the scale of 1 − γ, and that one itself."""
    slower = np.minimum((1.0 - decay) * np.geomspace(0.6, 1.7, 9), 1.0)
    return np.append(1.0 - slower, decay)


def _compositions(factors: int) -> list[tuple[float, ...]]:
    """The ways to share the whole in eighths, each factor at least one, in descending order: their order means nothing."""
    parts = itertools.product(range(1, SHARES), repeat=factors)
    return [
        tuple(part / SHARES for part in way) for way in parts if sum(way) == SHARES and list(way) == sorted(way, reverse=True)
    ]


def regular(mean_s: float, scv: float) -> Map:
    """A renewal process of steps with one rate: k − 1 of them with probability p, else k; the nearest c² from 1/8 to 1."""
    scv = min(max(scv, 1.0 / MOST_PHASES), 1.0)
    steps = max(1, math.ceil(1.0 / scv - 1e-9))
    # Sakasegawa's mixture: E[X] = (k − p)/μ and the second moment give p.
    root = math.sqrt(max(steps * (1.0 + scv) - steps * steps * scv, 0.0))
    fewer = min(max((steps * scv - root) / (1.0 + scv), 0.0), 1.0)
    rate = (steps - fewer) / mean_s
    d0 = rate * (np.eye(steps, k=1) - np.eye(steps))
    d1 = np.zeros((steps, steps))
    d1[-1, 0] = rate * (1.0 - fewer)
    d1[-1, min(1, steps - 1)] += rate * fewer
    return Map(d0, d1)

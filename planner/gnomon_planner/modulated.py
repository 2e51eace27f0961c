"""Rates that wander: an MMPP of 2, 4 or 8 phases from the counts of windows.

Each of one, two or three independent two-state chains modulates the rate with a variance v and a pace r (its correlation falls as
e^(−r·t)). The rate's integral over a window w then has, summed over the chains,

    κ2(w) = Σ 2v·(rw − 1 + e^(−rw))/r²             so that I(w) = 1 + κ2(w)/(λw)
    κ3(w) = Σ 6μ3·(rw(1 + e^(−rw)) − 2(1 − e^(−rw)))/r³

(the second is exact for two states, whose third moments all reduce to μ3·e^(−r·span)). For given paces both are linear in the
unknowns: all paces on a grid, and all pairs and triples of them, are solved at once by least squares, each window weighted by
its own deviation, and the best with positive variances is taken. The chains share one skewness, from κ3. A two-point
distribution has any skewness s, with the upper point taken with probability p = (1 − s/√(4 + s²))/2.

**Feasible always.** Rates must not become negative: a chain's quiet rate is at least 0, and the chains' parts of the mean must
not exceed it. A larger s needs less of the mean, so s is raised as far as necessary; mean and I(w) are kept.

Worked example: λ = 52/s whose level moves by ±5/s every ten minutes: v = 25, r = 1/300 s⁻¹, I(60 s) = 1 + 25·60·0.935/52 ≈ 28.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np

from gnomon_planner.maps import Map
from gnomon_planner.matrices import Matrix, Vector
from gnomon_planner.samples import Sample

PACES = 28
MOST_CHAINS = 3
# What wanders within a bin is seen by its counts only where they vary alike in all windows; eight times as quick is all the same.
QUICKER = 8.0
STEEPEST = 1e6


@dataclass(frozen=True, slots=True)
class Chain:
    """One modulating chain: variance of the rate in (requests/s)², pace in 1/s."""

    variance: float
    pace_per_s: float


def modulated(sample: Sample, chains: int) -> Map | None:
    """The MMPP with 2^chains phases whose counts vary as the sample's; None where the sample asks for fewer chains."""
    found = chains_of(sample, chains)
    return None if found is None else with_skewness(sample.rate_rps, found, skewness_of(sample, found))


def chains_of(sample: Sample, count: int) -> tuple[Chain, ...] | None:
    """The variances and paces of so many chains that explain I(w) best; None if no such number has variances above 0."""
    windows = len(sample.windows_s)
    if windows < count or (count > 1 and windows < 2 * count):
        return None
    slowest, quickest = 1.0 / sample.duration_s, 1.0 / sample.windows_s[0]
    if windows == 1:
        # One window has a variance and no pace: the rate is taken to change from bin to bin.
        return _best(np.array([quickest]), count, sample)
    found = _finely(np.geomspace(slowest, quickest, PACES), count, sample)
    if found is not None and max(chain.pace_per_s for chain in found) >= quickest:
        found = _finely(np.geomspace(slowest, QUICKER * quickest, PACES), count, sample)
    return found


def _finely(paces: Vector, count: int, sample: Sample) -> tuple[Chain, ...] | None:
    """The best of these paces, then of a finer grid around each: its neighbours were a factor of up to 2 away."""
    found = _best(paces, count, sample)
    if found is None:
        return None
    near = [chain.pace_per_s * factor for chain in found for factor in np.geomspace(0.6, 1.7, 9)]
    return _best(np.unique(np.clip(near, paces[0], paces[-1])), count, sample) or found


def _best(paces: Vector, count: int, sample: Sample) -> tuple[Chain, ...] | None:
    """Of all ways to take so many of the paces, the one whose least-squares variances explain I(w) best."""
    windows = np.array(sample.windows_s)
    excess = np.array([estimate.value for estimate in sample.dispersions]) - 1.0
    weights = 1.0 / np.array([max(estimate.deviation, 1e-12) for estimate in sample.dispersions])
    design = _second(np.outer(paces, windows)) * windows / sample.rate_rps * weights
    target = excess * weights
    chosen = np.array(list(itertools.combinations(range(len(paces)), count)))
    rows = design[chosen]
    gram = rows @ rows.transpose(0, 2, 1)
    gram[:, range(count), range(count)] *= 1.0 + 1e-9
    variances = np.linalg.solve(gram, (rows @ target)[:, :, None])[:, :, 0]
    errors = ((np.einsum("cv,cvw->cw", variances, rows) - target) ** 2).sum(axis=1)
    errors[(variances <= 0.0).any(axis=1)] = math.inf
    best = int(np.argmin(errors))
    if not math.isfinite(errors[best]):
        return None
    return tuple(Chain(float(variance), float(paces[pace])) for variance, pace in zip(variances[best], chosen[best], strict=True))


def skewness_of(sample: Sample, chains: tuple[Chain, ...]) -> float:
    """The skewness all chains share, from κ3 at the window of the middle between the quickest chain and the longest window."""
    quickest = max(chain.pace_per_s for chain in chains)
    longest = sample.windows_s[-1]
    middle = math.sqrt(min(1.0 / quickest, longest) * longest)
    index = min(range(len(sample.windows_s)), key=lambda place: abs(math.log(sample.windows_s[place] / middle)))
    window_s = sample.windows_s[index]
    reach = sum(chain.variance**1.5 * _third(chain.pace_per_s * window_s) * window_s**3 for chain in chains)
    return sample.excesses[index] / reach if reach > 0.0 else 0.0


def with_skewness(rate_rps: float, chains: tuple[Chain, ...], skewness: float) -> Map:
    """The superposition of the chains, at the nearest skewness whose rates are not negative."""
    low = max(-STEEPEST, min(skewness, STEEPEST))
    if _needed(chains, low) > rate_rps:
        high = max(low, 1.0)
        while _needed(chains, high) > rate_rps:
            high *= 2.0
        for _ in range(60):
            middle = (low + high) / 2.0
            low, high = (middle, high) if _needed(chains, middle) > rate_rps else (low, middle)
        low = high
    busy = _busy(low)
    spare = max(rate_rps - _needed(chains, low), 0.0)
    moves, rates = np.zeros((1, 1)), np.array([spare])
    for chain in chains:
        busy_rps = math.sqrt(chain.variance / (busy * (1.0 - busy)))
        mine = chain.pace_per_s * np.array([[-busy, busy], [1.0 - busy, busy - 1.0]])
        moves = _sum(moves, mine)
        rates = (rates[:, None] + np.array([0.0, busy_rps])).reshape(-1)
    return Map(moves - np.diag(rates), np.diag(rates))


def _needed(chains: tuple[Chain, ...], skewness: float) -> float:
    """The mean rate of the chains when each one's quiet rate is 0."""
    busy = _busy(skewness)
    return sum(math.sqrt(chain.variance * busy / (1.0 - busy)) for chain in chains)


def _busy(skewness: float) -> float:
    """The probability of the upper point: (1 − s/√(4 + s²))/2, without cancellation for large s."""
    root = math.sqrt(4.0 + skewness * skewness)
    return 2.0 / (root * (root + skewness)) if skewness > 0.0 else (1.0 - skewness / root) / 2.0


def _sum(first: Matrix, second: Matrix) -> Matrix:
    return np.kron(first, np.eye(len(second))) + np.kron(np.eye(len(first)), second)


def _second(x: Matrix) -> Matrix:
    """2(x − 1 + e^−x)/x², which is 1 for x → 0."""
    return np.where(x < 1e-3, 1.0 - x / 3.0, 2.0 * (x + np.expm1(-x)) / np.maximum(x, 1e-3) ** 2)  # noqa: PLR2004


def _third(x: float) -> float:
    """6(x(1 + e^−x) − 2(1 − e^−x))/x³, which is 1 for x → 0."""
    if x < 1e-2:  # noqa: PLR2004 - cancellation
        return 1.0 - x / 2.0
    return 6.0 * (x * (1.0 + math.exp(-x)) + 2.0 * math.expm1(-x)) / x**3

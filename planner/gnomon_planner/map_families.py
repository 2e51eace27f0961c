"""Families of MAPs with 1 to 8 phases, each with a closed form from a sample's statistics: the candidates of `fit`.

    map2, mmpp2    two phases from four numbers: mean, SCV, skewness and the decay of the autocorrelation
    kpc            4 or 8 phases for correlated gaps: Kronecker products of two-phase processes (KPC)
    erlang_mixture up to 8 phases for gaps that are more regular than two phases allow
    mmpp_of_counts 2, 4 or 8 phases from the counts of windows: an MMPP whose rate changes slowly

TWO PHASES

The gaps of every MAP(2) have a transform with two poles, −l1 and −l2, and a density f0 at 0; its autocorrelation is geometric,
ρ_k = γᵏ·(1 − 1/c²)/2. These four numbers determine it (Bodrog, Heindl, Horváth and Telek, 2008), so each
process is computed backwards: poles and f0 from three moments, then the rates from γ.

**Poles.** Let n2 = E[X²]/2 and n3 = E[X³]/6. Multiplying the transform 1 − m·s + n2·s² − n3·s³ by (1 + s/l1)(1 + s/l2) must leave
nothing of s² and s³, hence

    u = 1/l1 + 1/l2 = (n3 − m·n2)/(n2 − m²)      v = 1/(l1·l2) = m·u − n2      f0 = (u − m)/v

**Rates.** Of the canonical form D0 = [[−l1, (1−a)·l1], [0, −l2]], D1 = [[a·l1, 0], [(1−b)·l2, b·l2]] the product a·b is γ, and f0
sets the sum a·l1 + b·l2 = f0·(1−γ) + γ·(l1+l2): a·l1 and b·l2 are the roots of a quadratic. For γ < 0 the form is D1 = [[0,
a·l1], [b·l2, (1−b)·l2]] with −a·b = γ, and b follows from f0 directly.

**MMPP(2)** are exactly those with c² > 1, n3·m > n2² and 0 < γ < 1: λ1, λ2 are the roots of the same quadratic, and the trace and
the determinant of D0 give ω1 and ω2. Worked example: 10 and 200 requests/s, left 0.01 times a second (W16 of the papers), has m =
9.524 ms, c² = 10.016, skewness 9.46 and γ = 0.99895; the formulas return its four rates.

**Always feasible.** Values that two phases cannot have are moved to the nearest feasible ones, in this order: the mean is kept,
c² is raised to 1/2, the skewness moved to its bound for that c², γ to its bound for those moments. `map2` returns the values that
were reached.

MORE PHASES FOR GAPS

**KPC** (Casale, Zhang and Smirni, 2010). D0 = −D0ᵃ ⊗ D0ᵇ, D1 = D1ᵃ ⊗ D1ᵇ is a MAP if D0ᵇ is diagonal, and multiplies what gaps
are made of: with f_k = E[X^k]/k!, f_k = f_kᵃ·f_kᵇ, and E[X_i·X_(i+k)] likewise. A factor here is hyperexponential with D0 =
−diag(l1, l2) and P = γI + (1 − γ)eφ, so that E[X_i·X_(i+k)] = 1 + γᵏ(c² − 1)/2 at mean 1.

Factors share the moments by weights that sum to 1: f2 of a factor is f2^weight, f3 is f3^weight; if n3 > n2² holds for the
whole, it holds for each. Weights and decays are taken from a grid, all combinations at once, where the products are nearest to
the sample's at its lags; ρ1, which the fit is asked for, counts as much as all others together.

Worked example: c² = 4 is f2 = 2.5; two factors of equal weight have f2 = 1.58 and so c² = 2.16 each.

**Regular gaps.** c² < 1/2 needs more than two phases: a mixture of k − 1 and k exponential steps of one rate has any 1/k ≤ c² ≤
1/(k − 1). With eight phases c² is at least 1/8; equal gaps get that, and a fit says so.

RATES THAT CHANGE SLOWLY

Each of one, two or three independent two-state chains modulates the rate with a variance v and a pace r (its correlation falls as
e^(−r·t)). The rate's integral over a window w then has, summed over the chains,

    κ2(w) = Σ 2v·(rw − 1 + e^(−rw))/r²             so that I(w) = 1 + κ2(w)/(λw)
    κ3(w) = Σ 6μ3·(rw(1 + e^(−rw)) − 2(1 − e^(−rw)))/r³

(the second is exact for two states, whose third moments all reduce to μ3·e^(−r·span)). For given paces both are linear in the
unknowns: all paces on a grid, and all pairs and triples of them, are solved at once by least squares, each window weighted by
its own deviation, and the best with positive variances is taken. The chains share one skewness, from κ3. A two-point
distribution has any skewness s, with the upper point taken with probability p = (1 − s/√(4 + s²))/2.

**Always feasible.** Rates must not become negative: a chain's quiet rate is at least 0, and the chains' parts of the mean must
not exceed it. A larger s needs less of the mean, so s is raised as far as necessary; mean and I(w) are kept.

Worked example: λ = 52/s whose level moves by ±5/s every ten minutes: v = 25, r = 1/300 s⁻¹, I(60 s) = 1 + 25·60·0.935/52 ≈ 28.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from gnomon_core.errors import bad_request
from gnomon_planner.maps import Map
from gnomon_planner.numerics import Matrix, Vector
from gnomon_planner.samples import GapStatistics, Sample

# A c² this near to 1 is that of a Poisson process: no trace could distinguish the two.
EXPONENTIAL = 1e-6
# γ = 1 would mean that a phase is never left; the longest bursts have a million arrivals.
MAX_DECAY = 1.0 - 1e-6
# Relative distance kept from the bounds, so that rounding leaves all rates non-negative.
BOUND_MARGIN = 1e-7
# At the bound of the third moment for c² > 1 a phase has an infinite rate: rates end at 1000 per mean gap.
MIN_PHASE_GAP = 1e-3
# The least share of the gaps that a phase may have: no trace is longer, and no double more precise.
MIN_PHASE_SHARE = 1e-9


@dataclass(frozen=True, slots=True)
class Shape:
    """The moments that a two-phase process is fitted to: c² and skewness of the gaps, and γ = ρ_(k+1)/ρ_k."""

    scv: float
    skewness: float
    decay: float = 0.0

    @property
    def lag1(self) -> float:
        """ρ1 = γ·(1 − 1/c²)/2."""
        return self.decay * (1.0 - 1.0 / self.scv) / 2.0


def decay_for(scv: float, lag1: float) -> float:
    """The γ with which two phases of this c² have this ρ1; 0 where c² = 1 allows no correlation."""
    reach = (scv - 1.0) / 2.0
    return lag1 * scv / reach if abs(reach) > EXPONENTIAL else 0.0


def map2(mean_s: float, shape: Shape) -> tuple[Map, Shape]:
    """The MAP with at most two phases that is nearest to this shape, and the shape it has.

    Raises:
        GnomonError: 400 `bad_moments` for a mean that is not positive, or numbers that are not finite.

    """
    if not (math.isfinite(mean_s) and mean_s > 0.0 and all(map(math.isfinite, (shape.scv, shape.skewness, shape.decay)))):
        raise bad_request(
            "bad_moments", f"A mean gap of {mean_s} s with {shape}.", "Moments are finite and the mean is positive."
        )
    marginal = nearest_marginal(shape)
    if abs(marginal.scv - 1.0) <= EXPONENTIAL:
        return Map.poisson(1.0 / mean_s), Shape(1.0, 2.0, 0.0)
    poles = _poles(marginal)
    decay, matrices = _nearest_decay(poles, marginal.decay)
    d0, d1 = matrices
    return Map(d0 / mean_s, d1 / mean_s), replace(marginal, decay=decay)


def mmpp2(mean_s: float, shape: Shape) -> tuple[Map, Shape]:
    """The MMPP with at most two phases that is nearest to this shape, and the shape it has: c² ≥ 1 and 0 ≤ γ < 1.

    Without correlation (γ = 0) or variation an MMPP is a Poisson process.

    Raises:
        GnomonError: 400 `bad_moments`.

    """
    if shape.scv <= 1.0 + EXPONENTIAL or shape.decay <= 0.0:
        return map2(mean_s, Shape(1.0, 2.0))
    marginal = nearest_marginal(shape)
    decay = min(shape.decay, MAX_DECAY)
    first, second, density = _poles(marginal)
    slow_rate, fast_rate = _quadratic(density * (1.0 - decay) + decay * (first + second), decay * first * second)
    leaving = (first + second - density) * (1.0 - decay)
    between = first * second * (1.0 - decay)
    # The trace says ω_slow + ω_fast = leaving, the determinant λ_slow·ω_fast + λ_fast·ω_slow = between.
    # Both are above 0 by the bounds above; at a bound rounding may say otherwise.
    least = leaving * BOUND_MARGIN
    leave_slow = max((between - slow_rate * leaving) / (fast_rate - slow_rate), least)
    leave_fast = max((fast_rate * leaving - between) / (fast_rate - slow_rate), least)
    process = Map.mmpp2((slow_rate / mean_s, fast_rate / mean_s), (leave_slow / mean_s, leave_fast / mean_s))
    return process, replace(marginal, decay=decay)


def nearest_marginal(shape: Shape) -> Shape:
    """The nearest shape whose c² and skewness a phase-type distribution of two phases can have."""
    scv = max(shape.scv, 0.5 * (1.0 + BOUND_MARGIN))
    if abs(scv - 1.0) <= EXPONENTIAL:
        return Shape(1.0, 2.0)
    low, high = skewness_bounds(scv)
    return replace(shape, scv=scv, skewness=min(max(shape.skewness, low), high))


def skewness_bounds(scv: float) -> tuple[float, float]:
    """The skewness that two phases can have at this c² (Telek and Heindl, 2002), a little inside; 1/2 ≤ c².

    Above 1 it is n3 > n2² that bounds from below, and how rare a phase may be from above; below 1 the third moment lies between
    3·(3c² − 1 + √2·(1 − c²)^1.5) and 6·c², times m³.
    """
    half = (1.0 + scv) / 2.0
    if scv > 1.0:
        low = half * (half + MIN_PHASE_GAP * (half - 1.0))
        high = half + (half - 1.0) * math.sqrt((half - 1.0) / MIN_PHASE_SHARE)
        return _skewness(scv, 6.0 * low), _skewness(scv, 6.0 * max(low, high))
    low = 3.0 * (3.0 * scv - 1.0 + math.sqrt(2.0) * (1.0 - scv) ** 1.5)
    high = 6.0 * scv
    margin = BOUND_MARGIN * (high - low)
    return _skewness(scv, low + margin), _skewness(scv, high - margin)


def _skewness(scv: float, third: float) -> float:
    """The skewness, from c² and E[X³] at mean 1."""
    return float((third - 3.0 * scv - 1.0) / scv**1.5)


def _poles(shape: Shape) -> tuple[float, float, float]:
    """l1 ≥ l2 and f0 at mean 1."""
    half = (1.0 + shape.scv) / 2.0
    sixth = (shape.skewness * shape.scv**1.5 + 3.0 * shape.scv + 1.0) / 6.0
    total = (sixth - half) / (half - 1.0)
    product = total - half
    smaller, larger = _quadratic(total, product)
    return 1.0 / smaller, 1.0 / larger, (total - 1.0) / product


def _nearest_decay(poles: tuple[float, float, float], decay: float) -> tuple[float, tuple[Matrix, Matrix]]:
    """The matrices at mean 1 for γ, or for the feasible γ nearest to it: those form an interval around 0."""
    decay = min(max(decay, -1.0), MAX_DECAY)
    matrices = _canonical(poles, decay)
    if matrices is not None:
        return decay, matrices
    outside, inside = decay, 0.0
    best = _canonical(poles, inside)
    for _ in range(60):
        middle = (outside + inside) / 2.0
        matrices = _canonical(poles, middle)
        if matrices is None:
            outside = middle
        else:
            inside, best = middle, matrices
    if best is None:
        raise AssertionError(f"two phases with the poles {poles} have no renewal process")
    return inside, best


def _canonical(poles: tuple[float, float, float], decay: float) -> tuple[Matrix, Matrix] | None:
    """D0 and D1 of the canonical form, with the poles in whichever order gives non-negative rates; None if neither does."""
    first, second, density = poles
    for l1, l2 in ((first, second), (second, first)):
        for leave1, leave2 in _exit_rates(l1, l2, density, decay):
            if min(leave1, leave2, l1 - leave1, l2 - leave2) < -BOUND_MARGIN * l1:
                continue
            out, back = min(max(leave1, 0.0), l1), min(max(leave2, 0.0), l2)
            if out > 0.0 and back > 0.0:
                d0 = np.array([[-l1, out], [0.0, -l2]])
                stay = [[l1 - out, 0.0], [back, l2 - back]]
                swap = [[0.0, l1 - out], [back, l2 - back]]
                return d0, np.array(stay if decay >= 0.0 else swap)
    return None


def _exit_rates(l1: float, l2: float, density: float, decay: float) -> Iterator[tuple[float, float]]:
    """(1 − a)·l1 and what leads back from phase 2: (1 − b)·l2 for γ ≥ 0, b·l2 for γ < 0.

    With p the quadratic whose roots are x = a·l1 and y = b·l2, l1 − x = p(l1)/(l1 − y) = l1·(1 − γ)(l1 − f0)/(l1 − y): for slow
    processes the difference itself would have no digits left.
    """
    if decay < 0.0:
        back = (1.0 - decay) * (l2 - density) - decay * l1
        if back > 0.0:
            yield l1 + decay * l1 * l2 / back, back
        return
    roots = _real_roots(density * (1.0 - decay) + decay * (l1 + l2), decay * l1 * l2)
    for x, y in [] if roots is None else [roots, roots[::-1]]:
        pairs = [(l1, x, y), (l2, y, x)]
        first, second = (
            pole * (1.0 - decay) * (pole - density) / (pole - other) if abs(pole - other) > BOUND_MARGIN * pole else pole - own
            for pole, own, other in pairs
        )
        yield first, second


def _quadratic(total: float, product: float) -> tuple[float, float]:
    roots = _real_roots(total, product)
    if roots is None:
        raise AssertionError(f"two numbers with the sum {total} and the product {product} are not real")
    return roots


def _real_roots(total: float, product: float) -> tuple[float, float] | None:
    """The two numbers with this sum and product, ascending, without cancellation; None if they are not real."""
    square = total * total / 4.0 - product
    if square < -BOUND_MARGIN * total * total:
        return None
    larger = total / 2.0 + math.copysign(math.sqrt(max(square, 0.0)), total)
    smaller = product / larger if larger else 0.0
    return min(smaller, larger), max(smaller, larger)


MAX_PHASES = 8
DECAYS: tuple[float, ...] = (0.0, *(1.0 - np.geomspace(0.7, 1e-5, 20)).tolist())
WEIGHT_STEPS = 8
MIN_FACTOR_MOMENT = 1.01


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


def kpc(mean_s: float, gaps: GapStatistics, factors: int) -> Map | None:
    """The KPC with 2^factors phases; None where c² or the skewness has no room for so many factors, or no lag was measured."""
    second = (1.0 + gaps.scv.value) / 2.0
    third = (gaps.skewness.value * gaps.scv.value**1.5 + 3.0 * gaps.scv.value + 1.0) / 6.0
    if second < MIN_FACTOR_MOMENT**factors or third < second**2 * (1.0 + MIN_PHASE_GAP) ** WEIGHT_STEPS or not gaps.lags:
        return None
    lag_products = 1.0 + gaps.scv.value * np.array([max(estimate.value, 0.0) for estimate in gaps.correlations])
    deviations = gaps.scv.value * np.array([max(estimate.deviation, 1e-9) for estimate in gaps.correlations])
    weights = 1.0 / deviations
    weights[0] = max(weights[0], math.sqrt(float((weights[1:] ** 2).sum())))
    factors_chosen = _nearest_factors(second, np.array(gaps.lags), lag_products, weights, factors)
    process: Map | None = None
    for share, decay in factors_chosen:
        part_second, part_third = second**share, third**share
        scv = 2.0 * part_second - 1.0
        skewness = (6.0 * part_third - 3.0 * scv - 1.0) / scv**1.5
        part = hyperexponential(Shape(scv, skewness, decay))
        process = part if process is None else kronecker(process, part)
    return None if process is None else process.rescaled(1.0 / mean_s)


def _nearest_factors(second: float, lags: Vector, products: Vector, weights: Vector, factors: int) -> list[tuple[float, float]]:
    """(weight, γ) of each factor: those whose products of 1 + γᵏ(f2^weight − 1) are nearest."""

    def search(shares: tuple[float, ...], grids: list[Vector]) -> tuple[float, tuple[float, ...], list[float]]:
        joint = np.ones((1, len(lags)))
        for share, grid in zip(shares, grids, strict=True):
            table = 1.0 + np.power.outer(grid, lags) * (second**share - 1.0)
            joint = (joint[:, None, :] * table).reshape(-1, len(lags))
        errors = (((joint - products) * weights) ** 2).sum(axis=-1)
        best_index = int(np.argmin(errors))
        grid_indices = np.unravel_index(best_index, [len(grid) for grid in grids])
        return float(errors[best_index]), shares, [float(grid[index]) for grid, index in zip(grids, grid_indices, strict=True)]

    best: tuple[float, tuple[float, ...], list[float]] = (math.inf, (), [])
    for shares in _weights(factors):
        candidate = search(shares, [np.array(DECAYS)] * factors)
        for _ in range(2):
            candidate = search(shares, [_finer_decays(decay) for decay in candidate[2]])
        best = min(best, candidate)
    return list(zip(best[1], best[2], strict=True))


def _finer_decays(decay: float) -> Vector:
    """Nine decays between the neighbours of one on the grid, on the scale of 1 − γ, and that one itself."""
    complements = np.minimum((1.0 - decay) * np.geomspace(0.6, 1.7, 9), 1.0)
    return np.append(1.0 - complements, decay)


def _weights(factors: int) -> list[tuple[float, ...]]:
    """The ways to share the whole in eighths, each factor at least one, in descending order: their order means nothing."""
    parts = itertools.product(range(1, WEIGHT_STEPS), repeat=factors)
    return [
        tuple(part / WEIGHT_STEPS for part in parts_of_whole)
        for parts_of_whole in parts
        if sum(parts_of_whole) == WEIGHT_STEPS and list(parts_of_whole) == sorted(parts_of_whole, reverse=True)
    ]


def erlang_mixture(mean_s: float, scv: float) -> Map:
    """A renewal process of steps with one rate: k − 1 of them with probability p, else k; the nearest c² from 1/8 to 1."""
    scv = min(max(scv, 1.0 / MAX_PHASES), 1.0)
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


PACE_GRID = 28
MAX_CHAINS = 3
# Changes within a bin show in its counts only as a dispersion that is equal in all windows: faster paces than this look alike.
SUBBIN_PACE = 8.0
MAX_SKEWNESS = 1e6


@dataclass(frozen=True, slots=True)
class Chain:
    """A modulating chain: variance of the rate in (requests/s)², pace in 1/s."""

    variance: float
    pace_per_s: float


def mmpp_of_counts(sample: Sample, chains: int) -> Map | None:
    """The MMPP with 2^chains phases whose counts vary as the sample's; None where the sample asks for fewer chains."""
    fitted_chains = chains_of(sample, chains)
    return None if fitted_chains is None else with_skewness(sample.rate_rps, fitted_chains, skewness_of(sample, fitted_chains))


def chains_of(sample: Sample, count: int) -> tuple[Chain, ...] | None:
    """The variances and paces of so many chains that explain I(w) best; None if no such number has variances above 0."""
    windows = len(sample.windows_s)
    if windows < count or (count > 1 and windows < 2 * count):
        return None
    slowest, quickest = 1.0 / sample.duration_s, 1.0 / sample.windows_s[0]
    if windows == 1:
        # One window has a variance and no pace: the rate is taken to change from bin to bin.
        return _best_chains(np.array([quickest]), count, sample)
    found = _refined_chains(np.geomspace(slowest, quickest, PACE_GRID), count, sample)
    if found is not None and max(chain.pace_per_s for chain in found) >= quickest:
        found = _refined_chains(np.geomspace(slowest, SUBBIN_PACE * quickest, PACE_GRID), count, sample)
    return found


def _refined_chains(paces: Vector, count: int, sample: Sample) -> tuple[Chain, ...] | None:
    """The best of these paces, then of a finer grid around each: its neighbours were a factor of up to 2 away."""
    chains = _best_chains(paces, count, sample)
    if chains is None:
        return None
    finer = [chain.pace_per_s * factor for chain in chains for factor in np.geomspace(0.6, 1.7, 9)]
    return _best_chains(np.unique(np.clip(finer, paces[0], paces[-1])), count, sample) or chains


def _best_chains(paces: Vector, count: int, sample: Sample) -> tuple[Chain, ...] | None:
    """The selection of so many paces whose least-squares variances explain I(w) best."""
    windows = np.array(sample.windows_s)
    excess = np.array([estimate.value for estimate in sample.dispersions]) - 1.0
    weights = 1.0 / np.array([max(estimate.deviation, 1e-12) for estimate in sample.dispersions])
    design = _second_cumulant(np.outer(paces, windows)) * windows / sample.rate_rps * weights
    target = excess * weights
    selections = np.array(list(itertools.combinations(range(len(paces)), count)))
    rows = design[selections]
    gram = rows @ rows.transpose(0, 2, 1)
    gram[:, range(count), range(count)] *= 1.0 + 1e-9
    variances = np.linalg.solve(gram, (rows @ target)[:, :, None])[:, :, 0]
    errors = ((np.einsum("cv,cvw->cw", variances, rows) - target) ** 2).sum(axis=1)
    errors[(variances <= 0.0).any(axis=1)] = math.inf
    best = int(np.argmin(errors))
    if not math.isfinite(errors[best]):
        return None
    return tuple(
        Chain(float(variance), float(paces[pace])) for variance, pace in zip(variances[best], selections[best], strict=True)
    )


def skewness_of(sample: Sample, chains: tuple[Chain, ...]) -> float:
    """The skewness all chains share, from κ3 at the window of the middle between the quickest chain and the longest window."""
    quickest = max(chain.pace_per_s for chain in chains)
    longest = sample.windows_s[-1]
    middle = math.sqrt(min(1.0 / quickest, longest) * longest)
    index = min(range(len(sample.windows_s)), key=lambda place: abs(math.log(sample.windows_s[place] / middle)))
    window_s = sample.windows_s[index]
    reach = sum(chain.variance**1.5 * _third_cumulant(chain.pace_per_s * window_s) * window_s**3 for chain in chains)
    return sample.excesses[index] / reach if reach > 0.0 else 0.0


def with_skewness(rate_rps: float, chains: tuple[Chain, ...], skewness: float) -> Map:
    """The superposition of the chains, at the nearest skewness whose rates are not negative."""
    skew = max(-MAX_SKEWNESS, min(skewness, MAX_SKEWNESS))
    if _mean_at_zero_quiet_rate(chains, skew) > rate_rps:
        high = max(skew, 1.0)
        while _mean_at_zero_quiet_rate(chains, high) > rate_rps:
            high *= 2.0
        for _ in range(60):
            middle = (skew + high) / 2.0
            skew, high = (middle, high) if _mean_at_zero_quiet_rate(chains, middle) > rate_rps else (skew, middle)
        skew = high
    busy_share = _busy_probability(skew)
    constant_rps = max(rate_rps - _mean_at_zero_quiet_rate(chains, skew), 0.0)
    moves, rates = np.zeros((1, 1)), np.array([constant_rps])
    for chain in chains:
        busy_rps = math.sqrt(chain.variance / (busy_share * (1.0 - busy_share)))
        generator = chain.pace_per_s * np.array([[-busy_share, busy_share], [1.0 - busy_share, busy_share - 1.0]])
        moves = _kronecker_sum(moves, generator)
        rates = (rates[:, None] + np.array([0.0, busy_rps])).reshape(-1)
    return Map(moves - np.diag(rates), np.diag(rates))


def _mean_at_zero_quiet_rate(chains: tuple[Chain, ...], skewness: float) -> float:
    """The mean rate of the chains when each one's quiet rate is 0."""
    busy = _busy_probability(skewness)
    return sum(math.sqrt(chain.variance * busy / (1.0 - busy)) for chain in chains)


def _busy_probability(skewness: float) -> float:
    """The probability of the upper point: (1 − s/√(4 + s²))/2, without cancellation for large s."""
    root = math.sqrt(4.0 + skewness * skewness)
    return 2.0 / (root * (root + skewness)) if skewness > 0.0 else (1.0 - skewness / root) / 2.0


def _kronecker_sum(first: Matrix, second: Matrix) -> Matrix:
    return np.kron(first, np.eye(len(second))) + np.kron(np.eye(len(first)), second)


def _second_cumulant(x: Matrix) -> Matrix:
    """2(x − 1 + e^−x)/x², which is 1 for x → 0."""
    return np.where(x < 1e-3, 1.0 - x / 3.0, 2.0 * (x + np.expm1(-x)) / np.maximum(x, 1e-3) ** 2)  # noqa: PLR2004


def _third_cumulant(x: float) -> float:
    """6(x(1 + e^−x) − 2(1 − e^−x))/x³, which is 1 for x → 0."""
    if x < 1e-2:  # noqa: PLR2004 - cancellation
        return 1.0 - x / 2.0
    return 6.0 * (x * (1.0 + math.exp(-x)) + 2.0 * math.expm1(-x)) / x**3

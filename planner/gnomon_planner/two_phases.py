"""Two phases from four numbers, in closed form: mean, SCV, skewness and the decay of the autocorrelation.

The gaps of every MAP(2) have a transform with two poles, −l1 and −l2, and a density f0 at 0; its autocorrelation is geometric,
ρ_k = γᵏ·(1 − 1/c²)/2. These four numbers say all there is to know about it (Bodrog, Heindl, Horváth and Telek, 2008), so each
process is found backwards: poles and f0 from three moments, then the rates from γ.

**Poles.** Let n2 = E[X²]/2 and n3 = E[X³]/6. Multiplying the transform 1 − m·s + n2·s² − n3·s³ by (1 + s/l1)(1 + s/l2) must leave
nothing of s² and s³, hence

    u = 1/l1 + 1/l2 = (n3 − m·n2)/(n2 − m²)      v = 1/(l1·l2) = m·u − n2      f0 = (u − m)/v

**Rates.** Of the canonical form D0 = [[−l1, (1−a)·l1], [0, −l2]], D1 = [[a·l1, 0], [(1−b)·l2, b·l2]] the product a·b is γ, and f0
sets the sum a·l1 + b·l2 = f0·(1−γ) + γ·(l1+l2): a·l1 and b·l2 are the roots of a quadratic. For γ < 0 the form is
D1 = [[0, a·l1], [b·l2, (1−b)·l2]] with −a·b = γ, and b follows from f0 directly.

**MMPP(2)** are exactly those with c² > 1, n3·m > n2² and 0 < γ < 1: λ1, λ2 are the roots of the same quadratic, and the trace
and the determinant of D0 give ω1 and ω2. Worked example: 10 and 200 requests/s, left 0.01 times a second (W16 of the papers),
has m = 9.524 ms, c² = 10.016, skewness 9.46 and γ = 0.99895; the formulas return its four rates.

**Feasible always.** What no two phases can have is moved to the nearest value they can, in this order: the mean is kept, c² is
raised to 1/2, the skewness moved to its bound for that c², γ to its bound for those moments. A fit says how far it had to go.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from gnomon_core.errors import bad_request
from gnomon_planner.maps import Map
from gnomon_planner.matrices import Matrix

# Nearer to 1 than this, two phases are one: no trace could tell that c² from a Poisson process's.
EXPONENTIAL = 1e-6
# γ = 1 would mean that a phase is never left; bursts of a million arrivals are the longest.
SLOWEST = 1.0 - 1e-6
# Bounds are approached to within this part of themselves, so that rounding leaves all rates non-negative.
INSIDE = 1e-7
# Above c² = 1 the bound of the third moment is a phase with an infinite rate: none is taken above 1000 per mean gap.
QUICKEST = 1e-3
# Nor is a phase taken that fewer gaps belong to than this part of them: no trace is that long, and no double that precise.
RAREST = 1e-9


@dataclass(frozen=True, slots=True)
class Shape:
    """What two phases can be asked for: c² and skewness of the gaps, and γ = ρ_(k+1)/ρ_k."""

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
    decay = min(shape.decay, SLOWEST)
    first, second, density = _poles(marginal)
    slow_rate, fast_rate = _quadratic(density * (1.0 - decay) + decay * (first + second), decay * first * second)
    leaving = (first + second - density) * (1.0 - decay)
    between = first * second * (1.0 - decay)
    # The trace says ω_slow + ω_fast = leaving, the determinant λ_slow·ω_fast + λ_fast·ω_slow = between.
    # Both are above 0 by the bounds above; at a bound rounding may say otherwise.
    least = leaving * INSIDE
    leave_slow = max((between - slow_rate * leaving) / (fast_rate - slow_rate), least)
    leave_fast = max((fast_rate * leaving - between) / (fast_rate - slow_rate), least)
    found = Map.mmpp2((slow_rate / mean_s, fast_rate / mean_s), (leave_slow / mean_s, leave_fast / mean_s))
    return found, replace(marginal, decay=decay)


def nearest_marginal(shape: Shape) -> Shape:
    """The same shape with c² and skewness that a phase-type distribution of two phases can have."""
    scv = max(shape.scv, 0.5 * (1.0 + INSIDE))
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
        low = half * (half + QUICKEST * (half - 1.0))
        high = half + (half - 1.0) * math.sqrt((half - 1.0) / RAREST)
        return _skewness(scv, 6.0 * low), _skewness(scv, 6.0 * max(low, high))
    low = 3.0 * (3.0 * scv - 1.0 + math.sqrt(2.0) * (1.0 - scv) ** 1.5)
    high = 6.0 * scv
    margin = INSIDE * (high - low)
    return _skewness(scv, low + margin), _skewness(scv, high - margin)


def _skewness(scv: float, third: float) -> float:
    """From E[X³] at mean 1."""
    return float((third - 3.0 * scv - 1.0) / scv**1.5)


def _poles(shape: Shape) -> tuple[float, float, float]:
    """l1 ≥ l2 and f0 at mean 1."""
    half = (1.0 + shape.scv) / 2.0
    sixth = (shape.skewness * shape.scv**1.5 + 3.0 * shape.scv + 1.0) / 6.0
    total = (sixth - half) / (half - 1.0)
    product = total - half
    smaller, larger = _quadratic(total, product)
    return 1.0 / smaller, 1.0 / larger, (total - 1.0) / product


def _nearest_decay(poles: tuple[float, float, float], wanted: float) -> tuple[float, tuple[Matrix, Matrix]]:
    """The matrices at mean 1 for γ, or for the feasible γ nearest to it: those form an interval around 0."""
    wanted = min(max(wanted, -1.0), SLOWEST)
    found = _canonical(poles, wanted)
    if found is not None:
        return wanted, found
    outside, inside = wanted, 0.0
    best = _canonical(poles, inside)
    for _ in range(60):
        middle = (outside + inside) / 2.0
        found = _canonical(poles, middle)
        if found is None:
            outside = middle
        else:
            inside, best = middle, found
    if best is None:
        raise AssertionError(f"two phases with the poles {poles} have no renewal process")
    return inside, best


def _canonical(poles: tuple[float, float, float], decay: float) -> tuple[Matrix, Matrix] | None:
    """D0 and D1 of the canonical form, with the poles in whichever order gives non-negative rates; None if neither does."""
    first, second, density = poles
    for l1, l2 in ((first, second), (second, first)):
        for leave1, leave2 in _leaving(l1, l2, density, decay):
            if min(leave1, leave2, l1 - leave1, l2 - leave2) < -INSIDE * l1:
                continue
            out, back = min(max(leave1, 0.0), l1), min(max(leave2, 0.0), l2)
            if out > 0.0 and back > 0.0:
                d0 = np.array([[-l1, out], [0.0, -l2]])
                stay = [[l1 - out, 0.0], [back, l2 - back]]
                swap = [[0.0, l1 - out], [back, l2 - back]]
                return d0, np.array(stay if decay >= 0.0 else swap)
    return None


def _leaving(l1: float, l2: float, density: float, decay: float) -> Iterator[tuple[float, float]]:
    """(1 − a)·l1 and what leads back from phase 2: (1 − b)·l2 for γ ≥ 0, b·l2 for γ < 0.

    With p the quadratic whose roots are x = a·l1 and y = b·l2, l1 − x = p(l1)/(l1 − y) = l1·(1 − γ)(l1 − f0)/(l1 − y): for slow
    processes the difference itself would have no digits left.
    """
    if decay < 0.0:
        back = (1.0 - decay) * (l2 - density) - decay * l1
        if back > 0.0:
            yield l1 + decay * l1 * l2 / back, back
        return
    ends = _real_roots(density * (1.0 - decay) + decay * (l1 + l2), decay * l1 * l2)
    for x, y in [] if ends is None else [ends, ends[::-1]]:
        ways = [(l1, x, y), (l2, y, x)]
        first, second = (
            pole * (1.0 - decay) * (pole - density) / (pole - other) if abs(pole - other) > INSIDE * pole else pole - mine
            for pole, mine, other in ways
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
    if square < -INSIDE * total * total:
        return None
    larger = total / 2.0 + math.copysign(math.sqrt(max(square, 0.0)), total)
    smaller = product / larger if larger else 0.0
    return min(smaller, larger), max(smaller, larger)

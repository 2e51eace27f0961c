"""Numerical methods that the planner needs beyond numpy's: matrix exponentials, panels of Chebyshev polynomials, and zeros.

**Generators of Markov chains** are small matrices (1 to some 64 rows) whose off-diagonal entries are rates. Their exponential is
computed from non-negative numbers only, so that no digits are lost to cancellation; scipy would cost 0.2 s of every command for
this one function.

**Curves** are functions of time that are expensive to compute, kept as polynomials on panels: exact to ten digits, quick at any
point. A panel is an interval with the Chebyshev coefficients of the functions on it. Panels are short at both ends of [0, T],
where the fastest phases of a process act, and twice as long with each step inwards; one whose last coefficients are not yet
negligible is halved. Negligible is what is below 1e-10, or below what squaring leaves of the counts' digits: over a time of 10⁹
of the shortest panels, 2e-7.

**Crossings** are where many non-decreasing functions cross zero, all of them side by side, by Chandrupatla's rule (Advances in
Engineering Software 28, 1997): the next point is the zero of the parabola through the last three, x as a function of f, where
that is sure to lie between them, and the middle of the bracket otherwise. Smooth functions take about seven points to four
digits; at a jump, where no parabola helps, it halves. Each point is at least half of the wanted width away from both ends of the
bracket, so that the bracket closes from both sides.

A worked number: F(t) − 0.95 of an exponential of mean 1 between 0 and 10 is 0 at 2.996; halving takes 16 points to 1e−4.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Matrix = npt.NDArray[np.float64]
Vector = npt.NDArray[np.float64]
Array = npt.NDArray[np.float64]
Indices = npt.NDArray[np.intp]


def expm_generator(generator: Matrix, time_s: float) -> Matrix:
    """e^(Q·t) for a generator, or a sub-generator as D0: non-negative off the diagonal, row sums at most 0.

    With q the largest rate, e^(Qt) = Σ Poisson(k; qt)·P^k for the chain P = I + Q/q. The time is halved until qt ≤ 1/2, where 15
    terms reach 1e-20, and the result squared as often.
    """
    identity = np.eye(len(generator))
    rate = float(-generator.diagonal().min())
    if rate <= 0.0 or time_s <= 0.0:
        return identity
    halvings = max(0, math.ceil(math.log2(2.0 * rate * time_s)))
    step = rate * time_s / 2.0**halvings
    chain = np.clip(identity + generator / rate, 0.0, None)
    weight = math.exp(-step)
    power, result = identity, weight * identity
    for term in range(1, 16):
        weight *= step / term
        power = power @ chain
        result = result + weight * power
    for _ in range(halvings):
        result = result @ result
    return result


def stationary_of(rates: Matrix) -> Matrix:
    """The stationary distributions of irreducible chains, shape (…, n) of (…, n, n): θ with θQ = 0, θe = 1.

    Of a generator or of a transition matrix, whose diagonals are not looked at. Solved by state reduction (Grassmann, Taksar and
    Heyman), which never subtracts: rates that differ by many powers of ten, as those of a slow burst beside a quick arrival, keep
    all their digits.
    """
    rates = rates.copy()
    count = rates.shape[-1]
    for state in range(count - 1, 0, -1):
        rates[..., :state, state] /= rates[..., state, :state].sum(axis=-1)[..., None]
        rates[..., :state, :state] += rates[..., :state, state, None] * rates[..., None, state, :state]
    weights = np.zeros(rates.shape[:-1])
    weights[..., 0] = 1.0
    for state in range(1, count):
        weights[..., state] = (weights[..., :state] * rates[..., :state, state]).sum(axis=-1)
    distribution: Matrix = weights / weights.sum(axis=-1, keepdims=True)
    return distribution


def irreducible(rates: Matrix) -> bool:
    """Return whether every state can be reached from every other one."""
    count = len(rates)
    reached = (rates > 0.0) | np.eye(count, dtype=bool)
    for _ in range(max(1, math.ceil(math.log2(max(2, count))))):
        reached = reached @ reached
    return bool(reached.all())


NODES = 16
TOLERANCE = 1e-10
MAX_HALVINGS = 10
ROUNDING = float(np.finfo(float).eps)

_ANGLES = (np.arange(NODES) + 0.5) * np.pi / NODES
_POINTS = np.cos(_ANGLES)
# Chebyshev coefficients from the values at _POINTS (a discrete cosine transform).
_TRANSFORM = np.cos(np.outer(np.arange(NODES), _ANGLES)) * (2.0 / NODES)
_TRANSFORM[0] /= 2.0


@dataclass(frozen=True, slots=True)
class Curves:
    """Several functions on [0, `edges`[-1]]: `coefficients` is (panels, NODES, functions)."""

    edges: Array
    coefficients: Array

    def at(self, points: Array, function: Array) -> Array:
        """Values of functions by index, `function[i]` at `points[i]`, all of one shape. Points outside are clipped."""
        panel, position = self._places(points)
        terms = np.moveaxis(self.coefficients[panel, :, function], -1, 0)
        previous, before_previous = np.zeros_like(position), np.zeros_like(position)
        for term in terms[:0:-1]:  # Clenshaw
            previous, before_previous = before_previous, 2.0 * position * before_previous - previous + term
        values: Array = position * before_previous - previous + terms[0]
        return values

    def every(self, points: Array) -> Array:
        """The value of each function at each point, shape (functions, points)."""
        panel, position = self._places(points)
        chebyshev = np.cos(np.arange(NODES)[:, None] * np.arccos(np.clip(position, -1.0, 1.0)))
        values = np.empty((self.coefficients.shape[-1], len(points)))
        for index in np.unique(panel):
            here = np.flatnonzero(panel == index)
            values[:, here] = self.coefficients[index].T @ chebyshev[:, here]
        return values

    def _places(self, points: Array) -> tuple[npt.NDArray[np.intp], Array]:
        """The panel of each point, and its position on it between −1 and 1."""
        clipped = np.clip(points, 0.0, self.edges[-1])
        panel = np.clip(np.searchsorted(self.edges, clipped, side="right") - 1, 0, len(self.edges) - 2)
        left, right = self.edges[panel], self.edges[panel + 1]
        return panel, 2.0 * (clipped - left) / (right - left) - 1.0


def interpolated(values: Callable[[Array], Array], length: float, shortest: float) -> Curves:
    """Curves on [0, length] of `values`, which takes points and returns (points, functions).

    `shortest` is the length of the panels at both ends.
    """
    edges = _graded_edges(length, shortest)
    tolerance = max(TOLERANCE, ROUNDING * length / shortest)
    lefts, rights = edges[:-1], edges[1:]
    resolved: list[tuple[Array, Array]] = []
    for halving in range(MAX_HALVINGS + 1):
        middles, halves = (lefts + rights) / 2.0, (rights - lefts) / 2.0
        points = middles[:, None] + halves[:, None] * _POINTS
        samples = values(np.clip(points.reshape(-1), 0.0, length)).reshape(len(lefts), NODES, -1)
        coefficients = np.einsum("cn,pnf->pcf", _TRANSFORM, samples)
        unresolved = np.abs(coefficients[:, -3:]).max(axis=(1, 2)) > tolerance
        if halving == MAX_HALVINGS:
            unresolved[:] = False
        resolved.append((lefts[~unresolved], coefficients[~unresolved]))
        if not unresolved.any():
            break
        lefts, rights = (
            np.concatenate([lefts[unresolved], middles[unresolved]]),
            np.concatenate([middles[unresolved], rights[unresolved]]),
        )
    starts = np.concatenate([part for part, _ in resolved])
    order = np.argsort(starts)
    return Curves(np.append(starts[order], length), np.concatenate([part for _, part in resolved])[order])


def _graded_edges(length: float, shortest: float) -> Array:
    """Edges at 0, shortest, 2·shortest, 4·shortest … to the middle, and mirrored from there."""
    lower_edges = [0.0]
    step = min(shortest, length / 2.0)
    while step < length / 2.0:
        lower_edges.append(step)
        step *= 2.0
    lower_half = np.array(lower_edges)
    return np.concatenate([lower_half, [length / 2.0], length - lower_half[::-1]])


BRACKET_WIDTH = 1e-4  # brackets end at this width, relative to themselves, unless told otherwise
MAX_STEPS = 128  # halving takes 87 from 10⁸ s to 1e-13 of 20 ms


def crossings(
    value: Callable[[Indices, Array], Array],
    low: Array,
    high: Array,
    guess: tuple[Array, Array] | None = None,
    close: float = BRACKET_WIDTH,
) -> Array:
    """The upper ends of brackets in which each function reaches zero; below it at `low`, at or above it at `high`.

    `low`, `high` and the result have shape (functions). `value` takes indices of functions and a point for each. The width is
    relative to the upper end, which is positive. `guess` is a probable, narrower bracket, which is verified. Brackets
    end at the width `close`, or after 128 points.
    """
    all_functions: Indices = np.arange(len(low))
    # a is the newest point, b the other end of the bracket, c the point before.
    a, b = high.copy(), low.copy()
    f_a, f_b = np.ones(len(low)), np.full(len(low), -1.0)
    if guess is None:
        f_a, f_b = np.maximum(value(all_functions, a), 0.0), np.minimum(value(all_functions, b), -1e-300)
    else:
        for guess_point in guess:
            points = np.clip(guess_point, b, a)
            f_points = value(all_functions, points)
            reached = f_points >= 0.0
            a, f_a = np.where(reached, points, a), np.where(reached, f_points, f_a)
            b, f_b = np.where(reached, b, points), np.where(reached, f_b, f_points)
    c, f_c = a.copy(), f_a.copy()
    share = np.clip(f_a / (f_a - f_b), 0.0, 1.0)
    upper_ends = high.copy()
    functions = all_functions
    for _ in range(MAX_STEPS):
        upper = np.maximum(a, b)
        upper_ends[functions] = upper
        width = np.abs(b - a)
        active = width > close * np.abs(upper)
        if not active.all():
            functions, share = functions[active], share[active]
            a, b, c, f_a, f_b, f_c = (values[active] for values in (a, b, c, f_a, f_b, f_c))
            upper, width = upper[active], width[active]
        if not len(functions):
            break
        least = close / 2.0 * upper / width
        points = a + np.clip(share, least, 1.0 - least) * (b - a)
        f_points = value(functions, points)
        same = (f_points >= 0.0) == (f_a >= 0.0)
        # The new point takes the place of the end on its side; the other end stays.
        c, f_c = np.where(same, a, b), np.where(same, f_a, f_b)
        b, f_b = np.where(same, b, a), np.where(same, f_b, f_a)
        a, f_a = points, f_points
        share = _next_position((a, b, c), (f_a, f_b, f_c))
    return upper_ends


def _next_position(points: tuple[Array, Array, Array], values: tuple[Array, Array, Array]) -> Array:
    """The next point's position between a and b: the zero of the inverse parabola if that is monotone there, else 0.5."""
    (a, b, c), (f_a, f_b, f_c) = points, values
    with np.errstate(divide="ignore", invalid="ignore"):
        place, level = (a - b) / (c - b), (f_a - f_b) / (f_c - f_b)
        monotone = (level**2 < place) & ((1.0 - level) ** 2 < 1.0 - place)
        inner = f_a / (f_b - f_a) * f_c / (f_b - f_c)
        outer = (c - a) / (b - a) * f_a / (f_c - f_a) * f_b / (f_c - f_b)
        found: Array = np.where(monotone & np.isfinite(inner + outer), inner + outer, 0.5)
    return found

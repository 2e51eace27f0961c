"""Functions of time that are expensive to compute, kept as polynomials on panels: exact to ten digits, quick at any point.

A panel is an interval with the Chebyshev coefficients of the functions on it. Panels are short at both ends of [0, T], where the
fastest phases of a process act, and twice as long with each step inwards; one whose last coefficients are not yet negligible
is halved. Negligible is what is below 1e-10, or below what squaring leaves of the counts' digits: over a time of 10⁹ of the
shortest panels, 2e-7.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gnomon_planner.counting import Array

NODES = 16
TOLERANCE = 1e-10
MOST_HALVINGS = 10
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
        """The value of function number `function` at each point; both have one shape. Points outside count as the nearest end."""
        panel, place = self._places(points)
        terms = np.moveaxis(self.coefficients[panel, :, function], -1, 0)
        after, last = np.zeros_like(place), np.zeros_like(place)
        for term in terms[:0:-1]:  # Clenshaw
            after, last = last, 2.0 * place * last - after + term
        found: Array = place * last - after + terms[0]
        return found

    def every(self, points: Array) -> Array:
        """The value of each function at each point, shape (functions, points)."""
        panel, place = self._places(points)
        waves = np.cos(np.arange(NODES)[:, None] * np.arccos(np.clip(place, -1.0, 1.0)))
        found = np.empty((self.coefficients.shape[-1], len(points)))
        for number in np.unique(panel):
            here = np.flatnonzero(panel == number)
            found[:, here] = self.coefficients[number].T @ waves[:, here]
        return found

    def _places(self, points: Array) -> tuple[npt.NDArray[np.intp], Array]:
        """Which panel each point is on, and where between −1 and 1."""
        inside = np.clip(points, 0.0, self.edges[-1])
        panel = np.clip(np.searchsorted(self.edges, inside, side="right") - 1, 0, len(self.edges) - 2)
        left, right = self.edges[panel], self.edges[panel + 1]
        return panel, 2.0 * (inside - left) / (right - left) - 1.0


def interpolated(values: Callable[[Array], Array], length: float, shortest: float) -> Curves:
    """Curves on [0, length] of `values`, which takes points and returns (points, functions).

    `shortest` is the length of the panels at both ends.
    """
    edges = _graded(length, shortest)
    tolerance = max(TOLERANCE, ROUNDING * length / shortest)
    lefts, rights = edges[:-1], edges[1:]
    done: list[tuple[Array, Array]] = []
    for halving in range(MOST_HALVINGS + 1):
        middles, halves = (lefts + rights) / 2.0, (rights - lefts) / 2.0
        points = middles[:, None] + halves[:, None] * _POINTS
        found = values(np.clip(points.reshape(-1), 0.0, length)).reshape(len(lefts), NODES, -1)
        coefficients = np.einsum("cn,pnf->pcf", _TRANSFORM, found)
        rough = np.abs(coefficients[:, -3:]).max(axis=(1, 2)) > tolerance
        if halving == MOST_HALVINGS:
            rough[:] = False
        done.append((lefts[~rough], coefficients[~rough]))
        if not rough.any():
            break
        lefts, rights = (
            np.concatenate([lefts[rough], middles[rough]]),
            np.concatenate([middles[rough], rights[rough]]),
        )
    starts = np.concatenate([part for part, _ in done])
    order = np.argsort(starts)
    return Curves(np.append(starts[order], length), np.concatenate([part for _, part in done])[order])


def _graded(length: float, shortest: float) -> Array:
    """Edges at 0, shortest, 2·shortest, 4·shortest … to the middle, and mirrored from there."""
    half = [0.0]
    step = min(shortest, length / 2.0)
    while step < length / 2.0:
        half.append(step)
        step *= 2.0
    lower = np.array(half)
    return np.concatenate([lower, [length / 2.0], length - lower[::-1]])

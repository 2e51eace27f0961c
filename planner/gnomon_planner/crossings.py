"""Where many functions that never fall cross zero, all of them side by side.

Chandrupatla's rule (Advances in Engineering Software 28, 1997): the next point is the zero of the parabola through the last
three, x as a function of f, where that is sure to lie between them, and the middle of the bracket otherwise. Smooth functions
take about seven points to four digits; at a jump, where no parabola helps, it halves. Each point is at least half of the
wanted width away from both ends of the bracket, so that the bracket closes from both sides.

A worked number: F(t) − 0.95 of an exponential of mean 1 between 0 and 10 is 0 at 2.996; halving takes 16 points to 1e−4.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from gnomon_planner.counting import Array

CLOSE = 1e-4  # brackets end at this width, relative to themselves, unless told otherwise
MOST_STEPS = 128  # halving takes 87 from 10⁸ s to 1e-13 of 20 ms

Indices = npt.NDArray[np.intp]


def crossings(
    value: Callable[[Indices, Array], Array],
    low: Array,
    high: Array,
    guess: tuple[Array, Array] | None = None,
    close: float = CLOSE,
) -> Array:
    """The upper ends of brackets in which each function reaches zero; below it at `low`, at or above it at `high`.

    `value` takes the numbers of some functions and a point for each. Points are positive where it matters: the width is
    relative to the upper end. `guess` is a bracket that is probably right, within the other; what it says is looked at. Brackets
    end at the width `close`, or after 128 points.
    """
    every: Indices = np.arange(len(low))
    # a is the newest point, b the other end of the bracket, c the point before.
    a, b = high.copy(), low.copy()
    f_a, f_b = np.ones(len(low)), np.full(len(low), -1.0)
    if guess is None:
        f_a, f_b = np.maximum(value(every, a), 0.0), np.minimum(value(every, b), -1e-300)
    else:
        for place in guess:
            at = np.clip(place, b, a)
            f_at = value(every, at)
            reached = f_at >= 0.0
            a, f_a = np.where(reached, at, a), np.where(reached, f_at, f_a)
            b, f_b = np.where(reached, b, at), np.where(reached, f_b, f_at)
    c, f_c = a.copy(), f_a.copy()
    share = np.clip(f_a / (f_a - f_b), 0.0, 1.0)
    found = high.copy()
    which = every
    for _ in range(MOST_STEPS):
        upper = np.maximum(a, b)
        found[which] = upper
        width = np.abs(b - a)
        active = width > close * np.abs(upper)
        if not active.all():
            which, share = which[active], share[active]
            a, b, c, f_a, f_b, f_c = (values[active] for values in (a, b, c, f_a, f_b, f_c))
            upper, width = upper[active], width[active]
        if not len(which):
            break
        least = close / 2.0 * upper / width
        at = a + np.clip(share, least, 1.0 - least) * (b - a)
        f_at = value(which, at)
        same = (f_at >= 0.0) == (f_a >= 0.0)
        # The new point takes the place of the end on its side; the other end stays.
        c, f_c = np.where(same, a, b), np.where(same, f_a, f_b)
        b, f_b = np.where(same, b, a), np.where(same, f_b, f_a)
        a, f_a = at, f_at
        share = _share((a, b, c), (f_a, f_b, f_c))
    return found


def _share(points: tuple[Array, Array, Array], values: tuple[Array, Array, Array]) -> Array:
    """How far from a to b the next point lies: where the inverse parabola has its zero if it is monotone there, else halfway."""
    (a, b, c), (f_a, f_b, f_c) = points, values
    with np.errstate(divide="ignore", invalid="ignore"):
        place, level = (a - b) / (c - b), (f_a - f_b) / (f_c - f_b)
        monotone = (level**2 < place) & ((1.0 - level) ** 2 < 1.0 - place)
        inner = f_a / (f_b - f_a) * f_c / (f_b - f_c)
        outer = (c - a) / (b - a) * f_a / (f_c - f_a) * f_b / (f_c - f_b)
        found: Array = np.where(monotone & np.isfinite(inner + outer), inner + outer, 0.5)
    return found

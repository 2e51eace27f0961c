"""Service times from few measurements: a polynomial of batch and size of instance (BATCH, Section III-A).

Measuring every size of instance with every batch takes hours, and the times lie on a smooth surface. `to_measure` chooses fewer
than 3 % of the cells, spread so that the surface is held at its edges; `fitted` finds the polynomial

    S(size, batch) = Σ c_ij · f(size)^i · batch^j        f(x) = 1/x, 1/√x, log x or x

whose relative error is least on points it has not seen: each in turn is left out (the closed form for least squares), and f,
the degrees, and whether products of both count are those with the least error so found. Relative errors are minimised,
because 2 % of 20 ms matters as much as 2 % of 2 s. Beyond the measured sizes and batches a polynomial says anything: it is
asked there only on purpose.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from gnomon_core.errors import bad_request
from gnomon_planner.counting import Array

SHARE = 0.03
HIGHEST = 4  # degree in either variable
SPARE = 2  # points more than coefficients

_SHAPES: dict[str, Callable[[Array], Array]] = {
    "1/x": lambda x: 1.0 / x,
    "1/√x": lambda x: 1.0 / np.sqrt(x),
    "log x": np.log,
    "x": lambda x: x,
}


@dataclass(frozen=True, slots=True)
class Measured:
    """One cell: the memory or cores of an instance, a batch, and its seconds."""

    size: float
    batch: int
    seconds: float


@dataclass(frozen=True, slots=True)
class ServiceModel:
    """A fitted polynomial. `error` is the mean, `worst` the largest relative error on points that were left out."""

    shape: str
    powers: tuple[tuple[int, int], ...]
    coefficients: tuple[float, ...]
    sizes: tuple[float, float]
    batches: tuple[int, int]
    error: float
    worst: float

    def seconds(self, size: float, batch: int, *, extrapolate: bool = False) -> float:
        """S(size, batch).

        Raises:
            GnomonError: 400 `extrapolation`: beyond what was measured, and not asked for on purpose; or no positive time.

        """
        inside = self.sizes[0] <= size <= self.sizes[1] and self.batches[0] <= batch <= self.batches[1]
        if not inside and not extrapolate:
            raise bad_request(
                "extrapolation",
                f"A batch of {batch} at {size:g} lies beyond what was measured.",
                f"Measured: {self.sizes[0]:g} to {self.sizes[1]:g}, batches {self.batches[0]} to {self.batches[1]}.",
            )
        terms = _terms(self.shape, self.powers, np.array([size / self.sizes[1]]), np.array([batch / self.batches[1]]))
        found = float((terms @ np.array(self.coefficients))[0])
        if not found > 0.0:
            raise bad_request("extrapolation", f"The model has no positive time for a batch of {batch} at {size:g}.")
        return found

    def row(self, size: float, batches: int) -> tuple[float, ...]:
        """S_1 … S_B of one size.

        Raises:
            GnomonError: 400 `extrapolation`.

        """
        return tuple(self.seconds(size, batch) for batch in range(1, batches + 1))


def to_measure(sizes: Sequence[float], batches: Sequence[int], share: float = SHARE) -> list[tuple[float, int]]:
    """Fewer than `share` of all cells, among them the corners: rows and columns denser towards the edges, as Chebyshev's nodes.

    Raises:
        GnomonError: 400 `too_few_cells`: they would not hold a plane.

    """
    ordered, steps = sorted(set(sizes)), sorted(set(batches))
    most = math.ceil(share * len(ordered) * len(steps)) - 1
    side = min(math.isqrt(max(most, 0)), len(ordered), len(steps))
    if side < 2:  # noqa: PLR2004 - both ends
        raise bad_request("too_few_cells", f"{max(most, 0)} cells are too few to measure.", "Allow a larger share.")
    rows, columns = side, min(most // side, len(steps))
    return [(ordered[row], steps[column]) for row in _spread(rows, len(ordered)) for column in _spread(columns, len(steps))]


def fitted(points: Sequence[Measured]) -> ServiceModel:
    """The polynomial with the least error on points it has not seen.

    Raises:
        GnomonError: 400 `bad_measurements`: fewer than 4 points, or a size, batch or time that is not positive.

    """
    if len(points) < SPARE + 2 or not all(
        math.isfinite(one.seconds) and one.seconds > 0.0 and one.size > 0.0 and one.batch >= 1 for one in points
    ):
        raise bad_request("bad_measurements", "These are not at least 4 positive times.", "Measure more cells.")
    sizes = np.array([one.size for one in points], dtype=float)
    batches = np.array([one.batch for one in points], dtype=float)
    seconds = np.array([one.seconds for one in points])
    found: ServiceModel | None = None
    for shape, powers in _candidates(len(points)):
        # Variables go up to 1, so that high powers neither vanish nor explode.
        weighed = _terms(shape, powers, sizes / sizes.max(), batches / batches.max()) / seconds[:, None]
        if np.linalg.matrix_rank(weighed) < len(powers):
            continue
        left_out = _left_out(weighed)
        error = float(left_out.mean())
        if found is None or error < found.error * (1.0 - 1e-9):
            coefficients = np.linalg.lstsq(weighed, np.ones(len(points)), rcond=None)[0]
            found = ServiceModel(
                shape,
                powers,
                tuple(float(one) for one in coefficients),
                (float(sizes.min()), float(sizes.max())),
                (int(batches.min()), int(batches.max())),
                error,
                float(left_out.max()),
            )
    assert found is not None, "a constant always fits"
    return found


def _candidates(points: int) -> Iterator[tuple[str, tuple[tuple[int, int], ...]]]:
    """Shapes and powers with fewer coefficients than points, the simplest first."""
    sets = {
        tuple((i, j) for i in range(first + 1) for j in range(second + 1) if i + j <= total)
        for first in range(HIGHEST + 1)
        for second in range(HIGHEST + 1)
        for total in range(max(first, second), first + second + 1)
    }
    for powers in sorted(sets, key=lambda one: (len(one), one)):
        if len(powers) <= points - SPARE:
            for shape in _SHAPES:
                yield shape, powers


def _terms(shape: str, powers: Sequence[tuple[int, int]], sizes: Array, batches: Array) -> Array:
    transformed = _SHAPES[shape](sizes)
    return np.stack([transformed**first * batches**second for first, second in powers], axis=1)


def _left_out(weighed: Array) -> Array:
    """|residual| of each point if it is left out: e_i/(1 − h_i), h the diagonal of the projection."""
    orthogonal = np.linalg.qr(weighed)[0]
    ones = np.ones(len(weighed))
    residuals = ones - orthogonal @ (orthogonal.T @ ones)
    found: Array = np.abs(residuals) / np.maximum(1.0 - (orthogonal**2).sum(axis=1), 1e-9)
    return found


def _spread(count: int, among: int) -> list[int]:
    """`count` of `among` places, both ends with them, denser there."""
    places = {round((among - 1) * (1.0 - math.cos(math.pi * number / (count - 1))) / 2.0) for number in range(count)}
    return sorted(places)

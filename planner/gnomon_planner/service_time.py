"""Service times from few measurements: a polynomial of batch and size of instance (BATCH, Section III-A).

Measuring every size of instance with every batch takes hours, but the times lie on a smooth surface. `cells_to_measure` chooses
fewer than 3 % of the cells, spread so that the surface is determined at its edges; `fit_service_times` finds the polynomial

    S(size, batch) = g(size) · Σ c_ijk · f(size)^i · batch^j · threads^k        k = 0 or 1

of least cross-validation error: each point in turn is left out, and each size between the outermost with all its points (the
closed form for least squares). Only leaving out a whole size tests the interpolation between sizes, because other points of the
same size determine a single point. Of the polynomials whose mean error is within one standard error of the least, the simplest is
taken. f is 1/x, 1/√x, log x or x with g = 1; or, because a share of a core takes the work's processor time divided by the share,
g = 1/x, and f, log x or x, is the change of the work itself with the share (caches are colder after each pause). Relative errors
are minimised, because 2 % of 20 ms matters as much as 2 % of 2 s; a polynomial that is not positive between the measured points
is rejected. Extrapolation beyond the measured sizes and batches is arbitrary, and happens only on request.

An instance computes on as many threads as it has cores, partial ones included, so that its times jump where a core is added,
which no smooth function of the size does. If `core_size` is given, the size of an instance with one whole core (1,769 MB on
Lambda), the threads are a third variable. One power of it suffices: n threads that spend s seconds together and p seconds of work
take n·s + p seconds of processor time (Amdahl), which is divided by the quota. Example: with 100 ms on one thread and 60 ms on
two, 1,728 MB (0.98 cores) take 102 ms, and 1,792 MB (1.01 cores) take 2·60/1.01 = 118 ms.

**Spread.** The times vary around their median: `ratios_of_runs` gives equally likely ratios of a batch's time to S_k. The machine
and its other load slow some batches down. The ratios of an instance size are those of all its batch sizes together, because few
runs of each batch size do not distinguish them. There are at most `MAX_RATIOS`: all measured ratios, or the means of `MAX_RATIOS`
equal shares of them, which preserve the mean.

**Bills** are means over all ratios, because a bill is a step function: if five of 100 runs around 95 ms take more than a step of
100 ms, the mean bill is 1.05 steps. A share is wrong only if a step ends within it, and then by less than a step: a mean over
`MAX_RATIOS` is off by less than 1/`MAX_RATIOS` of the difference between the dearest and the cheapest run.

**Percentiles** take time proportional to the number of ratios, and use `representative_ratios`: six means of equal shares below
87.5 %, then the means of the shares to 92.5, 97.5 and 100 %. P90 and P95 lie in the middle of their shares, P99 near the last
mean: for times that deviate by a tenth they are 1.14, 1.18 and 1.26 times the median, equal to the exact values. Nine equal
shares had 1.19 for all three.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from gnomon_core.errors import bad_request
from gnomon_planner.numerics import Array, Indices

MAX_MEASURED_SHARE = 0.03
"""Less than this share of all cells is measured."""
MAX_DEGREE = 4  # the highest degree in either variable
SPARE_POINTS = 2  # the points beyond the number of coefficients
MIN_LEVERAGE_GAP = 1e-9  # least eigenvalue of 1 − H_gg (at most 1) at which the other points determine the polynomial
GRID = 24
"""Points on each axis at which a candidate must be positive."""
MIN_BATCHES = 3
"""The least number of batches of a size: both ends and one in between."""
BATCH_SHIFTS = (0.0, -1 / 3, 1 / 3)
"""The shift of the batches between the ends, relative to their distance, from one size to the next."""

Powers: TypeAlias = tuple[int, int, int]
"""The exponents of f(size), batch and threads."""

_SHAPES: dict[str, tuple[Callable[[Array], Array], Callable[[Array], Array]]] = {
    "1/x": (np.ones_like, lambda x: 1.0 / x),
    "work, log x": (lambda x: 1.0 / x, np.log),
    "work, x": (lambda x: 1.0 / x, lambda x: x),
    "1/√x": (np.ones_like, lambda x: 1.0 / np.sqrt(x)),
    "log x": (np.ones_like, np.log),
    "x": (np.ones_like, lambda x: x),
}
"""g and f."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """A measured cell: the memory (MB) or cores of an instance, a batch size, and the service time in seconds."""

    size: float
    batch: int
    seconds: float


@dataclass(frozen=True, slots=True)
class ServiceModel:
    """A fitted polynomial. `error` is the mean, `worst` the largest relative error on points that were left out.

    Left out are each point, and each size between others with all of its points. `core_size` is the size of an instance with one
    whole core; None where the number of threads is no variable.
    """

    shape: str
    powers: tuple[Powers, ...]
    coefficients: tuple[float, ...]
    sizes: tuple[float, float]
    batches: tuple[int, int]
    error: float
    worst: float
    core_size: float | None = None

    def seconds(self, size: float, batch: int, *, extrapolate: bool = False) -> float:
        """S(size, batch) in seconds.

        Raises:
            GnomonError: 400 `extrapolation`: beyond what was measured, and not asked for on purpose; or no positive time.

        """
        in_range = self.sizes[0] <= size <= self.sizes[1] and self.batches[0] <= batch <= self.batches[1]
        if not in_range and not extrapolate:
            raise bad_request(
                "extrapolation",
                f"A batch of {batch} at {size:g} lies beyond what was measured.",
                f"Measured: {self.sizes[0]:g} to {self.sizes[1]:g}, batches {self.batches[0]} to {self.batches[1]}.",
            )
        scaled = (np.array([size / self.sizes[1]]), np.array([batch / self.batches[1]]), _threads([size], self.core_size))
        seconds = float((_design_matrix(self.shape, self.powers, scaled) @ np.array(self.coefficients))[0])
        if not seconds > 0.0:
            raise bad_request("extrapolation", f"The model has no positive time for a batch of {batch} at {size:g}.")
        return seconds

    @property
    def description(self) -> str:
        """A description of the polynomial and its leave-one-out errors."""
        batch = max(power for _, power, _ in self.powers)
        form = f"{self.shape} to the power {max(power for power, _, _ in self.powers)}, batch to {batch}"
        threads = ", threads" if any(power for _, _, power in self.powers) else ""
        return f"{form}{threads}, {len(self.powers)} coefficients; off by {self.error:.1%} in the mean, {self.worst:.1%} at most"

    def row(self, size: float, batches: int) -> tuple[float, ...]:
        """S_1 … S_B of one size in seconds.

        Raises:
            GnomonError: 400 `extrapolation`.

        """
        return tuple(self.seconds(size, batch) for batch in range(1, batches + 1))


def cells_to_measure(
    sizes: Sequence[float], batches: Sequence[int], share: float = MAX_MEASURED_SHARE, *, core_size: float | None = None
) -> list[tuple[float, int]]:
    """Fewer than `share` of all cells, among them the corners: many sizes, denser towards the edges, with few batches each.

    Each size has both ends of the batches and, in turn, others of those between: a straight grid of as many cells knows fewer
    sizes and fewer batches. Example: 27 of 46 × 20 are 9 sizes × (1, 10, 20), (1, 6, 20), (1, 15, 20), … With `core_size`, the
    sizes of each number of threads have both ends and what lies between by themselves, as far as it goes.

    Raises:
        GnomonError: 400 `too_few_cells`: they would not hold a plane.

    """
    ordered_sizes, batch_steps = sorted(set(sizes)), sorted(set(batches))
    max_cells = math.ceil(share * len(ordered_sizes) * len(batch_steps)) - 1
    rows = min(max_cells // MIN_BATCHES if max_cells >= MIN_BATCHES**2 else math.isqrt(max(max_cells, 0)), len(ordered_sizes))
    if min(rows, len(batch_steps)) < 2:  # noqa: PLR2004 - both ends
        raise bad_request("too_few_cells", f"{max(max_cells, 0)} cells are too few to measure.", "Take more sizes or batches.")
    columns = min(max_cells // rows, len(batch_steps))
    return [
        (size, batch_steps[column])
        for number, size in enumerate(_chosen_sizes(ordered_sizes, rows, core_size))
        for column in _chebyshev_places(columns, len(batch_steps), BATCH_SHIFTS[number % len(BATCH_SHIFTS)])
    ]


def fit_service_times(points: Sequence[Measurement], *, core_size: float | None = None) -> ServiceModel:
    """The polynomial with the least error on points it has not seen; with `core_size`, of the number of threads too.

    Raises:
        GnomonError: 400 `bad_measurements`: fewer than 4 points, or a size, batch or time that is not positive.

    """
    if len(points) < SPARE_POINTS + 2 or not all(
        0.0 < point.seconds < math.inf and 0.0 < point.size < math.inf and point.batch >= 1 for point in points
    ):
        raise bad_request("bad_measurements", "There are fewer than 4 cells with positive times.", "Measure more cells.")
    sizes = np.array([point.size for point in points], dtype=float)
    batches = np.array([point.batch for point in points], dtype=float)
    seconds = np.array([point.seconds for point in points])
    threads = _threads(sizes, core_size)
    # Variables go up to 1, so that high powers neither vanish nor explode.
    scaled = (sizes / sizes.max(), batches / batches.max(), threads)
    grid, inner = _grid_between_points(sizes, batches, core_size), _inner_sizes(sizes, threads)
    candidates: list[tuple[float, float, ServiceModel]] = []
    for shape, powers in _candidate_polynomials(len(points), threads_vary=bool(np.ptp(threads))):
        # Rows divided by their times: least squares against 1 then minimise the relative errors.
        relative_rows = _design_matrix(shape, powers, scaled) / seconds[:, None]
        if np.linalg.matrix_rank(relative_rows) < len(powers):
            continue
        coefficients = np.linalg.lstsq(relative_rows, np.ones(len(points)), rcond=None)[0]
        if not (_design_matrix(shape, powers, grid) @ coefficients > 0.0).all():
            continue
        left_out = _leave_out_errors(relative_rows, inner)
        if not np.isfinite(left_out).all():
            continue
        error, deviation = float(left_out.mean()), float(left_out.std()) / math.sqrt(len(left_out))
        model = ServiceModel(
            shape,
            powers,
            tuple(float(coefficient) for coefficient in coefficients),
            (float(sizes.min()), float(sizes.max())),
            (int(batches.min()), int(batches.max())),
            error,
            float(left_out.max()),
            core_size,
        )
        candidates.append((error, deviation, model))
    least, deviation, _ = min(candidates, key=lambda candidate: candidate[0])
    # In order of their coefficients: the first is the simplest.
    return next(model for error, _, model in candidates if error <= least + deviation)


def _grid_between_points(sizes: Array, batches: Array, core_size: float | None) -> tuple[Array, Array, Array]:
    """A grid over the measured range, scaled as the points are: where the model will be used."""
    size_axis, batch_axis = np.linspace(sizes.min(), sizes.max(), GRID), np.linspace(batches.min(), batches.max(), GRID)
    grid_sizes, grid_batches = np.repeat(size_axis, GRID), np.tile(batch_axis, GRID)
    return grid_sizes / sizes.max(), grid_batches / batches.max(), _threads(grid_sizes, core_size)


def _candidate_polynomials(points: int, *, threads_vary: bool) -> Iterator[tuple[str, tuple[Powers, ...]]]:
    """Shapes and powers with fewer coefficients than points, the simplest first; with the threads where there are several."""
    without_threads = {
        tuple((i, j, 0) for i in range(first + 1) for j in range(second + 1) if i + j <= total)
        for first in range(MAX_DEGREE + 1)
        for second in range(MAX_DEGREE + 1)
        for total in range(max(first, second), first + second + 1)
    }
    power_sets = set(without_threads)
    if threads_vary:
        power_sets |= {
            powers + tuple((i, j, 1) for i, j, _ in powers if i <= first and j <= second)
            for powers in without_threads
            for first in range(2)
            for second in range(3)
        }
    for powers in sorted(power_sets, key=lambda powers: (len(powers), powers)):
        if len(powers) <= points - SPARE_POINTS:
            for shape in _SHAPES:
                yield shape, powers


def _threads(sizes: Sequence[float] | Array, core_size: float | None) -> Array:
    """The threads on which an instance of each memory size computes."""
    threads: Array = np.ones(len(sizes)) if core_size is None else np.ceil(np.asarray(sizes, dtype=float) / core_size)
    return threads


def _design_matrix(shape: str, powers: Sequence[Powers], variables: tuple[Array, Array, Array]) -> Array:
    sizes, batches, threads = variables
    factor, transform = _SHAPES[shape]
    factors, transformed = factor(sizes), transform(sizes)
    return np.stack([factors * transformed**first * batches**second * threads**third for first, second, third in powers], axis=1)


def _inner_sizes(sizes: Array, threads: Array) -> list[Indices]:
    """The points of each size that has smaller and larger ones of as many threads, or of any where no other has as many.

    Example: of whole cores, and of 1,024, 1,769, 3,538, 5,307 and 8,845 MB, each has a number of threads to itself.
    """
    inner: list[float] = []
    for number in np.unique(threads):
        sizes_of_threads = np.unique(sizes[threads == number])
        compared = sizes_of_threads if len(sizes_of_threads) > 1 else np.unique(sizes)
        inner += sizes_of_threads[(compared[0] < sizes_of_threads) & (sizes_of_threads < compared[-1])].tolist()
    return [np.flatnonzero(sizes == size) for size in inner]


def _leave_out_errors(relative_rows: Array, groups: Sequence[Indices]) -> Array:
    """|residual| of each point if it is left out, and of those of each group if that is: (1 − H_gg)⁻¹ e_g, H the projection.

    Infinite where the points without a group do not determine the polynomial.
    """
    basis = np.linalg.qr(relative_rows)[0]
    ones = np.ones(len(relative_rows))
    residuals = ones - basis @ (basis.T @ ones)
    errors = [np.abs(residuals) / np.maximum(1.0 - (basis**2).sum(axis=1), 1e-9)]
    for group in groups:
        values, vectors = np.linalg.eigh(np.eye(len(group)) - basis[group] @ basis[group].T)
        if values[0] < MIN_LEVERAGE_GAP:
            return np.array([math.inf])
        errors.append(np.abs(vectors @ ((vectors.T @ residuals[group]) / values)))
    return np.concatenate(errors)


def _chosen_sizes(sizes: Sequence[float], count: int, core_size: float | None) -> list[float]:
    """`count` of the sizes; of each number of threads as many as it has sizes in proportion, at least both ends."""
    if core_size is None:
        return [sizes[place] for place in _chebyshev_places(count, len(sizes))]
    groups: dict[int, list[float]] = {}
    for size in sizes:
        groups.setdefault(math.ceil(size / core_size), []).append(size)
    if any(len(group) < 2 for group in groups.values()) or count < 2 * len(groups):  # noqa: PLR2004 - both ends
        return _chosen_sizes(sizes, count, None)
    shares = dict.fromkeys(groups, 2)
    for _ in range(count - 2 * len(groups)):
        unfilled = [number for number, group in groups.items() if shares[number] < len(group)]
        shares[max(unfilled, key=lambda number: len(groups[number]) / shares[number])] += 1
    return [group[place] for number, group in groups.items() for place in _chebyshev_places(shares[number], len(group))]


def _chebyshev_places(count: int, places: int, shift: float = 0.0) -> list[int]:
    """`count` of `among` places, both ends with them, denser there, as Chebyshev's nodes; those between moved by a `turn`."""
    nodes = [0.0, *(node + shift for node in range(1, count - 1)), count - 1.0]
    return sorted({round((places - 1) * (1.0 - math.cos(math.pi * node / (count - 1))) / 2.0) for node in nodes})


MAX_RATIOS = 360
"""The most ratios that are kept."""
SHARE_EDGES = np.array([*(0.875 / 6.0 * number for number in range(6)), 0.875, 0.925, 0.975, 1.0])
"""The edges of the cumulative probability for the few shares."""
DETERMINISTIC = (1.0,)
"""The ratios of a deterministic service time."""
NEGLIGIBLE_DEVIATION = 1e-3
"""A relative deviation below this counts as none: predictions with several ratios take several times as long."""

_SHARES = tuple(float(share) for share in np.diff(SHARE_EDGES))
_EVEN_EDGES = np.linspace(0.0, 1.0, MAX_RATIOS + 1)
_NORMAL = np.array([NormalDist().inv_cdf((number + 0.5) / MAX_RATIOS) for number in range(MAX_RATIOS)])
_QUARTILE = NormalDist().inv_cdf(0.75)

RowIndex = npt.NDArray[np.intp] | npt.NDArray[np.bool_] | slice


@dataclass(frozen=True, slots=True)
class Spread:
    """The representative ratios of instance sizes and their probabilities (`shares`), both of shape (sizes, ratios)."""

    ratios: Array
    shares: Array

    @staticmethod
    def of(sizes: Sequence[Sequence[float]]) -> Spread:
        """The spread of each size's ratios; rows with fewer ratios are padded with their last ratio at share 0."""
        reduced = [representative_ratios(ratios) for ratios in sizes]
        count = max((len(shares) for _, shares in reduced), default=1)
        ratios = [(*ratios, *ratios[-1:] * (count - len(ratios))) for ratios, _ in reduced]
        shares = [(*shares, *(0.0,) * (count - len(shares))) for _, shares in reduced]
        return Spread(np.array(ratios).reshape(-1, count), np.array(shares).reshape(-1, count))

    def among(self, rows: RowIndex) -> Spread:
        """The spread of a subset of the sizes."""
        return Spread(self.ratios[rows], self.shares[rows])


def representative_ratios(ratios: Sequence[float]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Reduce `ratios` to at most nine (ascending if there are more), with probabilities; the mean is unchanged."""
    values = np.array(ratios, dtype=float)
    if len(values) and float(values.std()) < NEGLIGIBLE_DEVIATION:
        return (float(values.mean()),), (1.0,)
    if len(values) < len(SHARE_EDGES):
        return tuple(ratios), (1.0 / max(1, len(values)),) * len(values)
    return _share_means(values, SHARE_EDGES), _SHARES


def ratios_of_runs(cells: Iterable[Sequence[float]]) -> tuple[float, ...]:
    """The ratios of runs in seconds to the median of their cell, over all cells together.

    Raises:
        GnomonError: 400 `bad_measurements`: a run that is no positive time.

    """
    rows = [np.array(cell, dtype=float) for cell in cells if len(cell)]
    if not all(np.isfinite(row).all() and (row > 0.0).all() for row in rows):
        raise bad_request("bad_measurements", "A measured time is not positive.", "Measure it again.")
    runs = np.concatenate([row / np.median(row) for row in rows]) if rows else np.ones(1)
    return reduced_ratios(runs.tolist())


def reduced_ratios(ratios: Sequence[float]) -> tuple[float, ...]:
    """Equally likely ratios: `ratios`, or, of more than `MAX_RATIOS`, the means of that many equal shares, ascending.

    Raises:
        GnomonError: 400 `bad_measurements`: none, or one that is no positive number.

    """
    values = np.array(ratios, dtype=float)
    if not len(values) or not (np.isfinite(values) & (values > 0.0)).all():
        raise bad_request(
            "bad_measurements", "The ratios of a size are not positive numbers.", "Leave them out where none are known."
        )
    return tuple(values.tolist()) if len(values) <= MAX_RATIOS else _share_means(values, _EVEN_EDGES)


def ratios_of_quartile_range(relative: float) -> tuple[float, ...]:
    """The ratios of log-normal service times whose interquartile range is `relative` times their median."""
    return _log_normal(math.asinh(relative / 2.0) / _QUARTILE)


def ratios_of_deviation(relative: float) -> tuple[float, ...]:
    """The ratios of log-normal times from their mean relative deviation: E|x| of a normal distribution is √(2/π)·σ."""
    return _log_normal(relative * math.sqrt(math.pi / 2.0))


def _log_normal(deviation: float) -> tuple[float, ...]:
    return tuple(np.exp(deviation * _NORMAL).tolist()) if NEGLIGIBLE_DEVIATION <= deviation < math.inf else DETERMINISTIC


def _share_means(ratios: Array, edges: Array) -> tuple[float, ...]:
    """The mean of each share of the ratios; one that an edge cuts belongs to both sides in proportion."""
    count = len(ratios)
    sums = np.concatenate([[0.0], np.cumsum(np.sort(ratios))])
    cumulative = np.interp(edges * count, np.arange(count + 1), sums)
    return tuple((np.diff(cumulative) / (np.diff(edges) * count)).tolist())

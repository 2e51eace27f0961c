"""Service times from few measurements: a polynomial of batch and size of instance (BATCH, Section III-A).

Measuring every size of instance with every batch takes hours, but the times lie on a smooth surface. `to_measure` chooses fewer
than 3 % of the cells, spread so that the surface is determined at its edges; `fitted` finds the polynomial

    S(size, batch) = g(size) · Σ c_ijk · f(size)^i · batch^j · threads^k        k = 0 or 1

of least cross-validation error: each point in turn is left out, and each size between the outermost with all its points (the
closed form for least squares). Only leaving out a whole size tests the interpolation between sizes, because other points of the
same size determine a single point. Of the polynomials whose mean error is within one standard error of the least, the simplest is
taken. f is 1/x, 1/√x, log x or x with g = 1; or, because a share of a core takes the work's processor time divided by the share,
g = 1/x, and f, log x or x, is the change of the work itself with the share (caches are colder after each pause). Relative errors
are minimised, because 2 % of 20 ms matters as much as 2 % of 2 s; a polynomial that is not positive between the measured points
is rejected. Extrapolation beyond the measured sizes and batches is arbitrary, and happens only on request.

An instance computes on as many threads as it has cores, partial ones included, so that its times jump where a core is added,
which no smooth function of the size does. If the size of a `whole` core is given (1,769 MB on Lambda), the threads are a third
variable. One power of it suffices: n threads that spend s seconds together and p seconds of work take n·s + p seconds of
processor time (Amdahl), which is divided by the quota. Example: with 100 ms on one thread and 60 ms on two, 1,728 MB (0.98 cores)
take 102 ms, and 1,792 MB (1.01 cores) take 2·60/1.01 = 118 ms.

**Spread.** `Spread` has equally likely ratios of batches to their median time S_k: the machine and its other load slow some
batches down. The ratios of a size of instance are those of all its batch sizes together, because few runs of each batch size do
not distinguish them. There are at most `MOST`: all measured ratios, or the means of `MOST` equal shares of them, which preserve
the mean.

**Bills** are means over all ratios, because a bill is a step function: if five of 100 runs around 95 ms take more than a step of
100 ms, the mean bill is 1.05 steps. A share is wrong only if a step ends within it, and then by less than a step: a mean over
`MOST` is off by less than 1/`MOST` of the difference between the dearest and the cheapest run.

**Percentiles** take time proportional to the number of ratios, and use `few`: six means of equal shares below 87.5 %, then the
means of the shares to 92.5, 97.5 and 100 %. P90 and P95 lie in the middle of their shares, P99 near the last mean: for times that
deviate by a tenth they are 1.14, 1.18 and 1.26 times the median, equal to the exact values. Nine equal shares had 1.19 for all
three.
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
from gnomon_planner.numerics import Array

SHARE = 0.03
"""Fewer than this share of all cells is measured."""
HIGHEST = 4  # the highest degree in either variable
SPARE = 2  # the points beyond the number of coefficients
HELD = 1e-9  # the least 1 − H_gg (of at most 1) at which a polynomial is determined without a group of points
GRID = 24
"""Points on each axis at which a candidate must be positive."""
COLUMNS = 3
"""The least number of batches of a size: both ends and one in between."""
TURNS = (0.0, -1 / 3, 1 / 3)
"""The shift of the batches between the ends, relative to their distance, from one size to the next."""

Powers: TypeAlias = tuple[int, int, int]
"""The exponents of f(size), batch and threads."""
Indices: TypeAlias = npt.NDArray[np.intp]

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
class Measured:
    """A measured cell: the memory or cores of an instance, a batch, and its seconds."""

    size: float
    batch: int
    seconds: float


@dataclass(frozen=True, slots=True)
class ServiceModel:
    """A fitted polynomial. `error` is the mean, `worst` the largest relative error on points that were left out.

    Left out are each point, and each size between others with all of its points. `whole` is how much of the size is a core, None
    where the number of threads is no variable.
    """

    shape: str
    powers: tuple[Powers, ...]
    coefficients: tuple[float, ...]
    sizes: tuple[float, float]
    batches: tuple[int, int]
    error: float
    worst: float
    whole: float | None = None

    def seconds(self, size: float, batch: int, *, extrapolate: bool = False) -> float:
        """S(size, batch) in seconds.

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
        scaled = (np.array([size / self.sizes[1]]), np.array([batch / self.batches[1]]), _threads([size], self.whole))
        found = float((_terms(self.shape, self.powers, scaled) @ np.array(self.coefficients))[0])
        if not found > 0.0:
            raise bad_request("extrapolation", f"The model has no positive time for a batch of {batch} at {size:g}.")
        return found

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


def to_measure(
    sizes: Sequence[float], batches: Sequence[int], share: float = SHARE, *, whole: float | None = None
) -> list[tuple[float, int]]:
    """Fewer than `share` of all cells, among them the corners: many sizes, denser towards the edges, with few batches each.

    Each size has both ends of the batches and, in turn, others of those between: a straight grid of as many cells knows fewer
    sizes and fewer batches. Example: 27 of 46 × 20 are 9 sizes × (1, 10, 20), (1, 6, 20), (1, 15, 20), … With `whole`, the sizes
    of each number of threads have both ends and what lies between by themselves, as far as it goes.

    Raises:
        GnomonError: 400 `too_few_cells`: they would not hold a plane.

    """
    ordered, steps = sorted(set(sizes)), sorted(set(batches))
    most = math.ceil(share * len(ordered) * len(steps)) - 1
    rows = min(most // COLUMNS if most >= COLUMNS**2 else math.isqrt(max(most, 0)), len(ordered))
    if min(rows, len(steps)) < 2:  # noqa: PLR2004 - both ends
        raise bad_request("too_few_cells", f"{max(most, 0)} cells are too few to measure.", "Take more sizes or batches.")
    columns = min(most // rows, len(steps))
    return [
        (size, steps[column])
        for number, size in enumerate(_rows(ordered, rows, whole))
        for column in _spread(columns, len(steps), TURNS[number % len(TURNS)])
    ]


def fitted(points: Sequence[Measured], *, whole: float | None = None) -> ServiceModel:
    """The polynomial with the least error on points it has not seen; with `whole`, of the number of threads too.

    Raises:
        GnomonError: 400 `bad_measurements`: fewer than 4 points, or a size, batch or time that is not positive.

    """
    if len(points) < SPARE + 2 or not all(
        0.0 < point.seconds < math.inf and 0.0 < point.size < math.inf and point.batch >= 1 for point in points
    ):
        raise bad_request("bad_measurements", "These are not at least 4 positive times.", "Measure more cells.")
    sizes = np.array([point.size for point in points], dtype=float)
    batches = np.array([point.batch for point in points], dtype=float)
    seconds = np.array([point.seconds for point in points])
    threads = _threads(sizes, whole)
    # Variables go up to 1, so that high powers neither vanish nor explode.
    scaled = (sizes / sizes.max(), batches / batches.max(), threads)
    between, inner = _between(sizes, batches, whole), _inner(sizes, threads)
    tried: list[tuple[float, float, ServiceModel]] = []
    for shape, powers in _candidates(len(points), several=bool(np.ptp(threads))):
        # Rows divided by their times: least squares against 1 then minimise the relative errors.
        weighed = _terms(shape, powers, scaled) / seconds[:, None]
        if np.linalg.matrix_rank(weighed) < len(powers):
            continue
        coefficients = np.linalg.lstsq(weighed, np.ones(len(points)), rcond=None)[0]
        if not (_terms(shape, powers, between) @ coefficients > 0.0).all():
            continue
        left_out = _left_out(weighed, inner)
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
            whole,
        )
        tried.append((error, deviation, model))
    least, deviation, _ = min(tried, key=lambda trial: trial[0])
    # In order of their coefficients: the first is the simplest.
    return next(model for error, _, model in tried if error <= least + deviation)


def _between(sizes: Array, batches: Array, whole: float | None) -> tuple[Array, Array, Array]:
    """A grid over what was measured, scaled as the points are: where the model will be asked."""
    rows, columns = np.linspace(sizes.min(), sizes.max(), GRID), np.linspace(batches.min(), batches.max(), GRID)
    each, every = np.repeat(rows, GRID), np.tile(columns, GRID)
    return each / sizes.max(), every / batches.max(), _threads(each, whole)


def _candidates(points: int, *, several: bool) -> Iterator[tuple[str, tuple[Powers, ...]]]:
    """Shapes and powers with fewer coefficients than points, the simplest first; with the threads where there are several."""
    plain = {
        tuple((i, j, 0) for i in range(first + 1) for j in range(second + 1) if i + j <= total)
        for first in range(HIGHEST + 1)
        for second in range(HIGHEST + 1)
        for total in range(max(first, second), first + second + 1)
    }
    sets = set(plain)
    if several:
        sets |= {
            powers + tuple((i, j, 1) for i, j, _ in powers if i <= first and j <= second)
            for powers in plain
            for first in range(2)
            for second in range(3)
        }
    for powers in sorted(sets, key=lambda powers: (len(powers), powers)):
        if len(powers) <= points - SPARE:
            for shape in _SHAPES:
                yield shape, powers


def _threads(sizes: Sequence[float] | Array, whole: float | None) -> Array:
    """The threads on which an instance of each memory size computes."""
    found: Array = np.ones(len(sizes)) if whole is None else np.ceil(np.asarray(sizes, dtype=float) / whole)
    return found


def _terms(shape: str, powers: Sequence[Powers], variables: tuple[Array, Array, Array]) -> Array:
    sizes, batches, threads = variables
    factor, transform = _SHAPES[shape]
    lead, base = factor(sizes), transform(sizes)
    return np.stack([lead * base**first * batches**second * threads**third for first, second, third in powers], axis=1)


def _inner(sizes: Array, threads: Array) -> list[Indices]:
    """The points of each size that has smaller and larger ones of as many threads, or of any where no other has as many.

    Example: of whole cores, and of 1,024, 1,769, 3,538, 5,307 and 8,845 MB, each has a number of threads to itself.
    """
    inner: list[float] = []
    for number in np.unique(threads):
        those = np.unique(sizes[threads == number])
        among = those if len(those) > 1 else np.unique(sizes)
        inner += those[(among[0] < those) & (those < among[-1])].tolist()
    return [np.flatnonzero(sizes == size) for size in inner]


def _left_out(weighed: Array, groups: Sequence[Indices]) -> Array:
    """|residual| of each point if it is left out, and of those of each group if that is: (1 − H_gg)⁻¹ e_g, H the projection.

    Endless where the polynomial is not held without a group.
    """
    orthogonal = np.linalg.qr(weighed)[0]
    ones = np.ones(len(weighed))
    residuals = ones - orthogonal @ (orthogonal.T @ ones)
    found = [np.abs(residuals) / np.maximum(1.0 - (orthogonal**2).sum(axis=1), 1e-9)]
    for group in groups:
        values, vectors = np.linalg.eigh(np.eye(len(group)) - orthogonal[group] @ orthogonal[group].T)
        if values[0] < HELD:
            return np.array([math.inf])
        found.append(np.abs(vectors @ ((vectors.T @ residuals[group]) / values)))
    return np.concatenate(found)


def _rows(sizes: Sequence[float], count: int, whole: float | None) -> list[float]:
    """`count` of the sizes; of each number of threads as many as it has sizes in proportion, at least both ends."""
    if whole is None:
        return [sizes[place] for place in _spread(count, len(sizes))]
    groups: dict[int, list[float]] = {}
    for size in sizes:
        groups.setdefault(math.ceil(size / whole), []).append(size)
    if any(len(group) < 2 for group in groups.values()) or count < 2 * len(groups):  # noqa: PLR2004 - both ends
        return _rows(sizes, count, None)
    shares = dict.fromkeys(groups, 2)
    for _ in range(count - 2 * len(groups)):
        unfilled = [number for number, group in groups.items() if shares[number] < len(group)]
        shares[max(unfilled, key=lambda number: len(groups[number]) / shares[number])] += 1
    return [group[place] for number, group in groups.items() for place in _spread(shares[number], len(group))]


def _spread(count: int, among: int, turn: float = 0.0) -> list[int]:
    """`count` of `among` places, both ends with them, denser there, as Chebyshev's nodes; those between moved by a `turn`."""
    moved = [0.0, *(number + turn for number in range(1, count - 1)), count - 1.0]
    return sorted({round((among - 1) * (1.0 - math.cos(math.pi * number / (count - 1))) / 2.0) for number in moved})


MOST = 360
"""The most ratios that are kept."""
EDGES = np.array([*(0.875 / 6.0 * number for number in range(6)), 0.875, 0.925, 0.975, 1.0])
"""The edges of the cumulative probability for the few shares."""
ALWAYS = (1.0,)
"""Service is deterministic."""
NONE = 1e-3
"""A deviation below that is none: predictions with several ratios take several times as long."""

_SHARES = tuple(float(one) for one in np.diff(EDGES))
_EVENLY = np.linspace(0.0, 1.0, MOST + 1)
_NORMAL = np.array([NormalDist().inv_cdf((number + 0.5) / MOST) for number in range(MOST)])
_QUARTILE = NormalDist().inv_cdf(0.75)

Rows = npt.NDArray[np.intp] | npt.NDArray[np.bool_] | slice


@dataclass(frozen=True, slots=True)
class Spread:
    """The few ratios of several sizes of instance, and how likely each is: both (sizes, several), each row's shares sum to 1."""

    ratios: Array
    shares: Array

    @staticmethod
    def of(sizes: Sequence[Sequence[float]]) -> Spread:
        """The spread of each size's ratios; rows with fewer ratios are padded with their last ratio at share 0."""
        each = [few(ratios) for ratios in sizes]
        count = max((len(shares) for _, shares in each), default=1)
        ratios = [(*ratios, *ratios[-1:] * (count - len(ratios))) for ratios, _ in each]
        shares = [(*shares, *(0.0,) * (count - len(shares))) for _, shares in each]
        return Spread(np.array(ratios).reshape(-1, count), np.array(shares).reshape(-1, count))

    def among(self, rows: Rows) -> Spread:
        """The spread of a subset of the sizes."""
        return Spread(self.ratios[rows], self.shares[rows])


def few(ratios: Sequence[float]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Reduce `ratios` to at most nine (ascending if there are more), with probabilities; the mean is unchanged."""
    found = np.array(ratios, dtype=float)
    if len(found) and float(found.std()) < NONE:
        return (float(found.mean()),), (1.0,)
    if len(found) < len(EDGES):
        return tuple(ratios), (1.0 / max(1, len(found)),) * len(found)
    return _means(found, EDGES), _SHARES


def of_runs(cells: Iterable[Sequence[float]]) -> tuple[float, ...]:
    """The ratios of runs in seconds to the median of their cell, over all cells together.

    Raises:
        GnomonError: 400 `bad_measurements`: a run that is no positive time.

    """
    rows = [np.array(cell, dtype=float) for cell in cells if len(cell)]
    if not all(np.isfinite(row).all() and (row > 0.0).all() for row in rows):
        raise bad_request("bad_measurements", "A run is not a positive time.", "Measure it again.")
    runs = np.concatenate([row / np.median(row) for row in rows]) if rows else np.ones(1)
    return of_ratios(runs.tolist())


def of_ratios(ratios: Sequence[float]) -> tuple[float, ...]:
    """Equally likely ratios: `ratios`, or, of more than `MOST`, the mean of each of `MOST` equal shares, ascending.

    Raises:
        GnomonError: 400 `bad_measurements`: none, or one that is no positive number.

    """
    found = np.array(ratios, dtype=float)
    if not len(found) or not (np.isfinite(found) & (found > 0.0)).all():
        raise bad_request(
            "bad_measurements", "The ratios of a size are not positive numbers.", "Leave them out where none are known."
        )
    return tuple(found.tolist()) if len(found) <= MOST else _means(found, _EVENLY)


def of_range(relative: float) -> tuple[float, ...]:
    """The ratios of times whose interquartile range is this share of their median, and whose logarithm is normal."""
    return _log_normal(math.asinh(relative / 2.0) / _QUARTILE)


def of_deviation(relative: float) -> tuple[float, ...]:
    """The same from the mean relative deviation from the prediction: E|x| of a normal distribution is √(2/π)·σ."""
    return _log_normal(relative * math.sqrt(math.pi / 2.0))


def _log_normal(deviation: float) -> tuple[float, ...]:
    return tuple(np.exp(deviation * _NORMAL).tolist()) if NONE <= deviation < math.inf else ALWAYS


def _means(ratios: Array, edges: Array) -> tuple[float, ...]:
    """The mean of each share of the ratios; one that an edge cuts belongs to both sides in proportion."""
    count = len(ratios)
    sums = np.concatenate([[0.0], np.cumsum(np.sort(ratios))])
    upto = np.interp(edges * count, np.arange(count + 1), sums)
    return tuple((np.diff(upto) / (np.diff(edges) * count)).tolist())

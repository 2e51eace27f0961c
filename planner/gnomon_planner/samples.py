"""Statistics of recorded arrivals, and the same statistics of a MAP, for comparison.

A sample is time stamps or counts per bin. Time stamps give the mean, SCV (squared coefficient of variation), skewness and
autocorrelation of the gaps between arrivals, and counts in any window. Counts per bin give only counts in windows of whole bins:
no gaps are invented for them.

    dispersion I(w) = Var[N(w)]/E[N(w)]       the index of dispersion for counts, which is 1 for a Poisson process
    excess K(w)     = κ3 − 3·κ2 + 2·κ1        of N(w): the third cumulant of the modulated rate's integral over a window

Every statistic comes with its standard deviation, so that a fit can say whether it is off by more than chance: of the gaps by the
jackknife over 20 blocks of the trace, of I(w) likewise, but at least I·√(2w/duration), as independent windows would have.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gnomon_core.errors import GnomonError, bad_request
from gnomon_planner.maps import Map
from gnomon_planner.numerics import Vector

BLOCKS = 20
LAGS = (1, 2, 3, 5, 10, 20, 50, 100, 200, 500, 1000)
# A window must fit 16 times into the trace: fewer windows give no useful variance.
MIN_WINDOWS = 16
# More arrivals than a double counts exactly, or more seconds than 30 million years have: not a recording.
MAX_TOTAL = 1e15
HINT = "Time stamps are seconds, finite and ascending; counts are whole numbers from 0 in bins of one length."


@dataclass(frozen=True, slots=True)
class Estimate:
    """A statistic and its standard deviation."""

    value: float
    deviation: float


@dataclass(frozen=True, slots=True)
class GapStatistics:
    """Statistics of the gaps between arrivals; `correlations` are ρ at `lags`."""

    scv: Estimate
    skewness: Estimate
    lags: tuple[int, ...]
    correlations: tuple[Estimate, ...]


@dataclass(frozen=True, slots=True)
class Sample:
    """The statistics of a trace: I(w) and K(w) (`excesses`) for `windows_s`, ascending; `gaps` is None for counts."""

    arrivals: float
    duration_s: float
    windows_s: tuple[float, ...]
    dispersions: tuple[Estimate, ...]
    excesses: tuple[float, ...]
    gaps: GapStatistics | None = None

    @property
    def rate_rps(self) -> float:
        """Arrivals per second."""
        return self.arrivals / self.duration_s


def sample_of_times(times_s: Sequence[float] | Vector) -> Sample:
    """The statistics of time stamps. They are ascending; equal ones are arrivals at the same moment.

    The rate is that of the gaps, (n − 1)/(last − first), so that all moments are of the same n − 1 numbers.

    Raises:
        GnomonError: 400 `bad_arrivals` for fewer than two, for NaN, infinite or descending ones, if all are equal, or over more
            than 1e15 s.

    """
    times = _numbers(times_s)
    if len(times) < 2:  # noqa: PLR2004 - one gap
        raise _bad(f"{len(times)} arrivals have no gap between them")
    gaps = np.diff(times)
    if gaps.min() < 0.0:
        raise _bad(f"The time stamps descend after number {int(np.argmax(gaps < 0.0)) + 1}")
    duration_s = float(times[-1] - times[0])
    if duration_s <= 0.0:
        raise _bad("All arrivals have the same time stamp: their rate is infinite")
    if duration_s > MAX_TOTAL:
        raise _bad(f"The time stamps span {duration_s:g} s")
    bins = max(1, min(len(gaps), 1 << 18))
    places = np.minimum((times[1:] - times[0]) * (bins / duration_s), bins - 1).astype(np.int64)
    counts = np.bincount(places, minlength=bins).astype(float)
    windows, dispersions, excesses = _window_statistics(counts, duration_s / bins)
    return Sample(float(len(gaps)), duration_s, windows, dispersions, excesses, _gap_statistics(gaps))


def sample_of_counts(counts: Sequence[float] | Vector, bin_s: float) -> Sample:
    """The statistics of counts per bin of `bin_s` seconds.

    Raises:
        GnomonError: 400 `bad_arrivals` for no arrivals, negative counts, NaN, infinities or a bin that is not positive, and
            beyond 1e15 arrivals or seconds.

    """
    numbers = _numbers(counts)
    if not (math.isfinite(bin_s) and bin_s > 0.0):
        raise _bad(f"A bin of {bin_s} s")
    if not len(numbers) or numbers.min() < 0.0:
        raise _bad("A count is negative" if len(numbers) else "There is no bin")
    if not numbers.any():
        raise _bad("There are no arrivals: the rate is 0")
    if numbers.max() * len(numbers) > MAX_TOTAL or bin_s * len(numbers) > MAX_TOTAL:
        raise _bad(f"Counts up to {numbers.max():g} in {len(numbers)} bins of {bin_s:g} s")
    windows, dispersions, excesses = _window_statistics(numbers, bin_s)
    return Sample(float(numbers.sum()), len(numbers) * bin_s, windows, dispersions, excesses)


def statistics_of_map(process: Map, like: Sample) -> Sample:
    """The statistics of a MAP at the lags and windows of a sample; standard deviations are 0."""
    windows = tuple(Estimate(process.dispersion(window_s), 0.0) for window_s in like.windows_s)
    gaps = None
    if like.gaps is not None:
        correlations = tuple(Estimate(process.autocorrelation(lag), 0.0) for lag in like.gaps.lags)
        gaps = GapStatistics(Estimate(process.scv, 0.0), Estimate(process.skewness, 0.0), like.gaps.lags, correlations)
    return Sample(process.rate_rps * like.duration_s, like.duration_s, like.windows_s, windows, (), gaps)


def _window_statistics(counts: Vector, bin_s: float) -> tuple[tuple[float, ...], tuple[Estimate, ...], tuple[float, ...]]:
    """Dispersion in windows of 1, 2, 4, … bins at all offsets."""
    sums = np.concatenate([[0.0], np.cumsum(counts)])
    windows: list[float] = []
    dispersions: list[Estimate] = []
    excesses: list[float] = []
    width = 1
    while width * MIN_WINDOWS <= len(counts):
        window_counts = sums[width:] - sums[:-width]
        mean = float(window_counts.mean())
        deviations = window_counts - mean
        # Overlapping windows add precision but no degrees of freedom: the mean is that of len/width independent windows.
        squares = deviations * deviations
        second = float(squares.mean()) / (1.0 - width / len(counts))
        third = float((squares * deviations).mean())
        window_s, dispersion = width * bin_s, second / mean
        windows.append(window_s)
        independent = dispersion * math.sqrt(2.0 * width / len(counts))
        dispersions.append(Estimate(dispersion, max(independent, _block_deviation(window_counts) / (1.0 - width / len(counts)))))
        excesses.append(third - 3.0 * second + 2.0 * mean)
        width *= 2
    return tuple(windows), tuple(dispersions), tuple(excesses)


def _block_deviation(window_counts: Vector) -> float:
    """The jackknife standard deviation of variance/mean, over blocks of neighbouring windows."""
    edges = np.linspace(0, len(window_counts), BLOCKS + 1).astype(np.int64)[:-1]
    if len(window_counts) < BLOCKS:
        return 0.0
    sums = np.array(
        [np.add.reduceat(column, edges) for column in (np.ones(len(window_counts)), window_counts, window_counts * window_counts)]
    )
    size, first, second = sums.sum(axis=1, keepdims=True) - sums
    ratios = (second - first**2 / size) / np.maximum(first, np.finfo(float).tiny)
    return math.sqrt((BLOCKS - 1) / BLOCKS * float(((ratios - ratios.mean()) ** 2).sum()))


def _gap_statistics(gaps: Vector) -> GapStatistics:
    scaled = gaps / gaps.mean()
    lags = tuple(lag for lag in LAGS if lag * BLOCKS <= len(gaps))
    count = len(scaled)
    blocks = min(BLOCKS, count)
    edges = np.linspace(0, count, blocks + 1).astype(np.int64)[:-1]
    squares = scaled * scaled
    columns = [np.ones(count), scaled, squares, squares * scaled]
    for lag in lags:
        product = np.zeros(count)
        product[:-lag] = scaled[:-lag] * scaled[lag:]
        columns.append(product)
    sums = np.array([np.add.reduceat(column, edges) for column in columns])
    all_blocks = _from_sums(sums.sum(axis=1, keepdims=True), lags, count)[:, 0]
    if blocks > 1:
        leave_one_out = _from_sums(sums.sum(axis=1, keepdims=True) - sums, lags, count)
        deviations = np.sqrt(
            (blocks - 1) / blocks * ((leave_one_out - leave_one_out.mean(axis=1, keepdims=True)) ** 2).sum(axis=1)
        )
    else:
        deviations = np.full(len(all_blocks), math.inf)
    estimates = [Estimate(float(value), float(deviation)) for value, deviation in zip(all_blocks, deviations, strict=True)]
    return GapStatistics(estimates[0], estimates[1], lags, tuple(estimates[2:]))


def _from_sums(sums: npt.NDArray[np.float64], lags: tuple[int, ...], count: int) -> npt.NDArray[np.float64]:
    """c², skewness and each ρ of columns of sums: of 1, x, x², x³ and of the products at each lag."""
    size = sums[0]
    first, second, third = sums[1] / size, sums[2] / size, sums[3] / size
    first = np.where(first > 0.0, first, 1.0)
    variance = np.maximum(second - first**2, 0.0)
    # Gaps that differ by rounding only have no skewness and no correlation.
    varies = variance > 1e-12 * second
    safe = np.where(varies, variance, 1.0)
    skewness = np.where(varies, (third - 3.0 * first * safe - first**3) / safe**1.5, 0.0)
    rows = [np.where(varies, variance / first**2, 0.0), skewness]
    for row, lag in enumerate(lags):
        # The last `lag` gaps have no product: the mean is over the products that exist.
        product = sums[4 + row] / (size * (1.0 - lag / count))
        rows.append(np.where(varies, (product - first**2) / safe, 0.0))
    return np.array(rows)


def _numbers(values: Sequence[float] | Vector) -> Vector:
    try:
        numbers = np.asarray(values, dtype=float).reshape(-1)
    except (TypeError, ValueError):
        raise _bad("Not all values are numbers") from None
    if not np.isfinite(numbers).all():
        raise _bad("NaN or an infinite number is among them")
    return numbers


def _bad(problem: str) -> GnomonError:
    return bad_request("bad_arrivals", f"{problem}.", HINT)

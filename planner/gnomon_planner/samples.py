"""Statistics of a trace's arrivals: the same for a sample and for a MAP, side by side.

A sample is time stamps or counts per bin. Of time stamps the gaps have a mean, an SCV, a skewness and correlations, and any
window has a count. Counts per bin say nothing about gaps: they are not spread over their bins to invent some; their statistics
are those of counts in windows of whole bins.

    dispersion I(w) = Var[N(w)]/E[N(w)]       the variance-time curve, relative to a Poisson process's, which has 1 everywhere
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
# A window must fit 16 times into the trace, or its variance is a guess.
FEWEST_WINDOWS = 16
# More arrivals than a double counts one by one, or seconds than 30 million years have, are no recording.
MOST = 1e15
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
    """A trace in numbers. `gaps` is None for counts; `dispersions` and `excesses` belong to `windows_s`, ascending."""

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


def of_times(times_s: Sequence[float] | Vector) -> Sample:
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
    if duration_s > MOST:
        raise _bad(f"The time stamps span {duration_s:g} s")
    bins = max(1, min(len(gaps), 1 << 18))
    places = np.minimum((times[1:] - times[0]) * (bins / duration_s), bins - 1).astype(np.int64)
    counts = np.bincount(places, minlength=bins).astype(float)
    windows, dispersions, excesses = _windows(counts, duration_s / bins)
    return Sample(float(len(gaps)), duration_s, windows, dispersions, excesses, _gap_statistics(gaps))


def of_counts(counts: Sequence[float] | Vector, bin_s: float) -> Sample:
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
        raise _bad("Nothing arrives: the rate is 0")
    if numbers.max() * len(numbers) > MOST or bin_s * len(numbers) > MOST:
        raise _bad(f"Counts up to {numbers.max():g} in {len(numbers)} bins of {bin_s:g} s")
    windows, dispersions, excesses = _windows(numbers, bin_s)
    return Sample(float(numbers.sum()), len(numbers) * bin_s, windows, dispersions, excesses)


def of_map(process: Map, like: Sample) -> Sample:
    """The statistics of a MAP at the lags and windows of a sample; standard deviations are 0."""
    windows = tuple(Estimate(process.dispersion(window_s), 0.0) for window_s in like.windows_s)
    gaps = None
    if like.gaps is not None:
        correlations = tuple(Estimate(process.autocorrelation(lag), 0.0) for lag in like.gaps.lags)
        gaps = GapStatistics(Estimate(process.scv, 0.0), Estimate(process.skewness, 0.0), like.gaps.lags, correlations)
    return Sample(process.rate_rps * like.duration_s, like.duration_s, like.windows_s, windows, (), gaps)


def _windows(counts: Vector, bin_s: float) -> tuple[tuple[float, ...], tuple[Estimate, ...], tuple[float, ...]]:
    """Dispersion in windows of 1, 2, 4, … bins at all offsets."""
    sums = np.concatenate([[0.0], np.cumsum(counts)])
    windows: list[float] = []
    dispersions: list[Estimate] = []
    excesses: list[float] = []
    width = 1
    while width * FEWEST_WINDOWS <= len(counts):
        held = sums[width:] - sums[:-width]
        mean = float(held.mean())
        apart = held - mean
        # Places that overlap add precision but no freedom: the mean was taken from len/width independent windows.
        squares = apart * apart
        second = float(squares.mean()) / (1.0 - width / len(counts))
        third = float((squares * apart).mean())
        window_s, dispersion = width * bin_s, second / mean
        windows.append(window_s)
        independent = dispersion * math.sqrt(2.0 * width / len(counts))
        dispersions.append(Estimate(dispersion, max(independent, _block_deviation(held) / (1.0 - width / len(counts)))))
        excesses.append(third - 3.0 * second + 2.0 * mean)
        width *= 2
    return tuple(windows), tuple(dispersions), tuple(excesses)


def _block_deviation(held: Vector) -> float:
    """The jackknife's deviation of the variance over the mean, by blocks of neighbouring windows."""
    edges = np.linspace(0, len(held), BLOCKS + 1).astype(np.int64)[:-1]
    if len(held) < BLOCKS:
        return 0.0
    sums = np.array([np.add.reduceat(column, edges) for column in (np.ones(len(held)), held, held * held)])
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
    whole = _from_sums(sums.sum(axis=1, keepdims=True), lags, count)[:, 0]
    if blocks > 1:
        without = _from_sums(sums.sum(axis=1, keepdims=True) - sums, lags, count)
        deviations = np.sqrt((blocks - 1) / blocks * ((without - without.mean(axis=1, keepdims=True)) ** 2).sum(axis=1))
    else:
        deviations = np.full(len(whole), math.inf)
    estimates = [Estimate(float(value), float(deviation)) for value, deviation in zip(whole, deviations, strict=True)]
    return GapStatistics(estimates[0], estimates[1], lags, tuple(estimates[2:]))


def _from_sums(sums: npt.NDArray[np.float64], lags: tuple[int, ...], count: int) -> npt.NDArray[np.float64]:
    """c², skewness and each ρ of columns of sums: of 1, x, x², x³ and of the products at each lag."""
    size = sums[0]
    first, second, third = sums[1] / size, sums[2] / size, sums[3] / size
    first = np.where(first > 0.0, first, 1.0)
    variance = np.maximum(second - first**2, 0.0)
    # Equal gaps vary by rounding only, and correlate in nothing.
    varies = variance > 1e-12 * second
    safe = np.where(varies, variance, 1.0)
    skewness = np.where(varies, (third - 3.0 * first * safe - first**3) / safe**1.5, 0.0)
    rows = [np.where(varies, variance / first**2, 0.0), skewness]
    for row, lag in enumerate(lags):
        # A lag loses its products at the end of the trace: those that there are make up for them.
        product = sums[4 + row] / (size * (1.0 - lag / count))
        rows.append(np.where(varies, (product - first**2) / safe, 0.0))
    return np.array(rows)


def _numbers(values: Sequence[float] | Vector) -> Vector:
    try:
        numbers = np.asarray(values, dtype=float).reshape(-1)
    except (TypeError, ValueError):
        raise _bad("Not all of it are numbers") from None
    if not np.isfinite(numbers).all():
        raise _bad("NaN or an infinite number is among them")
    return numbers


def _bad(what: str) -> GnomonError:
    return bad_request("bad_arrivals", f"{what}.", HINT)

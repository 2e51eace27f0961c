"""The spread of service times around their median: equally likely ratios of a batch's time to S_k.

The machine and its other load slow some batches down. The ratios of an instance size are those of all its batch sizes together,
because few runs of each batch size do not distinguish them. There are at most `MAX_RATIOS`: all measured ratios, or the means of
`MAX_RATIOS` equal shares of them, which preserve the mean.

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
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from gnomon_core.errors import bad_request
from gnomon_planner.numerics import Array

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

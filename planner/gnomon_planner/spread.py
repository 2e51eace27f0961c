"""How far batches are from their usual time: ratios to it, each as likely.

A batch of k takes S_k in the median. The machine, and who else is on it, make some take longer. The ratios of a size of instance
are those of all its batch sizes together: few runs of each would not tell them apart. There are at most `MOST`: all that were
measured, or the means of so many equal shares of them, so that they have the mean of what they stand for.

**Bills** are means over all of them, because a bill jumps: if five of 100 runs around 95 ms take more than a step of
100 ms, the mean bill is 1.05 steps. A share stands wrongly only if a step ends within it, and then by less than a step: a mean
over `MOST` is off by less than 1/`MOST` of what the dearest run costs more than the cheapest.

**Percentiles** take as many times as long as there are ratios they mix over, and mix over `few`: six means of equal shares below
87.5 %, then those of the shares to 92.5, 97.5 and 100 %. P90 and P95 lie in the middle of theirs, P99 near the last mean: of
times that deviate by a tenth they are 1.14, 1.18 and 1.26 times the median, and so are the times' own. Nine equal shares had 1.19
for all three.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from gnomon_core.errors import bad_request
from gnomon_planner.counting import Array

MOST = 360
EDGES = np.array([*(0.875 / 6.0 * number for number in range(6)), 0.875, 0.925, 0.975, 1.0])
"""Of the shares of the few: where the probability of less begins and ends."""
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
        """For the ratios of each size; where another has more of the few, its last one again, with no share."""
        each = [few(ratios) for ratios in sizes]
        count = max((len(shares) for _, shares in each), default=1)
        ratios = [(*ratios, *ratios[-1:] * (count - len(ratios))) for ratios, _ in each]
        shares = [(*shares, *(0.0,) * (count - len(shares))) for _, shares in each]
        return Spread(np.array(ratios).reshape(-1, count), np.array(shares).reshape(-1, count))

    def among(self, rows: Rows) -> Spread:
        """Those of some of the sizes."""
        return Spread(self.ratios[rows], self.shares[rows])


def few(ratios: Sequence[float]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """At most nine ratios for these, in ascending order where there are more, and how likely each is; their mean is the same."""
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
    """These ratios, each as likely; of more than `MOST`, the mean of each of `MOST` equal shares, in ascending order.

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
    """The same, of the mean distance from what was foretold, as a share of it: E|x| of a normal distribution is √(2/π)·σ."""
    return _log_normal(relative * math.sqrt(math.pi / 2.0))


def _log_normal(deviation: float) -> tuple[float, ...]:
    return tuple(np.exp(deviation * _NORMAL).tolist()) if NONE <= deviation < math.inf else ALWAYS


def _means(ratios: Array, edges: Array) -> tuple[float, ...]:
    """The mean of each share of the ratios; one that an edge cuts belongs to both sides in proportion."""
    count = len(ratios)
    sums = np.concatenate([[0.0], np.cumsum(np.sort(ratios))])
    upto = np.interp(edges * count, np.arange(count + 1), sums)
    return tuple((np.diff(upto) / (np.diff(edges) * count)).tolist())

"""How far batches are from their usual time: a few ratios to it, each as likely, with which predictions mix what a batch takes.

A batch of k takes S_k in the median. The machine, and who else is on it, make some take longer. `COUNT` ratios stand for that:
each is the mean of an equal share of all batches, so that together they have the mean of what they stand for. A worked number:
times that deviate by 5 % have ratios of 0.92 to 1.09; served at once, 8 of 9 requests take at most 1.05·S_1, and P95 and P99
are 1.09·S_1, where the times that were measured have 1.086 and 1.123. So what varies by a tenth leaves some 6 % of S out at P99.

The ratios of one size of instance are those of all its batch sizes together: few runs of each would not tell them apart.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import NormalDist

import numpy as np

from gnomon_core.errors import bad_request
from gnomon_planner.counting import Array

COUNT = 9
PARTS = 16
"""Of each share, to take its mean over."""
ALWAYS = (1.0,)
"""Service is deterministic."""
NONE = 1e-3
"""A deviation below that is none: predictions with several ratios take several times as long."""

_SHARES = (np.arange(COUNT * PARTS) + 0.5) / (COUNT * PARTS)
_NORMAL = np.array([NormalDist().inv_cdf(share) for share in _SHARES])
_QUARTILE = NormalDist().inv_cdf(0.75)


def of_runs(cells: Iterable[Sequence[float]]) -> tuple[float, ...]:
    """The ratios of runs in seconds to the median of their cell, over all cells together; `ALWAYS` where they do not vary.

    Raises:
        GnomonError: 400 `bad_measurements`: a run that is no positive time.

    """
    rows = [np.array(cell, dtype=float) for cell in cells if len(cell)]
    if not all(np.isfinite(row).all() and (row > 0.0).all() for row in rows):
        raise bad_request("bad_measurements", "A run is not a positive time.", "Measure it again.")
    runs = np.concatenate([row / np.median(row) for row in rows]) if rows else np.ones(1)
    return ALWAYS if float(runs.std()) < NONE else _means(np.quantile(runs, _SHARES))


def of_ratios(ratios: Sequence[float]) -> tuple[float, ...]:
    """At most `COUNT` ratios for these, each as likely: of more, the mean of each of `COUNT` equal shares, in ascending order.

    Predictions bring the ratios of all sizes to one length, a common multiple of theirs.

    Raises:
        GnomonError: 400 `bad_measurements`: none, or one that is no positive number.

    """
    found = np.array(ratios, dtype=float)
    if not len(found) or not (np.isfinite(found) & (found > 0.0)).all():
        raise bad_request(
            "bad_measurements", "The ratios of a size are not positive numbers.", "Leave them out where none are known."
        )
    if len(found) > COUNT:
        # Each is repeated as often as there are shares, so that all shares hold equally many.
        found = np.repeat(np.sort(found), COUNT).reshape(COUNT, -1).mean(axis=1)
    return tuple(float(one) for one in found)


def of_range(relative: float) -> tuple[float, ...]:
    """The ratios of times whose interquartile range is this share of their median, and whose logarithm is normal."""
    return _log_normal(math.asinh(relative / 2.0) / _QUARTILE)


def of_deviation(relative: float) -> tuple[float, ...]:
    """The same, of the mean distance from what was foretold, as a share of it: E|x| of a normal distribution is √(2/π)·σ."""
    return _log_normal(relative * math.sqrt(math.pi / 2.0))


def _log_normal(deviation: float) -> tuple[float, ...]:
    return ALWAYS if not NONE <= deviation < math.inf else _means(np.exp(deviation * _NORMAL))


def _means(quantiles: Array) -> tuple[float, ...]:
    """Of each share."""
    return tuple(float(one) for one in quantiles.reshape(COUNT, PARTS).mean(axis=1))

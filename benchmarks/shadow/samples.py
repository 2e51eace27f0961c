"""Medians and percentiles of samples, judged as `report` judges means: by the 95 % interval around them.

The interval of a percentile needs no assumption about how the samples are distributed: it lies between two of the samples in
order, those whose ranks a binomial count of samples below the percentile leaves with 2.5 % on each side. Where there are too few
samples for a rank on one side, the smallest or largest sample takes its place.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from benchmarks.report import Figure

_TAIL = 0.025


def quantile(values: Sequence[float], share: float) -> float:
    """The value that this share of the samples do not exceed, between two of them on the straight line.

    Example: the 0.5 quantile of 1, 2, 4 is 2, that of 1, 2 is 1.5.
    """
    ordered = sorted(values)
    at = share * (len(ordered) - 1)
    below = math.floor(at)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (at - below) * (ordered[above] - ordered[below])


def interval(values: Sequence[float], share: float) -> tuple[float, float]:
    """The 95 % interval of a quantile.

    Example: of the median of 10 samples, the second smallest and the second largest.
    """
    ordered = sorted(values)
    count = len(ordered)
    reached = 0.0
    low, high = 0, count - 1
    for below in range(count):
        reached += math.comb(count, below) * share**below * (1 - share) ** (count - below)
        # The quantile is below sample number `below`, counted from 0, where no more than so many samples are below it.
        if reached <= _TAIL:
            low = below
        if reached >= 1 - _TAIL:
            high = below
            break
    return ordered[low], ordered[high]


def at_quantile(
    key: str, values: Sequence[float], unit: str, *, share: float = 0.5, at_most: float | None = None, detail: str = ""
) -> Figure:
    """A quantile of samples as a figure; met or missed where the whole of its interval is on that side of the goal."""
    value = quantile(values, share)
    low, high = interval(values, share)
    low, high = min(low, value), max(high, value)
    said = f"{low:.4g} to {high:.4g} (95 %), {min(values):.4g} to {max(values):.4g} in {len(values)} runs"
    detail = f"{said}; {detail}" if detail else said
    if at_most is None:
        return Figure(key, value, unit, detail=detail)
    met = "met" if high <= at_most else "missed" if low > at_most else "not resolved"
    return Figure(key, value, unit, at_most, "<=", met, detail)


def counted(
    key: str, value: float, unit: str, *, at_most: float | None = None, at_least: float | None = None, detail: str = ""
) -> Figure:
    """A figure that was counted, or measured once: on its goal's side or not."""
    if at_most is not None:
        return Figure(key, value, unit, at_most, "<=", "met" if value <= at_most else "missed", detail)
    if at_least is not None:
        return Figure(key, value, unit, at_least, ">=", "met" if value >= at_least else "missed", detail)
    return Figure(key, value, unit, detail=detail)


def in_mode(figures: Iterable[Figure], mode: str = "shared") -> list[Figure]:
    """The figures, each with the weight mode that its instances were in: all on a node use one copy, or each has its own."""
    said = f"weights {mode}"
    return [replace(one, detail=f"{one.detail}; {said}" if one.detail else said) for one in figures]

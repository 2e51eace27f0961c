"""A sample in two numbers: its median and its interquartile range."""

from __future__ import annotations

import statistics
from collections.abc import Sequence


def median_and_range(values: Sequence[float]) -> tuple[float, float]:
    """The median, and the distance between the quartiles; 0 for fewer than two values.

    Example: 1, 2, 3, 4, 5 gives (3, 2).
    """
    if len(values) == 1:
        return values[0], 0.0
    quarter, middle, three_quarters = statistics.quantiles(values, n=4, method="inclusive")
    return middle, three_quarters - quarter

"""Lines through measured points: a fixed part and a part for each byte."""

from __future__ import annotations

from collections.abc import Sequence


def fixed_and_per_unit(sizes: Sequence[float], seconds: Sequence[float]) -> tuple[float, float]:
    """Least squares of seconds = fixed + per_unit·size, relative errors counting, neither part negative.

    Absolute errors would let the largest size decide alone, and the fixed part come out as whatever is left. Where a part would
    be negative it is 0, and the other one is fitted alone.

    Example: sizes 0, 1, 2 in 1, 3, 5 s give (1, 2).

    Raises:
        ValueError: no points, or a time that is not above 0.

    """
    if not sizes or len(sizes) != len(seconds) or min(seconds) <= 0:
        raise ValueError("a line needs points with times above 0")
    weights = [1 / value**2 for value in seconds]
    total = sum(weights)
    mean_size = sum(w * x for w, x in zip(weights, sizes, strict=True)) / total
    mean_s = sum(w * y for w, y in zip(weights, seconds, strict=True)) / total
    above = sum(w * (x - mean_size) * (y - mean_s) for w, x, y in zip(weights, sizes, seconds, strict=True))
    below = sum(w * (x - mean_size) ** 2 for w, x in zip(weights, sizes, strict=True))
    per_unit = above / below if below else 0.0
    fixed = mean_s - per_unit * mean_size
    if per_unit < 0:
        return mean_s, 0.0
    if fixed < 0:
        through_zero = sum(w * x * y for w, x, y in zip(weights, sizes, seconds, strict=True))
        return 0.0, through_zero / sum(w * x**2 for w, x in zip(weights, sizes, strict=True))
    return fixed, per_unit

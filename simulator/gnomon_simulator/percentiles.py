"""Percentiles by the nearest rank: always a value that was measured, never one between two."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

SHOWN = (50.0, 90.0, 95.0, 99.0, 99.9)


def percentile(ascending: Sequence[float], percent: float) -> float | None:
    """The smallest value that at least `percent` per cent do not exceed; None without values."""
    if not ascending:
        return None
    # Rounded first: 99.9 % of 1000 is 999.0000000000001 in binary fractions, and that must not become rank 1000.
    rank = math.ceil(round(percent / 100 * len(ascending), 9))
    return ascending[max(rank, 1) - 1]


def spread_ms(values_s: Iterable[float]) -> Mapping[str, float | None]:
    """The usual percentiles, the mean and the largest, in milliseconds."""
    ascending = sorted(values_s)
    spread = {f"p{percent:g}": _ms(percentile(ascending, percent)) for percent in SHOWN}
    spread["max"] = _ms(ascending[-1] if ascending else None)
    spread["mean"] = _ms(math.fsum(ascending) / len(ascending) if ascending else None)
    return spread


def _ms(value_s: float | None) -> float | None:
    return None if value_s is None else round(value_s * 1e3, 4)

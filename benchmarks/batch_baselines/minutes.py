"""How it went over time: of each minute the rate, latencies and instances, and of all latencies how many exceed what.

Instances are the machines that are held, on average over the minute; of calls, how many are under way at once.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields

import numpy as np
import numpy.typing as npt

MINUTE_S = 60.0
RATIOS = tuple(number / 10.0 for number in range(31))
"""Of the SLO, 0 to 3: where the share of the requests that take longer is kept."""
Vector = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Minute:
    """One minute by arrivals. A latency is None where nothing came, or where so many were never answered."""

    rate_rps: float
    median_s: float | None
    p99_s: float | None
    instances: float


def minutes_of(arrived_s: Vector, latency_s: Vector, instances: Sequence[float]) -> tuple[Minute, ...]:
    """Of every minute of the arrivals (from second 0), as many as there are `instances` for."""
    edges = np.searchsorted(arrived_s, [MINUTE_S * number for number in range(len(instances) + 1)])
    return tuple(
        Minute(
            _short((last - first) / MINUTE_S),
            _latency(latency_s[first:last], 50.0),
            _latency(latency_s[first:last], 99.0),
            _short(each),
        )
        for first, last, each in zip(edges, edges[1:], instances, strict=False)
    )


def minutes_in(arrived_s: Vector) -> int:
    """How many minutes hold all of these arrivals."""
    return int(arrived_s[-1] // MINUTE_S) + 1


def under_way(begun_s: Vector, taken_s: Vector, count: int) -> list[float]:
    """Calls at once in each minute, on average; a call counts in the minute in which it begins.

    Example: 120 calls of half a second that begin in one minute are 1 at once.
    """
    numbers = np.minimum((begun_s // MINUTE_S).astype(int), count - 1)
    busy: Vector = np.bincount(numbers, weights=taken_s, minlength=count)[:count] / MINUTE_S
    return [float(one) for one in busy]


def exceeding(latency_s: Vector, slo_s: float) -> tuple[float, ...]:
    """The share of the requests that take longer than each of `RATIOS` × the SLO."""
    ascending = np.sort(latency_s)
    above = len(ascending) - np.searchsorted(ascending, [ratio * slo_s for ratio in RATIOS], side="right")
    return tuple(float(one) for one in above / len(ascending))


def to_csv(runs: Iterable[tuple[str, str, Sequence[Minute]]]) -> str:
    """A line a minute of each case and name."""
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(("case", "name", "minute", *(field.name for field in fields(Minute))))
    for case, name, minutes in runs:
        for number, minute in enumerate(minutes):
            lines.writerow((case, name, number, *asdict(minute).values()))
    return text.getvalue()


def from_csv(text: str) -> dict[tuple[str, str], list[Minute]]:
    """The minutes by case and name."""
    found: dict[tuple[str, str], list[Minute]] = {}
    for row in csv.DictReader(io.StringIO(text)):
        values = (float(row[field.name]) if row[field.name] else None for field in fields(Minute))
        found.setdefault((row["case"], row["name"]), []).append(Minute(*values))  # type: ignore[arg-type]
    return found


def _latency(latency_s: Vector, percent: float) -> float | None:
    """By the nearest rank, as the rows have it."""
    if not len(latency_s):
        return None
    found = float(np.sort(latency_s)[max(0, math.ceil(percent / 100.0 * len(latency_s) - 1e-9) - 1)])
    return None if found == math.inf else _short(found)


def _short(value: float) -> float:
    """Five digits: the file is to be read, and to be small."""
    return float(f"{value:.5g}")

"""What a comparison is made of: when requests come, what can be bought, what is asked for, and what somebody made of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.batch_baselines.minutes import Minute, exceeding, minutes_of
from gnomon_planner.costs import HeldPrice, LambdaPrice
from gnomon_planner.plans import Size

Vector = npt.NDArray[np.float64]

HOUR_S = 3600.0
PER_MILLION = 1e6
ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Demand:
    """Ascending arrivals in seconds; those before `begin_s` are history. With `bin_s` only counts in such bins were recorded."""

    times_s: Vector
    begin_s: float
    bin_s: float | None = None

    @property
    def judged_s(self) -> Vector:
        """Those that are judged, from second 0."""
        found: Vector = self.times_s[np.searchsorted(self.times_s, self.begin_s) :] - self.begin_s
        return found

    @property
    def known_rps(self) -> float:
        """The mean rate of the last hour of the history."""
        length_s = min(HOUR_S, self.begin_s)
        return len(self.between(self.begin_s - length_s, self.begin_s)) / length_s

    def between(self, since_s: float, until_s: float) -> Vector:
        """The arrivals of a stretch."""
        first, last = np.searchsorted(self.times_s, [since_s, until_s])
        found: Vector = self.times_s[first:last]
        return found


@dataclass(frozen=True, slots=True)
class Supply:
    """What can be bought: calls of functions of these sizes, and machines, which serve `start_s` after they are asked for."""

    functions: tuple[Size, ...]
    price: LambdaPrice
    machine: Size
    machine_price: HeldPrice
    start_s: float

    @property
    def usd_per_machine_s(self) -> float:
        """What holding a machine for a second costs."""
        return self.machine_price.per_second(self.machine.cores, self.machine.memory_mb)


@dataclass(frozen=True, slots=True)
class Objective:
    """P`percent` within `slo_s`."""

    slo_s: float
    percent: float

    def late(self, latency_s: Vector) -> float:
        """The share of the requests that were not in time."""
        return float((latency_s > self.slo_s * (1.0 + ROUNDING)).mean())


@dataclass(frozen=True, slots=True)
class Served:
    """What one of them did.

    Each judged request's arrival and latency, infinite without an answer; dollars in all; and of each minute its instances.
    """

    name: str
    arrived_s: Vector
    latency_s: Vector
    instances: Sequence[float]
    usd: float
    batch: float
    machines: float
    on_demand: float
    said: str

    def row(self, objective: Objective) -> Row:
        """The figures."""
        ascending = np.sort(self.latency_s)
        return Row(
            self.name,
            len(ascending),
            objective.late(ascending),
            _percentile(ascending, objective.percent),
            _percentile(ascending, 50.0),
            self.usd / len(ascending) * PER_MILLION,
            self.batch,
            self.machines,
            self.on_demand,
            self.said,
            exceeding(self.latency_s, objective.slo_s),
            minutes_of(self.arrived_s, self.latency_s, self.instances),
        )


@dataclass(frozen=True, slots=True)
class Row:
    """One side by side with the others. `late` and `on_demand` are shares of the requests, `machines` and `batch` means.

    `ccdf` is the share of the requests that take longer than each of `minutes.RATIOS` × the SLO.
    """

    name: str
    requests: int
    late: float
    percentile_s: float
    median_s: float
    usd_per_million: float
    batch: float
    machines: float
    on_demand: float
    said: str
    ccdf: tuple[float, ...]
    minutes: tuple[Minute, ...]

    def to_json(self) -> dict[str, Any]:
        """The row as a document; a latency without end is None."""
        return {key: None if value == math.inf else value for key, value in asdict(self).items()}

    @staticmethod
    def from_json(document: dict[str, Any]) -> Row:
        """The row that `to_json` told."""
        values: dict[str, Any] = {key: math.inf if value is None else value for key, value in document.items()}
        minutes = tuple(Minute(**minute) for minute in document["minutes"])
        return Row(**{**values, "ccdf": tuple(document["ccdf"]), "minutes": minutes})


def _percentile(ascending: Vector, percent: float) -> float:
    """By the nearest rank, so that a latency without end is one like any other."""
    return float(ascending[max(0, math.ceil(percent / 100.0 * len(ascending) - ROUNDING) - 1)])

"""Results of a simulated function: a row per request, the decisions with their reasons, and the cost.

Percentiles are by the nearest rank: always a value that was measured, never one between two.
"""

from __future__ import annotations

import json
import math
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gnomon_core.scaling import DecisionRecord
from gnomon_core.settings import Settings
from gnomon_gateway.queueing.queue import Batch
from gnomon_simulator.costs import Cost

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


OK = 200
NEVER = math.nan
NOWHERE = -1


@dataclass(slots=True)
class Requests:
    """The columns; row i is the i-th arrival. A request that no instance executed was dispatched never and nowhere.

    `status` is 0 until the request has its one answer; `instance` counts the function's instances in order of first use.
    """

    arrived_s: array[float]
    dispatched_s: array[float]
    finished_s: array[float]
    status: array[int]
    instance: array[int]
    batch: array[int]
    instances: list[str] = field(default_factory=list)
    _numbers: dict[str, int] = field(default_factory=dict)

    @staticmethod
    def none_yet(arrivals_s: Sequence[float]) -> Requests:
        """The rows of requests of which none was answered."""
        count = len(arrivals_s)
        return Requests(
            arrived_s=arrivals_s if isinstance(arrivals_s, array) else array("d", arrivals_s),
            dispatched_s=array("d", [NEVER]) * count,
            finished_s=array("d", [NEVER]) * count,
            status=array("h", [0]) * count,
            instance=array("i", [NOWHERE]) * count,
            batch=array("h", [0]) * count,
        )

    def __len__(self) -> int:
        return len(self.arrived_s)

    def number(self, instance_id: str) -> int:
        """The column's number for an instance."""
        index = self._numbers.get(instance_id)
        if index is None:
            index = self._numbers[instance_id] = len(self.instances)
            self.instances.append(instance_id)
        return index

    def answered(self, row: int, now_s: float, status: int, batch: Batch | None) -> None:
        """Record the answer of a request, from a batch or without one."""
        self.finished_s[row] = now_s
        self.status[row] = status
        if batch is not None:
            self.dispatched_s[row] = batch.sent_s
            self.instance[row] = self.number(batch.instance_id)
            self.batch[row] = batch.size

    def latencies_s(self) -> list[float]:
        """Seconds from arrival to answer, of the requests answered 200."""
        rows = zip(self.arrived_s, self.finished_s, self.status, strict=True)
        return [finished - arrived for arrived, finished, status in rows if status == OK]

    def rows(self) -> Iterator[dict[str, Any]]:
        """Each request as a document."""
        columns = (self.arrived_s, self.dispatched_s, self.finished_s, self.status, self.instance, self.batch)
        for arrived, dispatched, finished, status, instance, batch in zip(*columns, strict=True):
            yield {
                "arrived_s": arrived,
                "dispatched_s": None if math.isnan(dispatched) else dispatched,
                "finished_s": finished,
                "status": status,
                "instance": None if instance == NOWHERE else self.instances[instance],
                "batch": batch,
            }


@dataclass(frozen=True, slots=True)
class FunctionResult:
    """The run of one function over `duration_s` virtual seconds.

    `cost` counts each instance from creation to end, loading included; `bodies_s` is when each Body began and ended. The fewest
    and most instances are the Bodies that live at the autoscaler's looks, loading ones included, draining ones not.
    """

    function: str
    settings: Settings
    scheduler: str
    duration_s: float
    requests: Requests
    decisions: tuple[DecisionRecord, ...]
    cost: Cost
    fewest_instances: int
    most_instances: int
    bodies_s: tuple[tuple[float, float], ...] = ()

    def instance_s_between(self, since_s: float, until_s: float) -> float:
        """Seconds of all Bodies in this stretch."""
        return sum(max(0.0, min(gone_s, until_s) - max(begun_s, since_s)) for begun_s, gone_s in self.bodies_s)

    @property
    def instance_s(self) -> float:
        """Seconds of all Bodies."""
        return self.cost.instance_s

    @property
    def core_s(self) -> float:
        """Cores × seconds of all instances."""
        return self.cost.core_s

    @property
    def busy_core_s(self) -> float:
        """Cores × seconds that all instances spent in inference."""
        return self.cost.body_busy_core_s + self.cost.shadow_busy_core_s

    @property
    def violations(self) -> int:
        """Requests that were not answered 200 within the SLO: late, refused or failed."""
        slo_s = self.settings.slo_s
        return len(self.requests) - sum(latency_s <= slo_s for latency_s in self.requests.latencies_s())

    @property
    def start_up_s(self) -> float:
        """The first seconds of a run, in which windows are shorter than policies look back; figures tell them apart."""
        return min(self.settings.stable_window_s, self.duration_s)

    @property
    def start_up_requests(self) -> int:
        """Number of requests that arrived during start-up."""
        return bisect_left(self.requests.arrived_s, self.start_up_s)

    @property
    def start_up_violations(self) -> int:
        """Number of requests during start-up that violated the objective."""
        rows, slo_s, count = self.requests, self.settings.slo_s, self.start_up_requests
        first = zip(rows.arrived_s[:count], rows.finished_s[:count], rows.status[:count], strict=True)
        return count - sum(status == OK and finished - arrived <= slo_s for arrived, finished, status in first)

    @property
    def steady_violation_rate(self) -> float:
        """The share of violations among the requests after start-up."""
        steady = len(self.requests) - self.start_up_requests
        return (self.violations - self.start_up_violations) / steady if steady else 0.0

    def percentile_s(self, percent: float) -> float | None:
        """A percentile of the latencies of answered requests."""
        return percentile(sorted(self.requests.latencies_s()), percent)

    def summary(self) -> dict[str, Any]:
        """The figures as a JSON document."""
        count = len(self.requests)
        statuses = Counter(self.requests.status)
        batches = sum(1 / batch for batch in self.requests.batch if batch)
        executed = sum(1 for batch in self.requests.batch if batch)
        return {
            "function": self.function,
            "autoscaler": self.settings.autoscaler,
            "scheduler": self.scheduler,
            "duration_s": round(self.duration_s, 6),
            "requests": count,
            "answered": statuses[OK],
            "statuses": {str(status): number for status, number in sorted(statuses.items())},
            "slo_ms": self.settings.slo_s * 1e3,
            "violations": self.violations,
            "violation_rate": self.violations / count if count else 0.0,
            "start_up": {
                "seconds": self.start_up_s,
                "requests": self.start_up_requests,
                "violations": self.start_up_violations,
            },
            "steady_violation_rate": self.steady_violation_rate,
            "latency_ms": dict(spread_ms(self.requests.latencies_s())),
            "mean_batch": executed / batches if batches else 0.0,
            "instance_s": round(self.instance_s, 6),
            "core_s": round(self.core_s, 6),
            "busy_core_s": round(self.busy_core_s, 6),
            "fewest_instances": self.fewest_instances,
            "most_instances": self.most_instances,
            "mean_instances": self.instance_s / self.duration_s if self.duration_s else 0.0,
            "cpu_utility": round(self.cost.cpu_utility, 6),
            "memory_byte_s": round(self.cost.memory_byte_s),
            "calls": self.cost.calls,
            "calls_usd": self.cost.calls_usd,
            "shadows": self.cost.shadows,
            "shadow_s": round(self.cost.shadow_s, 6),
            "shadow_core_s": round(self.cost.shadow_core_s, 6),
            "decisions": [record.to_json() for record in self.decisions],
        }

    def write_requests(self, path: Path) -> None:
        """Write one JSON line per request."""
        with path.open("w", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in self.requests.rows())


_COLUMNS: Mapping[str, str] = {
    "function": "function",
    "autoscaler": "autoscaler",
    "scheduler": "scheduler",
    "requests": "requests",
    "violations": "violations",
    "steady": "after start-up",
    "p50": "p50 ms",
    "p95": "p95 ms",
    "p99": "p99 ms",
    "mean_batch": "batch",
    "mean_instances": "instances",
    "most_instances": "most",
    "shadows": "shadows",
    "core_s": "core·s",
    "cpu_utility": "utility",
}


def table(results: Sequence[FunctionResult]) -> str:
    """The figures of several functions for a reader, one line each."""
    rows = [list(_COLUMNS.values()), *(_row(result.summary()) for result in results)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_COLUMNS))]
    return "\n".join("  ".join(text.rjust(width) for text, width in zip(row, widths, strict=True)) for row in rows)


def _row(figures: Mapping[str, Any]) -> list[str]:
    shown = {**figures, **figures["latency_ms"], "violations": f"{figures['violation_rate']:.2%}"}
    shown["steady"] = f"{figures['steady_violation_rate']:.2%}"
    return [_text(shown[key]) for key in _COLUMNS]


def _text(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:.2f}" if isinstance(value, float) else str(value)


ON_DEMAND_INSTANCE = "on demand"


def on_demand(rows: Requests) -> int:
    """Number of requests that functions on demand have served."""
    if ON_DEMAND_INSTANCE not in rows.instances:
        return 0
    return rows.instance.count(rows.instances.index(ON_DEMAND_INSTANCE))

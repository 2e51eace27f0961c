"""Figure 4: one parameter moves, and with it a request's time, an instance's throughput and the cost.

A request's time is its wait and its batch's service; throughput is what one instance serves per second while it is busy, the mean
batch over its service time. Arrivals are those of Twitter's busiest full hour, grouped by the buffer event by event.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

import gnomon_planner
import gnomon_simulator
from benchmarks.reports.batch import demand, services
from benchmarks.reports.batch.services import Service
from benchmarks.reports.batch.setting import LARGEST_MB, Setting
from benchmarks.reports.report import Results, Step
from gnomon_core import lambda_pricing as prices
from gnomon_planner.plans import LAMBDA
from gnomon_planner.validation import buffered

HOUR = 7
APPLICATION = "ResNet-v2"
LONG_S = 3600.0
TIMEOUT_BATCH, MEMORY_BATCH = 20, 5
TIMEOUTS_S = (0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.7, 1.0)


def steps(setting: Setting) -> Iterable[Step]:
    """One step for all three panels."""
    about = {"batches": setting.plan_batches, "memories_mb": setting.memories_mb, "requests": min(setting.requests, 100_000)}
    yield Step(
        "fig4",
        _swept,
        about,
        (services.step_name(APPLICATION),),
        (gnomon_planner, gnomon_simulator, prices, demand, services, *demand.FILES),
    )


def _swept(parameters: Mapping[str, Any], results: Results) -> dict[str, Any]:
    service = Service(results[services.step_name(APPLICATION)])
    times = demand.times("Twitter", HOUR)[: parameters["requests"]]
    largest = max(parameters["batches"])

    def point(batch: int, timeout_s: float, memory_mb: float) -> dict[str, float]:
        row = np.array(service.row(memory_mb, batch))
        sent = buffered(times, batch, timeout_s)
        taken = row[sent.sizes[sent.first] - 1]
        paid = {name: float(LAMBDA[name].per_call(memory_mb, taken).sum()) / len(times) for name in ("paper", "x86")}
        latency_s = float(sent.latency_s(row.tolist()).mean())
        return {"latency_s": latency_s, "per_s": len(times) / float(taken.sum()), "usd": paid["paper"], "usd_1ms": paid["x86"]}

    return {
        "rate": len(times) / float(times[-1]),
        "batch": [{"batch": batch, **point(batch, LONG_S, LARGEST_MB)} for batch in parameters["batches"]],
        "timeout": [{"timeout_s": one, **point(min(TIMEOUT_BATCH, largest), one, LARGEST_MB)} for one in TIMEOUTS_S],
        "memory": [{"memory_mb": one, **point(min(MEMORY_BATCH, largest), LONG_S, one)} for one in parameters["memories_mb"]],
    }

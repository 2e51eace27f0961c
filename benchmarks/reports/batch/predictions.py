"""Figures 2(b), 4, 9, 12 and 13, measured: vanilla Lambda's instances, one parameter at a time, planning's cost, and predictions.

**2(b)**: how many instances of vanilla Lambda run at once, from Twitter's hour, a call for each request.

**4**: one parameter moves, and with it a request's time (its wait and its batch's service), an instance's throughput (the mean
batch over its service time) and the cost. Arrivals are those of Twitter's busiest full hour, grouped by the buffer event by
event.

**9**: `hosted` in a process of its own, so that nothing else of the report counts.

**12 and 13**: the predicted distribution of latencies beside the one that happens. What happens is every batch of a long run:
arrivals drawn, or Twitter's own, are grouped by the buffer event by event, and each batch is served in the time of its size,
multiplied with one of the ratios that were measured of that application, so that service is as far from deterministic as it
was. Prediction knows the process. Judged are the exact distribution from medians and from all measured times, the paper's
printed equations, and what the exact distribution from all measured times says of Poisson arrivals of the same rate.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

import gnomon_planner
import gnomon_simulator
from benchmarks.programs import ROOT
from benchmarks.report import machine
from benchmarks.reports.batch import demand, hosted, services
from benchmarks.reports.batch.demand import off, served
from benchmarks.reports.batch.services import Service
from benchmarks.reports.batch.setting import LARGEST_MB, PAPER_MB, Setting
from benchmarks.reports.report import Results, Step
from gnomon_core import lambda_pricing as prices
from gnomon_planner.billing import LAMBDA
from gnomon_planner.buffer import BufferPlan
from gnomon_planner.latency import ExactLatency, Latency, PaperLatency, ServiceTimes
from gnomon_planner.maps import Map
from gnomon_planner.validation import replay_buffer

VANILLA_APPLICATION = "Inception-v4"
VANILLA_HOURS = (5, 6, 7)
BIN_S = 60.0
LOOK_S = 0.1


def concurrency_steps(setting: Setting) -> Iterable[Step]:
    about = {"hours": VANILLA_HOURS[: 1 if setting.quick else None]}
    yield Step("fig2", _concurrency, about, (services.step_name(VANILLA_APPLICATION),), (demand, services, *demand.FILES))


def _concurrency(parameters: Mapping[str, Any], results: Results) -> dict[str, Any]:
    """Each minute's rate, and of the number in service, looked at ten times a second, its mean and its largest."""
    seconds = Service(results[services.step_name(VANILLA_APPLICATION)]).row(LARGEST_MB, 1)[0]
    hours = parameters["hours"]
    times = np.concatenate([demand.times("Twitter", hour) + number * demand.HOUR for number, hour in enumerate(hours)])
    looks = np.arange(1.0, len(hours) * demand.HOUR, LOOK_S)
    running = np.searchsorted(times, looks, side="right") - np.searchsorted(times, looks - seconds, side="right")
    minutes = np.arange(len(hours) * demand.HOUR // int(BIN_S))
    places = (looks // BIN_S).astype(int)
    instances = np.bincount(places, weights=running, minlength=len(minutes)) / np.bincount(places, minlength=len(minutes))
    largest = np.zeros(len(minutes), dtype=np.int64)
    np.maximum.at(largest, places, running)
    arrived = np.bincount((times // BIN_S).astype(int), minlength=len(minutes)) / BIN_S
    return {
        "service_s": seconds,
        "minute": minutes.tolist(),
        "rate": arrived.round(3).tolist(),
        "instances": instances.round(3).tolist(),
        "largest": largest.tolist(),
        "correlation": float(np.corrcoef(arrived, instances)[0, 1]),
    }


HOUR = 7
APPLICATION = "ResNet-v2"
LONG_S = 3600.0
TIMEOUT_BATCH, MEMORY_BATCH = 20, 5
TIMEOUTS_S = (0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.7, 1.0)


def sensitivity_steps(setting: Setting) -> Iterable[Step]:
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
        sent = replay_buffer(times, batch, timeout_s)
        taken = row[sent.sizes[sent.first] - 1]
        paid = {name: float(LAMBDA[name].per_call(memory_mb, taken).sum()) / len(times) for name in ("paper", "x86")}
        latency_s = float(sent.latency_s(row.tolist()).mean())
        return {"latency_s": latency_s, "per_s": len(times) / float(taken.sum()), "usd": paid["paper"], "usd_1ms": paid["x86"]}

    return {
        "rate": len(times) / float(times[-1]),
        "batch": [{"batch": batch, **point(batch, LONG_S, LARGEST_MB)} for batch in parameters["batches"]],
        "timeout": [
            {"timeout_s": timeout_s, **point(min(TIMEOUT_BATCH, largest), timeout_s, LARGEST_MB)} for timeout_s in TIMEOUTS_S
        ],
        "memory": [
            {"memory_mb": memory_mb, **point(min(MEMORY_BATCH, largest), LONG_S, memory_mb)}
            for memory_mb in parameters["memories_mb"]
        ],
    }


PLANNED_HOURS = 3
QUICK_S = 300


def planning_steps(setting: Setting) -> Iterable[Step]:
    about = {
        "hours": 1 if setting.quick else PLANNED_HOURS,
        "hour_s": QUICK_S if setting.quick else demand.HOUR,
        "space": {"memories_mb": setting.memories_mb, "batches": setting.plan_batches, "timeouts_s": setting.timeouts_s},
        "machine": machine(),
    }
    yield Step("fig9", _hosted, about, sources=(gnomon_planner, hosted))


def _hosted(parameters: Mapping[str, Any], _: Results) -> Any:
    command = [
        sys.executable,
        "-m",
        hosted.__name__,
        str(parameters["hours"]),
        str(parameters["hour_s"]),
        json.dumps(parameters["space"]),
    ]
    return json.loads(subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout)


Vector = npt.NDArray[np.float64]
PERCENTS = (50.0, 90.0, 95.0, 99.0)
SOURCES = (gnomon_planner, gnomon_simulator, demand, services, *demand.FILES)
SMALL, LARGE = PAPER_MB
POINTS = 160
BISECTIONS = 50
# Arrivals, application, memory in MB, largest batch, timeout in s.
SYNTHETIC = (
    ("MMPP(2)₁", "MoBiNet", SMALL, 15, 0.01),
    ("MMPP(2)₁", "ResNet-v2", LARGE, 20, 1.0),
    ("MMPP(2)₁", "ResNet-18", SMALL, 20, 0.1),
    ("MMPP(2)₂", "MoBiNet", LARGE, 20, 0.1),
    ("MMPP(2)₂", "ResNet-v2", LARGE, 15, 1.0),
    ("MMPP(2)₂", "ResNet-18", LARGE, 15, 0.01),
)
REAL = (
    ("NYS 8", "ResNet-50", LARGE, 15, 0.1),
    ("NYS 17", "ResNet-v2", SMALL, 20, 0.4),
    ("NYS 3", "MoBiNet", SMALL, 8, 0.2),
    ("Twitter 6", "ResNet-50", LARGE, 15, 0.1),
    ("Twitter 13", "ResNet-v2", SMALL, 20, 0.4),
    ("Twitter 19", "MoBiNet", SMALL, 8, 0.2),
)


def distribution_steps(setting: Setting) -> Iterable[Step]:
    """One step for each panel."""
    for figure, cases in (("fig12", SYNTHETIC), ("fig13", REAL)):
        for number, (arrivals, application, memory_mb, batch, timeout_s) in enumerate(chosen(setting, cases), start=1):
            about = {
                "arrivals": arrivals,
                "application": application,
                "memory_mb": memory_mb,
                "batch": min(batch, max(setting.batches)),
                "timeout_s": timeout_s,
                "requests": setting.requests,
            }
            yield Step(f"{figure}-{number}", _case, about, (services.step_name(application),), SOURCES)


def chosen(setting: Setting, cases: Sequence[tuple[str, str, int, int, float]]) -> Sequence[tuple[str, str, int, int, float]]:
    """All cases, or every third."""
    return cases[::3] if setting.quick else cases


def _case(parameters: Mapping[str, Any], results: Results) -> dict[str, Any]:
    """One panel: both predictions, and the replay's result."""
    service = Service(results[services.step_name(parameters["application"])])
    batch, timeout_s = parameters["batch"], parameters["timeout_s"]
    seconds = service.row(parameters["memory_mb"], batch)
    process, times = _demand(parameters["arrivals"], parameters["requests"])
    happened = np.sort(served(times, batch, timeout_s, seconds, service.ratios)[0])
    plan, fixed = BufferPlan(batch, timeout_s), ServiceTimes.fixed(seconds)
    grid = np.linspace(0.0, float(np.quantile(happened, 0.999)), POINTS)
    measured = ServiceTimes(tuple(tuple((second * service.ratios).tolist()) for second in seconds))
    kinds = {
        "exact": ExactLatency(process, plan, fixed),
        "printed": PaperLatency(process, plan, fixed, literal=True),
        "poisson": ExactLatency(Map.poisson(process.rate_rps), plan, measured),
        "measured": ExactLatency(process, plan, measured),
    }
    predicted_s = {name: percentiles(kind, float(happened[-1])).tolist() for name, kind in kinds.items()}
    return {
        "batch": batch,
        "timeout_s": timeout_s,
        "grid_s": _rounded(grid),
        "happened": _rounded(np.searchsorted(happened, grid, side="right") / len(happened)),
        "happened_s": _rounded(np.quantile(happened, np.array(PERCENTS) / 100.0)),
        "predicted": {name: _rounded(kind.cdf(grid)) for name, kind in kinds.items()},
        "predicted_s": predicted_s,
        "off": {
            name: [off(happened, *value_and_percent) for value_and_percent in zip(found, PERCENTS, strict=True)]
            for name, found in predicted_s.items()
        },
        "ratio": float(np.quantile(service.ratios, 0.99)),
        "requests": len(happened),
    }


def percentiles(latency: Latency, longest_s: float) -> Vector:
    """The percentiles by bisection of F, all at once: quicker than one by one where service has many times."""
    goals = np.array(PERCENTS) / 100.0
    low, high = np.zeros(len(goals)), np.full(len(goals), 2.0 * longest_s)
    for _ in range(BISECTIONS):
        middle = (low + high) / 2.0
        reached = latency.cdf(middle) >= goals
        low, high = np.where(reached, low, middle), np.where(reached, middle, high)
    return high


def _demand(arrivals: str, requests: int) -> tuple[Map, Vector]:
    """The process that prediction knows, and arrivals."""
    if arrivals in demand.BURSTY:
        process = demand.bursty(arrivals)
        return process, demand.drawn(process, requests, 12)
    day, hour = arrivals.split()
    return demand.fitted(day, int(hour)), demand.times(day, int(hour))


def _rounded(values: Vector) -> list[float]:
    found: list[float] = np.round(values, 6).tolist()
    return found

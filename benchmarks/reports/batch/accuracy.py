"""Figures 12 and 13: the predicted distribution of latencies beside the one that happens.

What happens is every batch of a long run: arrivals drawn, or Twitter's own, are grouped by the buffer event by event, and each
batch is served in the time of its size, multiplied with one of the ratios that were measured of that application, so that service
is as far from deterministic as it was. Prediction knows the process. Judged are the exact distribution from medians and from all
measured times, the paper's printed equations, and what the exact distribution from all measured times says of Poisson arrivals of
the same rate.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

import gnomon_planner
import gnomon_simulator
from benchmarks.reports.batch import demand, replay, services
from benchmarks.reports.batch.replay import off, served
from benchmarks.reports.batch.services import Service
from benchmarks.reports.batch.setting import PAPER_MB, Setting
from benchmarks.reports.report import Results, Step
from gnomon_planner.buffer import BufferPlan
from gnomon_planner.latency import ExactLatency, Latency, ServiceTimes
from gnomon_planner.maps import Map
from gnomon_planner.paper import PaperLatency

Vector = npt.NDArray[np.float64]
PERCENTS = (50.0, 90.0, 95.0, 99.0)
SOURCES = (gnomon_planner, gnomon_simulator, demand, services, replay, *demand.FILES)
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


def steps(setting: Setting) -> Iterable[Step]:
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
    """All of them, or every third."""
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
    measured = ServiceTimes(tuple(tuple((one * service.ratios).tolist()) for one in seconds))
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
        "off": {name: [off(happened, *one) for one in zip(found, PERCENTS, strict=True)] for name, found in predicted_s.items()},
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

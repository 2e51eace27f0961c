"""Figures 14, 15 and 17: a day planned hour by hour from the hour before, and what then happens in each hour.

The plan of an hour is the best for the process fitted to the hour before it, out of every memory, batch and timeout, with service
times that vary as the measured ones do; the hour's own requests then go through the buffer event by event. Vanilla Lambda serves
each request alone, at the largest memory or at that which makes a request cheapest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

import gnomon_planner
import gnomon_simulator
from benchmarks.reports.batch import demand, services
from benchmarks.reports.batch.demand import served
from benchmarks.reports.batch.services import Service
from benchmarks.reports.batch.setting import LARGEST_MB, Setting
from benchmarks.reports.report import Results, Step
from gnomon_core import lambda_pricing as prices
from gnomon_planner.billing import LAMBDA, LambdaPrice, PerCall
from gnomon_planner.optimizer import Landscape
from gnomon_planner.plans import Choice, Plan, Space

Vector = npt.NDArray[np.float64]
PERCENT = 95.0
RATIOS = tuple(number / 25.0 for number in range(76))  # of the SLO, 0 to 3: where the CCDF is kept
LOOSE_BATCH = 8
SLACK = 1.5
# What an hour of the day with its application is asked for.
COST_COLUMNS = (("NYS", "ResNet-v2"), ("NYS", "ResNet-50"), ("Twitter", "ResNet-v2"), ("Twitter", "ResNet-50"))
BUDGET_COLUMNS = (("NYS", "ResNet-v2"), ("NYS", "Inception-v4"), ("Twitter", "ResNet-v2"), ("Twitter", "Inception-v4"))
STRICT = "ResNet-50"
BILLINGS = {"paper": "by 100 ms, as in the paper's day", "x86": "by 1 ms, as now"}


def steps(setting: Setting) -> Iterable[Step]:
    """A day each: the cheapest plans within an SLO under both billings, and the quickest within a budget."""
    for billing in BILLINGS:
        for day, application in columns(setting, COST_COLUMNS):
            name = step_name("fig14", day, application, billing)
            yield _step(setting, name, day=day, application=application, billing=billing, goal="cheapest")
    for day, application in columns(setting, BUDGET_COLUMNS):
        name = step_name("fig17", day, application, "paper")
        yield _step(setting, name, day=day, application=application, billing="paper", goal="quickest")


def step_name(figure: str, day: str, application: str, billing: str) -> str:
    return f"{figure}-{day}-{application}-{billing}".lower()


def columns(setting: Setting, of: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    """All columns, or those of one application."""
    return tuple(column for column in of if column[1] == of[0][1]) if setting.quick else of


def day_of(results: Results, figure: str, day: str, application: str, billing: str = "paper") -> dict[str, Any]:
    """The result of a day's step."""
    found: dict[str, Any] = results[step_name(figure, day, application, billing)]
    return found


def _step(setting: Setting, name: str, *, day: str, application: str, billing: str, goal: str) -> Step:
    about = {
        "day": day,
        "application": application,
        "billing": billing,
        "goal": goal,
        "memories_mb": setting.memories_mb,
        "batches": setting.plan_batches,
        "timeouts_s": setting.timeouts_s,
        "hours": setting.hours,
    }
    return Step(
        name,
        _day,
        about,
        (services.step_name(application),),
        (gnomon_planner, gnomon_simulator, prices, demand, services, *demand.FILES),
    )


def _day(parameters: Mapping[str, Any], results: Results) -> dict[str, Any]:
    """Hour by hour, from the second on."""
    application = parameters["application"]
    service = Service(results[services.step_name(application)])
    price = LAMBDA[parameters["billing"]]
    batches = tuple(parameters["batches"])
    sizes = tuple(service.size(memory_mb, max(batches)) for memory_mb in parameters["memories_mb"])
    space = Space(sizes, batches, tuple(parameters["timeouts_s"]))
    vanilla = {
        "largest": _vanilla(service, price, [LARGEST_MB]),
        "cherry": _vanilla(service, price, parameters["memories_mb"]),
    }
    row = service.row(LARGEST_MB, max(batches))
    slo_s = SLACK * (row[0] if application == STRICT else row[LOOSE_BATCH - 1])
    budget_usd = (vanilla["largest"]["usd"] + vanilla["cherry"]["usd"]) / 2.0
    hours, above = [], np.zeros(len(RATIOS))
    day = parameters["day"]
    scale_s = slo_s if parameters["goal"] == "cheapest" else vanilla["largest"]["latency_s"]
    for hour in range(1, parameters["hours"]):
        landscape = Landscape(demand.fitted(day, hour - 1), space, PerCall(price), PERCENT)
        choice = landscape.cheapest(slo_s) if parameters["goal"] == "cheapest" else landscape.quickest(budget_usd)
        found, seconds = _hour(choice, service, price, demand.times(day, hour))
        hours.append({"hour": hour, **found})
        above += len(seconds) - np.searchsorted(np.sort(seconds), np.array(RATIOS) * scale_s, side="right")
    requests = sum(hour["requests"] for hour in hours)
    return {
        "slo_s": slo_s,
        "budget_usd": budget_usd,
        "vanilla": vanilla,
        "hours": hours,
        "ccdf": (above / requests).round(7).tolist(),
        "requests": requests,
        "usd": sum(hour["usd"] * hour["requests"] for hour in hours) / requests,
        "plans": len(sizes) * len(batches) * len(space.timeouts_s),
    }


def _hour(choice: Choice, service: Service, price: LambdaPrice, times: Vector) -> tuple[dict[str, Any], Vector]:
    """Replay an hour's requests under a plan."""
    plan: Plan = choice.plan
    batch, timeout_s, memory_mb = plan.buffer.batch, plan.buffer.timeout_s, plan.size.memory_mb
    row = service.row(memory_mb, batch)
    seconds, taken_s = served(times, batch, timeout_s, row, service.ratios)
    paid = price.per_call(memory_mb, taken_s).sum()
    return {
        "requests": len(times),
        "memory_mb": memory_mb,
        "batch": batch,
        "timeout_s": timeout_s,
        "mean_batch": len(times) / len(taken_s),
        "predicted_s": plan.latency_s,
        "p95_s": float(np.quantile(seconds, PERCENT / 100.0)),
        "usd": float(paid) / len(times),
        "predicted_usd": plan.usd_per_request,
        "failed": choice.failed,
    }, seconds


def _vanilla(service: Service, price: LambdaPrice, memories_mb: Iterable[float]) -> dict[str, float]:
    """One request a call, at the memory size with the lowest price."""
    found = []
    for memory_mb in memories_mb:
        seconds = service.row(memory_mb, 1)[0]
        usd = float(price.per_call(memory_mb, seconds * service.ratios).mean())
        p95_s = seconds * float(np.quantile(service.ratios, PERCENT / 100.0))
        found.append({"memory_mb": float(memory_mb), "latency_s": p95_s, "usd": usd})
    return min(found, key=lambda row: (row["usd"], row["latency_s"]))

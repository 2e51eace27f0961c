"""The verdict on a case: its hours for plots, and the figures with their goals.

The percentile is to be met in 21 of 22 hours, at a cost within 10 % of the cheapest plan of the same hour; a case is one that
batches if the cheapest plan has B ≥ 4 in half of the hours.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.report import Figure
from benchmarks.twitter_day.days import HOURS, PERCENT, SEED, Case, is_met

HOURS_GOAL, COST_GOAL, BATCH_GOAL, BATCH_SHARE = 21, 1.1, 4, 0.5
MODES = ("on_change", "hourly")
PER_MILLION = 1e6
Row = Mapping[str, Any]


def document_of(case: Case, runs: Mapping[str, Sequence[Row]], cheapest: Sequence[Row]) -> dict[str, Any]:
    """A case: milliseconds and dollars per million requests, an entry for each hour."""
    first = next(iter(runs.values()))
    hours = [
        {
            "hour": first[place]["hour"],
            "requests": first[place]["requests"],
            **{mode.replace(" ", "_"): _as_run(run[place], plan) for mode, run in runs.items()},
            "cheapest": _as_planned(plan),
        }
        for place, plan in enumerate(cheapest)
    ]
    return {
        "key": case.key,
        "paid": case.paid,
        "service_ms": [round(1e3 * one, 6) for one in case.service_s.tolist()],
        "slo_ms": case.slo_ms,
        "percent": PERCENT,
        "max_batch": case.max_batch,
        "seed": SEED,
        "hours": hours,
    }


def _as_run(run: Row, plan: Row) -> dict[str, Any]:
    return {
        "met": is_met(run["within"]),
        "within_slo": run["within"],
        "percentile_ms": run["percentile_s"] * 1e3,
        "usd_per_million": run["usd_per_request"] * PER_MILLION,
        "cost_of_cheapest": run["usd_per_request"] / plan["usd_per_request"],
        "plans": run["plans"],
        "mean_batch": run["mean_batch"],
        "mean_instances": run["instances"],
    }


def _as_planned(plan: Row) -> dict[str, Any]:
    return {
        "met": is_met(plan["within"]),
        "batch": plan["batch"],
        "timeout_ms": plan["timeout_s"] * 1e3,
        "instances": plan["instances"] or None,
        "within_slo": plan["within"],
        "usd_per_million": plan["usd_per_request"] * PER_MILLION,
        "mean_batch": plan["mean_batch"],
    }


def figures_of(document: Row) -> Iterator[Figure]:
    """Hours met and cost, on change and, without a goal, hourly; and whether the case is one that batches."""
    hours, key = document["hours"], document["key"]
    for mode in MODES:
        yield _hours_met(f"{key}: {mode}: hours met", hours, mode)
        yield _cost(f"{key}: {mode}: cost", hours, mode)
    batches = [hour["cheapest"]["batch"] for hour in hours]
    share = sum(batch >= BATCH_GOAL for batch in batches) / len(batches)
    said = f"of hours whose cheapest plan has B >= {BATCH_GOAL}: B = {min(batches)} to {max(batches)}"
    verdict = "met" if share >= BATCH_SHARE else "missed"
    yield Figure(f"{key}: batches", share, "", BATCH_SHARE, ">=", verdict, said)


def _hours_met(key: str, hours: Sequence[Row], mode: str) -> Figure:
    met = sum(hour[mode]["met"] for hour in hours)
    missed = [f"hour {hour['hour']}: {hour[mode]['within_slo']:.2%} within" for hour in hours if not hour[mode]["met"]]
    plans = statistics.fmean(hour[mode]["plans"] for hour in hours)
    said = f"of {len(hours)}; {'; '.join(missed) or 'every hour'}; {plans:.1f} plans an hour"
    if mode != MODES[0]:
        return Figure(key, met, "hours", detail=said)
    goal = HOURS_GOAL * len(hours) / len(HOURS)
    return Figure(key, met, "hours", goal, ">=", "met" if met >= goal else "missed", said)


def _cost(key: str, hours: Sequence[Row], mode: str) -> Figure:
    costs = [hour[mode]["cost_of_cheapest"] for hour in hours]
    mean = statistics.fmean(costs)
    above = [f"hour {hour['hour']}: {hour[mode]['cost_of_cheapest']:.3f}" for hour in hours]
    above = [said for said, cost in zip(above, costs, strict=True) if cost > COST_GOAL]
    within = len(costs) - len(above)
    said = f"of the cheapest plan's, mean; {min(costs):.3f} to {max(costs):.3f} an hour, {within} of {len(costs)} within 10 %"
    said = "; ".join([said, *above])
    if mode != MODES[0]:
        return Figure(key, mean, "×", detail=said)
    return Figure(key, mean, "×", COST_GOAL, "<=", "met" if mean <= COST_GOAL else "missed", said)

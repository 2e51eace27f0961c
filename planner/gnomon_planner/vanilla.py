"""Vanilla Lambda: every request is a call of its own, there is no buffer, and only the memory is chosen (BATCH, Section VI-A).

A request takes S_1 of its memory size, however requests arrive, because instances are unlimited: B = 1 and T = 0 of the planner's
own latency, at the price of a call of one. The paper has two ways to choose the memory: the `largest`, where nothing is known of
the application, and the `cherry_picked` one, the cheapest whose percentile was within the SLO when the application was profiled.

More memory is quicker and, up to the cores that one request can use, not dearer: with S_1 = 109 ms at 1,769 MB and 55 ms at
3,538 MB a million requests cost $3.34 and $3.37. `deployment` says the same to `gnomon serve --platform lambda`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gnomon_core.errors import bad_request
from gnomon_planner.buffer import Buffer, BufferPlan
from gnomon_planner.instances import fleet_for
from gnomon_planner.latency import ExactLatency, ServiceTimes
from gnomon_planner.maps import Map
from gnomon_planner.plans import Choice, LambdaPrice, Plan, Size

ALONE = BufferPlan(1, 0.0)
_ANY = Map.poisson(1.0)
"""Requests never wait, so that the arrival process does not matter."""


def latency_of(size: Size) -> ExactLatency:
    """The distribution of the latency: S_1 with the ratios measured in profiling."""
    times = tuple(tuple(one * ratio for ratio in size.ratios) for one in size.service_s[:1])
    return ExactLatency(_ANY, ALONE, ServiceTimes(times))


def alone(size: Size, price: LambdaPrice, percent: float) -> Plan:
    """A plan of one request per call at this size, with its latency percentile and the mean cost per request."""
    latency_s = latency_of(size).percentile(percent)
    paid = price.mean_per_call(size.memory_mb, np.array(size.service_s[:1]), size.ratios)
    return Plan(size, ALONE, latency_s, float(paid[0]))


def largest(sizes: Sequence[Size], price: LambdaPrice, percent: float) -> Plan:
    """A plan of one request per call at the largest memory size.

    Raises:
        GnomonError: 400 `bad_space`: there is none.

    """
    return alone(max(_some(sizes), key=lambda size: size.memory_mb), price, percent)


def cherry_picked(sizes: Sequence[Size], price: LambdaPrice, percent: float, slo_s: float) -> Choice:
    """The cheapest memory whose percentile is within the SLO, the quicker of equals; where there is none, the quickest.

    Raises:
        GnomonError: 400 `bad_space`: there is no size.

    """
    plans = [alone(size, price, percent) for size in _some(sizes)]
    within = [plan for plan in plans if plan.latency_s <= slo_s]
    if within:
        return Choice(min(within, key=lambda plan: (plan.usd_per_request, plan.latency_s)))
    nearest = min(plans, key=lambda plan: (plan.latency_s, plan.usd_per_request))
    least_ms = nearest.latency_s * 1e3
    return Choice(nearest, f"No memory has its P{percent:g} within {slo_s * 1e3:g} ms; the least is {least_ms:.1f} ms.")


@dataclass(frozen=True, slots=True)
class Deployment:
    """A function's annotations and labels."""

    annotations: Mapping[str, str]
    labels: Mapping[str, str]


def deployment(plan: Plan, process: Map, slo_s: float, percent: float) -> Deployment:
    """The annotations and labels that make `gnomon serve --platform lambda` serve by this plan.

    There are as many slots as 999 of 1000 moments need; idle ones cost nothing.
    """
    slots = str(fleet_for(Buffer(process, ALONE), float(plan.size.service(1).means[0])).instances)
    return Deployment(
        {
            "gnomon/autoscaler": "fixed",
            "gnomon/scheduler": "immediate",
            "gnomon/max-batch": "1",
            "gnomon/memory-mb": f"{plan.size.memory_mb:.0f}",
            "gnomon/slo-ms": f"{slo_s * 1e3:g}",
            "gnomon/slo-percentile": f"{percent:g}",
        },
        {"com.openfaas.scale.min": slots, "com.openfaas.scale.max": slots},
    )


def _some(sizes: Sequence[Size]) -> Sequence[Size]:
    if not sizes:
        raise bad_request("bad_space", "There is no size of instance.", "Give at least one.")
    return sizes

"""Vanilla Lambda, a baseline of BATCH (Section VI-A): each request is a call of its own; only the memory varies.

Instances are unlimited, so a request takes S_1 of its memory size whatever the arrival process: the planner's latency and price
for B = 1 and T = 0. The paper chooses the memory in two ways: the `largest`, where nothing is known of the application, and the
`cherry_picked` one, the cheapest whose percentile is within the SLO according to the profile.

More memory is quicker and, up to the cores that one request can use, not dearer: with S_1 = 109 ms at 1,769 MB and 55 ms at
3,538 MB a million requests cost $3.34 and $3.37.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gnomon_core.errors import bad_request
from gnomon_planner.billing import LambdaPrice
from gnomon_planner.buffer import BufferPlan
from gnomon_planner.latency import ExactLatency, ServiceTimes
from gnomon_planner.maps import Map
from gnomon_planner.plans import Choice, Plan, Size

UNBATCHED = BufferPlan(1, 0.0)
_ANY_PROCESS = Map.poisson(1.0)
"""Requests never wait in a buffer, so that the arrival process does not matter."""


def latency_of(size: Size) -> ExactLatency:
    """The distribution of the latency: S_1 with the ratios measured in profiling."""
    times = tuple(tuple(median_s * ratio for ratio in size.ratios) for median_s in size.service_s[:1])
    return ExactLatency(_ANY_PROCESS, UNBATCHED, ServiceTimes(times))


def unbatched_plan(size: Size, price: LambdaPrice, percent: float) -> Plan:
    """A plan of one request per call at this size, with its latency percentile and the mean cost per request."""
    latency_s = latency_of(size).percentile(percent)
    usd = price.mean_per_call(size.memory_mb, np.array(size.service_s[:1]), size.ratios)
    return Plan(size, UNBATCHED, latency_s, float(usd[0]))


def largest(sizes: Sequence[Size], price: LambdaPrice, percent: float) -> Plan:
    """A plan of one request per call at the largest memory size.

    Raises:
        GnomonError: 400 `bad_space`: there is none.

    """
    return unbatched_plan(max(_not_empty(sizes), key=lambda size: size.memory_mb), price, percent)


def cherry_picked(sizes: Sequence[Size], price: LambdaPrice, percent: float, slo_s: float) -> Choice:
    """The cheapest memory whose percentile is within the SLO, the quicker of equals; where there is none, the quickest.

    Raises:
        GnomonError: 400 `bad_space`: there is no size.

    """
    plans = [unbatched_plan(size, price, percent) for size in _not_empty(sizes)]
    within = [plan for plan in plans if plan.latency_s <= slo_s]
    if within:
        return Choice(min(within, key=lambda plan: (plan.usd_per_request, plan.latency_s)))
    nearest = min(plans, key=lambda plan: (plan.latency_s, plan.usd_per_request))
    least_ms = nearest.latency_s * 1e3
    return Choice(nearest, f"No memory has its P{percent:g} within {slo_s * 1e3:g} ms; the least is {least_ms:.1f} ms.")


def _not_empty(sizes: Sequence[Size]) -> Sequence[Size]:
    if not sizes:
        raise bad_request("bad_space", "There is no size of instance.", "Give at least one.")
    return sizes

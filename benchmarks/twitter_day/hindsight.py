"""The cheapest plan of an hour by those who know all of its requests: each candidate is run event by event.

B is every batch up to the largest, T goes up to twice the SLO in steps of 1/200 of the SLO, where instances are held of 1/50. The
number of those is the 99.9 % quantile of concurrent batches of that very run, and batches wait for one of so many. The cheapest
plan is the one with the least cost of those that have the percentile within the SLO. It is fixed for the hour.

Running all of some 10,000 combinations would take minutes an hour. For one B a longer T makes batches larger and requests later:
cost falls and the percentile rises, but for the luck of single batches. So for each B the longest T that holds is found by
bisection, and its neighbours within `NEAR` steps on either side are run as well. A B whose full batches alone would cost more
than what has been found is passed over. A test runs all of a smaller space and comes to the same plan.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from benchmarks.twitter_day.cases import HOUR_S, ROUNDING, Case, is_met
from gnomon_planner.replay import Vector, buffered, busy_quantile, instance_waits

STEPS = {"Lambda": 200, "held": 50}
REACH = 2
NEAR = 2


@dataclass(frozen=True, slots=True)
class Cheapest:
    """A plan for an hour and what came of it; `met` is False where no plan holds, then it is the one with the most within."""

    batch: int
    timeout_s: float
    instances: int
    within: float
    usd_per_request: float
    mean_batch: float

    @property
    def met(self) -> bool:
        """Whether the percentile is within the SLO."""
        return is_met(self.within)


def ran(case: Case, times: Vector, batch: int, timeout_s: float) -> Cheapest:
    """One plan on these arrivals."""
    run = buffered(times, batch, timeout_s)
    sizes = run.sizes[run.first]
    latency_s, instances = run.latency_s(case.service_s), 0
    if case.held:
        begin_s = float(np.floor(times[0] / HOUR_S) * HOUR_S)
        sent_s, service_s = times[run.first] + run.wait_s[run.first], case.service_s[sizes - 1]
        instances = busy_quantile(sent_s, service_s, (begin_s, begin_s + HOUR_S))
        latency_s = latency_s + np.repeat(instance_waits(sent_s, service_s, ((begin_s, instances),)), sizes)
    usd = instances * HOUR_S * case.usd_per_instance_s if case.held else float(case.usd_of_calls(sizes).sum())
    return Cheapest(batch, timeout_s, instances, case.within(latency_s), usd / len(times), float(sizes.mean()))


def cheapest(case: Case, times: Vector) -> Cheapest:
    """The cheapest plan of all, by as few runs as it takes."""
    timeouts_s = timeouts_of(case)
    best: Cheapest | None = None
    for batch in sorted(range(1, case.max_batch + 1), key=lambda batch: _least_usd(case, times, batch)):
        if best is not None and best.met and _least_usd(case, times, batch) >= best.usd_per_request:
            continue
        for found in _front(case, times, batch, timeouts_s):
            if best is None or _better(found, best):
                best = found
    assert best is not None
    return best


def every(case: Case, times: Vector, batches: Sequence[int], timeouts_s: Sequence[float]) -> Cheapest:
    """The cheapest of so many, each of which is run."""
    runs = [ran(case, times, batch, timeout_s) for batch in batches for timeout_s in timeouts_s]
    best = runs[0]
    for found in runs[1:]:
        best = found if _better(found, best) else best
    return best


def timeouts_of(case: Case) -> tuple[float, ...]:
    """T, from none to twice the SLO."""
    steps = STEPS[case.paid]
    return tuple(case.slo_s * step / steps for step in range(REACH * steps + 1))


def _front(case: Case, times: Vector, batch: int, timeouts_s: Sequence[float]) -> list[Cheapest]:
    """The runs around the longest timeout that holds."""

    @cache
    def at(step: int) -> Cheapest:
        return ran(case, times, batch, timeouts_s[step])

    if batch == 1:
        return [at(0)]
    last = _longest(lambda step: at(step).met, len(timeouts_s))
    return [at(step) for step in range(max(0, last - NEAR), min(len(timeouts_s), last + NEAR + 1))]


def _longest(holds: Callable[[int], bool], count: int) -> int:
    """The last step that holds, if all before it do; 0 where none does."""
    low, high = 0, count
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def _least_usd(case: Case, times: Vector, batch: int) -> float:
    """What a request costs at least with batches of up to `batch`: were all of them as large as pays best."""
    sizes = np.arange(1, batch + 1)
    if case.held:
        busy_s = len(times) * float((case.service_s[:batch] / sizes).min())
        return float(np.ceil(busy_s / HOUR_S - ROUNDING)) * HOUR_S * case.usd_per_instance_s / len(times)
    return float((case.usd_of_calls(sizes) / sizes).min())


def _better(one: Cheapest, other: Cheapest) -> bool:
    if one.met != other.met:
        return one.met
    if not one.met:
        return one.within > other.within
    return one.usd_per_request < other.usd_per_request

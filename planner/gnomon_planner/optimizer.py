"""The cheapest plan that meets a latency percentile, the quickest plan within a budget, and the Pareto front of both.

A plan is an instance size (memory on Lambda, cores elsewhere), a batch size B and a timeout T. A `Landscape` has the
percentile and the cost per request of every combination (BATCH, Eqs. 1–3): an exhaustive search, so that the result is optimal. A
combination whose batches an instance cannot serve has infinite latency and cost. Percentiles take most of the time and are
computed on demand; for the cheapest plan it suffices to know which plans are within the SLO.

If instances are provisioned, computing their number takes more time than everything else, so that the landscape has an estimate
of it. The best candidates by the estimate get the exact number of instances and the wait for one in their latency. Each chosen
plan is evaluated once more by the exact latency, and rejected if that misses the constraint or needs too many instances.

**Percentiles** are computed lazily. The percentile of a plan takes some ten values of F; the test against an SLO takes one,
F(SLO). If no plan is within the SLO and the quickest is needed, each plan takes one value again, and only plans that are quicker
than the best so far get their percentile: of thousands of plans mostly those with batches of one. Example: of 8,736 plans (13
sizes, 14 batches, 48 timeouts) with nine ratios to their service times, all percentiles took 0.6 s, the tests against an SLO 0.05
s.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice

import numpy as np
import numpy.typing as npt

from gnomon_core.errors import bad_request
from gnomon_planner.billing import Billing
from gnomon_planner.buffer import BufferPlan
from gnomon_planner.instances import TooManyInstancesError
from gnomon_planner.latency import quantile
from gnomon_planner.maps import Map
from gnomon_planner.numerics import Array, Indices
from gnomon_planner.plans import Choice, Plan, Size, Space
from gnomon_planner.service_time import Spread
from gnomon_planner.sweep import Waits, WaitsOfBatch

PER_MILLION = 1e6
ROUNDING = 1e-9
"""The relative rounding error of sums of times, such as a percentile that is S + T."""
COST_DIGITS = 9
"""The digits of costs that are compared: plans that agree in them cost the same."""
SLO_TOLERANCE = 2e-4
"""The relative excess over an SLO up to which plans are evaluated exactly."""
DIRECTIONS = (("smaller instance", "larger instance"), ("smaller batch", "larger batch"), ("shorter wait", "longer wait"))

PlanIndex = tuple[int, int, int]


class Landscape:
    """The percentile (seconds), the cost (dollars per request) and the instances of all plans, each (sizes, batches, timeouts).

    `instances` is 0 if they are unlimited. At most `most_instances` may be provisioned. `rows` are the indices of its sizes in
    the landscape that it is a part of (`of_size`).
    """

    def __init__(self, process: Map, space: Space, billing: Billing, percent: float, most_instances: float = math.inf) -> None:
        self.process, self.space, self.billing, self.percent = process, space, billing, percent
        self.most_instances = most_instances
        self._percentiles = Percentiles(process, space, percent)
        self.rows = range(len(space.sizes))
        shape = (len(space.sizes), len(space.batches), len(space.timeouts_s))
        self.usd_per_request, self.instances = (np.full(shape, math.inf) for _ in range(2))
        for number, served in enumerate(self._percentiles.served):
            sizes = [space.sizes[row] for row in served.rows]
            if sizes:
                costs, instances = billing.costs(process, sizes, served.service_s, served.waits)
                self.usd_per_request[served.rows, number], self.instances[served.rows, number] = costs, instances
        if not np.isfinite(self.usd_per_request).any():
            raise bad_request("no_plan", "No size of instance can serve any of these batches.", "Give service times for them.")

    @property
    def latency_s(self) -> Array:
        """Every percentile in seconds, shape (sizes, batches, timeouts)."""
        return self._percentiles.all_s[self.rows.start : self.rows.stop]

    def of_size(self, size: int) -> Landscape:
        """The part of the landscape with this size of instance only."""
        rows, part = slice(size, size + 1), copy(self)
        part.rows, part.space = self.rows[rows], replace(self.space, sizes=self.space.sizes[rows])
        part.usd_per_request, part.instances = self.usd_per_request[rows], self.instances[rows]
        return part

    def cheapest(self, slo_s: float, max_candidates: int | None = None) -> Choice:
        """Eq. 2: the cheapest plan whose percentile is at most the SLO; without one, the plan of least percentile.

        At most `max_candidates` plans are evaluated exactly, which bounds the time; if none of them meets the SLO, the nearest is
        taken. If every plan needs too many instances, the result is the plan with the fewest.

        Raises:
            GnomonError: 400 `bad_slo`, `too_many_instances` where every plan needs more than can be counted.

        """
        if not slo_s > 0.0:
            raise bad_request("bad_slo", f"The SLO {slo_s:g} s is invalid.", "An SLO is a positive time.")
        # A whole number of provisioned instances is paid for, so that many plans cost the same: the quickest of them comes first.
        order_by = (self.usd_per_request, self.latency_s) if self._estimates else (self._compared,)
        best = self._best(
            self._within_slo(slo_s), order_by, _cost, lambda plan: plan.latency_s <= slo_s * (1.0 + ROUNDING), max_candidates
        )
        if best is not None:
            return Choice(best)
        percentiles_s = self.latency_s if self._estimates else self._percentiles.least_s(self.rows)
        nearest = self._nearest(percentiles_s, _percentile, max_candidates)
        if nearest is None:
            return self._fewest()
        promised = f"the least that can be had is {nearest.latency_s * 1e3:.1f} ms"
        return Choice(nearest, f"No plan has its P{self.percent:g} within {slo_s * 1e3:g} ms{self._within}; {promised}.")

    def cheapest_estimate(self, slo_s: float) -> Plan | None:
        """The cheapest plan within the SLO by the landscape's percentiles: a lower bound on the cost of `cheapest`.

        None where there is none, or where costs are estimates and bound nothing.
        """
        if self._estimates:
            return None
        costs = np.where(self._within_slo(slo_s), self._compared, math.inf)
        found = int(costs.argmin())
        return None if math.isinf(costs.flat[found]) else self._plan(self._place(found))

    def quickest(self, budget_usd: float) -> Choice:
        """Eq. 3: the least percentile that costs at most the budget per request; where there is none, the least cost.

        Raises:
            GnomonError: 400 `bad_budget`, `too_many_instances`.

        """
        if not budget_usd > 0.0:
            raise bad_request(
                "bad_budget", f"The budget {budget_usd:g} dollars is invalid.", "A budget is a positive price per request."
            )
        # Where costs are estimates, those somewhat above the budget may still be within it.
        tolerance = 1.5 if self._estimates else 1.0
        best = self._best(
            self.usd_per_request <= budget_usd * tolerance,
            (self.latency_s, self.usd_per_request),
            _percentile,
            lambda plan: plan.usd_per_request <= budget_usd,
        )
        if best is not None:
            return Choice(best)
        nearest = self._nearest(self.usd_per_request, _cost)
        if nearest is None:
            return self._fewest()
        budget, least = budget_usd * PER_MILLION, nearest.usd_per_request * PER_MILLION
        return Choice(
            nearest, f"No plan costs at most ${budget:.4g} per million requests{self._within}; the least is ${least:.4g}."
        )

    def pareto_front(self) -> list[Plan]:
        """The Pareto front: plans that no other one beats in both percentile and cost, by the landscape; quickest first."""
        seconds, dollars = self.latency_s.ravel(), self.usd_per_request.ravel()
        plans, least = [], math.inf
        for index in np.lexsort((dollars, seconds)):
            if dollars[index] < least:
                least = float(dollars[index])
                plans.append(self.estimate(self._place(int(index))))
        return plans

    def estimate(self, place: PlanIndex) -> Plan:
        """The plan at an index of the landscape, with the landscape's predictions."""
        return replace(self._plan(place), latency_s=float(self.latency_s[place]))

    def exactly(self, plan: Plan) -> Plan:
        """The plan with its exact percentile and cost; with provisioned instances also their number and the wait for one."""
        settled = self.billing.settled(self.process, plan)
        return replace(settled, latency_s=settled.latency(self.process).percentile(self.percent))

    def neighbours(self, plan: Plan) -> Iterator[tuple[str, Plan]]:
        """The plans one step away in each direction, exactly, and in which direction; none that needs too many instances."""
        space = self.space
        position = (
            space.sizes.index(plan.size),
            space.batches.index(plan.buffer.batch),
            space.timeouts_s.index(plan.buffer.timeout_s),
        )
        for axis, names in enumerate(DIRECTIONS):
            for step, name in zip((-1, 1), names, strict=True):
                index = list(position)
                index[axis] += step
                if not 0 <= index[axis] < self.usd_per_request.shape[axis]:
                    continue
                neighbour = self._plan((index[0], index[1], index[2]))
                if math.isfinite(neighbour.usd_per_request):
                    with suppress(TooManyInstancesError):
                        yield name, self.exactly(neighbour)

    @property
    def _estimates(self) -> bool:
        """Return whether costs are estimates, so that the best of several candidates is found by their exact costs."""
        return self.billing.candidates > 1

    @property
    def _compared(self) -> Array:
        """Costs without rounding errors: where all batches fill, a longer timeout costs the same and must not seem cheaper."""
        least = float(self.usd_per_request.min())
        return np.round(self.usd_per_request / least, COST_DIGITS) if 0.0 < least < math.inf else self.usd_per_request

    def _within_slo(self, slo_s: float) -> npt.NDArray[np.bool_]:
        """The mask of plans within the SLO, with a tolerance for an error of 1e-5 in F."""
        return self._percentiles.within(slo_s * (1.0 + SLO_TOLERANCE), self.rows)

    def _plan(self, place: PlanIndex) -> Plan:
        """The plan at a flat index, without its percentile."""
        size, batch, timeout = place
        buffer = BufferPlan(self.space.batches[batch], self.space.timeouts_s[timeout])
        return Plan(self.space.sizes[size], buffer, math.nan, float(self.usd_per_request[place]))

    def _best(
        self,
        within: npt.NDArray[np.bool_],
        order_by: tuple[Array, ...],
        criterion: Callable[[Plan], float],
        meets: Callable[[Plan], bool],
        max_candidates: int | None = None,
    ) -> Plan | None:
        """The best of those `within` that meets the constraint exactly, among the first `most`."""
        indices = np.flatnonzero(within)
        order = np.lexsort([values.ravel()[indices] for values in reversed(order_by)])
        plans = self._exact(indices[order][:max_candidates])
        feasible = [plan for plan in islice(plans, self.billing.candidates) if meets(plan)]
        # The remaining plans are in the order of the estimate: the first that meets the constraint is taken.
        return min(feasible, key=criterion) if feasible else next((plan for plan in plans if meets(plan)), None)

    def _nearest(self, values: Array, criterion: Callable[[Plan], float], max_candidates: int | None = None) -> Plan | None:
        """The best of all, those first that probably take no more instances than there may be; among the first `most`."""
        order = np.lexsort((values.ravel(), self.instances.ravel() > self.most_instances))[:max_candidates]
        return min(islice(self._exact(order), self.billing.candidates), key=criterion, default=None)

    def _fewest(self) -> Choice:
        """The plan with the lowest cost, and so the fewest instances, where every plan takes more instances than the bound."""
        order = np.argsort(self.usd_per_request, axis=None, kind="stable")
        plans = self._exact(order[: self.billing.candidates], math.inf)
        nearest = min(plans, key=_cost, default=None)
        if nearest is None:
            least = self._place(int(order[0]))
            raise TooManyInstancesError(f"; the nearest, {self._plan(least)}, takes about {self.instances[least]:.0f}")
        fewest = f"its P{self.percent:g} is with as many"
        return Choice(nearest, f"No plan does{self._within}; the fewest found are {nearest.instances}, and {fewest}.")

    @property
    def _within(self) -> str:
        """The limit of instances in words if it excludes plans, else ""."""
        bound = (self.instances[np.isfinite(self.usd_per_request)] > self.most_instances).any()
        return f" with {self.most_instances:.0f} instances at most" if bound else ""

    def _exact(self, order: npt.NDArray[np.intp], most_instances: float | None = None) -> Iterator[Plan]:
        """The plans at these flat indices, evaluated exactly, without those that exceed the limit of instances."""
        limit = self.most_instances if most_instances is None else most_instances
        for index in order:
            if np.isfinite(self.usd_per_request.flat[index]):
                with suppress(TooManyInstancesError):
                    plan = self.exactly(self._plan(self._place(int(index))))
                    if (plan.instances or 0) <= limit:
                        yield plan

    def _place(self, index: int) -> PlanIndex:
        size, batch, timeout = np.unravel_index(index, self.usd_per_request.shape)
        return int(size), int(batch), int(timeout)


def _cost(plan: Plan) -> float:
    return plan.usd_per_request


def _percentile(plan: Plan) -> float:
    return plan.latency_s


@dataclass(frozen=True, slots=True)
class ServedBatches:
    """The sizes that can serve batches of up to B: their indices (`rows`), S_k in seconds (rows, B), and its spread."""

    rows: Indices
    service_s: Array
    spread: Spread
    waits: WaitsOfBatch

    def among(self, rows: range) -> ServedBatches:
        """The subset whose indices are in `rows`."""
        mask = (self.rows >= rows.start) & (self.rows < rows.stop)
        return ServedBatches(self.rows[mask], self.service_s[mask], self.spread.among(mask), self.waits)


class Percentiles:
    """Latency percentiles in seconds, shape (sizes, batches, timeouts); infinite where a size cannot serve a batch.

    `served` holds one `Served` for each batch of the space.
    """

    def __init__(self, process: Map, space: Space, percent: float) -> None:
        quantile(percent)
        self._percent = percent
        self._shape = (len(space.sizes), len(space.batches), len(space.timeouts_s))
        waits = Waits(process, space.batches, space.timeouts_s)
        spread = Spread.of([size.ratios for size in space.sizes])
        self.served = tuple(_served(space.sizes, spread, batch, waits[batch]) for batch in space.batches)

    @cached_property
    def all_s(self) -> Array:
        """Percentiles of all combinations in seconds, shape (sizes, batches, timeouts)."""
        percentiles_s = np.full(self._shape, math.inf)
        for batch_index, served in self._among(range(self._shape[0])):
            percentiles_s[served.rows, batch_index] = served.waits.percentiles(served.service_s, self._percent, served.spread)
        return percentiles_s

    def within(self, limit_s: float, rows: range) -> npt.NDArray[np.bool_]:
        """Return whether the percentiles of these sizes are at most `limit_s`, shape (rows, batches, timeouts)."""
        within = np.zeros(self._shape, dtype=bool)
        for batch_index, served in self._among(rows):
            within[served.rows, batch_index] = served.waits.within(served.service_s, self._percent, served.spread, limit_s)
        return within[rows.start : rows.stop]

    def least_s(self, rows: range) -> Array:
        """Percentiles of these sizes in seconds, (rows, batches, timeouts); infinite where another plan was quicker."""
        percentiles_s, least_s = np.full(self._shape, math.inf), math.inf
        for batch_index, served in self._among(rows):
            seconds = served.waits.percentiles(served.service_s, self._percent, served.spread, least_s)
            percentiles_s[served.rows, batch_index] = seconds
            least_s = min(least_s, float(seconds.min()))
        return percentiles_s[rows.start : rows.stop]

    def _among(self, rows: range) -> Iterator[tuple[int, ServedBatches]]:
        """Pairs of batch index and the `Served` subset of these sizes."""
        for number, served in enumerate(self.served):
            here = served.among(rows)
            if len(here.rows):
                yield number, here


def _served(sizes: Sequence[Size], spread: Spread, batch: int, waits: WaitsOfBatch) -> ServedBatches:
    serving = np.array([row for row, size in enumerate(sizes) if len(size.service_s) >= batch], dtype=np.intp)
    service_s = np.array([sizes[row].service_s[:batch] for row in serving]).reshape(len(serving), batch)
    return ServedBatches(serving, service_s, spread.among(serving), waits)

"""The cheapest plan that meets a percentile, the quickest within a budget, and all that no other plan beats in both.

A plan is a size of instance (memory on Lambda, cores elsewhere), a largest batch B and a timeout T. A `Landscape` has the
percentile and the cost per request of every combination (BATCH, Eqs. 1–3): an exhaustive search, so that the result is optimal. A
combination whose batches an instance cannot serve has infinite latency and cost. Percentiles take most of the time and are
computed on demand; for the cheapest plan it suffices to know which plans are within the SLO.

If instances are held, computing their number takes more time than everything else, so that the landscape has an estimate of it.
The best candidates by the estimate are settled with the exact number and the wait for an instance in their latency. A chosen plan
is evaluated once more by the exact latency, and rejected if that exceeds the landscape's value or if it needs too many instances.

**Percentiles** are computed lazily. The percentile of a plan takes some ten values of F; the test against an SLO takes one,
F(SLO). If no plan is within the SLO and the quickest is needed, each plan takes one value again, and only plans that are quicker
than the best so far get their percentile: of thousands of plans mostly those with batches of one. Example: of 8,736 plans (13
sizes, 14 batches, 48 timeouts) with nine ratios to their service times, all percentiles took 0.6 s, the tests against an SLO 0.05
s.

**Billing** is per call where instances are unlimited (`PerCall`), or for the instances that are held, busy or not (`Held`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import Protocol

import numpy as np
import numpy.typing as npt

from gnomon_core.errors import bad_request
from gnomon_planner.buffer import Buffer, BufferPlan
from gnomon_planner.instances import TooManyInstancesError, fleet_for
from gnomon_planner.latency import quantile
from gnomon_planner.maps import Map
from gnomon_planner.numerics import Array
from gnomon_planner.plans import Choice, HeldPrice, LambdaPrice, Plan, Size, Space
from gnomon_planner.service_time import Spread
from gnomon_planner.sweep import Indices, Waits, WaitsOfBatch

PER_MILLION = 1e6
ROUNDING = 1e-9
"""The relative rounding error of sums of times, such as a percentile that is S + T."""
DIGITS = 9
"""The digits of costs that are compared: plans that agree in them cost the same."""
NEARLY = 2e-4
"""The relative excess over an SLO up to which plans are evaluated exactly."""
DIRECTIONS = (("smaller instance", "larger instance"), ("smaller batch", "larger batch"), ("shorter wait", "longer wait"))

Place = tuple[int, int, int]


class Landscape:
    """Every combination's percentile (seconds), cost (dollars per request) and instances, all (sizes, batches, timeouts).

    `instances` is 0 if they are unlimited. At most `most_instances` may be held. `rows` are the indices of its sizes in the
    landscape that it is a part of.
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

    def of_size(self, number: int) -> Landscape:
        """The part of the landscape with this size of instance only."""
        some, found = slice(number, number + 1), copy(self)
        found.rows, found.space = self.rows[some], replace(self.space, sizes=self.space.sizes[some])
        found.usd_per_request, found.instances = self.usd_per_request[some], self.instances[some]
        return found

    def cheapest(self, slo_s: float, most: int | None = None) -> Choice:
        """Eq. 2: the cheapest plan whose percentile is at most the SLO; without one, the plan of least percentile.

        At most `most` plans are settled exactly, which bounds the time; if none of them meets the SLO, the nearest is taken. If
        every plan needs too many instances, the result is the plan with the fewest.

        Raises:
            GnomonError: 400 `bad_slo`, `too_many_instances` where every plan needs more than can be counted.

        """
        if not slo_s > 0.0:
            raise bad_request("bad_slo", f"An SLO of {slo_s:g} s.", "An SLO is a positive time.")
        # Of held instances a whole number is paid for, so that many plans cost the same: the quickest of them is looked at first.
        order_by = (self.usd_per_request, self.latency_s) if self._estimates else (self._compared,)
        best = self._best(self._within_slo(slo_s), order_by, _cost, lambda plan: plan.latency_s <= slo_s * (1.0 + ROUNDING), most)
        if best is not None:
            return Choice(best)
        seconds = self.latency_s if self._estimates else self._percentiles.least_s(self.rows)
        nearest = self._nearest(seconds, _percentile, most)
        if nearest is None:
            return self._fewest()
        promised = f"the least that can be had is {nearest.latency_s * 1e3:.1f} ms"
        return Choice(nearest, f"No plan has its P{self.percent:g} within {slo_s * 1e3:g} ms{self._within}; {promised}.")

    def promised(self, slo_s: float) -> Plan | None:
        """The cheapest within the SLO as the landscape has it, not looked at exactly: it costs no more than the `cheapest` does.

        None where there is none, or costs are estimates.
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
            raise bad_request("bad_budget", f"A budget of {budget_usd:g} dollars.", "A budget is a positive price per request.")
        # Where costs are estimates, those somewhat above the budget may still be within it.
        slack = 1.5 if self._estimates else 1.0
        best = self._best(
            self.usd_per_request <= budget_usd * slack,
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

    def front(self) -> list[Plan]:
        """The plans that no other one beats in both percentile and cost, as the landscape has them; quickest first."""
        seconds, dollars = self.latency_s.ravel(), self.usd_per_request.ravel()
        found, least = [], math.inf
        for index in np.lexsort((dollars, seconds)):
            if dollars[index] < least:
                least = float(dollars[index])
                found.append(self.estimate(self._place(int(index))))
        return found

    def estimate(self, place: Place) -> Plan:
        """The plan at an index of the landscape, with the landscape's predictions."""
        return replace(self._plan(place), latency_s=float(self.latency_s[place]))

    def exactly(self, plan: Plan) -> Plan:
        """The plan with its exact percentile and cost; where instances are held, with their number and the wait for one."""
        settled = self.billing.settled(self.process, plan)
        return replace(settled, latency_s=settled.latency(self.process).percentile(self.percent))

    def neighbours(self, plan: Plan) -> Iterator[tuple[str, Plan]]:
        """The plans one step away in each direction, exactly, and in which direction; none that needs too many instances."""
        space = self.space
        place = (
            space.sizes.index(plan.size),
            space.batches.index(plan.buffer.batch),
            space.timeouts_s.index(plan.buffer.timeout_s),
        )
        for axis, words in enumerate(DIRECTIONS):
            for step, word in zip((-1, 1), words, strict=True):
                other = list(place)
                other[axis] += step
                if not 0 <= other[axis] < self.usd_per_request.shape[axis]:
                    continue
                found = self._plan((other[0], other[1], other[2]))
                if math.isfinite(found.usd_per_request):
                    with suppress(TooManyInstancesError):
                        yield word, self.exactly(found)

    @property
    def _estimates(self) -> bool:
        """Return whether costs are estimates, of which several are settled to find the best."""
        return self.billing.candidates > 1

    @property
    def _compared(self) -> Array:
        """Costs without what rounding leaves of them: where all batches fill, a longer wait changes nothing, and is not taken."""
        least = float(self.usd_per_request.min())
        return np.round(self.usd_per_request / least, DIGITS) if 0.0 < least < math.inf else self.usd_per_request

    def _within_slo(self, slo_s: float) -> npt.NDArray[np.bool_]:
        """The mask of plans within the SLO, with a tolerance for an error of 1e-5 in F."""
        return self._percentiles.within(slo_s * (1.0 + NEARLY), self.rows)

    def _plan(self, place: Place) -> Plan:
        """The plan at a flat index, without its percentile."""
        size, batch, timeout = place
        buffer = BufferPlan(self.space.batches[batch], self.space.timeouts_s[timeout])
        return Plan(self.space.sizes[size], buffer, math.nan, float(self.usd_per_request[place]))

    def _best(
        self,
        within: npt.NDArray[np.bool_],
        order_by: tuple[Array, ...],
        goal: Callable[[Plan], float],
        meets: Callable[[Plan], bool],
        most: int | None = None,
    ) -> Plan | None:
        """The best of those `within` that meets the constraint exactly, among the first `most`."""
        indices = np.flatnonzero(within)
        order = np.lexsort([values.ravel()[indices] for values in reversed(order_by)])
        plans = self._exact(indices[order][:most])
        found = [plan for plan in islice(plans, self.billing.candidates) if meets(plan)]
        # The rest is in order of an estimate: the first of them that meets the constraint is as good as any.
        return min(found, key=goal) if found else next((plan for plan in plans if meets(plan)), None)

    def _nearest(self, values: Array, goal: Callable[[Plan], float], most: int | None = None) -> Plan | None:
        """The best of all, those first that probably take no more instances than there may be; among the first `most`."""
        order = np.lexsort((values.ravel(), self.instances.ravel() > self.most_instances))[:most]
        return min(islice(self._exact(order), self.billing.candidates), key=goal, default=None)

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
        """The plans at these places, but those that take more instances than there may be."""
        most = self.most_instances if most_instances is None else most_instances
        for index in order:
            if np.isfinite(self.usd_per_request.flat[index]):
                with suppress(TooManyInstancesError):
                    plan = self.exactly(self._plan(self._place(int(index))))
                    if (plan.instances or 0) <= most:
                        yield plan

    def _place(self, index: int) -> Place:
        size, batch, timeout = np.unravel_index(index, self.usd_per_request.shape)
        return int(size), int(batch), int(timeout)


def _cost(plan: Plan) -> float:
    return plan.usd_per_request


def _percentile(plan: Plan) -> float:
    return plan.latency_s


@dataclass(frozen=True, slots=True)
class Served:
    """The sizes that can serve batches of up to B, by index in the space: S_k, shape (sizes, B), and its spread."""

    rows: Indices
    service_s: Array
    spread: Spread
    waits: WaitsOfBatch

    def among(self, rows: range) -> Served:
        """The subset whose indices are in `rows`."""
        here = (self.rows >= rows.start) & (self.rows < rows.stop)
        return Served(self.rows[here], self.service_s[here], self.spread.among(here), self.waits)


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
        found = np.full(self._shape, math.inf)
        for number, here in self._among(range(self._shape[0])):
            found[here.rows, number] = here.waits.percentiles(here.service_s, self._percent, here.spread)
        return found

    def within(self, limit_s: float, rows: range) -> npt.NDArray[np.bool_]:
        """Return whether the percentiles of these sizes are at most `limit_s`, shape (rows, batches, timeouts)."""
        found = np.zeros(self._shape, dtype=bool)
        for number, here in self._among(rows):
            found[here.rows, number] = here.waits.reached(here.service_s, self._percent, here.spread, limit_s)
        return found[rows.start : rows.stop]

    def least_s(self, rows: range) -> Array:
        """Percentiles of these sizes in seconds, (rows, batches, timeouts); infinite where another plan was quicker."""
        found, least_s = np.full(self._shape, math.inf), math.inf
        for number, here in self._among(rows):
            seconds = here.waits.percentiles(here.service_s, self._percent, here.spread, least_s)
            found[here.rows, number] = seconds
            least_s = min(least_s, float(seconds.min()))
        return found[rows.start : rows.stop]

    def _among(self, rows: range) -> Iterator[tuple[int, Served]]:
        """Pairs of batch index and the `Served` subset of these sizes."""
        for number, served in enumerate(self.served):
            here = served.among(rows)
            if len(here.rows):
                yield number, here


def _served(sizes: Sequence[Size], spread: Spread, batch: int, waits: WaitsOfBatch) -> Served:
    able = np.array([row for row, size in enumerate(sizes) if len(size.service_s) >= batch], dtype=np.intp)
    service_s = np.array([sizes[row].service_s[:batch] for row in able]).reshape(len(able), batch)
    return Served(able, service_s, spread.among(able), waits)


DEVIATIONS = 3.09  # of a normal distribution at 99.9 %
WINDOWS = 24


class Billing(Protocol):
    """A way to pay."""

    def costs(self, process: Map, sizes: Sequence[Size], service_s: Array, waits: WaitsOfBatch) -> tuple[Array, Array]:
        """Dollars per request and number of instances (0 where unlimited), both of shape (sizes, timeouts).

        `service_s` (sizes, B) are the medians. Either is exact, or an estimate to search by.
        """
        ...

    def settled(self, process: Map, plan: Plan) -> Plan:
        """The plan with its exact cost and number of instances."""
        ...

    @property
    def candidates(self) -> int:
        """The number of best plans by `costs` among which `settled` finds the best."""
        ...


@dataclass(frozen=True, slots=True)
class PerCall:
    """AWS Lambda: Σ_k p_k·C(S_k) / N dollars per request, C's mean where S_k varies."""

    price: LambdaPrice
    candidates: int = 1

    def costs(
        self,
        process: Map,  # noqa: ARG002 - Billing's
        sizes: Sequence[Size],
        service_s: Array,
        waits: WaitsOfBatch,
    ) -> tuple[Array, Array]:
        per_call = np.stack(
            [self.price.mean_per_call(size.memory_mb, row, size.ratios) for size, row in zip(sizes, service_s, strict=True)]
        )
        found: Array = per_call @ waits.sizes.T / waits.mean_sizes
        return found, np.zeros(found.shape)

    def settled(self, process: Map, plan: Plan) -> Plan:  # noqa: ARG002 - Billing's
        return plan


@dataclass(frozen=True, slots=True)
class Held:
    """Instances that are held all the time: n·c/λ dollars per request, n the 99.9 % quantile of concurrent batches."""

    price: HeldPrice
    candidates: int = 24

    def costs(self, process: Map, sizes: Sequence[Size], service_s: Array, waits: WaitsOfBatch) -> tuple[Array, Array]:
        """The costs by an estimated number of instances, 0.75 to 1.5 times the exact one.

        In a window as long as a service there are, with 99.9 %, at most A = λS + 3.09·√(I(S)·λS) arrivals; at such a rate batches
        hold min(B, 1 + T·A/S) of them, or the mean if that is more.
        """
        means_s = service_s * np.array([[size.mean_ratio] for size in sizes])
        busy_s = np.maximum(means_s @ waits.sizes.T, 1e-9)
        windows_s = np.geomspace(busy_s.min(), busy_s.max() * 1.001, WINDOWS)
        dispersions = np.interp(busy_s, windows_s, [max(process.dispersion(window_s), 0.0) for window_s in windows_s])
        mean = process.rate_rps * busy_s
        arrivals = mean + DEVIATIONS * np.sqrt(dispersions * mean)
        members = np.maximum(waits.mean_sizes, np.minimum(waits.batch, 1.0 + waits.timeouts_s * arrivals / busy_s))
        instances = np.maximum(1.0, np.ceil(arrivals / members))
        per_second = np.array([[self.price.per_second(size.cores, size.memory_mb)] for size in sizes])
        return instances * per_second / process.rate_rps, instances

    def settled(self, process: Map, plan: Plan) -> Plan:
        buffer = Buffer(process, plan.buffer)
        fleet = fleet_for(buffer, float(buffer.sizes @ plan.size.service(plan.buffer.batch).means))
        per_second = fleet.instances * self.price.per_second(plan.size.cores, plan.size.memory_mb)
        return replace(plan, usd_per_request=per_second / process.rate_rps, instances=fleet.instances, instance_waits=fleet.waits)

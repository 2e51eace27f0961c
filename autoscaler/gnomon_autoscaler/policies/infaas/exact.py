"""INFaaS's integer program (section 4.2.1): by HiGHS where variants or resources are shared, else by branch and bound.

Without bounded resources, a demand whose variants serve no other demand is a problem of its own: to cover one load. That is
solved exactly by trying numbers of instances in the order of the price per request, from the heuristic's plan on; a load for
which that takes too many steps goes to HiGHS with the rest.

HiGHS proves its solution to within `proven_gap` of the cheapest, or comes as near as the time limit allows: the plan says the
gap. Where the resources do not suffice, or no solution that serves everything is found in half of the time, the other half is for
a program that may leave load unserved, at thirty times the price of its cheapest variant. If that finds nothing either, the plan
is the heuristic's.

Only variants that may be part of a cheapest solution are looked at: not those that are not loaded while another variant serves
the same demands for no more money, with at least the rate, and no more of any bounded resource.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array

from gnomon_autoscaler.policies.infaas.decomposition import solve_apart
from gnomon_autoscaler.policies.infaas.greedy import GreedyState, cheapest_mix, cover, toward
from gnomon_autoscaler.policies.infaas.problem import Options, Problem, changes
from gnomon_core.variant_scaling import ApplicationObservation, ScalingPlan

Vector = npt.NDArray[np.float64]

_OPTIMAL = 0  # scipy's status
_PENALTY = 30.0
"""The price of a request per second that is not served, as a multiple of what its cheapest variant costs for it."""
_TOLERANCE = 1e-6
"""The share of a demand by which HiGHS may miss it."""


def decide(
    observation: ApplicationObservation, state: GreedyState, options: Options | None = None
) -> tuple[ScalingPlan, GreedyState]:
    """The heuristic's decision with the program's instances, where those serve as much at no higher cost; else with its own.

    The program says what is the cheapest for the load of now, the heuristic when to go there.
    """
    problem = Problem(observation, options or Options())
    exact, own = _cheapest(problem), cover(problem)
    if _rank(problem, exact.instances) <= _rank(problem, own):
        proven = f"exact, {exact.how}"
        return toward(problem, exact.instances, state, proven, exact.gap)
    return toward(problem, own, state)


def _rank(problem: Problem, instances: Sequence[int]) -> tuple[float, float]:
    """Sort key of a solution: the unserved load, rounded to the accuracy of HiGHS, then the objective."""
    missing = sum(
        lack for lack, need in zip(problem.unmet_rps(instances), problem.needs_rps, strict=True) if lack > _TOLERANCE * need
    )
    return missing, problem.objective(instances)


def solve(observation: ApplicationObservation, options: Options | None = None) -> ScalingPlan:
    """The cheapest instances for the observed demands."""
    problem = Problem(observation, options or Options())
    exact = _cheapest(problem)
    return _plan(problem, exact.instances, exact.gap, exact.how)


class _Cheapest(NamedTuple):
    """A solution: instances, the largest gap between their cost and the least, and the method that found them."""

    instances: Sequence[int]
    gap: float
    how: str


def _cheapest(problem: Problem) -> _Cheapest:
    undominated = _without_dominated(problem)
    decomposed = solve_apart(problem, undominated)
    if decomposed is not None and decomposed[1] <= problem.options.proven_gap:
        return _Cheapest(decomposed[0], decomposed[1], f"proven, gap {decomposed[1]:.2%}")
    covered, alone = ({}, set()) if problem.capacity else _cover_alone(problem, undominated)
    program = _Program(problem, [member for member in undominated if not alone.issuperset(problem.serves[member])], alone)
    solution = program.solve(shortfall=False)
    if solution.instances is None:
        solution = program.solve(shortfall=True)
    if solution.instances is None:
        instances, gap = cover(problem), 1.0
        how = f"no solution in {problem.options.time_limit_s:g} s, so that the heuristic's is used"
    else:
        instances = [count + covered.get(member, 0) for member, count in enumerate(solution.instances)]
        gap = solution.gap
        how = f"{'proven' if solution.status == _OPTIMAL else 'not proven in time'}, gap {gap:.2%}"
    if decomposed is not None and decomposed[1] <= gap:
        instances, gap = decomposed
        how = f"not proven in time, gap {gap:.2%}"
    return _Cheapest(instances, gap, how)


def _plan(problem: Problem, instances: Sequence[int], gap: float, how: str) -> ScalingPlan:
    by_id = problem.by_id(instances)
    unmet = zip(problem.unmet_rps(instances), problem.needs_rps, strict=True)
    return ScalingPlan(
        by_id,
        problem.cost_per_s(instances),
        problem.objective(instances),
        f"exact: {changes(problem.members, by_id)}; {how}",
        sum(lack for lack, need in unmet if lack > _TOLERANCE * need),
        gap,
    )


class _Solution(NamedTuple):
    """A solution of HiGHS; `instances` is None if there is none, or none was found in time."""

    status: int
    instances: list[int] | None
    gap: float


class _Program:
    """The program for HiGHS. Its first columns are instances of each variant, at most those that run; or those that are loaded.

    A variant that serves several demands has a column for the share of each that it serves.
    """

    def __init__(self, problem: Problem, members: Sequence[int], covered: Collection[int]) -> None:
        self._problem = problem
        self._demands = [demand for demand, need in enumerate(problem.needs_rps) if need > 0.0 and demand not in covered]
        self._columns: dict[int, list[int]] = {}
        """The columns of each member's instances."""
        self._members: list[int] = []
        """The member of each of those columns."""
        self._entries: list[tuple[int, int, float]] = []
        self._lower: list[float] = []
        self._upper: list[float] = []
        self._costs: list[float] = []
        self._most: list[float] = []
        self._add_instances(members)
        self._demand_rows = self._add_demands()
        self._add_resources()

    def solve(self, *, shortfall: bool) -> _Solution:
        """Minimise the cost of serving everything; with `shortfall` the cost and a penalty for load that is not served."""
        if not self._demands or not self._costs:
            return _Solution(_OPTIMAL, [0] * len(self._problem.members), 0.0)
        if not shortfall:
            return self._minimise(self._costs, self._most, self._entries)
        # A column for the share of each demand that is not served.
        problem, first = self._problem, len(self._costs)
        penalties = []
        for demand in self._demands:
            units = [problem.price(member) / rate for member, rate in problem.rates_rps[demand].items()]
            penalties.append(_PENALTY * min(units, default=1.0) * problem.needs_rps[demand])
        lack = [(row, first + index, 1.0) for index, row in enumerate(self._demand_rows)]
        return self._minimise([*self._costs, *penalties], [*self._most, *[1.0] * len(lack)], self._entries + lack)

    def _add_instances(self, members: Sequence[int]) -> None:
        problem = self._problem
        for member in members:
            variant, running = problem.members[member].variant, problem.running[member]
            useful = math.ceil(
                sum(problem.needs_rps[demand] / problem.rates_rps[demand][member] for demand in problem.serves[member])
            )
            for cost, most in ((variant.cost_per_s, min(running, useful)), (problem.price(member), max(0, useful - running))):
                if most:
                    self._columns.setdefault(member, []).append(len(self._costs))
                    self._members.append(member)
                    self._costs.append(cost)
                    self._most.append(most)

    def _add_demands(self) -> list[int]:
        """Constraint 1, each row as a share of the demand. Returns the rows."""
        problem = self._problem
        rows = {demand: self._row(1.0, math.inf) for demand in self._demands}
        for member, columns in self._columns.items():
            served = [demand for demand in problem.serves[member] if demand in rows]
            if len(served) == 1:
                self._add(rows[served[0]], columns, problem.rates_rps[served[0]][member] / problem.needs_rps[served[0]])
                continue
            capacity = self._row(-math.inf, 0.0)
            self._add(capacity, columns, -1.0)
            for demand in served:
                share = len(self._costs)
                self._costs.append(0.0)
                self._most.append(1.0)
                used = problem.needs_rps[demand] / problem.rates_rps[demand][member]
                self._entries += [(rows[demand], share, 1.0), (capacity, share, used)]
        return list(rows.values())

    def _add_resources(self) -> None:
        """Constraint 3, each row as a share of the total."""
        for kind, total in self._problem.capacity.items():
            row = self._row(-math.inf, 1.0 if total > 0 else 0.0)
            for member, columns in self._columns.items():
                amount = self._problem.resources[member].get(kind, 0.0)
                if amount > 0:
                    self._add(row, columns, amount / total if total > 0 else 1.0)

    def _add(self, row: int, columns: Sequence[int], value: float) -> None:
        self._entries += [(row, column, value) for column in columns]

    def _row(self, lower: float, upper: float) -> int:
        self._lower.append(lower)
        self._upper.append(upper)
        return len(self._lower) - 1

    def _minimise(self, costs: Sequence[float], most: Sequence[float], entries: Sequence[tuple[int, int, float]]) -> _Solution:
        rows, columns, values = zip(*entries, strict=True)
        matrix = coo_array((values, (rows, columns)), shape=(len(self._lower), len(costs))).tocsr()
        # The first columns count instances and are integers; the others are shares of a demand.
        integrality = np.zeros(len(costs))
        integrality[: len(self._members)] = 1
        options = self._problem.options
        solution = milp(
            np.array(costs),
            integrality=integrality,
            bounds=Bounds(0.0, np.array(most)),
            constraints=LinearConstraint(matrix, np.array(self._lower), np.array(self._upper)),
            # Half of the time: the other half is for the program with a shortfall.
            options={"time_limit": options.time_limit_s / 2.0, "mip_rel_gap": options.proven_gap},
        )
        if solution.x is None:
            return _Solution(int(solution.status), None, 1.0)
        instances = [0] * len(self._problem.members)
        # HiGHS's integers are floats, off by up to its feasibility tolerance.
        for member, count in zip(self._members, np.rint(solution.x[: len(self._members)]).astype(int).tolist(), strict=True):
            instances[member] += count
        return _Solution(int(solution.status), instances, float(solution.mip_gap))


def _cover_alone(problem: Problem, undominated: Sequence[int]) -> tuple[dict[int, int], set[int]]:
    """The cheapest instances for demands that share no variant with another one, and these demands."""
    useful = set(undominated)
    instances: dict[int, int] = {}
    alone: set[int] = set()
    for demand, accepted in enumerate(problem.accepted):
        if problem.needs_rps[demand] <= 0.0 or any(len(problem.serves[member]) > 1 for member in accepted):
            continue
        mix = cheapest_mix(problem, demand, [member for member in accepted if member in useful])
        if mix is not None:
            alone.add(demand)
            instances |= mix
    return instances, alone


def _without_dominated(problem: Problem) -> list[int]:
    """The members that may have instances in a cheapest solution."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for member, demands in enumerate(problem.serves):
        if any(problem.needs_rps[demand] > 0.0 for demand in demands):
            groups.setdefault(tuple(demands), []).append(member)
    undominated: list[int] = []
    for served, members in groups.items():
        variants = [problem.members[member].variant for member in members]
        # One row for each respect in which less is better.
        traits = np.array(
            [
                [problem.price(member) for member in members],
                *([-problem.rates_rps[demand][member] for member in members] for demand in served),
                *([variant.resources.get(kind, 0.0) for variant in variants] for kind in problem.capacity),
            ]
        )
        # [i, j]: i is at most j in every respect. Of equal variants the first one is kept.
        at_most = (traits[:, :, None] <= traits[:, None, :]).all(axis=0)
        equal = (traits[:, :, None] == traits[:, None, :]).all(axis=0)
        order = np.arange(len(members))
        dominated = (at_most & (~equal | (order[:, None] < order[None, :]))).any(axis=0)
        undominated += [member for member, out in zip(members, dominated, strict=True) if not out or problem.running[member]]
    return sorted(undominated)

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

**Column generation** (Dantzig and Wolfe) solves the integer program of architectures that share nothing but resources. Given a
price for each resource, every demand has a cheapest mix of variants of its own, and the sum of these less the price of all
resources is a lower bound of the cost. The prices come from a linear program over the mixes found so far, which in turn get new
mixes from the prices, until both meet. Then the mixes within a small distance of each demand's cheapest are enumerated, and HiGHS
chooses one for each demand that together fit. The bound says how far the choice may be from the cheapest.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.optimize import Bounds, LinearConstraint, linprog, milp
from scipy.sparse import coo_array, csr_array

from gnomon_autoscaler.policies.infaas.greedy import GreedyState, Instances, cheapest_mix, cover, mixes, toward
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


ROUNDS = 40
"""The most linear programs that are solved for prices."""
PENALTY = 5.0
"""The price of more of a resource than there is, as a multiple of the cost without bounds."""
NEAR = 0.001
"""Mixes are enumerated within this share of the bound of their demand's cheapest one."""
MOST_MIXES = 60
"""The most mixes that are considered for one demand."""


def solve_apart(problem: Problem, undominated: Sequence[int]) -> tuple[list[int], float] | None:
    """The instances and the gap; None where demands share variants, resources do not suffice, or a search finds nothing.

    Only the members in `undominated`, by index, get instances.
    """
    if (
        not problem.capacity
        or min(problem.capacity.values()) <= 0.0
        or any(len(problem.serves[member]) > 1 for member in undominated)
    ):
        return None
    demands = [index for index, need in enumerate(problem.needs_rps) if need > 0.0]
    if not demands or not all(problem.accepted[demand] for demand in demands):
        return None
    columns = _Columns(problem, undominated, demands)
    prices, bound = columns.generate()
    if prices is None or not columns.add(prices, NEAR * bound, MOST_MIXES):
        return None
    chosen = columns.choose()
    if chosen is None:
        return None
    instances = [0] * len(problem.members)
    for mix in chosen:
        for member, count in mix.items():
            instances[member] += count
    total = problem.objective(instances) + problem.cost_per_s(problem.running)
    return instances, max(0.0, 1.0 - bound / total) if total > 0 else 0.0


class _Columns:
    """The mixes found so far: of which demand, at which cost, with which share of each resource."""

    def __init__(self, problem: Problem, undominated: Sequence[int], demands: Sequence[int]) -> None:
        self._problem = problem
        useful = set(undominated)
        self._accepted = [[member for member in problem.accepted[demand] if member in useful] for demand in demands]
        self._demands = demands
        self._kinds = list(problem.capacity)
        self._known: set[tuple[int, frozenset[tuple[int, int]]]] = set()
        self._mixes: list[Instances] = []
        self._blocks: list[int] = []
        self._costs: list[float] = []
        self._uses: list[list[float]] = []
        self._bound = 0.0

    def generate(self) -> tuple[Vector | None, float]:
        """The prices of the resources with the best bound, and that bound; no prices where a search finds nothing."""
        gap = self._problem.options.proven_gap / 4.0
        best, bound = None, -math.inf
        prices = np.zeros(len(self._kinds))
        for _ in range(ROUNDS):
            if not self.add(prices, 0.0, 1):
                return None, 0.0
            if self._bound > bound:
                best, bound = prices, self._bound
            value, prices = self._prices()
            if value - bound <= gap * abs(value):
                break
        return best, bound

    def add(self, prices: Vector, distance: float, most: int) -> bool:
        """Add the mixes near each demand's cheapest at these prices. Returns whether each demand has one."""
        by_kind = {kind: price / self._problem.capacity[kind] for kind, price in zip(self._kinds, prices.tolist(), strict=True)}
        self._bound = -float(prices.sum())
        for block, (demand, accepted) in enumerate(zip(self._demands, self._accepted, strict=True)):
            bound, new_mixes = mixes(self._problem, demand, accepted, by_kind, distance)
            if not new_mixes and not distance:
                return False
            self._bound += bound
            for _, mix in new_mixes[:most]:
                self._append(block, mix)
        return True

    def choose(self) -> list[Instances] | None:
        """Choose one mix for each demand, so that all fit at the least cost; None if no choice fits."""
        options = self._problem.options
        solution = milp(
            np.array(self._costs),
            integrality=np.ones(len(self._costs)),
            bounds=Bounds(0.0, 1.0),
            constraints=[LinearConstraint(self._one_each(), 1.0, 1.0), LinearConstraint(np.array(self._uses).T, -np.inf, 1.0)],
            options={"time_limit": options.time_limit_s / 2.0, "mip_rel_gap": options.proven_gap / 4.0},
        )
        if solution.x is None:
            return None
        return [mix for mix, chosen in zip(self._mixes, solution.x.tolist(), strict=True) if chosen > 0.5]  # noqa: PLR2004

    def _append(self, block: int, mix: Instances) -> None:
        name = (block, frozenset(mix.items()))
        if name in self._known:
            return
        self._known.add(name)
        problem = self._problem
        cost = 0.0
        uses = dict.fromkeys(self._kinds, 0.0)
        for member, count in mix.items():
            kept = min(count, problem.running[member])
            cost += kept * problem.members[member].variant.cost_per_s + (count - kept) * problem.price(member)
            for kind, amount in problem.resources[member].items():
                uses[kind] += count * amount / problem.capacity[kind]
        self._mixes.append(mix)
        self._blocks.append(block)
        self._costs.append(cost)
        self._uses.append(list(uses.values()))

    def _prices(self) -> tuple[float, Vector]:
        """The cost of the cheapest shares of mixes that fit, and the price of all of each resource."""
        count, kinds = len(self._costs), len(self._kinds)
        penalty = PENALTY * (1.0 + sum(self._costs[: len(self._demands)]))
        solution = linprog(
            [*self._costs, *[penalty] * kinds],
            A_ub=np.hstack([np.array(self._uses).T, -np.eye(kinds)]),
            b_ub=np.ones(kinds),
            A_eq=csr_array(coo_array((np.ones(count), (self._blocks, range(count))), shape=(len(self._demands), count + kinds))),
            b_eq=np.ones(len(self._demands)),
        )
        return float(solution.fun), np.maximum(0.0, -solution.ineqlin.marginals)

    def _one_each(self) -> csr_array:
        count = len(self._costs)
        return csr_array(coo_array((np.ones(count), (self._blocks, range(count))), shape=(len(self._demands), count)))

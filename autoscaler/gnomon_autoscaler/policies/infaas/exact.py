"""INFaaS's integer program (section 4.2.1), solved by HiGHS.

The solution is proven to within 0.01 % of the cheapest, or as near as the time limit allows: the plan says the gap. Where the
resources do not suffice, the plan serves as much load as they allow at the least cost, and says what is missing. If the time
limit passes without any solution, the plan is the heuristic's.

Only variants that may be part of a cheapest solution reach the solver: not those that are not loaded while another variant
serves the same demands for no more money, with at least the rate, and no more of any resource.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array

from gnomon_autoscaler.policies.infaas.greedy import cover
from gnomon_autoscaler.policies.infaas.problem import Options, Problem, changes
from gnomon_core.variant_scaling import ApplicationObservation, ScalingPlan

Vector = npt.NDArray[np.float64]

_OPTIMAL, _INFEASIBLE = 0, 2  # scipy's status of a solution
_TOLERANCE = 1e-6
"""The share of a demand by which HiGHS may miss it."""


def solve(observation: ApplicationObservation, options: Options | None = None) -> ScalingPlan:
    """The cheapest instances for the observed demands."""
    problem = Problem(observation, options or Options())
    program = _Program(problem)
    found = program.solve(shortfall=False)
    short = found.status == _INFEASIBLE
    if short:
        found = program.solve(shortfall=True)
    if found.instances is None:
        instances = cover(problem)
        gap = _gap(problem.objective(instances) + problem.cost_per_s(problem.running), found.bound)
        how = f"no solution in {problem.options.time_limit_s:g} s, so that the heuristic's is used"
        short = True
    else:
        instances, gap = found.instances, found.gap
        how = "proven" if found.status == _OPTIMAL else "not proven in time"
    by_id = problem.by_id(instances)
    return ScalingPlan(
        by_id,
        problem.cost_per_s(instances),
        problem.objective(instances),
        f"exact: {changes(problem.members, by_id)}; {how}, gap {gap:.2%}",
        sum(problem.unmet_rps(instances)) if short else 0.0,
        gap,
    )


class _Solution(NamedTuple):
    """`instances` None is no solution in time; `bound` is a lower bound of what is minimised."""

    status: int
    instances: list[int] | None
    gap: float
    bound: float


class _Program:
    """The program for HiGHS, whose columns are the instances of each variant, and as many of them as are loaded anew.

    A variant that serves several demands has a column for the share of each that it serves.
    """

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._demands = [place for place, need in enumerate(problem.needs_rps) if need > 0.0]
        self.kept = _without_dominated(problem)
        self._column = {member: column for column, member in enumerate(self.kept)}
        self._entries: list[tuple[int, int, float]] = []
        self._lower: list[float] = []
        self._upper: list[float] = []
        self._costs: list[float] = []
        self._most: list[float] = []
        self._add_instances()
        self._demand_rows = self._add_demands()
        self._add_resources()

    def solve(self, *, shortfall: bool) -> _Solution:
        """Minimise the cost; with `shortfall` first what is not served, and then the cost of serving all the rest."""
        if not self._costs:
            missing = bool(self._demands) and not shortfall
            return _Solution(_INFEASIBLE if missing else _OPTIMAL, [0] * len(self._problem.members), 0.0, 0.0)
        if not shortfall:
            return self._minimise(self._costs, self._most, [])
        # A column for what each demand lacks, as a share of it.
        first = len(self._costs)
        needs = [self._problem.needs_rps[demand] for demand in self._demands]
        lack = [(row, first + place, 1.0) for place, row in enumerate(self._demand_rows)]
        most = [*self._most, *[1.0] * len(lack)]
        least = self._minimise([*[0.0] * first, *needs], most, lack)
        if least.instances is None:
            return least
        row = len(self._lower)
        bounded = [(row, first + place, need / sum(needs)) for place, need in enumerate(needs)]
        bound = least.bound / sum(needs) + max(_TOLERANCE, least.gap)
        return self._minimise([*self._costs, *[0.0] * len(lack)], most, lack + bounded, at_most=bound)

    def _add_instances(self) -> None:
        problem = self._problem
        for member in self.kept:
            variant, running = problem.members[member].variant, problem.running[member]
            need = sum(problem.needs_rps[demand] for demand in problem.serves[member])
            self._costs.append(variant.cost_per_s if running else problem.price(member))
            self._most.append(running + math.ceil(need / variant.saturation_rps))
        for member in self.kept:
            running = problem.running[member]
            if running:
                row = self._row(-math.inf, running)
                self._entries += [(row, self._column[member], 1.0), (row, len(self._costs), -1.0)]
                self._costs.append(problem.price(member) - problem.members[member].variant.cost_per_s)
                self._most.append(math.inf)

    def _add_demands(self) -> list[int]:
        """Constraint 1, each row as a share of the demand. Returns the rows."""
        problem = self._problem
        rows = {demand: self._row(1.0, math.inf) for demand in self._demands}
        for member in self.kept:
            rate = problem.members[member].variant.saturation_rps
            served = [demand for demand in problem.serves[member] if demand in rows]
            if len(served) == 1:
                self._entries.append((rows[served[0]], self._column[member], rate / problem.needs_rps[served[0]]))
                continue
            capacity = self._row(-math.inf, 0.0)
            self._entries.append((capacity, self._column[member], -1.0))
            for demand in served:
                share = len(self._costs)
                self._costs.append(0.0)
                self._most.append(1.0)
                self._entries += [(rows[demand], share, 1.0), (capacity, share, problem.needs_rps[demand] / rate)]
        return list(rows.values())

    def _add_resources(self) -> None:
        """Constraint 3, each row as a share of the total."""
        for kind, total in self._problem.capacity.items():
            row = self._row(-math.inf, 1.0 if total > 0 else 0.0)
            for member in self.kept:
                amount = self._problem.members[member].variant.resources.get(kind, 0.0)
                if amount > 0:
                    self._entries.append((row, self._column[member], amount / total if total > 0 else 1.0))

    def _row(self, lower: float, upper: float) -> int:
        self._lower.append(lower)
        self._upper.append(upper)
        return len(self._lower) - 1

    def _minimise(
        self, costs: Sequence[float], most: Sequence[float], more: Sequence[tuple[int, int, float]], at_most: float | None = None
    ) -> _Solution:
        lower, upper = list(self._lower), list(self._upper)
        if at_most is not None:
            lower.append(-math.inf)
            upper.append(at_most)
        rows, columns, values = zip(*self._entries, *more, strict=True)
        matrix = coo_array((values, (rows, columns)), shape=(len(lower), len(costs))).tocsr()
        whole = np.zeros(len(costs))
        whole[: len(self.kept)] = 1
        found = milp(
            np.array(costs),
            integrality=whole,
            bounds=Bounds(0.0, np.array(most)),
            constraints=LinearConstraint(matrix, np.array(lower), np.array(upper)),
            options={"time_limit": self._problem.options.time_limit_s},
        )
        bound = -math.inf if found.mip_dual_bound is None else float(found.mip_dual_bound)
        if found.x is None:
            return _Solution(int(found.status), None, 1.0, bound)
        instances = [0] * len(self._problem.members)
        for member, count in zip(self.kept, np.rint(found.x[: len(self.kept)]).astype(int).tolist(), strict=True):
            instances[member] = count
        return _Solution(int(found.status), instances, _gap(float(found.fun), bound), bound)


def _gap(total: float, bound: float) -> float:
    """How far, as a share, a total may be from the least one."""
    return min(1.0, max(0.0, 1.0 - bound / total)) if total > 0 else 0.0


def _without_dominated(problem: Problem) -> list[int]:
    """The members that may have instances in a cheapest solution."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for member, demands in enumerate(problem.serves):
        if any(problem.needs_rps[demand] > 0.0 for demand in demands):
            groups.setdefault(tuple(demands), []).append(member)
    kept: list[int] = []
    for members in groups.values():
        variants = [problem.members[member].variant for member in members]
        # One row for each respect in which less is better.
        traits = np.array(
            [
                [problem.price(member) for member in members],
                [-variant.saturation_rps for variant in variants],
                *([variant.resources.get(kind, 0.0) for variant in variants] for kind in problem.capacity),
            ]
        )
        at_most = (traits[:, :, None] <= traits[:, None, :]).all(axis=0)
        equal = (traits[:, :, None] == traits[:, None, :]).all(axis=0)
        order = np.arange(len(members))
        dominated = (at_most & (~equal | (order[:, None] < order[None, :]))).any(axis=0)
        kept += [member for member, out in zip(members, dominated, strict=True) if not out or problem.running[member]]
    return sorted(kept)

"""The integer program of architectures that share nothing but resources, by column generation (Dantzig and Wolfe).

Given a price for each resource, every demand has a cheapest mix of variants of its own, and the sum of these less the price of
all resources is a lower bound of the cost. The prices come from a linear program over the mixes found so far, which in turn get
new mixes from the prices, until both meet. Then the mixes within a small distance of each demand's cheapest are enumerated, and
HiGHS chooses one for each demand that together fit. The bound says how far the choice may be from the cheapest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from scipy.optimize import Bounds, LinearConstraint, linprog, milp
from scipy.sparse import coo_array, csr_array

from gnomon_autoscaler.policies.infaas.greedy import Instances, mixes
from gnomon_autoscaler.policies.infaas.problem import Problem

Vector = npt.NDArray[np.float64]

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

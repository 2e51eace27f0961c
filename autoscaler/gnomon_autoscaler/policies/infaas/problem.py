"""The integer program of INFaaS (section 4.2.1) for one observation of an application.

    minimise    Σ C·(δ + λ·T_load·max(δ, 0))                            δ: instances more (or fewer) of each variant
    such that   Σ Q·(N + δ) ≥ slack · L                                 (1) for each demand, by the variants that it accepts
                δ > 0 only for variants that some demand accepts        (2)
                Σ R·(N + δ) ≤ R_total                                   (3) for each resource type
                N + δ ≥ 0                                               (4)

**Readings.** The paper has one load and one objective per application. Here an application has a demand for each kind of query,
and a variant that several demands accept shares its capacity among them. The printed (1) counts every running instance, those
included whose answers are too late or too inaccurate; here only variants that a demand accepts serve it, so that a stricter
objective brings other variants. The slack is a factor, as the slack-threshold of 4.2.2 and section 5 (1.05). The paper gives no
λ: an instance that lives H seconds is paid C·(H + T_load), which is C·(1 + λ·T_load) for each of them with λ = 1/H; H is a minute
here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gnomon_core.variant_scaling import ApplicationObservation, VariantMember

ROUNDING = 1e-9
"""Share of a load that may be missing in floating point."""


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the policy: the paper's parameters, and what is computed.

    `slack` is the least ratio of capacity to load, `loading_weight` is λ per second. `literal` is the heuristic as it is printed,
    which knows one variant for each demand. `time_limit_s` bounds the exact solution, which counts as proven within `proven_gap`,
    a share of the cost.
    """

    slack: float = 1.05
    loading_weight: float = 1.0 / 60.0
    literal: bool = False
    time_limit_s: float = 1.0
    proven_gap: float = 1e-3


class Problem:
    """An observation with what each demand needs, and who may serve it. Members and demands are known by their places."""

    def __init__(self, observation: ApplicationObservation, options: Options) -> None:
        self.observation = observation
        self.options = options
        self.members = observation.members
        self.demands = observation.demands
        self.needs_rps = tuple(options.slack * demand.load_rps for demand in self.demands)
        self.accepted = self._accepted()
        self.serves: tuple[list[int], ...] = tuple([] for _ in self.members)
        """The demands that each member serves."""
        for place, members in enumerate(self.accepted):
            for member in members:
                self.serves[member].append(place)
        # Who has least choice chooses first.
        self.strictest_first = sorted(range(len(self.demands)), key=lambda place: len(self.accepted[place]))
        self.running = [member.running for member in self.members]
        self.capacity = observation.capacity
        # Of each member what one instance needs of the bounded resource types.
        self.resources = [
            {kind: amount for kind, amount in member.variant.resources.items() if amount > 0.0 and kind in self.capacity}
            if self.capacity
            else {}
            for member in self.members
        ]

    def _accepted(self) -> tuple[list[int], ...]:
        """The members that each demand accepts."""
        by_architecture: dict[str, list[int]] = {"": list(range(len(self.members)))}
        for place, member in enumerate(self.members):
            by_architecture.setdefault(member.variant.architecture, []).append(place)
        return tuple(
            [place for place in by_architecture.get(demand.architecture, ()) if demand.accepts(self.members[place].variant)]
            for demand in self.demands
        )

    def price(self, member: int) -> float:
        """The cost of one more instance: C·(1 + λ·T_load)."""
        variant = self.members[member].variant
        return variant.cost_per_s * (1.0 + self.options.loading_weight * variant.load_s)

    def cost_per_s(self, instances: Sequence[int]) -> float:
        """The cost of these instances."""
        return sum(member.variant.cost_per_s * count for member, count in zip(self.members, instances, strict=True))

    def objective(self, instances: Sequence[int]) -> float:
        """The objective of the change to these instances."""
        found = 0.0
        for place, (member, count) in enumerate(zip(self.members, instances, strict=True)):
            more = count - member.running
            found += more * (self.price(place) if more > 0 else member.variant.cost_per_s)
        return found

    def accepted_by_all(self, demands: Sequence[int]) -> set[int]:
        """The members that each of these demands accepts."""
        return set[int](self.accepted[demands[0]]).intersection(*(self.accepted[demand] for demand in demands[1:]))

    def unmet_rps(self, instances: Sequence[int]) -> tuple[float, ...]:
        """The rate that each demand lacks with these instances; what is missing altogether is the least possible."""
        return _Flow(self, instances).unmet_rps()

    def free(self, instances: Sequence[int]) -> dict[str, float]:
        """The amount of each bounded resource type that these instances leave; negative where they need more than there is."""
        left = dict(self.capacity)
        for resources, count in zip(self.resources, instances, strict=True):
            take(resources, count, left)
        return left

    def fits(self, instances: Sequence[int]) -> bool:
        """Constraint 3."""
        return all(left >= -ROUNDING * self.capacity[kind] for kind, left in self.free(instances).items())

    def by_id(self, instances: Sequence[int]) -> dict[str, int]:
        """The instances by their variant's id, without variants that have none."""
        return {member.variant.id: count for member, count in zip(self.members, instances, strict=True) if count}


class _Flow:
    """The greatest load that instances serve, by augmenting paths: from a demand to a variant with capacity to spare.

    A path may take a variant from another demand that has a further variant to go to. Most loads need no such path.
    """

    def __init__(self, problem: Problem, instances: Sequence[int]) -> None:
        self._problem = problem
        self._spare = {
            member: count * problem.members[member].variant.saturation_rps for member, count in enumerate(instances) if count
        }
        self._served: dict[int, dict[int, float]] = {member: {} for member in self._spare}
        """Of each member the load that it serves, by demand."""
        self._accepted = [[member for member in accepted if member in self._spare] for accepted in problem.accepted]

    def unmet_rps(self) -> tuple[float, ...]:
        """The rate that each demand lacks."""
        lacking = [0.0] * len(self._accepted)
        for demand in self._problem.strictest_first:
            need = left = self._problem.needs_rps[demand]
            for member in sorted(self._accepted[demand], key=lambda place: len(self._problem.serves[place])):
                served = min(self._spare[member], left)
                self._move(demand, member, served)
                left -= served
            while left > ROUNDING * need and (moved := self._augment(demand, left)) > ROUNDING * need:
                left -= moved
            lacking[demand] = left if left > ROUNDING * need else 0.0
        return tuple(lacking)

    def _augment(self, demand: int, most: float) -> float:
        """Serve more of the demand along the shortest path; returns how much."""
        came: dict[int, tuple[int, int]] = {}  # member: the demand that goes to it, and the member that it leaves
        queue = [(demand, -1)]
        for place, leaving in queue:
            for member in self._accepted[place]:
                if member in came:
                    continue
                came[member] = (place, leaving)
                if self._spare[member] > 0.0:
                    return self._take(member, came, most)
                seen = {other for other, _ in queue}
                queue += [(other, member) for other, load in self._served[member].items() if load > 0.0 and other not in seen]
        return 0.0

    def _take(self, last: int, came: Mapping[int, tuple[int, int]], most: float) -> float:
        amount, member = min(most, self._spare[last]), last
        while came[member][1] >= 0:
            place, leaving = came[member]
            amount = min(amount, self._served[leaving][place])
            member = leaving
        member = last
        while True:
            place, leaving = came[member]
            self._move(place, member, amount)
            if leaving < 0:
                return amount
            self._move(place, leaving, -amount)
            member = leaving

    def _move(self, demand: int, member: int, amount: float) -> None:
        self._served[member][demand] = self._served[member].get(demand, 0.0) + amount
        self._spare[member] -= amount


def fitting(resources: Mapping[str, float], left: Mapping[str, float]) -> float:
    """How many instances with these needs fit into what is left; infinite where nothing bounds them."""
    return min((left[kind] * (1 + ROUNDING) // amount for kind, amount in resources.items()), default=math.inf)


def take(resources: Mapping[str, float], count: int, left: dict[str, float]) -> None:
    """Take what so many instances need out of what is left."""
    if count:
        for kind, amount in resources.items():
            left[kind] -= count * amount


def changes(members: Sequence[VariantMember], instances: Mapping[str, int]) -> str:
    """The changes from what runs, for a plan's reason: `+2 resnet50-onnx, -1 resnet50-torch`."""
    parts = [
        f"{more:+d} {member.variant.id}" for member in members if (more := instances.get(member.variant.id, 0) - member.running)
    ]
    return ", ".join(parts) or "no change"

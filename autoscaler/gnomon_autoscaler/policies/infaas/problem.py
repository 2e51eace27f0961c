"""The integer program of INFaaS (section 4.2.1) for one observation of an application.

    minimise    Σ C·(δ + λ·T_load·max(δ, 0))                            δ: instances more (or fewer) of each variant
    such that   Σ U·(N + δ) ≥ slack · L                                 (1) for each demand, by the variants that it accepts
                δ > 0 only for variants that some demand accepts        (2)
                Σ R·(N + δ) ≤ R_total                                   (3) for each resource type
                N + δ ≥ 0                                               (4)

**Readings.** The paper has one load and one objective per application. Here an application has a demand for each kind of query,
and a variant that several demands accept shares its capacity among them. The printed (1) counts every running instance, those
included whose answers are too late or too inaccurate; here only variants that a demand accepts serve it, so that a stricter
objective brings other variants. The printed (1) has an instance's saturation rate Q. Here it has the rate U ≤ Q at which queries
wait no longer than their objective leaves them (`served_in_time`), which is another one for each demand. The slack is a factor,
as the slack-threshold of 4.2.2 and section 5 (1.05). The paper gives no λ: an instance that lives H seconds is paid
C·(H + T_load), which is C·(1 + λ·T_load) for each of them with λ = 1/H; H is a minute here.

**Waiting.** The load that instances of a variant serve in time: their capacity, less what waiting needs of it.

A query whose objective is L, and whose batch takes D, may wait w = L − D for its batch to begin. With c instances that take
single queries, first come first served, query n begins when query n − c has ended, if that is later than its arrival:

    begin(n) = max(arrival(n), begin(n − c) + D)

Poisson arrivals of rate λ are assumed. Each bound on the share of late queries gives a load that is served in time, and the
larger one counts; both approach the capacity c / D with more instances, and with a longer wait.

- Each instance gets every c-th query, and is a queue with Erlang-distributed gaps between arrivals. Kingman's bound of such a
  queue is P(late) ≤ exp(−θ·w) where θ satisfies exp(θ·D) · (λ / (λ + θ))^c = 1. With the tolerated share ε that is

      λ = c / D · x / (exp(x) − 1),   x = ln(1 / ε) · D / (w·c)

- A query waits longer than w exactly if for some k = 1, 2, … its last k·c predecessors arrived within k·D − w before it, so that
  by Boole P(late) ≤ Σ_k P(Poisson(λ·(k·D − w)) ≥ k·c). That is the better bound where few queries may wait: an objective of 1.5
  times a query's time leaves 8 % of one instance instead of 1.5 %, with ε = 0.05. Of a Poisson tail P(N ≥ m) of mean μ < m the
  bound P(N = m) / (1 − μ / (m + 1)) is computed.

**Batches.** An instance that takes up to b queries at once is late for k = 1 already if c batches of one query each began just
before, and each further batch takes b queries: c·(1 + (k − 1)·b) in place of k·c, or c·b instances with w less (1 − 1 / b)·D. A
variant may also make smaller batches than its largest, which take less time: the size that serves most counts.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from gnomon_core.variant_scaling import DEMAND_WINDOW_S, ApplicationObservation, VariantMember
from gnomon_core.variants import Variant

ROUNDING = 1e-9
"""The relative rounding error of loads."""
LEAST_SHARE = 1e-6
"""The least share of its saturation rate that an instance serves, so that no load needs infinitely many instances."""
MANY_INSTANCES = 1000
"""The number of instances from which a further one hardly changes what each serves in time."""


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the policy: the paper's parameters, and what is computed.

    `slack` is the least ratio of capacity to load, `loading_weight` is λ per second. `late_share` is the share of queries that
    may be late because they wait for others; None is constraint 1 as it is printed, where instances may be busy all the time.
    `surplus_s` is the least T_v, the seconds for which instances must have been superfluous before they are unloaded. `literal`
    is the heuristic as it is printed, which knows one variant for each demand, and no waiting. `time_limit_s` bounds the exact
    solution, which counts as proven within `proven_gap`, a share of the cost.
    """

    slack: float = 1.05
    late_share: float | None = 0.05
    surplus_s: float = DEMAND_WINDOW_S
    loading_weight: float = 1.0 / 60.0
    literal: bool = False
    time_limit_s: float = 1.0
    proven_gap: float = 1e-3


class Problem:
    """An observation with each demand's load and accepted members. Members and demands are identified by their indices."""

    def __init__(self, observation: ApplicationObservation, options: Options) -> None:
        self.observation = observation
        self.options = options
        self.members = observation.members
        self.demands = observation.demands
        self.needs_rps = tuple(options.slack * demand.load_rps for demand in self.demands)
        self.accepted = self._accepted()
        self.serves: tuple[list[int], ...] = tuple([] for _ in self.members)
        """The demands that each member serves."""
        for index, members in enumerate(self.accepted):
            for member in members:
                self.serves[member].append(index)
        # A demand that accepts few members is served first: a later one has alternatives.
        self.strictest_first = sorted(range(len(self.demands)), key=lambda index: len(self.accepted[index]))
        self.rates_rps = tuple(self._rates(index) for index in range(len(self.demands)))
        """The rate of one instance of each member that a demand accepts, by demand and member."""
        self.running = [member.running for member in self.members]
        self.capacity = observation.capacity
        # For each member, the needs of one instance of the bounded resource types.
        self.resources = [
            {kind: amount for kind, amount in member.variant.resources.items() if amount > 0.0 and kind in self.capacity}
            if self.capacity
            else {}
            for member in self.members
        ]

    def _accepted(self) -> tuple[list[int], ...]:
        """The members that each demand accepts."""
        by_architecture: dict[str, list[int]] = {"": list(range(len(self.members)))}
        for index, member in enumerate(self.members):
            by_architecture.setdefault(member.variant.architecture, []).append(index)
        return tuple(
            [index for index in by_architecture.get(demand.architecture, ()) if demand.accepts(self.members[index].variant)]
            for demand in self.demands
        )

    def _rates(self, demand: int) -> dict[int, float]:
        """The rate of one instance of each accepted member for this demand, if that member alone served the demand."""
        objective_s, late_share = self.demands[demand].latency_s, self.options.late_share
        rates = {}
        for member in self.accepted[demand]:
            variant = self.members[member].variant
            if objective_s is None or late_share is None or self.options.literal:
                rates[member] = variant.saturation_rps
            else:
                rates[member] = instance_rate_rps(variant, self.needs_rps[demand], objective_s, late_share)
        return rates

    def rate_rps(self, demands: Sequence[int], member: int) -> float:
        """The rate at which an instance of the member serves any of these demands, which all accept it."""
        return min(self.rates_rps[demand][member] for demand in demands)

    def price(self, member: int) -> float:
        """The cost of one more instance: C·(1 + λ·T_load)."""
        variant = self.members[member].variant
        return variant.cost_per_s * (1.0 + self.options.loading_weight * variant.load_s)

    def cost_per_s(self, instances: Sequence[int]) -> float:
        """The cost of these instances."""
        return sum(member.variant.cost_per_s * count for member, count in zip(self.members, instances, strict=True))

    def objective(self, instances: Sequence[int]) -> float:
        """The objective of the change to these instances."""
        cost = 0.0
        for index, (member, count) in enumerate(zip(self.members, instances, strict=True)):
            started = count - member.running
            cost += started * (self.price(index) if started > 0 else member.variant.cost_per_s)
        return cost

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
        return all(free_amount >= -ROUNDING * self.capacity[kind] for kind, free_amount in self.free(instances).items())

    def by_id(self, instances: Sequence[int]) -> dict[str, int]:
        """The instances by their variant's id, without variants that have none."""
        return {member.variant.id: count for member, count in zip(self.members, instances, strict=True) if count}


class _Flow:
    """A maximum flow of load to instances, by augmenting paths from a demand to a variant with spare capacity.

    A path may take capacity of a variant from another demand that can move to a further variant. Most loads need no such path.
    Spare capacity is counted in instances, of which each demand needs a different share for the same load. If every variant
    serves all its demands at one rate, the flow is the maximum.
    """

    def __init__(self, problem: Problem, instances: Sequence[int]) -> None:
        self._problem = problem
        self._spare = {member: float(count) for member, count in enumerate(instances) if count}
        self._served: dict[int, dict[int, float]] = {member: {} for member in self._spare}
        """The instances that each demand uses, by member and demand."""
        self._accepted = [[member for member in accepted if member in self._spare] for accepted in problem.accepted]

    def unmet_rps(self) -> tuple[float, ...]:
        """The rate that each demand lacks."""
        lacking = [0.0] * len(self._accepted)
        for demand in self._problem.strictest_first:
            need = unmet = self._problem.needs_rps[demand]
            rates = self._problem.rates_rps[demand]
            # Members that few demands accept first, so that widely accepted capacity remains for later demands.
            for member in sorted(self._accepted[demand], key=lambda index: len(self._problem.serves[index])):
                served = min(self._spare[member], unmet / rates[member])
                self._move(demand, member, served)
                unmet -= served * rates[member]
            while unmet > ROUNDING * need and (moved := self._augment(demand, unmet)) > ROUNDING * need:
                unmet -= moved
            lacking[demand] = unmet if unmet > ROUNDING * need else 0.0
        return tuple(lacking)

    def _augment(self, demand: int, most: float) -> float:
        """Serve more of the demand along the shortest path; returns the additional rate."""
        came: dict[int, tuple[int, int]] = {}  # member: the demand that goes to it, and the member that it leaves
        queue = [(demand, -1)]
        for reached, leaving in queue:
            for member in self._accepted[reached]:
                if member in came:
                    continue
                came[member] = (reached, leaving)
                if self._spare[member] > 0.0:
                    return self._take(member, came, most)
                visited = {other for other, _ in queue}
                queue += [(other, member) for other, used in self._served[member].items() if used > 0.0 and other not in visited]
        return 0.0

    def _take(self, last: int, came: Mapping[int, tuple[int, int]], most: float) -> float:
        """Move load along the path up to its bottleneck; returns the load that is served by it."""
        rates = self._problem.rates_rps
        path = [(last, *came[last])]  # from the member with capacity to spare back to the demand
        while path[-1][2] >= 0:
            path.append((path[-1][2], *came[path[-1][2]]))
        # The instances that one demand frees at a member are taken there by the demand before it in the path.
        amount = self._spare[last]
        for member, demand, leaving in path:
            if leaving >= 0:
                amount = min(self._served[leaving][demand], amount * rates[demand][member] / rates[demand][leaving])
            else:
                amount = min(amount, most / rates[demand][member])
        served = amount * rates[path[-1][1]][path[-1][0]]
        for member, demand, leaving in reversed(path):
            if leaving >= 0:  # frees what the demand before it took
                self._move(demand, leaving, -amount)
                amount *= rates[demand][leaving] / rates[demand][member]
            self._move(demand, member, amount)
        return served

    def _move(self, demand: int, member: int, amount: float) -> None:
        """Add to the instances of the member that the demand uses."""
        self._served[member][demand] = self._served[member].get(demand, 0.0) + amount
        self._spare[member] -= amount


def instance_rate_rps(variant: Variant, load_rps: float, objective_s: float, late_share: float) -> float:
    """The rate that one instance serves in time, if the fewest instances that serve the load share it."""

    def served_rps(instances: int) -> float:
        return served_in_time(variant.latency_s, variant.max_batch, instances, objective_s, late_share)

    # More instances wait less for each other, so that each serves a higher rate in time: the number is searched upwards.
    count = max(1, math.ceil(load_rps / variant.saturation_rps * (1 - ROUNDING)))
    while count < MANY_INSTANCES and served_rps(count) < load_rps:
        count += 1
    return min(variant.saturation_rps, max(served_rps(count) / count, LEAST_SHARE * variant.saturation_rps))


def fitting(resources: Mapping[str, float], free: Mapping[str, float]) -> float:
    """The number of instances with these needs that fit into the free capacity; infinite if nothing bounds them."""
    return min((free[kind] * (1 + ROUNDING) // amount for kind, amount in resources.items()), default=math.inf)


def take(resources: Mapping[str, float], count: int, free: dict[str, float]) -> None:
    """Subtract the needs of these instances from the free capacity."""
    if count:
        for kind, amount in resources.items():
            free[kind] -= count * amount


def changes(members: Sequence[VariantMember], instances: Mapping[str, int]) -> str:
    """The changes of the running instances, for a plan's reason: `+2 resnet50-onnx, -1 resnet50-torch`."""
    parts = [
        f"{difference:+d} {member.variant.id}"
        for member in members
        if (difference := instances.get(member.variant.id, 0) - member.running)
    ]
    return ", ".join(parts) or "no change"


STEPS = 20
"""Halvings of the interval in which the served load lies."""
TERMS = 60
"""The most terms of the sum."""
SHORT_WAIT = 3.0
"""The sum is computed for waits below so many times a batch; for longer ones Kingman's bound is the better one."""
NEGLIGIBLE = 1e-3
"""A term of this share of the tolerated one ends the sum, beyond the term that is the largest where instances are busy."""


def served_in_time(
    latency_s: Mapping[int, float], max_batch: int, instances: int, objective_s: float, late_share: float
) -> float:
    """The queries per second that so many instances answer within the objective, but for a tolerated share.

    `latency_s` is the time of a batch by its size. It is 0 where not even a batch of one query is in time.
    """
    best = 0.0
    for size, seconds in latency_s.items():
        if size <= max_batch and 0.0 < seconds <= objective_s:
            best = max(best, utilization(size, instances, objective_s / seconds - 1.0, late_share) * instances * size / seconds)
    return best


@lru_cache(maxsize=1 << 16)
def utilization(size: int, instances: int, patience: float, late_share: float) -> float:
    """The share of their capacity that instances may use; `patience` is the tolerated wait as a multiple of a batch's time."""
    slack = patience - 1.0 + 1.0 / size
    low, high = 0.0, 1.0
    if slack > 0.0:
        exponent = -math.log(late_share) / (slack * instances * size)
        if exponent <= 0.0:
            low = 1.0  # the objective is so long that the division has no digits left
        elif exponent < math.log(sys.float_info.max):
            low = exponent / math.expm1(exponent)
    if patience >= SHORT_WAIT or not _is_in_time(size, instances, patience, max(low, 2.0**-STEPS), late_share):
        return low
    for _ in range(STEPS):
        middle = (low + high) / 2.0
        if _is_in_time(size, instances, patience, middle, late_share):
            low = middle
        else:
            high = middle
    return low


def _is_in_time(size: int, instances: int, patience: float, used: float, late_share: float) -> bool:
    """Return whether the bound of the late share is within the tolerated one, at this share of the capacity."""
    arrivals = used * instances * size  # in the time of a batch
    likeliest = used * patience / (1.0 - used) if used < 1.0 else math.inf
    first, late = math.floor(patience) + 1, 0.0
    for number in range(first, first + TERMS):
        term = _tail(arrivals * (number - patience), instances * (1 + (number - 1) * size))
        late += term
        if late > late_share:
            return False
        if number > likeliest and term <= NEGLIGIBLE * late_share:
            return True
    return False


def _tail(mean: float, least: int) -> float:
    """An upper bound of the probability that a Poisson variable of this mean reaches `least`."""
    if mean <= 0.0:
        return 0.0
    if mean >= least:
        return 1.0
    mass = math.exp(least * math.log(mean) - mean - math.lgamma(least + 1))
    return min(1.0, mass / (1.0 - mean / (least + 1)))

"""INFaaS's heuristic (section 4.2.2) for scaling an application, which is faster than the integer program.

**When.** The headroom is the ratio of the running instances' capacity to the load. Below the slack (1.05) instances are loaded at
once. Above it a variant's surplus instances are unloaded, or replaced by a cheaper variant, once that has been possible for
T_v, so that the variant is not needed again at once: its load time, but no less than the window over which a demand is measured.
Two windows side by side share no arrival; after a shorter time the noise of one load would end and start instances in turn. No
instance is unloaded before the ready ones suffice without it.

**How, as printed** (`literal`). For each demand, of the changes that end with one kind of variant more or fewer:

    replicate     instances of a running variant, for what is missing
    upgrade       a variant of the same architecture with a higher rate, for the whole load, in place of what runs
    downgrade     a cheaper variant for the whole load, or one instance of a running variant fewer

the one of least objective is chosen. The printed heuristic thus never mixes variants: for 1,000 requests per second in the
paper's Table 2 it takes ten instances of B (30 $/s), although two of B and one of C suffice (22 $/s, Table 3).

**How, by default.** Each demand is covered by a mix: as many instances of a variant as the load fills, then instances of a
variant of higher price per request for the remaining load, and so on, up to four variants. Running instances cost C, others C·(1
+ λ·T_load), so that replicating, upgrading and downgrading are the same search. The search visits variants by price per request
and prunes branches whose remaining load cannot be cheap enough (branch and bound). If resources are scarce, the order is repeated
with a charge for the scarcest resource. Demands are covered one after another, those with the fewest variants first, using the
spare capacity of the instances chosen before; then two demands are covered together by variants that satisfy both, as long as
that is cheaper.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from gnomon_autoscaler.policies.infaas.problem import ROUNDING, Options, Problem, changes, fitting, take
from gnomon_core.variant_scaling import ApplicationObservation, ScalingPlan
from gnomon_core.variants import Variant

MIX = 4
"""The most variants in the mix for a demand."""
SEARCHED = 4000
"""The most mixes that are considered for a demand."""
STEPS = 5000
"""The most steps of the exact search for one demand."""
MERGES = 200
"""The most joint covers of demands that are considered."""
CHARGES = (0.0, 0.3, 1.0, 3.0, 10.0, 100.0)
"""Prices for all of the scarcest resource, as multiples of what the whole load costs at least, that are tried in turn."""


@dataclass(frozen=True, slots=True)
class Surplus:
    """The surplus of a variant: since when it has had more instances than needed, and the least surplus since then."""

    since_s: float
    instances: int


@dataclass(frozen=True, slots=True)
class GreedyState:
    """The state of the heuristic between decisions: the surplus of variants, by id."""

    surplus: Mapping[str, Surplus] = field(default_factory=dict)


def decide(
    observation: ApplicationObservation, state: GreedyState, options: Options | None = None
) -> tuple[ScalingPlan, GreedyState]:
    """Decide the number of instances of each variant."""
    problem = Problem(observation, options or Options())
    return toward(problem, printed(problem) if problem.options.literal else cover(problem), state)


def toward(
    problem: Problem, target: Sequence[int], state: GreedyState, name: str = "greedy", gap: float | None = None
) -> tuple[ScalingPlan, GreedyState]:
    """The present plan towards these instances, which unloads running instances only after a delay.

    `name` is the policy that chose the target, for the plan's reason; `gap` is the bound of its distance from the optimum.
    """
    observation = problem.observation
    surplus = _surplus(problem, target, state)
    due = {
        index: waiting.instances
        for index, member in enumerate(problem.members)
        if (waiting := surplus.get(member.variant.id))
        and observation.now_s - waiting.since_s >= max(member.variant.load_s, problem.options.surplus_s)
    }
    # A shortage is acted on at once; savings wait for T_v, in which the load may return.
    short = sum(problem.unmet_rps(problem.running)) > 0.0
    instances, why = list(problem.running), "the headroom suffices"
    if short:
        instances, why = _grown(problem, target), "the headroom is below the slack"
    elif due:
        larger = [max(have, want) for have, want in zip(problem.running, target, strict=True)]
        instances, why = larger if problem.fits(larger) else instances, "fewer or cheaper instances suffice"
    _unload(problem, instances, due)
    by_id = problem.by_id(instances)
    plan = ScalingPlan(
        by_id,
        problem.cost_per_s(instances),
        problem.objective(instances),
        f"{name}: {changes(problem.members, by_id)}; {why}",
        sum(problem.unmet_rps(instances)),
        gap,
    )
    return plan, GreedyState(surplus)


def cover(problem: Problem) -> list[int]:
    """The instances that serve all demands at a low objective, by mixes; as much as possible where resources do not suffice."""
    groups: Groups = [(demand,) for demand in problem.strictest_first]
    # Demands are covered one by one first; joint covers are kept only if they are cheaper.
    best = min(_covers(problem, groups, CHARGES))
    merges_left = MERGES
    while merged := list(itertools.islice(_merged(problem, groups), merges_left)):
        merges_left -= len(merged)
        charges = sorted({CHARGES[0], 1.0, best.charge})
        merged_cover, best_groups = min(
            (min(_covers(problem, merged_groups, charges)), merged_groups) for merged_groups in merged
        )
        if merged_cover.score >= best.score:
            break
        best, groups = merged_cover, best_groups
    return best.instances


def cheapest_mix(problem: Problem, demand: int, accepted: Sequence[int]) -> Instances | None:
    """The cheapest instances of these members for one demand, without bounds on resources; None after too many steps."""
    offers = _Cover(problem, [], 0.0).offers((demand,), accepted)
    search = _Search(offers, problem.resources, {})
    need = problem.needs_rps[demand]
    best = _mixed(search.cheapest(need))
    if not offers:
        return best
    least = search.price * (1 - ROUNDING)
    # Depth first: how much of the load is left for the offers from `place` on, what was spent, and the instances so far.
    stack: list[tuple[int, float, float, tuple[tuple[int, int], ...]]] = [(0, need, 0.0, ())]
    for _ in range(STEPS):
        if not stack:
            return best
        next_offer, need_left, spent, mix = stack.pop()
        # Offers ascend by unit price: the remaining load costs at least this much in any order (lower bound).
        if spent + need_left * offers[next_offer].unit >= least:
            continue
        offer = offers[next_offer]
        closing = math.ceil(need_left / offer.rate * (1 - ROUNDING))
        if closing <= offer.limit and spent + closing * offer.price < least:
            least = (spent + closing * offer.price) * (1 - ROUNDING)
            best = _mixed([*((offers[index], count) for index, count in mix), (offer, closing)])
        if next_offer + 1 < len(offers):
            stack += [
                (next_offer + 1, need_left - count * offer.rate, spent + count * offer.price, (*mix, (next_offer, count)))
                for count in range(int(min(offer.limit, closing - 1)) + 1)
            ]
    return None


def mixes(
    problem: Problem, demand: int, accepted: Sequence[int], prices: Mapping[str, float], distance: float
) -> tuple[float, list[tuple[float, Instances]]]:
    """A bound of the least cost of a demand at these prices of resources, and the mixes within a distance of it, by cost.

    The bound is the cost of the first mix, unless the search ends after too many steps: then some mixes may be missing, and the
    bound is the least that any of those can cost.
    """
    offers = _Cover(problem, [], 0.0).offers((demand,), accepted, prices)
    need = problem.needs_rps[demand]
    alone = (math.ceil(need / offer.rate * (1 - ROUNDING)) * offer.price for offer in offers if offer.limit == math.inf)
    best = min(alone, default=math.inf) * (1 + ROUNDING)
    complete: list[tuple[float, tuple[tuple[int, int], ...]]] = []
    stack: list[tuple[int, float, float, tuple[tuple[int, int], ...]]] = [(0, need, 0.0, ())]
    for _ in range(STEPS):
        if not stack:
            break
        offer_index, need_left, spent, mix = stack.pop()
        offer = offers[offer_index]
        if spent + need_left * offer.unit > best + distance:
            continue
        closing = math.ceil(need_left / offer.rate * (1 - ROUNDING))
        total = spent + closing * offer.price
        if closing <= offer.limit and total <= best + distance:
            complete.append((total, (*mix, (offer_index, closing))))
            best = min(best, total)
        if offer_index + 1 < len(offers):
            stack += [
                (offer_index + 1, need_left - count * offer.rate, spent + count * offer.price, (*mix, (offer_index, count)))
                for count in range(int(min(offer.limit, closing - 1)) + 1)
            ]
    near = sorted(priced_mix for priced_mix in complete if priced_mix[0] <= best + distance)
    bound = min((spent + need_left * offers[offer_index].unit for offer_index, need_left, spent, _ in stack), default=best)
    found = [(total, _mixed([(offers[offer_index], count) for offer_index, count in mix])) for total, mix in near]
    return min(best, bound), found


def _mixed(mix: Mix) -> Instances:
    """The instances of each member of a mix, whose offers may be of one member twice."""
    instances: dict[int, int] = {}
    for offer, count in mix:
        if count:
            instances[offer.member] = instances.get(offer.member, 0) + count
    return instances


def _covers(problem: Problem, groups: Groups, charges: Sequence[float]) -> Iterator[_Found]:
    """A cover for each charge, until one is not limited by resources."""
    for charge in charges:
        search = _Cover(problem, groups, charge)
        instances = search.instances()
        yield _Found((sum(problem.unmet_rps(instances)), problem.objective(instances)), charge, instances)
        if not search.limited:
            break


def _merged(problem: Problem, groups: Groups) -> Iterator[Groups]:
    """The groups with two of them made one, for each two that a common variant can serve."""
    accepted = [problem.accepted_by_all(group) for group in groups]
    for first, second in itertools.combinations(range(len(groups)), 2):
        if not accepted[first].isdisjoint(accepted[second]):
            unmerged = [group for index, group in enumerate(groups) if index not in (first, second)]
            yield [tuple(sorted((*groups[first], *groups[second]))), *unmerged]


def printed(problem: Problem) -> list[int]:
    """The instances that the printed heuristic aims at."""
    instances = list(problem.running)
    for demand in problem.strictest_first:
        changed = [change for change in _printed_changes(problem, demand, instances) if problem.fits(change)]
        if changed:
            instances = min(changed, key=problem.objective)
    return instances


def _printed_changes(problem: Problem, demand: int, instances: list[int]) -> Iterator[list[int]]:
    """The states that the printed heuristic compares for one demand; instances that serve other demands as well stay."""
    variants = [member.variant for member in problem.members]
    running = [member for member in problem.accepted[demand] if instances[member]]
    alone = [member for member in running if problem.serves[member] == [demand]]
    candidates = problem.accepted[demand]
    if running and (missing := problem.unmet_rps(instances)[demand]) > 0.0:
        for member in running:
            yield _with(instances, {member: instances[member] + _whole(missing, problem.rates_rps[demand][member])})
        candidates = [
            candidate for candidate in candidates if any(_upgrades(variants[candidate], variants[present]) for present in running)
        ]
    elif running:
        yield instances
        for member in running:
            fewer = _with(instances, {member: instances[member] - 1})
            if sum(problem.unmet_rps(fewer)) <= sum(problem.unmet_rps(instances)):
                yield fewer
        candidates = [
            candidate
            for candidate in candidates
            if any(_downgrades(variants[candidate], variants[present]) for present in running)
        ]
    # Only instances that no other demand uses can be replaced.
    without = _with(instances, dict.fromkeys(alone, 0))
    load = problem.unmet_rps(without)[demand]
    for member in candidates:  # the whole load by one kind of variant
        yield _with(without, {member: without[member] + _whole(load, problem.rates_rps[demand][member])})


def _whole(load_rps: float, rate_rps: float) -> int:
    """The number of whole instances of this rate that serve the load."""
    return math.ceil(load_rps / rate_rps * (1 - ROUNDING))


def _upgrades(variant: Variant, running: Variant) -> bool:
    return variant.architecture == running.architecture and variant.saturation_rps > running.saturation_rps


def _downgrades(variant: Variant, running: Variant) -> bool:
    return variant.architecture == running.architecture and variant.cost_per_s < running.cost_per_s


def _with(instances: Sequence[int], changed: Mapping[int, int]) -> list[int]:
    return [changed.get(member, count) for member, count in enumerate(instances)]


def _grown(problem: Problem, target: Sequence[int]) -> list[int]:
    """The target and the running instances together if both fit; else further instances, or the target if it serves more."""
    larger = [max(have, want) for have, want in zip(problem.running, target, strict=True)]
    if problem.fits(larger):
        return larger
    groups: Groups = [(demand,) for demand in problem.strictest_first]
    grown = _Cover(problem, groups, 0.0, keep_running=True).instances()
    return list(target) if sum(problem.unmet_rps(target)) < sum(problem.unmet_rps(grown)) else grown


def _surplus(problem: Problem, target: Sequence[int], state: GreedyState) -> dict[str, Surplus]:
    """The surplus of each variant that has one now."""
    now_s = problem.observation.now_s
    surplus: dict[str, Surplus] = {}
    for member, target_count in zip(problem.members, target, strict=True):
        if member.running > target_count:
            name, count = member.variant.id, member.running - target_count
            before = state.surplus.get(name)
            surplus[name] = Surplus(before.since_s, min(before.instances, count)) if before else Surplus(now_s, count)
    return surplus


def _unload(problem: Problem, instances: list[int], due: Mapping[int, int]) -> None:
    """Unload surplus instances, the most expensive first, while the ready instances suffice without them."""
    ready = [min(member.ready, count) for member, count in zip(problem.members, instances, strict=True)]
    for member in sorted(due, key=lambda index: -problem.members[index].variant.cost_per_s):
        for _ in range(min(due[member], instances[member])):
            without = _with(ready, {member: min(ready[member], instances[member] - 1)})
            if sum(problem.unmet_rps(without)) > 0.0:
                break
            instances[member] -= 1
            ready = without


Instances = dict[int, int]
"""Numbers of instances by member."""
Groups = list[tuple[int, ...]]
"""Demands that are covered together, in the order in which they are covered."""


class _Found(NamedTuple):
    """A cover: what is missing of the load and the objective, the charge that led to it, and its instances."""

    score: tuple[float, float]
    charge: float
    instances: list[int]


class _Offer(NamedTuple):
    """Instances of a member that may be in a mix: at most `limit`, at this price each, for this rate each."""

    unit: float
    price: float
    rate: float
    limit: float
    member: int


class _Cover:
    """Covers the groups of demands one after the other.

    `charge` is the price of all of a resource, as a multiple of what the whole load costs at least. With `keep_running` no
    running instance is given up.
    """

    def __init__(self, problem: Problem, groups: Groups, charge: float, *, keep_running: bool = False) -> None:
        self.limited = False
        """True if resources kept a variant from being used as often as wanted."""
        self._problem = problem
        self._groups = groups
        self._chosen = list(problem.running) if keep_running else [0] * len(problem.members)
        self._spare = [float(count) for count in self._chosen]
        """The instances of each member, whole or in part, that no demand uses yet."""
        self._free = problem.free(self._chosen)
        self._charge = charge * self._least_cost() if charge else 0.0

    def instances(self) -> list[int]:
        """The instances of each member."""
        for group in self._groups:
            self._serve(group)
        return self._chosen

    def _least_cost(self) -> float:
        """The cost of the load at the lowest price per request."""
        return sum(
            need * min(self._problem.price(member) / rate for member, rate in rates.items())
            for need, rates in zip(self._problem.needs_rps, self._problem.rates_rps, strict=True)
            if rates
        )

    def _serve(self, group: tuple[int, ...]) -> None:
        problem = self._problem
        accepted = sorted(problem.accepted_by_all(group))
        load = need = sum(problem.needs_rps[demand] for demand in group)
        for member in accepted:
            rate = problem.rate_rps(group, member)
            served = min(self._spare[member], need / rate)
            self._spare[member] -= served
            need -= served * rate
        if need <= ROUNDING * load:
            return
        search = _Search(self.offers(group, accepted), problem.resources, self._free)
        for offer, count in search.cheapest(need):
            self._chosen[offer.member] += count
            take(problem.resources[offer.member], count, self._free)
            served = min(count * offer.rate, need)
            self._spare[offer.member] += count - served / offer.rate
            need -= served
        self.limited = self.limited or search.limited

    def offers(self, group: Sequence[int], accepted: Sequence[int], prices: Mapping[str, float] | None = None) -> list[_Offer]:
        """Running instances that are not in a mix yet, and further ones, for a group; the lowest price per request first."""
        problem, offers = self._problem, []
        for member in accepted:
            variant = problem.members[member].variant
            shares = (amount / (problem.capacity[kind] or 1.0) for kind, amount in problem.resources[member].items())
            charge = self._charge * max(shares, default=0.0) if self._charge else 0.0
            if prices:
                charge = sum(prices[kind] * amount for kind, amount in problem.resources[member].items())
            kept = problem.running[member] - self._chosen[member]
            for price, limit in ((variant.cost_per_s, float(kept)), (problem.price(member), math.inf)):
                if limit > 0:
                    rate = problem.rate_rps(group, member)
                    offers.append(_Offer((price + charge) / rate, price + charge, rate, limit, member))
        return sorted(offers)


Mix = list[tuple[_Offer, int]]


class _Search:
    """The cheapest mix of offers, sorted by price per request, that serves a load within the resources that are left."""

    def __init__(self, offers: Sequence[_Offer], resources: Sequence[Mapping[str, float]], free: Mapping[str, float]) -> None:
        self.limited = False
        self._offers = offers
        self._resources = resources
        self._free = free
        self._tried = 0
        self._best: Mix | None = None
        self.price = math.inf
        """The price of the cheapest mix so far."""

    def cheapest(self, need: float) -> Mix:
        """The mix; where none serves all of the load, the one that fills up in the order of the offers."""
        self._extend([], 0, need, 0.0, self._free)
        return self._filled(need) if self._best is None else self._best

    def _extend(self, mix: Mix, first: int, need: float, spent: float, remaining: Mapping[str, float]) -> None:
        """Try every offer from `first` on as the next of the mix."""
        for index in range(first, len(self._offers)):
            offer = self._offers[index]
            if spent + need * offer.unit >= self.price or self._tried >= SEARCHED:
                return  # the following ones cost more per request
            self._tried += 1
            resources = self._resources[offer.member]
            fit = min(offer.limit, fitting(resources, remaining))
            closing = math.ceil(need / offer.rate * (1 - ROUNDING))
            self.limited = self.limited or fit < min(closing, offer.limit)
            if closing <= fit and spent + closing * offer.price < self.price:
                self._best, self.price = [*mix, (offer, closing)], spent + closing * offer.price
            if len(mix) + 1 == MIX:
                continue
            full = int(min(fit, closing - 1))
            for count in range(full, max(0, full - 2), -1):
                rest_of_resources = dict(remaining)
                take(resources, count, rest_of_resources)
                self._extend(
                    [*mix, (offer, count)], index + 1, need - count * offer.rate, spent + count * offer.price, rest_of_resources
                )

    def _filled(self, need: float) -> Mix:
        remaining, mix = dict(self._free), []
        for offer in self._offers:
            instances_needed = math.ceil(need / offer.rate * (1 - ROUNDING))
            count = int(min(instances_needed, offer.limit, fitting(self._resources[offer.member], remaining)))
            if count > 0:
                take(self._resources[offer.member], count, remaining)
                mix.append((offer, count))
                need -= count * offer.rate
            if need <= 0:
                break
        return mix

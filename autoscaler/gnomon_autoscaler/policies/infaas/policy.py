"""The policy that scales applications: INFaaS's, with accuracy floors and a response to overload around it.

    observation ─▶ integer program, or the heuristic ─▶ accuracy floors ─▶ overload ─▶ plan

The integer program solves where scipy is installed, else the heuristic alone. scipy comes with the extra `infaas` and is imported
with the first decision, which a controller makes in a thread: HiGHS lets other threads run while it solves.

**Accuracy floors.** Plans for queries with an accuracy floor where resources do not suffice for the wished accuracies.

    plan for what is wished ─ shortfall ─▶ plans in which a share of each demand with a floor accepts it: the least share that
                                           leaves as little shortfall as all of them at their floors

A load that changes each second would replace instances each second, and none answers while it loads. Therefore a higher share is
taken at once, and a lower one after it has sufficed for `FLOOR_HOLD_S`. Without a shortfall, or without floors, the plan is the
policy's own. INFaaS has no floors: this goes beyond the paper.

**Overload.** Instances for an Overloaded variant: as many as the load of its last period needs, and not of the last ten seconds.

    policy's plan ─▶ a variant is Overloaded, and the plan has fewer instances than its last period's load needs
                     ─▶ as many as that needs, within the resources that the plan leaves, for `OVERLOAD_HOLD_S`

A demand is measured over ten seconds, so that a plan follows a burst by steps, one a second. The state of a variant tells of the
burst within a period. After `OVERLOAD_HOLD_S` the burst is in the demand itself, and the plan is the policy's own again. While
the new instances load, the ready ones have Shadows (`policies.gnomon.bridging`). INFaaS sends queries elsewhere while a variant
is Overloaded, and scales by the load alone: this goes beyond the paper.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Generic, TypeVar

from gnomon_autoscaler.policies.infaas import greedy
from gnomon_autoscaler.policies.infaas.problem import ROUNDING, Options, Problem, fitting, take
from gnomon_core.variant_scaling import DEMAND_WINDOW_S, ApplicationObservation, Demand, ScalingPlan
from gnomon_core.variants import VariantState

TIME_LIMIT_S = 0.3
"""The time limit of the integer program, in a decision that is made each second."""
_OPTIONS = Options(time_limit_s=TIME_LIMIT_S)
HALVINGS = 2
"""Halvings of the interval in which the least share is: it is found within a quarter. Each is one more call of the policy."""
FLOOR_HOLD_S = 30.0
"""Seconds for which a lower share must have sufficed before it is planned. Loading a variant takes up to a third of that."""
NEGLIGIBLE = 1e-6
"""A difference of shortfalls, as a share of the load, that is a rounding error."""
OVERLOAD_HOLD_S = DEMAND_WINDOW_S
"""Seconds for which the instances are kept."""

StateT = TypeVar("StateT")
Planner = Callable[[ApplicationObservation, StateT], tuple[ScalingPlan, StateT]]


@dataclass(frozen=True, slots=True)
class FloorState(Generic[StateT]):
    """The policy's state, the share that is planned at the floors, and since when a lower one suffices."""

    policy: StateT
    share: float = 0.0
    since_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Held:
    """The least number of instances of a variant, until `until_s`."""

    instances: int
    until_s: float


@dataclass(frozen=True, slots=True)
class OverloadState(Generic[StateT]):
    """The policy's state, and the variants that were Overloaded lately, by id."""

    policy: StateT
    held: Mapping[str, Held] = field(default_factory=dict)


State = OverloadState[FloorState[greedy.GreedyState]]
Decide = Callable[[ApplicationObservation, State], tuple[ScalingPlan, State]]
INITIAL: State = OverloadState(FloorState(greedy.GreedyState()))
"""The state of the policy before its first decision."""


def installed_policy(package: str = "scipy") -> Decide:
    """The policy; `package` is what the integer program needs."""
    planned = partial(decide_with_floors, greedy.decide if importlib.util.find_spec(package) is None else _exact)
    return partial(decide_in_overload, planned)


def _exact(observation: ApplicationObservation, state: greedy.GreedyState) -> tuple[ScalingPlan, greedy.GreedyState]:
    from gnomon_autoscaler.policies.infaas import exact  # noqa: PLC0415 - imports scipy

    return exact.decide(observation, state, _OPTIONS)


def decide_with_floors(
    decide: Planner[StateT], observation: ApplicationObservation, state: FloorState[StateT]
) -> tuple[ScalingPlan, FloorState[StateT]]:
    """The policy's decision, with as much of the load at its accuracy floors as the resources need."""
    now_s = observation.now_s
    share, plan, after = _least_share(decide, observation, state.policy)
    since_s = now_s if share >= state.share else state.since_s
    if share < state.share:
        if now_s - since_s < FLOOR_HOLD_S:
            share = state.share
            plan, after = decide(_at_floor(observation, share), state.policy)
        else:
            since_s = now_s
    if share:
        plan = replace(plan, reason=f"{plan.reason}; {share:.0%} of the queries with an accuracy floor are planned at it")
    return plan, FloorState(after, share, since_s)


def _least_share(
    decide: Planner[StateT], observation: ApplicationObservation, state: StateT
) -> tuple[float, ScalingPlan, StateT]:
    """The least share at the floors that leaves the least shortfall, with its plan and the state after it."""
    wished = decide(observation, state)
    if wished[0].shortfall_rps <= 0.0 or all(demand.accuracy_floor is None for demand in observation.demands):
        return 0.0, *wished
    rounding_rps = NEGLIGIBLE * sum(demand.load_rps for demand in observation.demands)
    least, most, best = 0.0, 1.0, decide(_at_floor(observation, 1.0), state)
    shortfall_rps = best[0].shortfall_rps + rounding_rps
    if shortfall_rps >= wished[0].shortfall_rps:
        return 0.0, *wished
    for _ in range(HALVINGS):
        share = (least + most) / 2.0
        tried = decide(_at_floor(observation, share), state)
        if tried[0].shortfall_rps <= shortfall_rps:
            most, best = share, tried
        else:
            least = share
    return most, *best


def _at_floor(observation: ApplicationObservation, share: float) -> ApplicationObservation:
    """The observation with this share of each demand that has a floor at it."""
    return replace(observation, demands=tuple(_split(observation.demands, share)))


def _split(demands: tuple[Demand, ...], share: float) -> Iterator[Demand]:
    for demand in demands:
        if demand.accuracy_floor is None:
            yield demand
            continue
        if share < 1.0:
            yield replace(demand, load_rps=(1.0 - share) * demand.load_rps, accuracy_floor=None)
        yield replace(demand.at_floor, load_rps=share * demand.load_rps)


def decide_in_overload(
    decide: Planner[StateT], observation: ApplicationObservation, state: OverloadState[StateT]
) -> tuple[ScalingPlan, OverloadState[StateT]]:
    """The policy's decision, with the instances that Overloaded variants need now."""
    plan, after = decide(observation, state.policy)
    held = {name: kept for name, kept in state.held.items() if observation.now_s < kept.until_s}
    problem = Problem(observation, Options())
    for member in observation.members:
        if member.state is VariantState.OVERLOADED and member.running:
            needed = math.ceil(problem.options.slack * member.last_rps / member.variant.saturation_rps * (1 - ROUNDING))
            before = held.get(member.variant.id, Held(0, 0.0))
            held[member.variant.id] = Held(max(needed, before.instances), observation.now_s + OVERLOAD_HOLD_S)
    return _with_held(problem, plan, held), OverloadState(after, held)


def _with_held(problem: Problem, plan: ScalingPlan, held: Mapping[str, Held]) -> ScalingPlan:
    """The plan with at least the held instances, as far as its resources allow."""
    instances, added = dict(plan.instances), list[str]()
    # Instances that the plan ends have their resources until they have ended.
    free = problem.free([max(member.running, instances.get(member.variant.id, 0)) for member in problem.members])
    objective, cost_per_s = plan.objective, plan.cost_per_s
    for place, member in enumerate(problem.members):
        name, planned = member.variant.id, instances.get(member.variant.id, 0)
        if name not in held or held[name].instances <= planned:
            continue
        kept = min(held[name].instances, max(planned, member.running))
        more = int(min(held[name].instances - kept, max(0.0, fitting(problem.resources[place], free))))
        take(problem.resources[place], more, free)
        if kept + more > planned:
            instances[name] = kept + more
            cost_per_s += (kept + more - planned) * member.variant.cost_per_s
            objective += (kept - planned) * member.variant.cost_per_s + more * problem.price(place)
            added.append(f"{kept + more - planned:+d} {name}")
    if not added:
        return plan
    reason = f"{plan.reason}; {', '.join(added)}, which is or was Overloaded"
    return replace(plan, instances=instances, cost_per_s=cost_per_s, objective=objective, reason=reason)

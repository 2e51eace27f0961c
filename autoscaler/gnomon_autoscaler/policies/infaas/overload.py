"""Instances for an Overloaded variant: as many as the load of its last period needs, and not of the last ten seconds.

    policy's plan ─▶ a variant is Overloaded, and the plan has fewer instances than its last period's load needs
                     ─▶ as many as that needs, within the resources that the plan leaves, for `HOLD_S`

A demand is measured over ten seconds, so that a plan follows a burst by steps, one a second. The state of a variant tells of the
burst within a period. After `HOLD_S` the burst is in the demand itself, and the plan is the policy's own again. While the new
instances load, the ready ones have Shadows (`policies.gnomon.bridging`). INFaaS sends queries elsewhere while a variant is
Overloaded, and scales by the load alone: this goes beyond the paper.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from gnomon_autoscaler.policies.infaas.problem import ROUNDING, Options, Problem, fitting, take
from gnomon_core.variant_scaling import ApplicationObservation, ScalingPlan
from gnomon_core.variants import VariantState

HOLD_S = 10.0
"""Seconds for which the instances are kept: the window of demands."""

StateT = TypeVar("StateT")
Decide = Callable[[ApplicationObservation, StateT], tuple[ScalingPlan, StateT]]


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


def decide_in_overload(
    decide: Decide[StateT], observation: ApplicationObservation, state: OverloadState[StateT]
) -> tuple[ScalingPlan, OverloadState[StateT]]:
    """The policy's decision, with the instances that Overloaded variants need now."""
    plan, after = decide(observation, state.policy)
    held = {name: kept for name, kept in state.held.items() if observation.now_s < kept.until_s}
    problem = Problem(observation, Options())
    for member in observation.members:
        if member.state is VariantState.OVERLOADED and member.running:
            needed = math.ceil(problem.options.slack * member.last_rps / member.variant.saturation_rps * (1 - ROUNDING))
            before = held.get(member.variant.id, Held(0, 0.0))
            held[member.variant.id] = Held(max(needed, before.instances), observation.now_s + HOLD_S)
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

"""Plans for queries with an accuracy floor where resources do not suffice for the wished accuracies.

    plan for what is wished ─ shortfall ─▶ plans in which a share of each demand with a floor accepts it: the least share that
                                           leaves as little shortfall as all of them at their floors

A load that changes each second would replace instances each second, and none answers while it loads. Therefore a higher share
is taken at once, and a lower one after it has sufficed for `HOLD_S`. Without a shortfall, or without floors, the plan is the
policy's own. INFaaS has no floors: this goes beyond the paper.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from gnomon_core.variant_scaling import ApplicationObservation, Demand, ScalingPlan

HALVINGS = 2
"""Halvings of the interval in which the least share is: it is found within a quarter. Each is one more call of the policy."""
HOLD_S = 30.0
"""Seconds for which a lower share must have sufficed before it is planned. Loading a variant takes up to a third of that."""
NEGLIGIBLE = 1e-6
"""A difference of shortfalls, as a share of the load, that is a rounding error."""

StateT = TypeVar("StateT")
Decide = Callable[[ApplicationObservation, StateT], tuple[ScalingPlan, StateT]]


@dataclass(frozen=True, slots=True)
class FloorState(Generic[StateT]):
    """The policy's state, the share that is planned at the floors, and since when a lower one suffices."""

    policy: StateT
    share: float = 0.0
    since_s: float = 0.0


def decide_with_floors(
    decide: Decide[StateT], observation: ApplicationObservation, state: FloorState[StateT]
) -> tuple[ScalingPlan, FloorState[StateT]]:
    """The policy's decision, with as much of the load at its accuracy floors as the resources need."""
    now_s = observation.now_s
    share, plan, after = _least_share(decide, observation, state.policy)
    since_s = now_s if share >= state.share else state.since_s
    if share < state.share:
        if now_s - since_s < HOLD_S:
            share = state.share
            plan, after = decide(_at_floor(observation, share), state.policy)
        else:
            since_s = now_s
    if share:
        plan = replace(plan, reason=f"{plan.reason}; {share:.0%} of the queries with an accuracy floor are planned at it")
    return plan, FloorState(after, share, since_s)


def _least_share(decide: Decide[StateT], observation: ApplicationObservation, state: StateT) -> tuple[float, ScalingPlan, StateT]:
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

"""An Overloaded variant gets the instances that its load of now needs, at once, and keeps them while the burst may last."""

from __future__ import annotations

from gnomon_autoscaler.policies.infaas import greedy
from gnomon_autoscaler.policies.infaas.policy import OVERLOAD_HOLD_S, OverloadState, decide_in_overload
from gnomon_core.variant_scaling import ApplicationObservation, Demand, ScalingPlan, VariantMember
from gnomon_core.variants import CORES, Variant, VariantState

SMALL = Variant("small", "a", "", "fp32", 1, 1, 0.9, 1.0, {1: 0.05}, 2**30, 20.0, 1.0)
LARGE = Variant("large", "a", "", "fp32", 2, 1, 0.9, 1.0, {1: 0.03}, 2**30, 35.0, 2.0)

State = OverloadState[greedy.GreedyState]


def seen(
    last_rps: float, state: VariantState = VariantState.OVERLOADED, *, now_s: float = 0.0, running: int = 1, cores: float = 8.0
) -> ApplicationObservation:
    """An application whose demand of ten seconds is still low."""
    members = (VariantMember(SMALL, running, running, last_rps, state, last_rps=last_rps), VariantMember(LARGE))
    return ApplicationObservation(now_s, "faces", members, (Demand(10.0),), {CORES: cores})


def decide(observation: ApplicationObservation, state: State | None = None) -> tuple[ScalingPlan, State]:
    return decide_in_overload(greedy.decide, observation, state or OverloadState(greedy.GreedyState()))


def test_overloaded_variant_gets_what_its_last_period_needs() -> None:
    plan, _ = decide(seen(50.0))
    assert plan.instances == {"small": 3}, "1.05 times 50 are served by three of 20"
    assert plan.cost_per_s == 3.0
    assert plan.reason.endswith("; +2 small, which is or was Overloaded")


def test_plan_is_the_policys_own_while_nothing_is_overloaded() -> None:
    observation = seen(50.0, VariantState.ACTIVE)
    assert decide(observation)[0] == greedy.decide(observation, greedy.GreedyState())[0]


def test_resources_that_the_plan_leaves_bound_them() -> None:
    plan, _ = decide(seen(150.0, cores=3.0))
    assert plan.instances == {"small": 3}
    plan, _ = decide(seen(150.0, cores=1.0))
    assert plan.instances == {"small": 1}


def test_they_stay_for_the_window_of_a_demand_and_no_longer() -> None:
    _, state = decide(seen(50.0))
    plan, state = decide(seen(10.0, VariantState.ACTIVE, now_s=OVERLOAD_HOLD_S - 1.0, running=3), state)
    assert plan.instances == {"small": 3}
    for second in range(4):
        plan, state = decide(seen(10.0, VariantState.ACTIVE, now_s=OVERLOAD_HOLD_S + second, running=3), state)
    assert plan.instances == {"small": 1}


def test_higher_burst_in_the_meantime_counts_and_a_lower_one_ends_nothing() -> None:
    _, state = decide(seen(50.0))
    plan, state = decide(seen(90.0, now_s=2.0, running=3), state)
    assert plan.instances == {"small": 5}
    plan, state = decide(seen(70.0, now_s=4.0, running=5), state)
    assert plan.instances == {"small": 5}

"""Queries that accept less accuracy than they wish get instances for it where resources do not suffice, and only there."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from gnomon_autoscaler.policies.infaas import greedy
from gnomon_autoscaler.policies.infaas.policy import FLOOR_HOLD_S, FloorState, decide_with_floors
from gnomon_core.variant_scaling import ApplicationObservation, Demand, ScalingPlan, VariantMember
from gnomon_core.variants import CORES, Variant

EXACT = Variant("exact", "exact", "", "fp32", 1, 1, 0.9, 1.0, {1: 0.05}, 2**30, 20.0, 1.0)
QUICK = Variant("quick", "quick", "", "fp32", 1, 1, 0.6, 1.0, {1: 0.01}, 2**30, 100.0, 1.0)
FOUR_CORES = {CORES: 4.0}


def seen(
    *demands: Demand, now_s: float = 0.0, running: Mapping[str, int] | None = None, capacity: Mapping[str, float] = FOUR_CORES
) -> ApplicationObservation:
    counts = running or {}
    members = tuple(VariantMember(variant, counts.get(variant.id, 0), counts.get(variant.id, 0)) for variant in (EXACT, QUICK))
    return ApplicationObservation(now_s, "faces", members, demands, capacity)


def wished(load_rps: float, floor: float | None = 0.5) -> Demand:
    return Demand(load_rps, accuracy=0.8, accuracy_floor=floor)


def decide(
    observation: ApplicationObservation, state: FloorState[greedy.GreedyState] | None = None
) -> tuple[ScalingPlan, FloorState[greedy.GreedyState]]:
    return decide_with_floors(greedy.decide, observation, state or FloorState(greedy.GreedyState()))


@pytest.mark.parametrize(
    "observation", [seen(wished(70.0)), seen(wished(500.0, floor=None)), seen(wished(500.0, floor=0.85)), seen()]
)
def test_plan_is_the_policys_own_where_resources_suffice_or_no_floor_helps(observation: ApplicationObservation) -> None:
    assert decide(observation)[0] == greedy.decide(observation, greedy.GreedyState())[0]


def test_load_that_does_not_fit_is_planned_at_its_floor_as_far_as_it_must() -> None:
    plan, state = decide(seen(wished(120.0)))
    assert (plan.instances, plan.shortfall_rps, state.share) == ({"exact": 2, "quick": 1}, 0.0, 0.75)
    assert plan.reason.endswith("75% of the queries with an accuracy floor are planned at it")
    plan, state = decide(seen(wished(350.0)))
    assert (plan.instances, plan.shortfall_rps, state.share) == ({"quick": 4}, 0.0, 1.0)


def test_queries_without_a_floor_keep_their_accuracy() -> None:
    plan, _ = decide(seen(wished(100.0), Demand(35.0, accuracy=0.8)))
    assert plan.shortfall_rps == 0.0
    assert plan.instances["exact"] >= 2


def test_accuracy_returns_after_less_load_has_lasted() -> None:
    _, state = decide(seen(wished(350.0)))
    running = {"quick": 4}
    plan, state = decide(seen(wished(60.0), now_s=1.0, running=running), state)
    assert state.share == 1.0
    assert "exact" not in plan.instances
    plan, state = decide(seen(wished(350.0), now_s=5.0, running=running), state)
    plan, state = decide(seen(wished(60.0), now_s=FLOOR_HOLD_S + 4.0, running=running), state)
    assert state.share == 1.0, "the load was high at second 5"
    plan, state = decide(seen(wished(60.0), now_s=FLOOR_HOLD_S + 5.0, running=running), state)
    assert (plan.instances, state.share) == ({"exact": 4}, 0.0)


def test_higher_load_is_planned_at_once() -> None:
    _, state = decide(seen(wished(70.0)))
    plan, state = decide(seen(wished(350.0), now_s=1.0, running={"exact": 4}), state)
    assert (plan.instances, state.share) == ({"quick": 4}, 1.0)

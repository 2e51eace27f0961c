"""INFaaS's additions to a plan: instances for an Overloaded variant, accuracy floors where resources are short, and workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from gnomon_autoscaler.policies.infaas import greedy
from gnomon_autoscaler.policies.infaas.policy import (
    FLOOR_HOLD_S,
    OVERLOAD_HOLD_S,
    FloorState,
    OverloadState,
    decide_in_overload,
    decide_with_floors,
)
from gnomon_autoscaler.policies.infaas.workers import WorkerOptions
from gnomon_autoscaler.policies.infaas.workers import decide as decide_workers
from gnomon_core.variant_scaling import ApplicationObservation, Demand, ScalingPlan, VariantMember, WorkerObservation
from gnomon_core.variants import CORES, Variant, VariantState

EXACT = Variant("exact", "exact", "", "fp32", 1, 1, 0.9, 1.0, {1: 0.05}, 2**30, 20.0, 1.0)
QUICK = Variant("quick", "quick", "", "fp32", 1, 1, 0.6, 1.0, {1: 0.01}, 2**30, 100.0, 1.0)
FOUR_CORES = {CORES: 4.0}


def demanded(
    *demands: Demand, now_s: float = 0.0, running: Mapping[str, int] | None = None, capacity: Mapping[str, float] = FOUR_CORES
) -> ApplicationObservation:
    counts = running or {}
    members = tuple(VariantMember(variant, counts.get(variant.id, 0), counts.get(variant.id, 0)) for variant in (EXACT, QUICK))
    return ApplicationObservation(now_s, "faces", members, demands, capacity)


def wished(load_rps: float, floor: float | None = 0.5) -> Demand:
    return Demand(load_rps, accuracy=0.8, accuracy_floor=floor)


def decide_floors(
    observation: ApplicationObservation, state: FloorState[greedy.GreedyState] | None = None
) -> tuple[ScalingPlan, FloorState[greedy.GreedyState]]:
    return decide_with_floors(greedy.decide, observation, state or FloorState(greedy.GreedyState()))


@pytest.mark.parametrize(
    "observation", [demanded(wished(70.0)), demanded(wished(500.0, floor=None)), demanded(wished(500.0, floor=0.85)), demanded()]
)
def test_plan_is_the_policys_own_where_resources_suffice_or_no_floor_helps(observation: ApplicationObservation) -> None:
    assert decide_floors(observation)[0] == greedy.decide(observation, greedy.GreedyState())[0]


def test_load_that_does_not_fit_is_planned_at_its_floor_as_far_as_it_must() -> None:
    plan, state = decide_floors(demanded(wished(120.0)))
    assert (plan.instances, plan.shortfall_rps, state.share) == ({"exact": 2, "quick": 1}, 0.0, 0.75)
    assert plan.reason.endswith("75% of the queries with an accuracy floor are planned at it")
    plan, state = decide_floors(demanded(wished(350.0)))
    assert (plan.instances, plan.shortfall_rps, state.share) == ({"quick": 4}, 0.0, 1.0)


def test_queries_without_a_floor_keep_their_accuracy() -> None:
    plan, _ = decide_floors(demanded(wished(100.0), Demand(35.0, accuracy=0.8)))
    assert plan.shortfall_rps == 0.0
    assert plan.instances["exact"] >= 2


def test_accuracy_returns_after_less_load_has_lasted() -> None:
    _, state = decide_floors(demanded(wished(350.0)))
    running = {"quick": 4}
    plan, state = decide_floors(demanded(wished(60.0), now_s=1.0, running=running), state)
    assert state.share == 1.0
    assert "exact" not in plan.instances
    plan, state = decide_floors(demanded(wished(350.0), now_s=5.0, running=running), state)
    plan, state = decide_floors(demanded(wished(60.0), now_s=FLOOR_HOLD_S + 4.0, running=running), state)
    assert state.share == 1.0, "the load was high at second 5"
    plan, state = decide_floors(demanded(wished(60.0), now_s=FLOOR_HOLD_S + 5.0, running=running), state)
    assert (plan.instances, state.share) == ({"exact": 4}, 0.0)


def test_higher_load_is_planned_at_once() -> None:
    _, state = decide_floors(demanded(wished(70.0)))
    plan, state = decide_floors(demanded(wished(350.0), now_s=1.0, running={"exact": 4}), state)
    assert (plan.instances, state.share) == ({"quick": 4}, 1.0)


SMALL = Variant("small", "a", "", "fp32", 1, 1, 0.9, 1.0, {1: 0.05}, 2**30, 20.0, 1.0)
LARGE = Variant("large", "a", "", "fp32", 2, 1, 0.9, 1.0, {1: 0.03}, 2**30, 35.0, 2.0)

State = OverloadState[greedy.GreedyState]


def overloaded(
    last_rps: float, state: VariantState = VariantState.OVERLOADED, *, now_s: float = 0.0, running: int = 1, cores: float = 8.0
) -> ApplicationObservation:
    """An application whose demand of ten seconds is still low."""
    members = (VariantMember(SMALL, running, running, last_rps, state, last_rps=last_rps), VariantMember(LARGE))
    return ApplicationObservation(now_s, "faces", members, (Demand(10.0),), {CORES: cores})


def decide_load(observation: ApplicationObservation, state: State | None = None) -> tuple[ScalingPlan, State]:
    return decide_in_overload(greedy.decide, observation, state or OverloadState(greedy.GreedyState()))


def test_overloaded_variant_gets_what_its_last_period_needs() -> None:
    plan, _ = decide_load(overloaded(50.0))
    assert plan.instances == {"small": 3}, "1.05 times 50 are served by three of 20"
    assert plan.cost_per_s == 3.0
    assert plan.reason.endswith("; +2 small, which is or was Overloaded")


def test_plan_is_the_policys_own_while_nothing_is_overloaded() -> None:
    observation = overloaded(50.0, VariantState.ACTIVE)
    assert decide_load(observation)[0] == greedy.decide(observation, greedy.GreedyState())[0]


def test_resources_that_the_plan_leaves_bound_instances_for_an_overload() -> None:
    plan, _ = decide_load(overloaded(150.0, cores=3.0))
    assert plan.instances == {"small": 3}
    plan, _ = decide_load(overloaded(150.0, cores=1.0))
    assert plan.instances == {"small": 1}


def test_instances_for_an_overload_stay_for_the_window_of_a_demand() -> None:
    _, state = decide_load(overloaded(50.0))
    for second in range(1, round(OVERLOAD_HOLD_S) + 2):
        plan, state = decide_load(overloaded(10.0, VariantState.ACTIVE, now_s=float(second), running=3), state)
        assert plan.instances == {"small": 3 if second <= OVERLOAD_HOLD_S else 1}


def test_higher_burst_in_the_meantime_counts_and_a_lower_one_ends_nothing() -> None:
    _, state = decide_load(overloaded(50.0))
    plan, state = decide_load(overloaded(90.0, now_s=2.0, running=3), state)
    assert plan.instances == {"small": 5}
    plan, state = decide_load(overloaded(70.0, now_s=4.0, running=5), state)
    assert plan.instances == {"small": 5}


ACTIVE, OVERLOADED, INTERFERED = VariantState.ACTIVE, VariantState.OVERLOADED, VariantState.INTERFERED


def worker(
    name: str,
    hardware: str = "cpu",
    used: float = 0.5,
    *states: VariantState,
    ready: bool = True,
    gpu_memory: float | None = None,
) -> WorkerObservation:
    utilization = {"cores": used} if gpu_memory is None else {"cores": used, "gpu_memory_bytes": gpu_memory}
    return WorkerObservation(name, hardware, utilization if ready else {}, states, ready)


@pytest.mark.parametrize(
    ("workers", "added"),
    [
        ([], ()),
        ([worker("a", "cpu", 0.81, ACTIVE), worker("b", "cpu", 0.9, ACTIVE)], ("cpu",)),
        ([worker("a", "cpu", 0.81, ACTIVE), worker("b", "cpu", 0.8, ACTIVE)], ()),  # not on all workers
        ([worker("a", "cpu", 0.5, ACTIVE), worker("g", "gpu", 0.1, ACTIVE, gpu_memory=0.9)], ("gpu",)),  # any resource
        ([worker("a", "cpu", 0.9, ACTIVE), worker("g", "gpu", 0.9, ACTIVE)], ("cpu", "gpu")),
        ([worker("g", "gpu", 0.1, INTERFERED), worker("h", "gpu", 0.1, ACTIVE, INTERFERED)], ("gpu",)),
        ([worker("g", "gpu", 0.1, INTERFERED), worker("h", "gpu", 0.1, ACTIVE)], ()),
        ([worker("a", "cpu", 0.1, OVERLOADED), worker("g", "gpu", 0.1, OVERLOADED)], ("cpu",)),
        ([*[worker(f"a{n}", "cpu", 0.1, OVERLOADED) for n in range(4)], worker("a4", "cpu", 0.1, ACTIVE)], ()),  # 80 % exactly
        ([*[worker(f"g{n}", "gpu", 0.1, OVERLOADED) for n in range(9)], worker("a", "cpu", 0.1, ACTIVE)], ("gpu",)),
    ],
)
def test_worker_is_added_by_each_rule(workers: Sequence[WorkerObservation], added: tuple[str, ...]) -> None:
    plan = decide_workers(workers)
    assert plan.add == added
    assert plan.reason


def test_second_worker_of_a_kind_waits_for_the_first_to_start() -> None:
    full = [worker("a", "cpu", 0.9, ACTIVE), worker("g", "gpu", 0.9, ACTIVE)]
    plan = decide_workers([*full, worker("b", "cpu", ready=False)])
    assert plan.add == ("gpu",)
    assert decide_workers([*full, worker("b", "cpu", ready=False), worker("h", "gpu", ready=False)]).add == ()


def test_number_of_workers_is_bounded() -> None:
    full = [worker("a", "cpu", 0.9, ACTIVE), worker("g", "gpu", 0.9, ACTIVE)]
    assert decide_workers(full, WorkerOptions(most=3)).add == ("cpu",)
    plan = decide_workers(full, WorkerOptions(most=2))
    assert (plan.add, "no further worker" in plan.reason) == ((), True)


@pytest.mark.parametrize(
    ("workers", "removed"),
    [
        ([worker("a", "cpu", 0.6, ACTIVE), worker("b", "cpu", 0.0), worker("c", "cpu", 0.0)], ("c",)),
        ([worker("a", "cpu", 0.61, ACTIVE), worker("b", "cpu", 0.0)], ()),  # the rest would be near the threshold
        ([worker("a", "cpu", 0.0)], ()),  # the last one
        ([worker("a", "cpu", 0.1, ACTIVE), worker("b", "cpu", 0.1, ACTIVE)], ()),
        ([worker("a", "cpu", 0.1, ACTIVE), worker("b", "cpu", 0.0), worker("g", "gpu", ready=False)], ()),
    ],
)
def test_worker_without_variants_ends_where_the_others_suffice(
    workers: Sequence[WorkerObservation], removed: tuple[str, ...]
) -> None:
    plan = decide_workers(workers)
    assert (plan.add, plan.remove) == ((), removed)

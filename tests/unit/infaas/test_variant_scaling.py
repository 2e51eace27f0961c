"""The cheapest variants for a load: the example of the paper by both policies, a load that changes, and queueing."""

import dataclasses
import random
from collections.abc import Callable, Mapping
from heapq import heapify, heapreplace

import pytest

from gnomon_autoscaler.policies.infaas import exact
from gnomon_autoscaler.policies.infaas.exact import solve
from gnomon_autoscaler.policies.infaas.greedy import GreedyState, decide
from gnomon_autoscaler.policies.infaas.policy import INITIAL, installed_policy
from gnomon_autoscaler.policies.infaas.problem import Options, served_in_time, utilization
from gnomon_core.variant_scaling import ApplicationObservation, Demand, ScalingPlan, VariantMember
from gnomon_core.variants import Variant


def variant(name: str, latency_s: float, rate_rps: float, cost: float, *, load_s: float = 2.0, cores: int = 1) -> Variant:
    return Variant(name, "resnet50", "", "fp32", cores, 1, 0.76, load_s, {1: latency_s}, 2**30, rate_rps, cost)


Policy = Callable[..., ScalingPlan]

# Table 2: four CPUs, an Inferentia core, a V100.
A, B, C = variant("A", 0.2, 5.0, 1.0, cores=4), variant("B", 0.02, 100.0, 3.0), variant("C", 0.015, 800.0, 16.0)
AS_IN_TABLE_3 = Options(slack=1.0, late_share=None, surplus_s=0.0)
CAPACITY_ALONE = Options(late_share=None, surplus_s=0.0)
"""Constraint 1 as it is printed, with the paper's slack; T_v is the load time."""


def seen(
    *demands: Demand, running: Mapping[str, int] | None = None, capacity: Mapping[str, float] | None = None, now_s: float = 0.0
) -> ApplicationObservation:
    counts = running or {}
    members = tuple(VariantMember(variant, counts.get(variant.id, 0), counts.get(variant.id, 0)) for variant in (A, B, C))
    return ApplicationObservation(now_s, "faces", members, demands, capacity or {})


def greedy(observation: ApplicationObservation, options: Options | None = None) -> ScalingPlan:
    return decide(observation, GreedyState(), options)[0]


@pytest.mark.parametrize("policy", [solve, greedy])
@pytest.mark.parametrize(
    ("load_rps", "latency_s", "instances", "cost"),
    [(10.0, 0.3, {"A": 2}, 2.0), (10.0, 0.05, {"B": 1}, 3.0), (1000.0, 0.3, {"B": 2, "C": 1}, 22.0)],
)
def test_table_3_follows_from_table_2(
    policy: Policy, load_rps: float, latency_s: float, instances: dict[str, int], cost: float
) -> None:
    plan = policy(seen(Demand(load_rps, latency_s)), AS_IN_TABLE_3)
    assert (plan.instances, plan.cost_per_s, plan.shortfall_rps) == (instances, cost, 0.0)


def test_printed_heuristic_does_not_mix_variants() -> None:
    plan = greedy(seen(Demand(1000.0, 0.3)), Options(slack=1.0, literal=True))
    assert (plan.instances, plan.cost_per_s) == ({"B": 10}, 30.0)


@pytest.mark.parametrize("policy", [solve, greedy])
def test_slack_is_headroom_above_the_load(policy: Policy) -> None:
    assert policy(seen(Demand(5.0, 0.3)), CAPACITY_ALONE).instances == {"A": 2}  # 5.25 requests per second


@pytest.mark.parametrize("policy", [solve, greedy])
def test_load_leaves_instances_idle_as_far_as_queries_may_not_wait(policy: Policy) -> None:
    """An A serves 2 of 5 per second where each query may wait for two others, and next to nothing where it may not."""
    assert policy(seen(Demand(1.9, 0.6)), Options(late_share=0.05)).instances == {"A": 1}
    assert policy(seen(Demand(1.9, 0.21)), Options(late_share=0.05)).instances == {"A": 2}
    assert policy(seen(Demand(1.9, 0.21)), CAPACITY_ALONE).instances == {"A": 1}
    assert policy(seen(Demand(4.7)), Options(late_share=0.05)).instances == {"A": 1}  # without a latency nothing is late


@pytest.mark.parametrize("policy", [solve, greedy])
def test_resources_of_each_type_bound_the_plan(policy: Policy) -> None:
    plan = policy(seen(Demand(1000.0, 0.3), capacity={"cores": 3.0}), AS_IN_TABLE_3)
    assert plan.instances == {"B": 2, "C": 1}
    plan = policy(seen(Demand(1000.0, 0.3), capacity={"cores": 2.0}), AS_IN_TABLE_3)
    assert (plan.instances, plan.shortfall_rps) == ({"C": 2}, 0.0)
    plan = policy(seen(Demand(1000.0, 0.3), capacity={"cores": 1.0}), AS_IN_TABLE_3)
    assert (plan.instances, plan.shortfall_rps) == ({"C": 1}, 200.0)


@pytest.mark.parametrize("policy", [solve, greedy])
def test_demands_share_a_variant_that_satisfies_both(policy: Policy) -> None:
    quick, any_time = Demand(60.0, 0.05), Demand(35.0, 0.3)
    assert policy(seen(quick, any_time), AS_IN_TABLE_3).instances == {"B": 1}


@pytest.mark.parametrize("policy", [solve, greedy])
def test_demand_that_no_variant_satisfies_is_reported(policy: Policy) -> None:
    plan = policy(seen(Demand(10.0, 0.3), Demand(7.0, 0.001)), AS_IN_TABLE_3)
    assert (plan.instances, plan.shortfall_rps) == ({"A": 2}, 7.0)


@pytest.mark.parametrize("policy", [solve, greedy])
def test_no_load_needs_no_instance(policy: Policy) -> None:
    assert policy(seen(Demand(0.0)), Options()).instances == {}
    assert policy(seen(), Options()).instances == {}


def test_loading_latency_weighs_against_a_cheaper_variant() -> None:
    """A runs at its limit: one more A costs 1·(1 + 2λ), B in its place 3·(1 + 2λ) − 2."""
    observation = seen(Demand(15.0, 0.3), running={"A": 2})
    assert solve(observation, Options(slack=1.0, late_share=None, loading_weight=0.0)).objective == pytest.approx(1.0)
    plan = solve(observation, Options(slack=1.0, late_share=None, loading_weight=0.5))
    assert (plan.instances, plan.objective) == ({"A": 3}, 2.0)


def test_exact_plan_is_proven() -> None:
    plan = solve(seen(Demand(1000.0, 0.3)), AS_IN_TABLE_3)
    assert plan.gap == 0.0
    assert plan.reason.startswith("exact: +2 B, +1 C; proven")


def test_exact_decision_goes_to_the_cheapest_instances_and_waits_as_the_heuristic_does() -> None:
    plan, state = exact.decide(seen(Demand(1000.0, 0.3)), GreedyState(), AS_IN_TABLE_3)
    assert (plan.instances, plan.gap, plan.shortfall_rps) == ({"B": 2, "C": 1}, 0.0, 0.0)
    assert plan.reason.startswith("exact, proven, gap 0.00%: +2 B, +1 C")
    running = {"B": 2, "C": 1}
    plan, state = exact.decide(seen(Demand(150.0, 0.3), running=running, now_s=1.0), state, AS_IN_TABLE_3)
    assert plan.instances == running
    plan, _ = exact.decide(seen(Demand(150.0, 0.3), running=running, now_s=3.1), state, AS_IN_TABLE_3)
    assert plan.instances == {"B": 2}


def test_exact_decision_without_time_is_the_heuristics() -> None:
    sharing = seen(Demand(60.0, 0.05), Demand(35.0, 0.3), capacity={"cores": 3.0})
    plan, _ = exact.decide(sharing, GreedyState(), Options(slack=1.0, late_share=None, time_limit_s=0.0))
    assert plan.instances == greedy(sharing, AS_IN_TABLE_3).instances


def test_policy_is_exact_where_its_package_is_installed() -> None:
    observation = seen(Demand(1000.0, 0.3))
    assert installed_policy("scipy")(observation, INITIAL)[0].reason.startswith("exact")
    assert installed_policy("no_such_package")(observation, INITIAL)[0].reason.startswith("greedy")


def test_time_limit_without_a_solution_leaves_the_heuristics_plan() -> None:
    sharing = seen(Demand(60.0, 0.05), Demand(35.0, 0.3), capacity={"cores": 3.0})
    plan = solve(sharing, Options(slack=1.0, late_share=None, time_limit_s=0.0))
    assert (plan.instances, plan.gap) == ({"B": 1}, 1.0)
    assert "heuristic" in plan.reason


def test_short_headroom_loads_at_once_and_surplus_waits_for_the_loading_time() -> None:
    """An upgrade from A to B: B is loaded, A is unloaded when B is ready and A has been superfluous for T_v = 2 s."""
    state = GreedyState()
    plan, state = decide(seen(Demand(60.0, 0.3), running={"A": 2}), state, CAPACITY_ALONE)
    assert plan.instances == {"A": 2, "B": 1}
    loading = seen(Demand(60.0, 0.3), running={"A": 2, "B": 1}, now_s=2.0)
    loading = dataclasses.replace(
        loading,
        members=tuple(dataclasses.replace(member, ready=0) if member.variant is B else member for member in loading.members),
    )
    plan, after = decide(loading, state, CAPACITY_ALONE)
    assert plan.instances == {"A": 2, "B": 1}  # B is not ready
    plan, _ = decide(seen(Demand(60.0, 0.3), running={"A": 2, "B": 1}, now_s=1.9), state, CAPACITY_ALONE)
    assert plan.instances == {"A": 2, "B": 1}  # too early
    plan, _ = decide(seen(Demand(60.0, 0.3), running={"A": 2, "B": 1}, now_s=2.1), after, CAPACITY_ALONE)
    assert plan.instances == {"B": 1}


def test_downgrade_loads_the_cheaper_variant_before_it_unloads() -> None:
    state = GreedyState()
    plan, state = decide(seen(Demand(4.0, 0.3), running={"B": 1}), state, CAPACITY_ALONE)
    assert plan.instances == {"B": 1}
    plan, state = decide(seen(Demand(4.0, 0.3), running={"B": 1}, now_s=2.0), state, CAPACITY_ALONE)
    assert plan.instances == {"A": 1, "B": 1}
    plan, state = decide(seen(Demand(4.0, 0.3), running={"A": 1, "B": 1}, now_s=4.0), state, CAPACITY_ALONE)
    assert plan.instances == {"A": 1}


Decide = Callable[[ApplicationObservation, GreedyState, Options], tuple[ScalingPlan, GreedyState]]


@pytest.mark.parametrize("decide_load", [decide, exact.decide])
def test_noise_of_a_load_ends_no_instance_before_the_demand_was_measured_anew(decide_load: Decide) -> None:
    """The load needs three instances now and then, and later two for as long as a demand is measured."""
    state = GreedyState()
    for second in range(41):
        load_rps = 14.0 if second < 30 and second % 4 == 0 else 9.0
        observation = seen(Demand(load_rps, 0.3), running={"A": 3}, now_s=float(second))
        plan, state = decide_load(observation, state, Options(late_share=None))
        assert plan.instances == {"A": 3 if second < 39 else 2}


def test_surplus_that_ends_is_forgotten() -> None:
    _, state = decide(seen(Demand(5.0, 0.3), running={"A": 3}), GreedyState(), CAPACITY_ALONE)
    _, state = decide(seen(Demand(14.0, 0.3), running={"A": 3}, now_s=1.0), state, CAPACITY_ALONE)
    plan, state = decide(seen(Demand(5.0, 0.3), running={"A": 3}, now_s=2.5), state, CAPACITY_ALONE)
    assert plan.instances == {"A": 3}
    plan, _ = decide(seen(Demand(5.0, 0.3), running={"A": 3}, now_s=4.5), state, CAPACITY_ALONE)
    assert plan.instances == {"A": 2}


def test_stricter_objective_brings_other_variants() -> None:
    plan = greedy(seen(Demand(10.0, 0.05), running={"A": 3}), CAPACITY_ALONE)
    assert plan.instances == {"A": 3, "B": 1}


def test_full_worker_replaces_what_runs_where_that_serves_more() -> None:
    plan = greedy(seen(Demand(60.0, 0.3), running={"A": 1}, capacity={"cores": 4.0}), CAPACITY_ALONE)
    assert plan.shortfall_rps == 0.0
    assert "A" not in plan.instances


def late_share(rate_rps: float, service_s: float, instances: int, objective_s: float, queries: int = 150_000) -> float:
    """The share of late queries of a queue with Poisson arrivals, first come first served."""
    rng, free = random.Random(7), [0.0] * instances
    heapify(free)
    now_s, late = 0.0, 0
    for _ in range(queries):
        now_s += rng.expovariate(rate_rps)
        end_s = max(now_s, free[0]) + service_s
        heapreplace(free, end_s)
        late += end_s - now_s > objective_s + 1e-9
    return late / queries


@pytest.mark.parametrize("instances", [1, 2, 6])
@pytest.mark.parametrize("objective_s", [0.11, 0.15, 0.2, 0.35])
def test_queue_with_the_load_that_is_served_in_time_has_no_more_late_queries(instances: int, objective_s: float) -> None:
    rate_rps = served_in_time({1: 0.1}, 1, instances, objective_s, 0.05)
    share = late_share(rate_rps, 0.1, instances, objective_s)
    assert share <= 0.05 * 1.1  # chance
    assert late_share(1.4 * rate_rps, 0.1, instances, objective_s) > share


def test_bound_is_near_the_load_whose_queries_are_late_that_often() -> None:
    """Two instances, objectives of 1.5 times a query: a load that is a quarter higher is late more often than tolerated."""
    rate_rps = served_in_time({1: 0.1}, 1, 2, 0.15, 0.05)
    assert late_share(1.25 * rate_rps, 0.1, 2, 0.15) > 0.05


def test_more_instances_and_longer_objectives_leave_less_idle() -> None:
    by_number = [utilization(1, count, 0.5, 0.05) for count in (1, 2, 4, 16, 64, 256)]
    assert by_number == sorted(by_number)
    assert by_number[0] < 0.1
    assert 0.8 < by_number[-1] <= 1.0
    by_objective = [utilization(1, 2, patience, 0.05) for patience in (0.0, 0.3, 0.9, 1.0, 2.0, 8.0)]
    assert by_objective == sorted(by_objective)


def test_smaller_batches_serve_more_where_the_largest_leaves_no_time_to_wait() -> None:
    latency_s = {1: 0.02, 2: 0.03, 8: 0.1}
    assert served_in_time(latency_s, 8, 1, 0.1, 0.05) > 8 / 0.1 * utilization(8, 1, 0.0, 0.05)
    assert served_in_time(latency_s, 8, 1, 0.3, 0.05) > 40.0
    assert served_in_time(latency_s, 8, 1, 0.01, 0.05) == 0.0


def test_objective_beyond_all_others_leaves_no_instance_idle() -> None:
    """A client may send any number of milliseconds."""
    assert served_in_time({8: 0.001}, 8, 3, 1.7e305, 0.05) == 3 * 8 / 0.001

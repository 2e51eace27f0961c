"""A simulated run: results, instance sizes, nodes, profiles, and functions on demand beside instances."""

import json
import re
import statistics
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from gnomon_autoscaler import BUILT_IN, PolicyPlugin
from gnomon_core.errors import GnomonError
from gnomon_core.lambda_pricing import LAMBDA_X86
from gnomon_core.pairs import Pair
from gnomon_core.profiles import LatencyTable
from gnomon_core.scaling import (
    Action,
    CreateBody,
    CreateShadow,
    Decision,
    DestroyBody,
    Observation,
    PolicyState,
    PromoteShadow,
    Resize,
)
from gnomon_core.settings import ScaleSettings, Settings
from gnomon_platforms.local.pairs import CONTAINER_BYTES
from gnomon_simulator.arrivals import constant
from gnomon_simulator.events import stream
from gnomon_simulator.profiles import Noise, Profile, modelled, on_lambda, read_profile
from gnomon_simulator.profiles import constant as constant_profile
from gnomon_simulator.results import OK, ON_DEMAND_INSTANCE, FunctionResult, on_demand, percentile, spread_ms, table
from gnomon_simulator.simulated_platform import NodePlan, SimulatedNode
from gnomon_simulator.simulation import FunctionPlan, OnDemand, simulate
from tests.made_up_models import BlockPlan, made_up_profile, sold_by_memory
from tests.unit.simulator.scripted import Script
from tests.unit.simulator.test_simulated_shadows import BOTH, MODEL

NODES = [NodePlan("node-1", 8)]
BATCHING = Profile("v", LatencyTable({1: {1: 1.0, 2: 1.5, 4: 2.0}}))


def settings(minimum: int = 1, maximum: int = 20, *, autoscaler: str = "fixed", **fields: object) -> Settings:
    scale = ScaleSettings(min=minimum, max=maximum)
    return Settings(autoscaler=autoscaler, scale=scale, **{"scheduler": "immediate", **fields})  # type: ignore[arg-type]


def run(plan: FunctionPlan, nodes: list[NodePlan] = NODES) -> FunctionResult:
    return simulate([plan], nodes)[plan.name]


def test_requests_wait_for_the_instance_and_travel_together() -> None:
    result = run(FunctionPlan("f", settings(max_batch=4), BATCHING, [0.25, 0.5, 0.75], "given", warm=1))
    assert list(result.requests.dispatched_s) == [0.25, 1.25, 1.25]
    assert list(result.requests.finished_s) == [1.25, 2.75, 2.75]
    assert list(result.requests.batch) == [1, 2, 2]
    assert list(result.requests.status) == [200] * 3


def test_a_cold_instance_loads_first() -> None:
    result = run(FunctionPlan("f", settings(), constant_profile("v", 0.1, load_s=2.0), [0.5]))
    assert list(result.requests.dispatched_s) == [2.0]
    assert result.decisions[0].actions


def test_from_zero_the_first_request_wakes_the_function_and_is_held() -> None:
    zero = Settings(autoscaler="fixed", scheduler="immediate", scale=ScaleSettings(min=0, zero_duration_s=1.0))
    result = run(FunctionPlan("f", zero, constant_profile("v", 0.1, load_s=0.5), [10.2]))
    assert list(result.requests.status) == [200]
    # It had gone to zero; the request is not kept waiting for the autoscaler's next look.
    assert result.requests.dispatched_s[0] == pytest.approx(10.7)


def test_impossible_deadline_is_refused_at_once() -> None:
    result = run(FunctionPlan("f", settings(deadline_s=0.5, slo_s=0.5), constant_profile("v", 1.0), [0.5, 0.6], "given", warm=1))
    assert list(result.requests.status) == [504, 504]
    assert list(result.requests.finished_s) == [0.5, 0.6]
    assert result.violations == 2
    assert result.summary()["answered"] == 0


def test_a_late_request_is_answered_at_its_deadline() -> None:
    # Nothing is known of latency, so both are let in; the second waits behind the first until its deadline.
    result = run(FunctionPlan("f", settings(deadline_s=1.5), constant_profile("v", 1.2), [0.5, 0.6], "learned", warm=1))
    assert list(result.requests.status) == [200, 504]
    assert result.requests.finished_s[1] == pytest.approx(1.7)


def test_a_crash_fails_its_own_batch_and_is_replaced() -> None:
    plan = FunctionPlan("f", settings(), constant_profile("v", 1.0, load_s=0.25), [0.5, 3.0], warm=1, crashes_s=[1.0])
    result = run(plan)
    assert list(result.requests.status) == [502, 200]
    assert result.requests.finished_s[0] == 1.0
    assert "missing" in result.decisions[-1].reason


def test_scaling_down_drains_before_it_stops() -> None:
    # 1.5 × 10 rps needs two instances of 10 rps while it lasts; afterwards one.
    arrivals = [index / 10 for index in range(600)] + [90.0 + index for index in range(60)]
    result = run(
        FunctionPlan("f", settings(autoscaler="k-lv", max_batch=1), constant_profile("v", 0.1), arrivals, "given", warm=1)
    )
    assert list(result.requests.status) == [200] * len(arrivals)
    assert (result.fewest_instances, result.most_instances) == (1, 2)
    assert [record.desired for record in result.decisions if record.actions] == [2, 1]


def test_a_full_cluster_refuses_and_says_so() -> None:
    plan = FunctionPlan("f", settings(minimum=3, cores=4), constant_profile("v", 0.1, cores=4), [1.0])
    result = run(plan)
    assert result.most_instances == 2
    assert "no_capacity" in result.decisions[0].error


def test_costs_are_counted_from_creation_to_end() -> None:
    result = run(FunctionPlan("f", settings(cores=2), constant_profile("v", 1.0, cores=2, load_s=0.5), [0.0]))
    assert result.duration_s >= 1.5
    assert result.instance_s == result.duration_s
    assert result.core_s == 2 * result.duration_s
    assert result.busy_core_s == pytest.approx(2.0)


def test_functions_share_the_nodes_and_nothing_else() -> None:
    plans = [
        FunctionPlan(name, settings(), constant_profile("v", 0.1), [0.1 * index for index in range(20)], warm=1) for name in "ab"
    ]
    together = simulate(plans, NODES)
    alone = simulate(plans[:1], NODES)
    assert together["a"].requests.finished_s == alone["a"].requests.finished_s == together["b"].requests.finished_s
    assert {name for result in together.values() for name in result.requests.instances} == {"a-1", "b-2"}


def test_adaptive_fill_makes_larger_batches_than_immediate_within_the_slo() -> None:
    arrivals = [index / 4 for index in range(400)]
    plans = {
        scheduler: FunctionPlan(
            "f", settings(2, 2, scheduler=scheduler, max_batch=4, slo_s=4.0), BATCHING, arrivals, "given", warm=2
        )
        for scheduler in ("adaptive-fill", "immediate")
    }
    results = {scheduler: run(plan) for scheduler, plan in plans.items()}
    assert results["adaptive-fill"].violations == 0
    assert results["adaptive-fill"].summary()["mean_batch"] > results["immediate"].summary()["mean_batch"]


def test_a_function_whose_profile_lacks_its_cores_is_refused() -> None:
    with pytest.raises(GnomonError, match="3 cores"):
        run(FunctionPlan("f", settings(cores=3), BATCHING, [0.0]))


def test_the_table_has_a_line_a_function() -> None:
    result = run(FunctionPlan("f", settings(), constant_profile("v", 0.1), [0.0], warm=1))
    heading, line = table([result]).splitlines()
    assert heading.split()[:3] == ["function", "autoscaler", "scheduler"]
    assert line.split()[:5] == ["f", "fixed", "immediate", "1", "0.00%"]


@pytest.mark.parametrize(("percent", "value"), [(0, 1.0), (1, 1.0), (50, 50.0), (95, 95.0), (99.9, 100.0), (100, 100.0)])
def test_nearest_rank(percent: float, value: float) -> None:
    assert percentile([float(n) for n in range(1, 101)], percent) == value


def test_binary_fractions_do_not_shift_the_rank() -> None:
    assert percentile([float(n) for n in range(1, 1001)], 99.9) == 999.0


def test_nothing_measured_has_no_percentile() -> None:
    assert percentile([], 50) is None
    assert spread_ms([])["p50"] is None


def test_spread_is_in_milliseconds() -> None:
    assert spread_ms([0.003, 0.001])["max"] == 3.0
    assert spread_ms([0.003, 0.001])["mean"] == 2.0


DOCUMENT: dict[str, Any] = {
    "variant": "v",
    "load_s": 0.5,
    "memory_bytes": 7,
    "latency_s": {"2": {"8": 0.4, "1": 0.1, "4": 0.25}},
    "noise": {"kind": "lognormal", "cv": 0.2},
}


def write(folder: Path, document: object) -> Path:
    path = folder / "profile.json"
    path.write_text(json.dumps(document))
    return path


@pytest.mark.parametrize(("batch", "seconds"), [(1, 0.1), (2, 0.15), (4, 0.25), (6, 0.325), (8, 0.4), (16, 0.8)])
def test_between_batches_on_a_line_and_beyond_in_proportion(tmp_path: Path, batch: int, seconds: float) -> None:
    profile = read_profile(write(tmp_path, DOCUMENT))
    assert profile.seconds("v", 2, batch) == pytest.approx(seconds)


def test_cores_that_were_not_measured_are_not_guessed(tmp_path: Path) -> None:
    profile = read_profile(write(tmp_path, DOCUMENT))
    assert profile.seconds("v", 1, 1) is None
    assert (profile.load_s, profile.memory_bytes, profile.noise) == (0.5, 7, Noise("lognormal", 0.2))


@pytest.mark.parametrize(
    "change",
    [
        {"latency_s": {}},
        {"latency_s": {"1": {}}},
        {"latency_s": {"1": {"1": 0}}},
        {"latency_s": {"1": {"0": 0.1}}},
        {"latency_s": {"x": {"1": 0.1}}},
        {"latency_s": [1]},
        {"noise": {"kind": "odd"}},
        {"load_s": "slow"},
    ],
)
def test_a_wrong_profile_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    with pytest.raises(GnomonError, match=r"profile\.json"):
        read_profile(write(tmp_path, DOCUMENT | change))


@pytest.mark.parametrize(("noise", "cv"), [(Noise("lognormal", 0.3), 0.3), (Noise("exponential"), 1.0)])
def test_noise_has_mean_1_and_its_spread(noise: Noise, cv: float) -> None:
    factor, rng = noise.factor(), stream(1, "execution")
    assert factor is not None
    drawn = [factor(rng) for _ in range(20_000)]
    assert statistics.fmean(drawn) == pytest.approx(1.0, rel=0.02)
    assert statistics.pstdev(drawn) == pytest.approx(cv, rel=0.05)


def test_no_noise_draws_nothing() -> None:
    assert Noise().factor() is None
    assert Noise("lognormal", 0.0).factor() is None


def test_a_constant_service_time_is_one_request_after_the_other() -> None:
    assert constant_profile("v", 0.02).seconds("v", 1, 5) == pytest.approx(0.1)


PROFILE = Path(__file__).parents[3] / "profiles" / "resnet50.json"
HALF_AN_HOUR_S = 1800.0


def half_an_hour(plan_cores: str) -> FunctionResult:
    """Four requests a second, evenly, for a function that begins with one core, and may have two."""
    settings = Settings(
        autoscaler="batch", slo_s=0.09, slo_percentile=95.0, max_batch=4, plan_cores=plan_cores,
        scale=ScaleSettings(min=1, max=8),
    )  # fmt: skip
    arrivals = [number / 4.0 for number in range(round(4 * HALF_AN_HOUR_S))]
    plan = FunctionPlan("f", settings, read_profile(PROFILE), arrivals, warm=1)
    return simulate([plan], [NodePlan("node-1", 16)])["f"]


def test_an_objective_that_only_two_cores_meet_is_met_from_the_first_plan_on() -> None:
    chosen, fixed = half_an_hour("any"), half_an_hour("fixed")
    resizes = [action for decision in chosen.decisions for action in decision.actions if isinstance(action, Resize)]
    assert {action.cores for action in resizes} == {2}
    assert "2 cores" in chosen.decisions[-1].reason
    assert "1 core: P95" in chosen.decisions[-1].reason
    assert len(chosen.requests) == len(fixed.requests) == 4 * HALF_AN_HOUR_S
    assert chosen.violations < 0.05 * len(chosen.requests) < fixed.violations


def test_instances_of_a_fixed_size_keep_it() -> None:
    result = half_an_hour("fixed")
    assert not any(isinstance(action, Resize) for decision in result.decisions for action in decision.actions)
    assert "No plan has its P95 within 90 ms" in result.decisions[-1].reason


def test_policies_see_the_spread_of_present_sizes() -> None:
    seen_spreads: list[float] = []

    class TwoCores:
        """An instance of two cores, for a function of one."""

        name, period_s, default_scheduler = "two", 1.0, "immediate"

        def decide(self, seen: Observation, state: PolicyState) -> tuple[Decision, PolicyState]:
            seen_spreads.append(seen.latency_spread)
            return Decision(() if seen.live else (CreateBody(2),), "two cores", 1), state

    settings = Settings(autoscaler="two", max_batch=1, slo_s=5.0)
    profile = Profile("v", LatencyTable({1: {1: 0.2}, 2: {1: 0.1}}), noise=Noise("lognormal", 0.3))
    policies = {**BUILT_IN, "two": PolicyPlugin(lambda _: TwoCores(), "Two cores.")}
    plan = FunctionPlan("f", settings, profile, [2.0 + 0.3 * number for number in range(200)], policies=policies)
    simulate([plan], [NodePlan("node-1", 16)])
    assert seen_spreads[0] == 0.0
    # The mean distance from the mean of a log-normal time whose standard deviation is 0.3 of it: 0.23.
    assert 0.1 < seen_spreads[-1] < 0.4


MEMORIES_MB = (885, 1769, 3538)
WORK_S = (0.30, 0.50, 0.70, 0.90)
MINUTES = 5
SLOTS = 64
WARM = 4


@cache
def minutes(name: str, plan_cores: str) -> FunctionResult:
    """Eight requests a second, evenly, for a function that begins with 1,769 MB, where one takes 300 ms."""
    settings = Settings(
        autoscaler=name, slo_s=0.25, slo_percentile=95.0, max_batch=4, plan_cores=plan_cores, memory_mb=1769,
        scale=ScaleSettings(min=1, max=20),
    )  # fmt: skip
    arrivals = [number / 8.0 for number in range(8 * 60 * MINUTES)]
    profile = on_lambda(sold_by_memory(WORK_S, MEMORIES_MB, load_s=1.0), 1769)
    region = NodePlan("lambda", 6 * SLOTS, 10_240 * SLOTS * 2**20)
    return simulate([FunctionPlan("f", settings, profile, arrivals, warm=WARM)], [region])["f"]


@pytest.mark.parametrize("name", ["batch", "batch+"])
def test_an_objective_that_only_more_memory_meets_is_met_and_nothing_is_lost(name: str) -> None:
    chosen, fixed = minutes(name, "any"), minutes(name, "fixed")
    created = [action for decision in chosen.decisions for action in decision.actions if isinstance(action, CreateBody)]
    assert {action.memory_mb for action in created if decided_late(chosen, action)} == {3538}
    assert not any(isinstance(action, Resize) for decision in chosen.decisions for action in decision.actions)
    assert set(chosen.requests.status) == {200}
    assert late(chosen) < 0.05 < late(fixed)
    assert "3538 MB" in chosen.decisions[-1].reason


def late(result: FunctionResult) -> float:
    """The share of the requests beyond the SLO, of those that came after the first plan and the start of its slots."""
    rows = [row for row in result.requests.rows() if row["arrived_s"] > 35.0]
    return float(sum(row["finished_s"] - row["arrived_s"] > result.settings.slo_s for row in rows) / len(rows))


def decided_late(result: FunctionResult, created: CreateBody) -> bool:
    """True if it was not created before there was a plan."""
    return any(created in decision.actions for decision in result.decisions if "MB" in decision.reason)


def test_the_old_slots_end_only_after_new_ones_began() -> None:
    decisions = minutes("batch", "any").decisions
    first = {
        kind: min(record.at for record in decisions if any(isinstance(action, kind) for action in record.actions))
        for kind in (CreateBody, DestroyBody)
    }
    changed = min(
        record.at for record in decisions if any(getattr(action, "memory_mb", None) == 3538 for action in record.actions)
    )
    ended = [record.at for record in decisions if any(isinstance(action, DestroyBody) for action in record.actions)]
    assert first[CreateBody] <= changed < min(at for at in ended if at >= changed)


@pytest.mark.parametrize("plan_cores", ["any", "fixed"])
def test_each_batch_and_each_start_is_a_call_at_the_price_of_its_memory(plan_cores: str) -> None:
    result = minutes("batch", plan_cores)
    sizes = {
        instance: row["batch"]
        for row in result.requests.rows()
        for instance in [(row["instance"], row["dispatched_s"])]
        if row["dispatched_s"] is not None
    }
    assert result.cost.calls == len(sizes) + len(result.bodies_s)
    document = json.loads(json.dumps(result.summary()))
    assert document["calls_usd"] == pytest.approx(result.cost.calls_usd)
    if plan_cores == "fixed":
        batches = sum(LAMBDA_X86.invoke_usd(WORK_S[size - 1], 1769) for size in sizes.values())
        starts = WARM * LAMBDA_X86.invoke_usd(0.0, 1769) + (len(result.bodies_s) - WARM) * LAMBDA_X86.invoke_usd(1.0, 1769)
        assert result.cost.calls_usd == pytest.approx(batches + starts)


def test_a_size_that_was_not_measured_is_refused() -> None:
    model = sold_by_memory(WORK_S, MEMORIES_MB)
    with pytest.raises(GnomonError, match="was not measured with 512 MB"):
        on_lambda(model, 512)


FORK_S = 0.01


def scripted(actions: dict[float, Sequence[Action]], *nodes: NodePlan, warm: int = 1) -> FunctionResult:
    settings = Settings(autoscaler="script", max_batch=4, scale=ScaleSettings(min=1, max=6))
    policies = {**BUILT_IN, "script": PolicyPlugin(lambda _: Script(actions), "As written.")}
    plan = FunctionPlan("f", settings, modelled(MODEL), [9.0], "given", warm=warm, policies=policies)
    return simulate([plan], nodes)["f"]


def bursts(reserved_cores: int) -> FunctionResult:
    """A Body has what is not in reserve, and carries 2 rps; of 4 rps a Shadow has to carry half."""
    settings = Settings(autoscaler="asyfunc", slo_s=4.0, deadline_s=20.0, max_batch=4, max_cores=1, scale=ScaleSettings(max=1))
    arrivals = [
        *constant(1.0, 20.0),
        *(20.0 + at_s for at_s in constant(4.0, 4.0)),
        *(24.0 + at_s for at_s in constant(1.0, 9.0)),
    ]
    plan = FunctionPlan("f", settings, modelled(MODEL), arrivals, warm=1)
    return simulate([plan], [NodePlan("n1", 1 + reserved_cores, reserved_cores=reserved_cores)])["f"]


def test_a_burst_gets_the_core_that_is_held_for_it() -> None:
    assert bursts(0).cost.shadows == 0
    assert bursts(1).cost.shadows == 1


def test_a_body_gets_a_reserve_where_no_node_has_anything_else() -> None:
    nodes = NodePlan("n1", 3, reserved_cores=2), NodePlan("n2", 2)
    made = scripted({0.5: (CreateBody(1), CreateBody(1)), 1.0: (CreateBody(1),)}, *nodes)
    assert made.most_instances == 4
    assert not [record.error for record in made.decisions if record.error]
    # Two go to n2, which has most beside its reserve, one to n1; the last to n1's reserve, where three of one core fill it.
    full = scripted({0.5: (CreateBody(1),) * 4, 1.0: (CreateBody(1),)}, *nodes)
    assert full.most_instances == 5
    [refused] = [record.error for record in full.decisions if record.error]
    assert re.fullmatch(r"no_capacity: No node has 1 core and [1-9]\d* MiB free\. .*", refused)


def test_a_body_that_is_named_a_node_may_have_its_reserve_and_gives_it_back() -> None:
    node = SimulatedNode(NodePlan("n1", 4, reserved_cores=2))
    node.hold("body", 3, 0, 0.0)
    assert (node.value(0.0).free_cores, node.value(0.0).reserve_cores) == (0, 1)
    node.hold("body", 2, 0, 1.0)
    assert (node.value(1.0).free_cores, node.value(1.0).reserve_cores) == (0, 2)
    node.hold("shadow", 1, 0, 2.0, shadow=True)
    assert (node.value(2.0).free_cores, node.value(2.0).reserve_cores) == (0, 1)


@pytest.mark.parametrize(("pool", "ready_s"), [(1, 0.6), (0, 0.61)])
def test_a_shadow_that_finds_a_container_is_there_a_fork_sooner(pool: int, ready_s: float) -> None:
    """Decided on at 0.5, it starts in 0.1 s from the pool."""
    settings = Settings(autoscaler="script", max_batch=4, scale=ScaleSettings(min=1, max=4))
    policies = {**BUILT_IN, "script": PolicyPlugin(lambda _: Script({0.5: (CreateShadow("f-1", BOTH),)}), "As written.")}
    for begin_s, taken_s in ((ready_s - 0.001, 1.0), (ready_s + 0.001, 0.5)):
        # Two samples at once, as one batch: 1 s alone, 0.5 s together.
        arrivals = [begin_s - 0.5, begin_s - 0.4, begin_s - 0.4]
        plan = FunctionPlan("f", settings, modelled(MODEL), arrivals, "given", warm=1, policies=policies)
        result = simulate([plan], [NodePlan("n1", 4, pool=pool, fork_s=FORK_S)])["f"]
        assert result.requests.dispatched_s[2] == pytest.approx(begin_s)
        assert result.requests.finished_s[2] == pytest.approx(begin_s + taken_s)


def test_pool_of_containers_grows_to_the_size_of_the_last_burst() -> None:
    node = SimulatedNode(NodePlan("n1", 8, pool=1, fork_s=FORK_S))
    assert [node.take_container(10.0) for _ in range(3)] == [True, False, False]
    assert [node.take_container(20.0) for _ in range(4)] == [True, True, True, False]
    # So soon after it has been left alone for 0.15 s that the forks are not done.
    assert not node.take_container(20.155)
    alone = SimulatedNode(NodePlan("n1", 8, pool=1, fork_s=FORK_S))
    assert [alone.take_container(at_s) for at_s in (1.0, 2.0)] == [True, True]
    assert not SimulatedNode(NodePlan("n1", 8, pool=0)).take_container(1.0)


def test_burst_memory_of_the_pool_expires() -> None:
    node = SimulatedNode(NodePlan("n1", 8, pool=1))
    for _ in range(3):
        node.take_container(10.0)
    assert node.value(500.0).free_memory_bytes == node.plan.memory_bytes - 3 * CONTAINER_BYTES
    assert node.value(611.0).free_memory_bytes == node.plan.memory_bytes - CONTAINER_BYTES


def test_containers_are_memory_that_is_not_free_and_that_an_instance_gets() -> None:
    node = SimulatedNode(NodePlan("n1", 8, 3 * CONTAINER_BYTES, pool=2))
    assert node.value(0.0).free_memory_bytes == CONTAINER_BYTES
    assert node.has_room(1, 3 * CONTAINER_BYTES, reserve=False)
    node.hold("one", 1, 2 * CONTAINER_BYTES, 1.0)
    assert node.value(1.0).free_memory_bytes == 0
    assert [node.take_container(2.0) for _ in range(2)] == [True, False]
    node.hold("other", 1, CONTAINER_BYTES, 3.0)
    assert not node.take_container(9.0), "there is no memory for any"
    node.release("one", 10.0)
    node.release("other", 10.0)
    assert node.take_container(11.0)


def test_promotion_gives_the_reserve_back_to_nobody_until_the_body_ends() -> None:
    pair = Pair(1, (0,), (0, 1, 1, 2))
    steps: dict[float, Sequence[Action]] = {
        0.5: (CreateShadow("f-1", pair),),
        2.0: (PromoteShadow("f-2"),),
        5.0: (CreateShadow("f-1", pair),),
        6.0: (DestroyBody("f-2"),),
        7.0: (CreateShadow("f-1", pair),),
    }
    result = scripted(steps, NodePlan("n1", 2, 10**12, reserved_cores=1))
    assert [record.error.split(":")[0] for record in result.decisions if record.error] == ["no_capacity"]
    assert result.cost.shadows == 2


def test_a_node_is_by_default_as_gnomon_serve_has_it() -> None:
    assert (NodePlan("n1", 4).pool, NodePlan("n1", 4).reserved_cores) == (1, 0)


SLOW_START = Profile("v", LatencyTable({1: {1: 0.1, 2: 0.2, 4: 0.4}}), load_s=30.0)


class Shares:
    """A single instance; from second 10 on a quarter overflows."""

    name, period_s, default_scheduler = "shares", 1.0, "immediate"

    def __init__(self) -> None:
        self.seen: list[Observation] = []

    def decide(self, seen: Observation, state: PolicyState) -> tuple[Decision, PolicyState]:
        self.seen.append(seen)
        made = () if seen.live else (CreateBody(1),)
        return Decision(made, "by the clock", 1, 0.25 if seen.now_s >= 10.0 else 0.0), state


def overflowing_run(
    policy: Shares, *, on_demand_s: float | None, warm: int = 1, crashes_s: tuple[float, ...] = ()
) -> FunctionResult:
    policies = {**BUILT_IN, "shares": PolicyPlugin(lambda _: policy, "Shares.")}
    settings = Settings(autoscaler="shares", slo_s=5.0)
    plan = FunctionPlan(
        "f",
        settings,
        SLOW_START,
        constant(4.0, 30.0),
        "given",
        warm=warm,
        policies=policies,
        on_demand_s=on_demand_s,
        crashes_s=crashes_s,
    )
    return simulate([plan], [NodePlan("node-1", 8)])["f"]


def called(result: FunctionResult) -> list[float]:
    """When those came that functions served."""
    rows = result.requests
    if ON_DEMAND_INSTANCE not in rows.instances:
        return []
    number = rows.instances.index(ON_DEMAND_INSTANCE)
    return [arrived for arrived, instance in zip(rows.arrived_s, rows.instance, strict=True) if instance == number]


def test_every_fourth_request_is_called_alone_and_waits_for_nobody() -> None:
    result = overflowing_run(Shares(), on_demand_s=0.3)
    # From second 10 on four come a second, of which the policy, asked at 10, leaves one to functions.
    assert called(result) == pytest.approx([10.75 + number for number in range(20)], abs=0.25 + 1e-9)
    assert on_demand(result.requests) == 20
    rows = result.requests
    for row, arrived in enumerate(rows.arrived_s):
        if rows.instance[row] == rows.instances.index(ON_DEMAND_INSTANCE):
            assert (rows.batch[row], rows.status[row]) == (1, OK)
            assert rows.finished_s[row] - arrived == pytest.approx(0.3)


def test_prediction_covers_both_tiers() -> None:
    policy = Shares()
    overflowing_run(policy, on_demand_s=0.3)
    last = policy.seen[-1]
    assert last.history.rate_rps(last.history.arrivals, 10.0) == pytest.approx(4.0, abs=0.11)


def test_without_functions_all_of_them_wait_for_instances() -> None:
    result = overflowing_run(Shares(), on_demand_s=None)
    assert called(result) == []
    assert on_demand(result.requests) == 0
    assert all(status == OK for status in result.requests.status)


def test_a_replaced_instance_changes_nothing_of_the_share() -> None:
    result = overflowing_run(Shares(), on_demand_s=0.3, crashes_s=(15.5,))
    assert len(called(result)) == 20


def test_a_share_is_spread_evenly_and_none_forgets() -> None:
    tier = OnDemand(1.0)
    assert [tier.takes(0.4) for _ in range(10)] == [False, False, True, False, True] * 2
    assert tier.takes(0.0) is False
    assert [tier.takes(1.0) for _ in range(3)] == [True] * 3
    assert not any(tier.takes(0.0) for _ in range(5))


def test_mark_calls_for_a_burst_what_its_machine_does_not_carry() -> None:
    """8 a second keep one of two instances busy; 60 a second for ten seconds are three times what both carry."""
    calm, burst = constant(8.0, 300.0), [300.0 + number / 60.0 for number in range(600)]
    after = [310.0 + time_s for time_s in constant(8.0, 60.0)]
    settings = Settings(autoscaler="mark", slo_s=1.0, max_batch=4, scale=ScaleSettings(min=1, max=20))

    def served(on_demand_s: float | None) -> FunctionResult:
        plan = FunctionPlan("f", settings, SLOW_START, calm + burst + after, "given", warm=2, on_demand_s=on_demand_s)
        return simulate([plan], [NodePlan("node-1", 64)])["f"]

    alone, both = served(None), served(0.2)
    # It is seen at 305, when 300 have come and 200 of them wait: of what comes then most is called.
    assert not [time_s for time_s in called(both) if time_s < 305.0]
    assert 300 <= len(called(both)) <= 600
    assert both.violations < 0.6 * alone.violations
    assert "overflow to functions" in " ".join(decision.reason for decision in alone.decisions)


@pytest.mark.parametrize("policy", sorted(set(BUILT_IN) - {"mark"}))
def test_warm_instances_are_kept_until_policies_have_seen_enough(policy: str) -> None:
    """Forty requests a second for nine instances: at second 0 windows are empty, which is not "no load"."""
    busy = settings(1, 20, autoscaler=policy, scheduler=None, slo_s=1.0, deadline_s=1.0, max_batch=4, max_cores=1)
    quick = modelled(MODEL) if policy.startswith("asyfunc") else Profile("v", LatencyTable({1: {1: 0.1, 4: 0.4}}))
    result = run(FunctionPlan("f", busy, quick, constant(40.0, 50.0), "given", warm=9), [NodePlan("node-1", 64)])
    assert result.fewest_instances >= 9
    assert result.start_up_requests == len(result.requests)
    assert (result.start_up_violations, result.steady_violation_rate) == (result.violations, 0.0)


def test_start_up_is_told_apart() -> None:
    """The one instance is away from second 1 to 5; later nothing is late."""
    slow = Profile("v", LatencyTable({1: {1: 0.2}}), load_s=4.0)
    result = run(FunctionPlan("f", settings(1, 1, slo_s=0.5), slow, constant(1.0, 80.0), "given", warm=1, crashes_s=(0.9,)))
    assert (result.start_up_s, result.start_up_requests) == (60.0, 60)
    assert result.start_up_violations == result.violations > 0
    assert result.summary()["start_up"] == {"seconds": 60.0, "requests": 60, "violations": result.violations}
    assert result.steady_violation_rate == 0.0


NODE_MODEL = made_up_profile((BlockPlan(1.0, 10**6),), (1.0,), cores=tuple(range(1, 9)))
"""One sample takes a second of one core, and an eighth of that on eight."""


def run_script(
    actions: dict[float, Sequence[Action]], arrivals: list[float], *, cores: int = 8, deadline_s: float = 30.0
) -> FunctionResult:
    settings = Settings(
        autoscaler="script", scheduler="economical", slo_s=deadline_s, deadline_s=deadline_s, scale=ScaleSettings(min=1, max=4)
    )
    policies = {**BUILT_IN, "script": PolicyPlugin(lambda _: Script(actions), "As written.")}
    plan = FunctionPlan("f", settings, modelled(NODE_MODEL), arrivals, "given", policies=policies)
    return simulate([plan], [NodePlan("n1", cores)])["f"]


def borrowing(*more: Action) -> dict[float, Sequence[Action]]:
    return {0.0: (CreateBody(8, idle_cores=1), *more)}


def test_a_batch_takes_as_long_as_on_the_cores_that_it_borrows_and_gives_them_back() -> None:
    result = run_script(borrowing(), [1.0, 11.0])
    # 60 % of eight cores while nothing waits: five.
    assert list(result.requests.finished_s) == pytest.approx([1.2, 11.2])
    assert result.busy_core_s == pytest.approx(2.0)
    assert result.core_s == pytest.approx(result.duration_s + 2 * 0.2 * 4), "one core while it is idle, five while it executes"


def test_a_wait_gets_all_the_cores_that_there_are() -> None:
    result = run_script(borrowing(), [1.0, 1.0, 1.0], deadline_s=0.5)
    took_s = [finished - sent for finished, sent in zip(result.requests.finished_s, result.requests.dispatched_s, strict=True)]
    assert took_s == pytest.approx([1 / 5, 1 / 8, 1 / 8])


def test_two_instances_share_the_node() -> None:
    result = run_script(borrowing(CreateBody(8, idle_cores=1)), [1.0, 1.0])
    took_s = [finished - 1.0 for finished in result.requests.finished_s]
    assert took_s == pytest.approx([1 / 4, 1 / 4])


def test_an_instance_with_cores_of_its_own_keeps_them_from_borrowers() -> None:
    result = run_script(borrowing(CreateBody(6)), [1.0, 1.0])
    took_s = sorted(finished - 1.0 for finished in result.requests.finished_s)
    assert took_s == pytest.approx([1 / 6, 1 / 2])


def test_functions_that_compete_for_a_node_have_half_of_it_each() -> None:
    settings = Settings(autoscaler="script", scheduler="economical", slo_s=30.0, deadline_s=30.0)
    policies = {**BUILT_IN, "script": PolicyPlugin(lambda _: Script(borrowing()), "As written.")}
    plans = [FunctionPlan(name, settings, modelled(NODE_MODEL), [1.0], "given", policies=policies) for name in ("f", "g")]
    results = simulate(plans, [NodePlan("n1", 8)])
    assert [list(results[name].requests.finished_s) for name in ("f", "g")] == [[pytest.approx(1.25)]] * 2


def test_admission_counts_on_the_share_of_the_node_and_no_more() -> None:
    # A batch takes 1/8 s of the whole node and 1/4 s of half of it: within 0.6 s two are answered, the others refused at once.
    result = run_script(
        borrowing(CreateBody(7, idle_cores=1)), [1.0, 2.0, 3.0, 3.0, 3.0, 3.0, 3.0, 3.0, 3.0, 3.0], deadline_s=0.6
    )
    statuses = list(result.requests.status)
    late = [
        finished - arrived
        for arrived, finished, status in zip(result.requests.arrived_s, result.requests.finished_s, statuses, strict=True)
        if status == 200 and finished - arrived > 0.6
    ]
    assert not late
    assert statuses.count(200) < len(statuses)


def test_an_instance_gives_its_own_cores_up_and_borrows_from_then_on() -> None:
    result = run_script({0.0: (CreateBody(4),), 2.0: (Resize("f-1", 8, 1),)}, [1.0, 12.0])
    assert list(result.requests.finished_s) == pytest.approx([1.25, 12.2])
    assert result.core_s == pytest.approx(2 * 4 + (result.duration_s - 2) + 0.2 * 4)


def test_instance_that_ends_in_the_midst_of_its_batch_returns_its_cores() -> None:
    actions = borrowing() | {1.0: (DestroyBody("f-1"),), 2.0: (CreateBody(8, idle_cores=1),)}
    result = run_script(actions, [0.9, 3.0])
    assert list(result.requests.finished_s) == pytest.approx([1.1, 3.2])

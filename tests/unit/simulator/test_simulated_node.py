"""The simulated cluster's nodes: cores in reserve and the pool of empty containers, as on the local platform."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest

from gnomon_autoscaler import BUILT_IN, PolicyPlugin
from gnomon_core.pairs import Pair
from gnomon_core.scaling import Action, CreateBody, CreateShadow, DestroyBody, PromoteShadow
from gnomon_core.settings import ScaleSettings, Settings
from gnomon_platforms.local.recipes import CONTAINER_BYTES
from gnomon_simulator.arrivals import constant
from gnomon_simulator.profiles import modelled
from gnomon_simulator.results import FunctionResult
from gnomon_simulator.simulated_platform import NodePlan, SimulatedNode
from gnomon_simulator.simulation import FunctionPlan, simulate
from tests.unit.simulator.scripted import Script
from tests.unit.simulator.test_simulated_shadows import BOTH, MODEL

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
    node.take(3, 0, 0.0)
    assert (node.value(0.0).free_cores, node.value(0.0).reserve_cores) == (0, 1)
    node.take(-1, 0, 1.0)
    assert (node.value(1.0).free_cores, node.value(1.0).reserve_cores) == (0, 2)
    node.take(1, 0, 2.0, shadow=True)
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


def test_of_a_burst_one_finds_a_container_and_the_next_burst_finds_three() -> None:
    node = SimulatedNode(NodePlan("n1", 8, pool=1, fork_s=FORK_S))
    assert [node.take_container(10.0) for _ in range(3)] == [True, False, False]
    assert [node.take_container(20.0) for _ in range(4)] == [True, True, True, False]
    # So soon after it has been left alone for 0.15 s that the forks are not done.
    assert not node.take_container(20.155)
    alone = SimulatedNode(NodePlan("n1", 8, pool=1, fork_s=FORK_S))
    assert [alone.take_container(at_s) for at_s in (1.0, 2.0)] == [True, True]
    assert not SimulatedNode(NodePlan("n1", 8, pool=0)).take_container(1.0)


def test_what_was_learned_of_a_burst_is_forgotten() -> None:
    node = SimulatedNode(NodePlan("n1", 8, pool=1))
    for _ in range(3):
        node.take_container(10.0)
    assert node.value(500.0).free_memory_bytes == node.plan.memory_bytes - 3 * CONTAINER_BYTES
    assert node.value(611.0).free_memory_bytes == node.plan.memory_bytes - CONTAINER_BYTES


def test_containers_are_memory_that_is_not_free_and_that_an_instance_gets() -> None:
    node = SimulatedNode(NodePlan("n1", 8, 3 * CONTAINER_BYTES, pool=2))
    assert node.value(0.0).free_memory_bytes == CONTAINER_BYTES
    assert node.has_room(1, 3 * CONTAINER_BYTES, reserve=False)
    node.take(1, 2 * CONTAINER_BYTES, 1.0)
    assert node.value(1.0).free_memory_bytes == 0
    assert [node.take_container(2.0) for _ in range(2)] == [True, False]
    node.take(1, CONTAINER_BYTES, 3.0)
    assert not node.take_container(9.0), "there is no memory for any"
    node.take(-2, -3 * CONTAINER_BYTES, 10.0)
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

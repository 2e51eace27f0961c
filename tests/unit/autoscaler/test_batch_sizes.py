"""`batch` and `batch+` choose the cores of an instance: which, why, within which bounds, and how instances come to have them."""

import random
import time
from typing import Any

import numpy as np
import pytest

from gnomon_autoscaler.controller import DECIDE_LIMIT_S
from gnomon_autoscaler.policies.batch.plans import Task, plan_for
from gnomon_autoscaler.policies.batch.sizes import all_cores, towards_size
from gnomon_autoscaler.registry import require, scaling_policy
from gnomon_autoscaler.testing import FUNCTION, Timeline
from gnomon_core.errors import GnomonError
from gnomon_core.fleet import Instance, InstanceState, Node
from gnomon_core.interfaces import Capabilities
from gnomon_core.scaling import CreateBody, DestroyBody, History, Observation, Resize, SetBufferPlan
from gnomon_core.settings import ScaleSettings, Settings, read_settings
from tests.made_up_models import BlockPlan, made_up_profile
from tests.timelines import play

ONE_CORE_S = (0.30, 0.50, 0.70, 0.90)


def timeline(
    name: str = "batch",
    *,
    rps: float = 8.0,
    serial: float = 0.1,
    cores: tuple[int, ...] = (1, 2, 4),
    nodes: tuple[tuple[str, int], ...] = (("node-1", 64),),
    start_s: float = 0.0,
    **settings: Any,
) -> Timeline:
    """A model on 1, 2 and 4 cores; the function begins with `gnomon/cores` 1."""
    given = {"slo_s": 2.0, "max_batch": 4, "scale": ScaleSettings(max=20), "plan_cores": "any", **settings}
    profile = made_up_profile([BlockPlan(1.0, 1_000_000)], ONE_CORE_S, cores=cores, serial_fraction=serial)
    line = Timeline(Settings(autoscaler=name, **given), nodes=nodes, start_s=start_s, profile=profile)
    line.rps = rps
    row = profile.whole.seconds.get(line.settings.cores, {})
    line.latency_s = tuple(row[batch] for batch in sorted(row))
    return line


def cores_of(line: Timeline) -> set[int]:
    return {instance.cores for instance in line.instances.values()}


@pytest.mark.parametrize("name", ["batch", "batch+"])
def test_an_objective_that_one_core_cannot_meet_is_met_by_instances_with_more(name: str) -> None:
    line = timeline(name, slo_s=0.25)
    line.play(40)
    assert cores_of(line) == {2} or cores_of(line) == {4}
    assert "1 core: P95 300.0 ms at best" in line.reason
    assert f"{line.live} × {cores_of(line).pop()} cores" in line.reason
    assert not line.errors


def test_more_cores_are_not_taken_where_they_cost_more_and_the_reason_says_how_much() -> None:
    line = timeline(serial=0.5)
    line.play(40)
    assert cores_of(line) == {1}
    assert "; 2 cores: +" in line.reason
    assert "; 4 cores: +" in line.reason


@pytest.mark.parametrize(("bound", "chosen"), [({"plan_cores": "fixed"}, 1), ({"max_cores": 2}, 2)])
def test_a_function_bounds_or_fixes_them(bound: dict[str, Any], chosen: int) -> None:
    """0.16 s can be met by four cores alone: 0.3 · (0.1 + 0.9 / 4) = 98 ms."""
    line = timeline(slo_s=0.16, **bound)
    line.play(40)
    assert cores_of(line) == {chosen}
    assert "No plan has its P95 within 160 ms" in line.reason
    assert f"{line.live} × {chosen} core" in line.reason


def test_no_more_cores_are_planned_than_the_largest_node_has() -> None:
    line = timeline(slo_s=0.16, nodes=tuple((f"node-{number}", 2) for number in range(9)), rps=4.0)
    line.play(40)
    assert cores_of(line) == {2}
    assert "4 cores" not in line.reason


def test_instances_are_resized_in_place_and_the_buffer_is_told() -> None:
    line = timeline(slo_s=0.25)
    line.play(29)
    before = set(line.instances)
    decisions = line.play(5)
    actions = [action for decision in decisions for action in decision.actions]
    assert {action.id for action in actions if isinstance(action, Resize)} == before
    assert any(isinstance(action, SetBufferPlan) for action in actions)


def test_on_a_full_node_those_that_are_not_needed_make_room_and_some_serve_at_any_time() -> None:
    """Eight cores: eight instances of one each, kept by an operator's word until the plan comes."""
    line = timeline(slo_s=0.25, nodes=(("node-1", 8),), rps=4.0, start_s=3.0)
    assert play(line, 20, requested=8) == 8
    fewest = 8
    for _ in range(60):
        line.play(1)
        fewest = min(fewest, sum(one.state is InstanceState.READY for one in line.instances.values()))
    assert fewest >= 1
    assert cores_of(line) in ({2}, {4})
    assert not line.errors, "nothing was asked for that had no room"


def test_a_change_that_saves_less_than_a_tenth_is_not_made() -> None:
    """With hardly any serial work two cores are as good as two instances: what is there stays."""
    line = timeline(serial=0.02)
    line.play(40)
    first = cores_of(line)
    line.play(400)
    assert cores_of(line) == first
    assert not [action for _, decision in line.decisions[-3:] for action in decision.actions if isinstance(action, Resize)]


def test_the_chosen_cores_are_kept_over_a_restart() -> None:
    line = timeline(slo_s=0.25)
    line.play(100)
    chosen = cores_of(line)
    state = line.runner.state
    assert state.values["size"] in chosen
    policy = scaling_policy("batch", line.settings)
    assert policy.name == state.policy


def test_function_with_fixed_cores_keeps_them() -> None:
    def plan_cores(**annotations: str) -> str:
        named = {f"gnomon/{name.replace('_', '-')}": value for name, value in annotations.items()}
        return read_settings({}, named).plan_cores

    assert plan_cores(autoscaler="batch") == plan_cores(autoscaler="batch+") == "any"
    assert plan_cores(autoscaler="batch", cores="2") == plan_cores(autoscaler="batch+", memory_mb="3008") == "fixed"
    assert plan_cores(autoscaler="batch", cores="2", plan_cores="any") == "any"
    assert plan_cores(autoscaler="lv") == "fixed"
    with pytest.raises(GnomonError, match="plan-cores"):
        plan_cores(plan_cores="some")


def test_a_platform_that_cannot_resize_keeps_functions_whose_cores_are_fixed() -> None:
    alike = Capabilities(place=True, size=False, victim=True, resize=False, pair=False)
    require(scaling_policy("batch", Settings(plan_cores="fixed")), alike)
    with pytest.raises(GnomonError, match="resize, size"):
        require(scaling_policy("batch", Settings(plan_cores="any")), alike)


def test_on_the_way_nothing_is_asked_for_without_room_and_what_is_needed_goes_on_serving() -> None:
    """Any instances on any nodes, any number and size wanted: no more cores than are free, and never fewer that serve."""
    chance = random.Random(3)
    for _ in range(400):
        seen, count = anything(chance)
        actions = towards_size(count, seen)
        ready = {one.id: one for one in seen.ready}
        free = {node.name: node.free_cores for node in seen.nodes}
        known = {one.id: one for one in seen.live}
        for action in actions:
            if isinstance(action, Resize):
                free[known[action.id].node] -= action.cores - known[action.id].given_cores
            elif isinstance(action, CreateBody) and action.node is not None:
                free[action.node] -= action.cores
        assert all(spare >= 0 for spare in free.values())
        ended = {action.id for action in actions if isinstance(action, DestroyBody)}
        assert ended <= set(known)
        assert len(ready.keys() - ended) >= min(len(ready), count)
        created = sum(isinstance(action, CreateBody) for action in actions)
        assert len(known) - len(ended) + created <= max(count, len(known))


def test_from_anything_the_wanted_size_is_reached_where_the_nodes_have_room_for_it() -> None:
    chance = random.Random(4)
    for _ in range(60):
        line = timeline(nodes=(("a", 32), ("b", 32)))
        for _ in range(chance.randint(1, 8)):
            line.fleet.carry_out(FUNCTION, [CreateBody(chance.choice((1, 2, 4)), chance.choice(("a", "b")))])
        cores, count = chance.choice((1, 2, 4)), chance.randint(1, 4)
        for _ in range(30):
            load = line.fleet.load(FUNCTION)
            seen = observation(load.instances, load.nodes, cores)
            line.fleet.carry_out(FUNCTION, towards_size(count, seen))
        assert [one.cores for one in line.instances.values()] == [cores] * count


def anything(chance: random.Random) -> tuple[Observation, int]:
    """Some instances on three nodes, some starting or about to have other cores, and how many of another size are wanted."""
    names, free = ("a", "b", "c"), dict.fromkeys(("a", "b", "c"), 16.0)
    made = []
    for number in range(chance.randint(0, 10)):
        node, cores, coming = chance.choice(names), chance.choice((1, 2, 4)), chance.choice((None, None, 1, 2, 4))
        state = chance.choice((InstanceState.READY, InstanceState.READY, InstanceState.STARTING))
        busy = chance.random() < 0.5
        one = Instance(f"i-{number}", FUNCTION, 1, node, cores, 0, state, float(number), busy=busy, coming_cores=coming)
        if free[node] >= one.given_cores:
            free[node] -= one.given_cores
            made.append(one)
    taken = {name: chance.randint(0, int(free[name])) for name in names}
    nodes = tuple(Node(name, 16, 2**30, free[name] - taken[name], 2**30) for name in names)
    return observation(tuple(made), nodes, chance.choice((1, 2, 4))), chance.randint(0, 8)


def observation(instances: tuple[Instance, ...], nodes: tuple[Node, ...], cores: int) -> Observation:
    """What is seen of a function whose instances are to have so many cores."""
    return Observation(0.0, FUNCTION, Settings(cores=cores), instances, nodes, 0, 0, 0.0, 0.0, History(0.5, 0.0))


def sized(name: str, cores: int, coming: int | None = None, *, busy: bool = False) -> Instance:
    return Instance(name, FUNCTION, 1, "a", cores, 0, InstanceState.READY, 0.0, busy=busy, coming_cores=coming)


def test_cores_on_their_way_are_asked_for_once_and_of_nobody_else() -> None:
    """Until the kubelet came, each second another instance was asked to grow in place of the one that does."""
    nodes = (Node("a", 16, 2**30, 8, 2**30),)
    for growing in (sized("i-1", 1, 2), sized("i-1", 1, 2, busy=True)):
        there = (growing, sized("i-2", 1))
        assert towards_size(1, observation(there, nodes, 2)) == (), "the other one serves until this one has its cores"
        assert towards_size(2, observation(there, nodes, 2)) == (Resize("i-2", 2),)
    assert towards_size(1, observation((sized("i-1", 2), sized("i-2", 1)), nodes, 2)) == (DestroyBody("i-2"),)
    # One core is free, which is enough for the one that is about to have two.
    full = (Node("a", 4, 2**30, 1, 2**30),)
    assert towards_size(2, observation((sized("i-1", 1, 2), sized("i-2", 1)), full, 3)) == (Resize("i-1", 3),)


def test_cores_on_their_way_that_another_plan_does_not_want_are_taken_back() -> None:
    nodes = (Node("a", 16, 2**30, 8, 2**30),)
    assert towards_size(1, observation((sized("i-1", 1, 2),), nodes, 1)) == (Resize("i-1", 1),)


def test_cores_on_their_way_are_among_those_that_instances_may_have() -> None:
    """Of eight cores the node has four left once the instance has its four."""
    nodes = (Node("a", 8, 2**30, 4, 2**30),)
    assert all_cores(observation((sized("i-1", 1, 4),), nodes, 4)) == 8


def test_with_large_batches_the_way_to_many_cores_takes_several_plans() -> None:
    """A plan has to be found within a second; with batches beyond 8 it looks at the next numbers of cores alone."""
    line = timeline(slo_s=0.16, max_batch=16)
    line.profile = made_up_profile(
        [BlockPlan(1.0, 1_000_000)], [0.1 + 0.2 * size for size in range(1, 17)], cores=(1, 2, 4), serial_fraction=0.1
    )
    play(line, 32, latency_s=tuple(0.1 + 0.2 * size for size in range(1, 17)))
    assert cores_of(line) == {2}
    assert "4 cores" not in line.reason
    line.play(40)
    assert cores_of(line) == {4}


def test_five_sizes_at_the_highest_load_are_planned_within_a_decision() -> None:
    chance = np.random.default_rng(1)
    counts = tuple(float(count) for count in chance.poisson(1500.0 * (1.0 + np.arange(3600) // 60 % 2)))
    rows = {cores: tuple((0.05 + 0.02 * size) / cores for size in range(1, 9)) for cores in (1, 2, 4, 8, 16)}
    task = Task(0.5, 99.0, rows[1], 1, 10**9, 0.5, 200, None, rows, 4000.0)
    begun_s = time.process_time()
    assert plan_for(counts, 1.0, task).said.count("cores: ") == 4
    assert time.process_time() - begun_s < DECIDE_LIMIT_S


def test_instances_on_nodes_of_which_nothing_is_known_shrink_and_do_not_grow() -> None:
    """Platforms may know where an instance is and nothing of the place."""
    wide = sized("i-1", 2)
    assert towards_size(1, observation((wide,), (), 1)) == (Resize("i-1", 1),)
    assert towards_size(1, observation((wide,), (), 4)) == ()

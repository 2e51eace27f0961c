"""`batch` and `batch+` choose the cores of an instance, or its memory where that is sold: which, why, and how it is reached."""

import random
import time
from typing import Any

import numpy as np
import pytest

from gnomon_autoscaler.controller import DECIDE_LIMIT_S
from gnomon_autoscaler.policies.batch.plans import Task, plan_for
from gnomon_autoscaler.policies.batch.sizes import all_cores, towards_memory, towards_size
from gnomon_autoscaler.registry import require, scaling_policy
from gnomon_autoscaler.testing import FUNCTION, Timeline
from gnomon_core.errors import GnomonError
from gnomon_core.fleet import Instance, InstanceState, Node
from gnomon_core.interfaces import Capabilities
from gnomon_core.scaling import CreateBody, DestroyBody, History, Observation, Resize, SetBufferPlan
from gnomon_core.settings import ScaleSettings, Settings, read_settings
from gnomon_core.units import MEGABYTE
from tests.made_up_models import BlockPlan, made_up_profile, sold_by_memory
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
def test_objective_out_of_reach_of_one_core_gets_instances_with_more(name: str) -> None:
    line = timeline(name, slo_s=0.25)
    line.play(40)
    assert cores_of(line) == {2} or cores_of(line) == {4}
    assert "1 core: P95 300.0 ms at best" in line.reason
    assert f"{line.live} × {cores_of(line).pop()} cores" in line.reason
    assert not line.errors


def test_dearer_cores_are_not_chosen_and_the_reason_gives_the_cost() -> None:
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


def test_resizing_on_a_full_node_frees_unneeded_instances_and_keeps_serving() -> None:
    """Eight cores: eight instances of one each, kept by an operator's word until the plan comes."""
    line = timeline(slo_s=0.25, nodes=(("node-1", 8),), rps=4.0, start_s=3.0)
    assert play(line, 20, requested=8) == 8
    fewest = 8
    for _ in range(60):
        line.play(1)
        fewest = min(fewest, sum(instance.state is InstanceState.READY for instance in line.instances.values()))
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


def test_resizing_never_exceeds_free_cores_nor_ends_needed_instances() -> None:
    """Any instances on any nodes, any number and size wanted: no more cores than are free, and never fewer that serve."""
    rng = random.Random(3)
    for _ in range(400):
        seen, count = anything(rng)
        actions = towards_size(count, seen)
        ready = {instance.id: instance for instance in seen.ready}
        free = {node.name: node.free_cores for node in seen.nodes}
        known = {instance.id: instance for instance in seen.live}
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


def test_resizing_reaches_the_wanted_cores_from_any_state() -> None:
    rng = random.Random(4)
    for _ in range(60):
        line = timeline(nodes=(("a", 32), ("b", 32)))
        for _ in range(rng.randint(1, 8)):
            line.fleet.carry_out(FUNCTION, [CreateBody(rng.choice((1, 2, 4)), rng.choice(("a", "b")))])
        cores, count = rng.choice((1, 2, 4)), rng.randint(1, 4)
        for _ in range(30):
            load = line.fleet.load(FUNCTION)
            seen = observation(load.instances, load.nodes, cores)
            line.fleet.carry_out(FUNCTION, towards_size(count, seen))
        assert [instance.cores for instance in line.instances.values()] == [cores] * count


def anything(rng: random.Random) -> tuple[Observation, int]:
    """Some instances on three nodes, some starting or about to have other cores, and how many of another size are wanted."""
    names, free = ("a", "b", "c"), dict.fromkeys(("a", "b", "c"), 16.0)
    made = []
    for number in range(rng.randint(0, 10)):
        node, cores, coming = rng.choice(names), rng.choice((1, 2, 4)), rng.choice((None, None, 1, 2, 4))
        state = rng.choice((InstanceState.READY, InstanceState.READY, InstanceState.STARTING))
        busy = rng.random() < 0.5
        instance = Instance(f"i-{number}", FUNCTION, 1, node, cores, 0, state, float(number), busy=busy, coming_cores=coming)
        if free[node] >= instance.given_cores:
            free[node] -= instance.given_cores
            made.append(instance)
    taken = {name: rng.randint(0, int(free[name])) for name in names}
    nodes = tuple(Node(name, 16, 2**30, free[name] - taken[name], 2**30) for name in names)
    return observation(tuple(made), nodes, rng.choice((1, 2, 4))), rng.randint(0, 8)


def observation(instances: tuple[Instance, ...], nodes: tuple[Node, ...], cores: int) -> Observation:
    """The observation of a function whose instances are to have so many cores."""
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
    rng = np.random.default_rng(1)
    counts = tuple(float(count) for count in rng.poisson(1500.0 * (1.0 + np.arange(3600) // 60 % 2)))
    rows = {cores: tuple((0.05 + 0.02 * size) / cores for size in range(1, 9)) for cores in (1, 2, 4, 8, 16)}
    task = Task(0.5, 99.0, rows[1], 1, 10**9, 0.5, 200, None, rows, 4000.0)
    took_s = []
    for _ in range(3):  # beside a busy thread of the same core, processor time is up to twice as long
        begun_s = time.process_time()
        assert plan_for(counts, 1.0, task).reason.count("cores: ") == 4
        took_s.append(time.process_time() - begun_s)
    assert min(took_s) < DECIDE_LIMIT_S


def test_instances_on_unknown_nodes_shrink_but_do_not_grow() -> None:
    """Platforms may know where an instance is and nothing of the place."""
    wide = sized("i-1", 2)
    assert towards_size(1, observation((wide,), (), 1)) == (Resize("i-1", 1),)
    assert towards_size(1, observation((wide,), (), 4)) == ()


WORK_S = (0.30, 0.50, 0.70, 0.90)
MEMORIES_MB = (885, 1769, 3538)


def lambda_timeline(
    name: str = "batch",
    *,
    rps: float = 8.0,
    start_s: float = 0.0,
    places: int | None = 64,
    memories_mb: tuple[int, ...] = MEMORIES_MB,
    fixed_s: float = 0.0,
    **settings: Any,
) -> Timeline:
    """A model on Lambda; the function begins with 1,769 MB, and with one core 300 ms for a request."""
    given = {
        "slo_s": 2.0, "max_batch": 4, "scale": ScaleSettings(max=20), "plan_cores": "any", "memory_mb": 1769, **settings
    }  # fmt: skip
    profile = sold_by_memory(WORK_S, memories_mb, fixed_s=fixed_s)
    line = Timeline(
        Settings(autoscaler=name, **given), nodes=(("lambda", 10_000),), start_s=start_s, profile=profile, places=places
    )
    line.rps = rps
    line.latency_s = tuple(fixed_s + work_s for work_s in WORK_S)
    return line


def sizes_of(line: Timeline) -> set[int]:
    return {instance.memory_bytes // MEGABYTE for instance in line.instances.values()}


@pytest.mark.parametrize("name", ["batch", "batch+"])
def test_objective_out_of_reach_of_the_present_memory_gets_a_larger_one(name: str) -> None:
    line = lambda_timeline(name, slo_s=0.25)
    line.play(40)
    assert sizes_of(line) == {3538}
    assert "1769 MB: P95 300.0 ms at best" in line.reason
    assert not line.errors


def test_a_smaller_size_is_taken_where_a_larger_one_saves_no_time() -> None:
    """Nearly all of the 300 ms are waiting, which costs half as much with half of the memory."""
    line = lambda_timeline(fixed_s=3.0, slo_s=10.0)
    line.play(40)
    assert sizes_of(line) == {885}
    assert "; 1769 MB: +" in line.reason


def test_a_memory_that_saves_less_than_a_tenth_is_not_chosen() -> None:
    """Work alone costs the same whatever the memory is, until fees and rounding: what is there stays."""
    line = lambda_timeline(memories_mb=(1769, 3538))
    line.play(400)
    assert sizes_of(line) == {1769}


@pytest.mark.parametrize(
    ("bound", "chosen"), [({"plan_cores": "fixed"}, 1769), ({"max_cores": 2}, 3538), ({"max_cores": 16}, 7076)]
)
def test_a_function_bounds_or_fixes_it(bound: dict[str, Any], chosen: int) -> None:
    """100 ms can be met with 7,076 MB alone, 75 ms."""
    line = lambda_timeline(slo_s=0.10, rps=4.0, memories_mb=(*MEMORIES_MB, 7076), **bound)
    line.play(40)
    assert sizes_of(line) == {chosen}


def test_a_fixed_size_is_paid_by_the_call_too() -> None:
    """A call of 2 s of 1,769 MB is $57.6 a million; an instance that is held would cost something else."""
    line = lambda_timeline(plan_cores="fixed", fixed_s=1.7, slo_s=2.05, max_batch=1, rps=4.0)
    line.play(40)
    assert "$57.8 per million requests" in line.reason


def test_slots_of_the_new_memory_serve_before_old_ones_end() -> None:
    line = lambda_timeline(slo_s=0.25, start_s=3.0, rps=20.0)
    line.play(29)
    wanted = sum(instance.state is InstanceState.READY for instance in line.instances.values())
    fewest, decisions = wanted, []
    for _ in range(40):
        decisions += line.play(0.5)
        fewest = min(fewest, sum(instance.state is InstanceState.READY for instance in line.instances.values()))
    chosen = line.live
    assert fewest >= min(wanted, chosen)
    assert sizes_of(line) == {3538}
    assert not any(isinstance(action, Resize) for decision in decisions for action in decision.actions)


def test_where_every_place_is_taken_one_after_the_other_makes_room() -> None:
    line = lambda_timeline(slo_s=0.25, start_s=1.0, places=6, scale=ScaleSettings(min=6, max=6))
    assert play(line, 10) == 6
    fewest = 6
    for _ in range(120):
        line.play(0.5)
        fewest = min(fewest, sum(instance.state is InstanceState.READY for instance in line.instances.values()))
    assert sizes_of(line) == {3538}
    assert fewest >= 4, "one makes room, and another may once the first new one serves"
    assert not line.errors, "nothing was asked for that had no place"


def test_the_chosen_size_is_kept_over_a_restart() -> None:
    line = lambda_timeline(slo_s=0.25)
    line.play(100)
    assert line.runner.state.values["size"] == 3538


def any_slots(rng: random.Random) -> tuple[Observation, int]:
    """Some slots of any sizes, some of them starting, some places left, and how many of 3,538 MB are wanted."""
    most = rng.randint(1, 8)
    made = [
        Instance(
            f"i-{number}", FUNCTION, 1, "lambda", 1, rng.choice((1769, 3538, 3538)) * MEGABYTE,
            rng.choice((InstanceState.READY, InstanceState.READY, InstanceState.STARTING)), float(number),
            busy=rng.random() < 0.5,
        )
        for number in range(rng.randint(0, most))
    ]  # fmt: skip
    free = rng.randint(0, 4) * 10_240 * MEGABYTE
    node = Node("lambda", 1000, 2**40, 1000.0, free)
    settings = Settings(scale=ScaleSettings(max=most))
    seen = Observation(0.0, FUNCTION, settings, tuple(made), (node,), 0, 0, 0.0, 0.0, History(0.5, 0.0))
    return seen, rng.randint(0, most)


def test_changing_memory_never_exceeds_the_places_nor_ends_needed_slots() -> None:
    rng = random.Random(5)
    for _ in range(2000):
        seen, count = any_slots(rng)
        actions = towards_memory(count, 3538, seen)
        ended = {action.id for action in actions if isinstance(action, DestroyBody)}
        created = sum(isinstance(action, CreateBody) for action in actions)
        ready = {instance.id for instance in seen.ready}
        others = any(instance.memory_bytes != 3538 * MEGABYTE for instance in seen.live)
        assert ended <= {instance.id for instance in seen.live}
        assert len(ready - ended) >= min(len(ready), count) - (1 if not created else 0)
        if others:
            assert len(seen.live) - len(ended) + created <= max(seen.settings.scale.max, len(seen.live))
            assert created * 10_240 * MEGABYTE <= seen.nodes[0].free_memory_bytes
        assert all(action.memory_mb == 3538 for action in actions if isinstance(action, CreateBody))


def test_changing_memory_reaches_the_wanted_size_from_any_state() -> None:
    rng = random.Random(6)
    for _ in range(100):
        places = rng.randint(1, 8)
        line = lambda_timeline(places=places, start_s=rng.choice((0.0, 2.0)))
        line.instances.clear()
        for _ in range(rng.randint(0, places)):
            line.fleet.carry_out(FUNCTION, [CreateBody(1, None, rng.choice((885, 1769, 3538)))])
        count = rng.randint(1, places)
        for step in range(200):
            line.now_s = float(step)
            load = line.fleet.load(FUNCTION)
            seen = Observation(line.now_s, FUNCTION, load.settings, load.instances, load.nodes, 0, 0, 0.0, 0.0, History(0.5, 0.0))
            line.fleet.carry_out(FUNCTION, towards_memory(count, 3538, seen))
        assert [instance.memory_bytes // MEGABYTE for instance in line.instances.values()] == [3538] * count

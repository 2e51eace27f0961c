"""`batch` and `batch+` choose the memory size of instances where that is sold: which, why, and how they come to have it."""

import random
from typing import Any

import pytest

from gnomon_autoscaler.policies.batch.sizes import towards_memory
from gnomon_autoscaler.testing import FUNCTION, Timeline
from gnomon_core.fleet import Instance, InstanceState, Node
from gnomon_core.scaling import CreateBody, DestroyBody, History, Observation, Resize
from gnomon_core.settings import ScaleSettings, Settings
from gnomon_core.units import MEGABYTE
from tests.made_up_models import sold_by_memory
from tests.timelines import play

WORK_S = (0.30, 0.50, 0.70, 0.90)
MEMORIES_MB = (885, 1769, 3538)


def timeline(
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
def test_an_objective_that_the_own_size_cannot_meet_is_met_by_a_larger_one(name: str) -> None:
    line = timeline(name, slo_s=0.25)
    line.play(40)
    assert sizes_of(line) == {3538}
    assert "1769 MB: P95 300.0 ms at best" in line.reason
    assert not line.errors


def test_a_smaller_size_is_taken_where_a_larger_one_saves_no_time() -> None:
    """Nearly all of the 300 ms are waiting, which costs half as much with half of the memory."""
    line = timeline(fixed_s=3.0, slo_s=10.0)
    line.play(40)
    assert sizes_of(line) == {885}
    assert "; 1769 MB: +" in line.reason


def test_a_change_that_saves_less_than_a_tenth_is_not_made() -> None:
    """Work alone costs the same whatever the memory is, until fees and rounding: what is there stays."""
    line = timeline(memories_mb=(1769, 3538))
    line.play(400)
    assert sizes_of(line) == {1769}


@pytest.mark.parametrize(
    ("bound", "chosen"), [({"plan_cores": "fixed"}, 1769), ({"max_cores": 2}, 3538), ({"max_cores": 16}, 7076)]
)
def test_a_function_bounds_or_fixes_it(bound: dict[str, Any], chosen: int) -> None:
    """100 ms can be met with 7,076 MB alone, 75 ms."""
    line = timeline(slo_s=0.10, rps=4.0, memories_mb=(*MEMORIES_MB, 7076), **bound)
    line.play(40)
    assert sizes_of(line) == {chosen}


def test_a_fixed_size_is_paid_by_the_call_too() -> None:
    """A call of 2 s of 1,769 MB is $57.6 a million; an instance that is held would cost something else."""
    line = timeline(plan_cores="fixed", fixed_s=1.7, slo_s=2.05, max_batch=1, rps=4.0)
    line.play(40)
    assert "$57.8 per million requests" in line.reason


def test_slots_of_the_new_size_serve_before_those_of_the_old_end_and_nothing_is_resized() -> None:
    line = timeline(slo_s=0.25, start_s=3.0, rps=20.0)
    line.play(29)
    wanted = sum(one.state is InstanceState.READY for one in line.instances.values())
    fewest, decisions = wanted, []
    for _ in range(40):
        decisions += line.play(0.5)
        fewest = min(fewest, sum(one.state is InstanceState.READY for one in line.instances.values()))
    chosen = line.live
    assert fewest >= min(wanted, chosen)
    assert sizes_of(line) == {3538}
    assert not any(isinstance(action, Resize) for decision in decisions for action in decision.actions)


def test_where_every_place_is_taken_one_after_the_other_makes_room() -> None:
    line = timeline(slo_s=0.25, start_s=1.0, places=6, scale=ScaleSettings(min=6, max=6))
    assert play(line, 10) == 6
    fewest = 6
    for _ in range(120):
        line.play(0.5)
        fewest = min(fewest, sum(one.state is InstanceState.READY for one in line.instances.values()))
    assert sizes_of(line) == {3538}
    assert fewest >= 4, "one makes room, and another may once the first new one serves"
    assert not line.errors, "nothing was asked for that had no place"


def test_the_chosen_size_is_kept_over_a_restart() -> None:
    line = timeline(slo_s=0.25)
    line.play(100)
    assert line.runner.state.values["size"] == 3538


def anything(chance: random.Random) -> tuple[Observation, int]:
    """Some slots of any sizes, some of them starting, some places left, and how many of 3,538 MB are wanted."""
    most = chance.randint(1, 8)
    made = [
        Instance(
            f"i-{number}", FUNCTION, 1, "lambda", 1, chance.choice((1769, 3538, 3538)) * MEGABYTE,
            chance.choice((InstanceState.READY, InstanceState.READY, InstanceState.STARTING)), float(number),
            busy=chance.random() < 0.5,
        )
        for number in range(chance.randint(0, most))
    ]  # fmt: skip
    free = chance.randint(0, 4) * 10_240 * MEGABYTE
    node = Node("lambda", 1000, 2**40, 1000.0, free)
    settings = Settings(scale=ScaleSettings(max=most))
    seen = Observation(0.0, FUNCTION, settings, tuple(made), (node,), 0, 0, 0.0, 0.0, History(0.5, 0.0))
    return seen, chance.randint(0, most)


def test_on_the_way_no_more_are_asked_for_than_may_be_and_those_that_are_needed_go_on_serving() -> None:
    chance = random.Random(5)
    for _ in range(2000):
        seen, count = anything(chance)
        actions = towards_memory(count, 3538, seen)
        ended = {action.id for action in actions if isinstance(action, DestroyBody)}
        created = sum(isinstance(action, CreateBody) for action in actions)
        ready = {one.id for one in seen.ready}
        others = any(one.memory_bytes != 3538 * MEGABYTE for one in seen.live)
        assert ended <= {one.id for one in seen.live}
        assert len(ready - ended) >= min(len(ready), count) - (1 if not created else 0)
        if others:
            assert len(seen.live) - len(ended) + created <= max(seen.settings.scale.max, len(seen.live))
            assert created * 10_240 * MEGABYTE <= seen.nodes[0].free_memory_bytes
        assert all(action.memory_mb == 3538 for action in actions if isinstance(action, CreateBody))


def test_from_anything_the_wanted_size_is_reached() -> None:
    chance = random.Random(6)
    for _ in range(100):
        places = chance.randint(1, 8)
        line = timeline(places=places, start_s=chance.choice((0.0, 2.0)))
        line.instances.clear()
        for _ in range(chance.randint(0, places)):
            line.fleet.carry_out(FUNCTION, [CreateBody(1, None, chance.choice((885, 1769, 3538)))])
        count = chance.randint(1, places)
        for step in range(200):
            line.now_s = float(step)
            load = line.fleet.load(FUNCTION)
            seen = Observation(line.now_s, FUNCTION, load.settings, load.instances, load.nodes, 0, 0, 0.0, 0.0, History(0.5, 0.0))
            line.fleet.carry_out(FUNCTION, towards_memory(count, 3538, seen))
        assert [one.memory_bytes // MEGABYTE for one in line.instances.values()] == [3538] * count

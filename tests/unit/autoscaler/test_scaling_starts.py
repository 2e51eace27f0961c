"""Instances that fail to start are not started over and over."""

import asyncio
from collections.abc import Sequence
from itertools import pairwise

from gnomon_autoscaler.controller import Autoscaler
from gnomon_autoscaler.executor import at_once
from gnomon_autoscaler.runner import Starts
from gnomon_autoscaler.testing import MemoryFleet, MemoryFunction, Timeline
from gnomon_core.clock import VirtualClock
from gnomon_core.fleet import Instance, InstanceState
from gnomon_core.scaling import Action, CreateBody
from gnomon_core.settings import ScaleSettings, Settings


def test_an_instance_that_ended_by_itself_is_replaced_at_once_also_within_a_long_period() -> None:
    line = Timeline(Settings(autoscaler="lv", scale=ScaleSettings(min=3)))
    line.play(12)
    line.instances.popitem()
    assert [decision.desired for decision in line.play(0.5)] == [3]
    assert line.live == 3
    assert line.reason == "1 of 3 instances are missing: replaced"


def test_a_function_that_cannot_start_is_tried_ever_more_rarely() -> None:
    line = Timeline(Settings(autoscaler="fixed"), start_s=5.0)
    created = []
    for _ in range(4 * 60 * 2):
        line.instances.clear()  # whatever was started has crashed
        created += [line.now_s for decision in line.play(0.5) if any(isinstance(a, CreateBody) for a in decision.actions)]
    waits = [round(later - earlier, 1) for earlier, later in pairwise(created)]
    assert waits == [1.5, 2.5, 4.5, 8.5, 16.5, 32.5, 60.5, 60.5]


def test_so_is_one_of_which_no_node_has_room_for_as_many_as_it_wants() -> None:
    line = Timeline(Settings(autoscaler="fixed", scale=ScaleSettings(min=4)), nodes=(("small", 3),), start_s=5.0)
    begun_s = []
    for _ in range(4 * 60 * 2):
        begun_s += [line.now_s] * bool(line.instances)
        line.instances.clear()  # whatever was started has crashed
        line.play(0.5)
    assert set(line.errors) == {"no_capacity"}
    waits_s = [later - earlier for earlier, later in pairwise(begun_s)]
    assert waits_s == sorted(waits_s)
    assert min(waits_s[-2:]) > 59.0


class Unhurried(MemoryFleet):
    """Needs 0.4 s for each action, as an API server may."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(clock.now_s, nodes=(("node", 16),), start_s=30.0)
        self._clock = clock

    async def apply(self, function: str, actions: Sequence[Action]) -> None:
        for action in actions:
            self.carry_out(function, [action])
            await self._clock.sleep(0.4)


async def test_those_that_are_seen_before_the_last_of_their_decision_was_made_have_not_failed() -> None:
    clock = VirtualClock()
    fleet = Unhurried(clock)
    fleet.known["f.ns"] = MemoryFunction(Settings(autoscaler="fixed", scale=ScaleSettings(max=16)))
    autoscaler = Autoscaler(fleet, clock, executor=at_once, stamp_s=lambda: 1e9)
    running = asyncio.create_task(autoscaler.run())
    for wanted in (3, 6, 9, 12, 15):
        autoscaler.request("f.ns", wanted)
        await clock.advance(2.5)
        assert len(fleet.known["f.ns"].instances) == wanted
    assert [one.error for one in autoscaler.decisions("f.ns", 50) if one.error] == []
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


def test_one_that_had_served_is_replaced_at_once_however_often_it_ends() -> None:
    line = Timeline(Settings(autoscaler="fixed"), start_s=0.0)
    created = []
    for _ in range(20):
        line.instances.clear()
        line.runner.forgive()
        created += [line.now_s for decision in line.play(0.5) if any(isinstance(a, CreateBody) for a in decision.actions)]
    assert len(created) == 20


def test_a_deployment_forgives() -> None:
    line = Timeline(Settings(autoscaler="fixed"), start_s=5.0)
    for _ in range(20):
        line.instances.clear()
        line.play(0.5)
    line.instances.clear()
    line.play(0.5)
    assert line.live == 0
    line.runner.forgive()
    line.play(0.5)
    assert line.live == 1


def instance(id_: str, state: InstanceState, version: int = 1) -> Instance:
    return Instance(id_, "f.ns", version, "n", 1, 0, state, 0.0)


def look(*looks: tuple[float, tuple[Instance, ...]]) -> Starts:
    starts = Starts()
    for now_s, instances in looks:
        starts.look(now_s, instances)
    return starts


def test_what_was_asked_to_end_drained_or_was_replaced_did_not_fail() -> None:
    starts = Starts()
    starts.look(0, (instance("a", InstanceState.READY),))
    starts.dismiss(["a"])
    starts.look(1, ())
    assert starts.failed == 0
    assert look((0, (instance("a", InstanceState.DRAINING),)), (1, ())).failed == 0
    assert look((0, (instance("a", InstanceState.READY),)), (1, (instance("b", InstanceState.STARTING, 2),))).failed == 0


def test_one_crash_after_a_long_life_is_not_a_failed_start() -> None:
    ready = (instance("a", InstanceState.READY),)
    assert look((0, ready), (10, ready), (11, ())).failed == 0
    assert look((0, ready), (9, ready), (9.5, ())).failed == 1


def test_a_steady_instance_ends_the_row() -> None:
    starting, ready = instance("a", InstanceState.STARTING), instance("b", InstanceState.READY)
    starts = look((0, (starting,)), (1, ()), (2, (starting,)), (3, ()))
    assert starts.failed == 2
    starts.look(4, (ready,))
    assert starts.failed == 2
    starts.look(14, (ready,))
    assert starts.failed == 0

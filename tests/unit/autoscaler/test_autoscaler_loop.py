"""The live loop against an in-memory fleet: in virtual time where a policy answers at once, in real time where it does not."""

import asyncio
import json
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

import pytest

from gnomon_autoscaler.controller import Autoscaler
from gnomon_autoscaler.executor import Outcome, at_once
from gnomon_autoscaler.registry import BUILT_IN, PolicyPlugin
from gnomon_autoscaler.testing import FUNCTION, MemoryFleet, MemoryFunction
from gnomon_core.clock import VirtualClock, WallClock
from gnomon_core.interfaces import ScalingPolicy
from gnomon_core.scaling import Action, CreateBody, Decision, DestroyBody, Observation, PolicyState
from gnomon_core.settings import ScaleSettings, Settings

T = TypeVar("T")
EPOCH_S = 1_700_000_000.0


class Stage:
    """A fleet, a loop and their clock."""

    def __init__(self, *, nodes: tuple[tuple[str, int], ...] = (("node-1", 64),), start_s: float = 0.0) -> None:
        self.clock = VirtualClock()
        self.fleet = MemoryFleet(self.clock.now_s, nodes, start_s)
        self.autoscaler = self.another()

    def another(self, policies: Mapping[str, PolicyPlugin] = BUILT_IN) -> Autoscaler:
        return Autoscaler(
            self.fleet, self.clock, policies=policies, executor=at_once, stamp_s=lambda: EPOCH_S + self.clock.now_s()
        )

    def deploy(self, name: str = FUNCTION, **scale: object) -> MemoryFunction:
        autoscaler = str(scale.pop("autoscaler", "openfaas"))
        self.fleet.known[name] = MemoryFunction(Settings(autoscaler=autoscaler, scale=ScaleSettings(**scale)))
        return self.fleet.known[name]


@asynccontextmanager
async def running(autoscaler: Autoscaler) -> AsyncIterator[None]:
    task = asyncio.create_task(autoscaler.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_functions_are_scaled_as_they_come_and_forgotten_as_they_go() -> None:
    stage = Stage()
    first = stage.deploy("a.ns", min=2)
    async with running(stage.autoscaler):
        await stage.clock.advance(1)
        second = stage.deploy("b.ns", min=3)
        await stage.clock.advance(1)
        assert (len(first.instances), len(second.instances)) == (2, 3)
        assert stage.autoscaler.desired("b.ns") == 3
        del stage.fleet.known["a.ns"]
        await stage.clock.advance(1)
        assert stage.autoscaler.decisions("a.ns") == []
        assert stage.autoscaler.desired("a.ns") is None


async def test_ten_requests_a_second_scale_up_and_silence_scales_down() -> None:
    stage = Stage()
    function = stage.deploy(min=1, max=2)
    async with running(stage.autoscaler):
        await stage.clock.advance(5)
        function.rps = 10.0
        await stage.clock.advance(20)
        assert len(function.instances) == 2
        function.rps = 0.0
        await stage.clock.advance(20)
        assert len(function.instances) == 1
    told = stage.autoscaler.decisions(FUNCTION)
    assert [record.desired for record in told] == [1, 2, 1]
    assert isinstance(told[0].actions[0], DestroyBody)
    assert told[1].actions == (CreateBody(1, "node-1"),)
    assert told[1].at == EPOCH_S + 16  # 6 s until more than 5 a second are the mean of 10 s, and 5 s of alert
    assert told[1].reason == "10.00 successes/s in 10 s, alert fires: 1 + 1 = 2, at most 2"
    assert told[1].repeats > 10
    assert told[1].last_at == told[0].at - 1
    assert told[1].policy == "openfaas"


async def test_a_poke_wakes_a_function_without_waiting_for_the_next_tick() -> None:
    stage = Stage()
    function = stage.deploy(min=0, zero_duration_s=5.0, autoscaler="fixed")
    async with running(stage.autoscaler):
        await stage.clock.advance(10.2)
        assert len(function.instances) == 0
        function.queued = 1
        stage.autoscaler.poke(FUNCTION)
        stage.autoscaler.poke(FUNCTION)
        await stage.clock.advance(0.0)
        assert len(function.instances) == 1


async def test_an_operators_request_counts_at_once_and_shows_as_desired_even_sooner() -> None:
    stage = Stage()
    function = stage.deploy()
    async with running(stage.autoscaler):
        await stage.clock.advance(2.2)
        stage.autoscaler.request(FUNCTION, 4)
        assert stage.autoscaler.desired(FUNCTION) == 4
        await stage.clock.advance(0.0)
        assert len(function.instances) == 4
        await stage.clock.advance(30)
        assert len(function.instances) == 4


async def test_a_function_by_the_name_of_a_removed_one_begins_with_nothing() -> None:
    stage = Stage()
    stage.deploy()
    async with running(stage.autoscaler):
        await stage.clock.advance(2)
        stage.autoscaler.request(FUNCTION, 4)
        await stage.clock.advance(1)
        stage.autoscaler.removed(FUNCTION)
        function = stage.deploy()
        await stage.clock.advance(1)
        assert len(function.instances) == 1
        assert len(stage.autoscaler.decisions(FUNCTION)) == 1


async def test_no_room_is_part_of_the_record_and_is_tried_again() -> None:
    stage = Stage(nodes=(("small", 2),))
    function = stage.deploy(min=3)
    async with running(stage.autoscaler):
        await stage.clock.advance(3)
        record = stage.autoscaler.decisions(FUNCTION, 1)[0]
        assert record.error.startswith("no_capacity: No node has 1 cores free.")
        assert record.desired == 3
        assert len(function.instances) == 2
        stage.fleet._nodes = (("large", 9), ("small", 2))
        await stage.clock.advance(2)
        assert len(function.instances) == 3
        assert stage.autoscaler.decisions(FUNCTION, 1)[0].error == ""


async def test_instances_that_crash_as_they_start_are_tried_ever_more_rarely() -> None:
    class Crashing(MemoryFleet):
        tries = 0

        async def apply(self, function: str, actions: Sequence[Action]) -> None:
            await super().apply(function, actions)
            self.tries += 1
            self.known[function].instances.clear()

    stage = Stage()
    stage.fleet = fleet = Crashing(stage.clock.now_s)
    stage.autoscaler = stage.another()
    stage.deploy(autoscaler="od")
    async with running(stage.autoscaler):
        await stage.clock.advance(60)
    assert fleet.tries == 7  # at 0, 0.5, 2, 4.5, 9, 17.5 and 34 s
    told = [record.error for record in stage.autoscaler.decisions(FUNCTION) if record.error]
    assert told[-1] == "2 starts failed in a row: new instances wait 1 s; the function's log says why"
    assert len(told) == 6, "once each time, not each second"


async def test_a_function_that_cannot_be_observed_does_not_stop_the_others(caplog: pytest.LogCaptureFixture) -> None:
    stage = Stage()
    stage.deploy("a.ns")
    stage.fleet.known["a.ns"].totals = ()  # type: ignore[assignment]
    good = stage.deploy("b.ns", min=2)
    async with running(stage.autoscaler):
        await stage.clock.advance(2)
    assert len(good.instances) == 2
    assert "a.ns: cannot be observed" in caplog.text


async def test_changes_are_logged_once_with_their_reason(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "gnomon.autoscaler")
    stage = Stage()
    stage.deploy(min=2, autoscaler="od")
    async with running(stage.autoscaler):
        await stage.clock.advance(30)
    lines = [record.getMessage() for record in caplog.records if record.name == "gnomon.autoscaler"]
    assert len(lines) == 1
    assert "at least 2 (scale.min)" in lines[0]
    assert "CreateBody(cores=1, node=node-1)" in lines[0]


async def test_decisions_serialise_to_json() -> None:
    stage = Stage()
    stage.deploy()
    async with running(stage.autoscaler):
        await stage.clock.advance(1)
    sent = json.loads(json.dumps([record.to_json() for record in stage.autoscaler.decisions(FUNCTION)]))
    assert sent[-1]["actions"] == [{"action": "CreateBody", "cores": 1, "node": "node-1"}]


async def test_a_restart_goes_on_warm() -> None:
    stage = Stage()
    function = stage.deploy(zero=True, zero_duration_s=100.0, autoscaler="lv")
    function.rps = function.concurrency = 10.0
    async with running(stage.autoscaler):
        await stage.clock.advance(60)
        assert len(function.instances) == 10
    saved = json.loads(json.dumps(stage.autoscaler.export_state()))
    # The instances ended with the gateway, and its counters begin anew.
    function.instances.clear()
    function.totals, function.rps, function.concurrency = (0.0, 0.0, 0.0), 0.0, 0.0
    successor = stage.another()
    successor.import_state(saved)
    async with running(successor):
        await stage.clock.advance(1)
    assert len(function.instances) == 10
    assert successor.decisions(FUNCTION)[-1].reason.startswith("10.00 rps in 30 s")


async def test_moments_are_carried_over_to_a_clock_that_began_again() -> None:
    stage = Stage()
    stage.deploy(zero=True, zero_duration_s=100.0)
    await stage.clock.advance(5000)
    async with running(stage.autoscaler):
        await stage.clock.advance(60)
    saved = json.loads(json.dumps(stage.autoscaler.export_state()))

    rebooted = Stage()
    function = rebooted.deploy(zero=True, zero_duration_s=100.0)
    saved_s = EPOCH_S + 5060
    successor = Autoscaler(
        rebooted.fleet, rebooted.clock, executor=at_once, stamp_s=lambda: saved_s + 20 + rebooted.clock.now_s()
    )
    successor.import_state(saved)
    async with running(successor):
        await rebooted.clock.advance(18)  # idle for 60 s before, 20 s away, 18 s since
        assert len(function.instances) == 1
        await rebooted.clock.advance(3)
        assert len(function.instances) == 0


async def test_a_state_that_cannot_be_read_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    stage = Stage()
    function = stage.deploy()
    document = stage.autoscaler.export_state()
    stage.autoscaler.import_state({**document, "functions": {FUNCTION: {"state": 3}}})
    async with running(stage.autoscaler):
        await stage.clock.advance(1)
    assert len(function.instances) == 1
    assert "cannot be read" in caplog.text
    stage.autoscaler.import_state({"version": 0})
    assert "starting afresh" in caplog.text


class Slow:
    """A policy that does not answer until the test is over."""

    name = "slow"
    period_s = 0.05
    default_scheduler = "immediate"

    def __init__(self) -> None:
        self.threads: list[threading.Thread] = []
        self.released = threading.Event()

    def decide(self, _seen: Observation, _state: PolicyState) -> tuple[Decision, PolicyState]:
        self.threads.append(threading.current_thread())
        while not self.released.is_set():
            time.sleep(0.001)
        raise TimeoutError


async def test_a_policy_that_never_answers_is_replaced_and_holds_nobody_up() -> None:
    slow = Slow()
    clock = WallClock()
    fleet = MemoryFleet(clock.now_s)
    for name, policy in (("a.ns", "slow"), ("b.ns", "fixed")):
        fleet.known[name] = MemoryFunction(Settings(autoscaler=policy, scale=ScaleSettings(min=2)))
    policies = {**BUILT_IN, "slow": PolicyPlugin(lambda _: slow, "Never answers.", third_party=True)}
    autoscaler = Autoscaler(fleet, clock, policies=policies, limit_s=0.05)
    async with running(autoscaler), asyncio.timeout(20):
        while len(fleet.known["b.ns"].instances) < 2:  # noqa: ASYNC110 - the fleet tells nobody
            await asyncio.sleep(0.01)
        while len(fleet.known["a.ns"].instances) < 2:
            autoscaler.poke("a.ns")
            await asyncio.sleep(0.01)
    reasons = [record.reason for record in reversed(autoscaler.decisions("a.ns"))]
    assert "no answer within 0.05 s" in reasons[0]
    assert any("slow failed 3 times, fixed instead" in reason for reason in reasons)
    assert len(slow.threads) == 3
    slow.released.set()
    for thread in slow.threads:
        thread.join(5)
    assert not any(thread.is_alive() for thread in slow.threads)


class Limits:
    """An executor that executes at once, and records the limit of each call."""

    def __init__(self) -> None:
        self.limits_s: list[float | None] = []

    def __call__(self, call: Callable[[], T], limit_s: float | None, then: Callable[[Outcome[T]], None]) -> None:
        self.limits_s.append(limit_s)
        at_once(call, limit_s, then)


def _failing(_: Settings) -> ScalingPolicy:
    class Failing:
        name, period_s, default_scheduler = "failing", 1.0, "immediate"

        def decide(self, _seen: Observation, _state: PolicyState) -> tuple[Decision, PolicyState]:
            raise ZeroDivisionError

    return Failing()


async def test_only_policies_of_installed_packages_have_a_limit_and_fixed_in_their_place_has_none() -> None:
    stage, ours, theirs = Stage(), Limits(), Limits()
    stage.deploy(min=1)
    async with running(Autoscaler(stage.fleet, stage.clock, executor=ours)):
        await stage.clock.advance(5)
    assert set(ours.limits_s) == {None}
    stage.deploy(autoscaler="failing", min=1)
    policies = {**BUILT_IN, "failing": PolicyPlugin(_failing, "Raises.", third_party=True)}
    async with running(Autoscaler(stage.fleet, stage.clock, policies=policies, executor=theirs, limit_s=0.7)):
        await stage.clock.advance(10)
    assert theirs.limits_s[:4] == [0.7, 0.7, 0.7, None]

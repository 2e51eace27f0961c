"""The live loop against a fleet in memory: what it decides, discards and skips; in virtual time where policies answer at once."""

import asyncio
import json
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import pytest

from gnomon_autoscaler.controller import LONG_SKIPS_S, Autoscaler, DecisionLog
from gnomon_autoscaler.executor import Outcome, at_once
from gnomon_autoscaler.registry import BUILT_IN, replica_policy_plugin
from gnomon_autoscaler.replica_policy import DesiredCount, Memory
from gnomon_autoscaler.runner import Runner
from gnomon_autoscaler.testing import FUNCTION, MemoryFleet, MemoryFunction
from gnomon_core.clock import WallClock
from gnomon_core.interfaces import ScalingPolicy
from gnomon_core.policy_registry import PolicyPlugin
from gnomon_core.scaling import Action, CreateBody, Decision, DestroyBody, FunctionLoad, LoadCounters, Observation, PolicyState
from gnomon_core.settings import ScaleSettings, Settings
from tests.timelines import running
from tests.virtual_clock import VirtualClock

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
    decisions = stage.autoscaler.decisions(FUNCTION)
    assert [record.desired for record in decisions] == [1, 2, 1]
    assert isinstance(decisions[0].actions[0], DestroyBody)
    assert decisions[1].actions == (CreateBody(1, "node-1"),)
    assert decisions[1].at == EPOCH_S + 16  # 6 s until more than 5 a second are the mean of 10 s, and 5 s of alert
    assert decisions[1].reason == "10.00 successes/s in 10 s, alert fires: 1 + 1 = 2, at most 2"
    assert decisions[1].repeats > 10
    assert decisions[1].last_at == decisions[0].at - 1
    assert decisions[1].policy == "openfaas"


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
    errors = [record.error for record in stage.autoscaler.decisions(FUNCTION) if record.error]
    assert errors[-1] == "2 starts failed in a row: new instances wait 1 s; the function's log says why"
    assert len(errors) == 6, "once each time, not each second"


async def test_a_function_that_cannot_be_observed_does_not_stop_the_others(caplog: pytest.LogCaptureFixture) -> None:
    stage = Stage()
    stage.deploy("a.ns")
    stage.fleet.known["a.ns"].totals = ()  # type: ignore[assignment]
    good = stage.deploy("b.ns", min=2)
    async with running(stage.autoscaler):
        await stage.clock.advance(2)
    assert len(good.instances) == 2
    assert "Internal error while observing function a.ns" in caplog.text


async def test_changes_are_logged_once_with_their_reason(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "gnomon.autoscaler")
    stage = Stage()
    stage.deploy(min=2, autoscaler="od")
    async with running(stage.autoscaler):
        await stage.clock.advance(30)
    lines = [record.getMessage() for record in caplog.records if record.name == "gnomon.autoscaler"]
    assert len(lines) == 1
    assert "at least 2 (scale.min)" in lines[0]
    assert "2 × CreateBody(cores=1, node=node-1)" in lines[0]


def test_log_line_counts_actions_that_differ_in_nothing_but_the_node(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "gnomon.autoscaler")
    bodies = tuple(CreateBody(2, f"node-{number}") for number in range(40))
    DecisionLog(FUNCTION).add(0.0, "od", Decision((*bodies, CreateBody(1, "node-7"), DestroyBody("echo-1")), "a burst"))
    assert [record.getMessage() for record in caplog.records] == [
        f"{FUNCTION}: 40 × CreateBody(cores=2); CreateBody(cores=1, node=node-7); DestroyBody(id=echo-1), by policy od: a burst"
    ]


async def test_log_line_of_a_failed_policy_states_the_error_once(caplog: pytest.LogCaptureFixture) -> None:
    decisions = DecisionLog(FUNCTION)
    decisions.add(
        0.0,
        "moody",
        Decision((), "moody failed (1 of 3): RuntimeError: no idea; the last decision stays in force"),
        "RuntimeError: no idea",
    )
    decisions.add(1.0, "kpa", Decision((CreateBody(1),), "2 in the system"), "no_capacity: no node has 1 core free")
    assert [record.getMessage() for record in caplog.records] == [
        f"{FUNCTION}: no change, by policy moody: moody failed (1 of 3): RuntimeError: no idea; the last decision stays in force",
        f"{FUNCTION}: CreateBody(cores=1, node=None), by policy kpa: 2 in the system; no_capacity: no node has 1 core free",
    ]


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


@pytest.mark.parametrize(("actions", "desired"), [(None, 3), (("CreateBody",), 3), ((), "three")])
async def test_package_whose_decisions_cannot_be_carried_out_is_replaced_by_fixed(actions: Any, desired: Any) -> None:
    """A third-party policy need not be type-checked. The function is scaled on, as after any other failure of its policy."""

    class Careless:
        name, period_s, default_scheduler = "careless", 1.0, "immediate"

        def decide(self, _seen: Observation, state: PolicyState) -> tuple[Decision, PolicyState]:
            return Decision(actions, "whatever", desired), state

    stage = Stage()
    function = stage.deploy(autoscaler="careless", min=2)
    policies = {**BUILT_IN, "careless": PolicyPlugin(lambda _: Careless(), "Answers anything.", third_party=True)}
    async with running(autoscaler := stage.another(policies)):
        await stage.clock.advance(10)
    assert len(function.instances) == 2
    assert any(record.error.startswith("TypeError: i") for record in autoscaler.decisions(FUNCTION))


class RecordsThreads:
    """A replica policy that records the thread of each decision."""

    name, version, period_s, default_scheduler = "recorder", 1, 1.0, "immediate"

    def __init__(self) -> None:
        self.threads: set[int] = set()

    def desired_count(self, _seen: Observation, _memory: Memory) -> DesiredCount:
        self.threads.add(threading.get_ident())
        return DesiredCount(1, "one")


@pytest.mark.parametrize("third_party", [False, True])
async def test_only_built_in_count_policies_decide_on_the_event_loop(*, third_party: bool) -> None:
    policy, clock = RecordsThreads(), WallClock()
    plugin = replace(replica_policy_plugin(lambda _: policy, "One."), third_party=third_party)
    fleet = MemoryFleet(clock.now_s)
    fleet.known[FUNCTION] = MemoryFunction(Settings(autoscaler="recorder"))
    async with running(Autoscaler(fleet, clock, policies={**BUILT_IN, "recorder": plugin})), asyncio.timeout(20):
        while not fleet.known[FUNCTION].instances:  # noqa: ASYNC110 - the fleet tells nobody
            await asyncio.sleep(0.01)
    assert (threading.get_ident() in policy.threads) is not third_party


class Held:
    """An `Executor` whose answers come when the test lets them."""

    def __init__(self) -> None:
        self.answers: list[Callable[[], None]] = []

    def __call__(self, call: Callable[[], T], limit_s: float | None, then: Callable[[Outcome[T]], None]) -> None:
        self.answers.append(lambda: at_once(call, limit_s, then))


async def test_decision_for_a_removed_function_is_discarded() -> None:
    """The removed function wanted five instances; the one that took its name meanwhile wants one."""
    stage, held = Stage(), Held()
    autoscaler = Autoscaler(stage.fleet, stage.clock, executor=held)
    stage.deploy(min=5)
    async with running(autoscaler):
        await stage.clock.advance(1)
        [late] = held.answers
        autoscaler.removed(FUNCTION)
        function: MemoryFunction = stage.deploy(min=1)
        autoscaler.redeployed(FUNCTION)
        await stage.clock.advance(0)
        late()
        await stage.clock.advance(1)
        assert function.instances == {}
        held.answers[-1]()
        await stage.clock.advance(0)
        assert len(function.instances) == 1


async def test_decision_under_old_settings_is_discarded() -> None:
    """The plan of a policy's buffer would be in force for good under the next policy, which plans none."""
    stage, held = Stage(), Held()
    autoscaler = Autoscaler(stage.fleet, stage.clock, executor=held)
    function = stage.deploy(min=5)
    async with running(autoscaler):
        await stage.clock.advance(1)
        [late] = held.answers
        function.settings = replace(function.settings, autoscaler="kpa", scale=ScaleSettings(min=1))
        await stage.clock.advance(1)
        late()
        await stage.clock.advance(1)
        assert function.instances == {}
        assert len(held.answers) == 2, "whoever is the policy by now has been asked"
        held.answers[-1]()
        await stage.clock.advance(0)
        assert len(function.instances) == 1


def test_manual_scale_is_repeated_after_a_dropped_answer() -> None:
    before, after = (
        FunctionLoad(Settings(autoscaler="openfaas", scale=ScaleSettings(max=most)), LoadCounters(), (), ()) for most in (9, 8)
    )
    runner = Runner(FUNCTION)
    runner.request(7)
    call = runner.due_call(0.0, before)
    assert call.observation.requested == 7
    runner.sample(0.5, after)
    assert runner.accept(call, *call.execute()).actions == ()
    again = runner.due_call(0.5, after)
    assert again.observation.requested == 7


def test_failure_of_a_replaced_policy_is_not_attributed_to_its_successor() -> None:
    def load(policy: str) -> FunctionLoad:
        return FunctionLoad(Settings(autoscaler=policy, scale=ScaleSettings(min=2)), LoadCounters(), (), ())

    runner = Runner(FUNCTION)
    call = runner.due_call(0.0, load("openfaas"))
    assert call is not None
    next_one = runner.due_call(0.5, load("kpa"))
    assert next_one is not None
    for _ in range(3):
        said = runner.fail("no answer within 1 s", call).reason
    assert said == "openfaas decided by settings that have changed since; the decision is discarded"
    assert runner.policy_name == "kpa"
    assert runner.fail("no answer within 1 s", next_one).reason.startswith("kpa failed (1 of 3)")


class StampingFleet(MemoryFleet):
    """A fleet that can tell whether anything is new, and counts how often it is looked at."""

    looks = 0

    def load(self, function: str) -> FunctionLoad | None:
        self.looks += 1
        return super().load(function)

    def stamp(self, function: str) -> object:
        load = super().load(function)
        counters = load.counters
        return self.stamp_without_requests(function), counters.arrivals, counters.queued, counters.executing, load.requested

    def stamp_without_requests(self, function: str) -> object:
        load = super().load(function)
        return load.settings, tuple((instance.id, instance.state) for instance in load.instances)

    def counters(self, function: str) -> LoadCounters | None:
        load = super().load(function)
        return None if load is None else load.counters


class TwinStage:
    """A function twice: in a fleet that stamps, and in one that does not."""

    def __init__(self, scaled_by: Settings) -> None:
        self.clock = VirtualClock()
        self.stamping = StampingFleet(self.clock.now_s, (("node-1", 64),), 0.0)
        self.plain = MemoryFleet(self.clock.now_s, (("node-1", 64),), 0.0)
        self.fleets = self.stamping, self.plain
        for fleet in self.fleets:
            fleet.known[FUNCTION] = MemoryFunction(scaled_by)
        self.loops = [Autoscaler(fleet, self.clock, executor=at_once) for fleet in self.fleets]

    @property
    def functions(self) -> list[MemoryFunction]:
        return [fleet.known[FUNCTION] for fleet in self.fleets]

    @property
    def counts(self) -> tuple[int, int]:
        first, second = (len(function.instances) for function in self.functions)
        return first, second


def scaled_by(policy: str, **scale: Any) -> Settings:
    return Settings(autoscaler=policy, scale=ScaleSettings(**scale))


class UncountableFleet(StampingFleet):
    """A fleet that cannot tell the counters of one function alone."""

    def counters(self, function: str) -> LoadCounters | None:
        if function == "a.ns":
            raise KeyError(function)
        return super().counters(function)


async def test_function_whose_counters_cannot_be_read_does_not_stop_the_others(caplog: pytest.LogCaptureFixture) -> None:
    clock = VirtualClock()
    fleet = UncountableFleet(clock.now_s, (("node-1", 64),), 0.0)
    for name in ("a.ns", "b.ns"):
        fleet.known[name] = MemoryFunction(scaled_by("openfaas", min=1, max=2))
        fleet.known[name].rps = 25.0
    async with running(Autoscaler(fleet, clock, executor=at_once)):
        await clock.advance(60)
    assert [len(fleet.known[name].instances) for name in ("a.ns", "b.ns")] == [2, 2]
    assert "Internal error while reading the counters of function a.ns" in caplog.text


async def test_idle_function_is_observed_every_few_minutes() -> None:
    stage = TwinStage(scaled_by("openfaas", min=1))
    async with running(*stage.loops):
        await stage.clock.advance(5)
        before = stage.stamping.looks
        await stage.clock.advance(4 * LONG_SKIPS_S[0])
        assert 4 <= stage.stamping.looks - before <= 20  # 2,400 without rest
    assert stage.counts == (1, 1)


async def test_idle_function_is_observed_only_at_its_policys_period() -> None:
    stage = TwinStage(scaled_by("mark", min=1))  # decides each 5 s, and plans anew each minute
    async with running(*stage.loops):
        await stage.clock.advance(20)
        before = stage.stamping.looks
        await stage.clock.advance(25)
        assert stage.stamping.looks - before <= 6


async def test_functions_that_became_idle_together_wake_staggered() -> None:
    stage = TwinStage(scaled_by("openfaas", min=1))
    names = [f"f{number}.ns" for number in range(50)]
    for name in names:
        stage.stamping.known[name] = MemoryFunction(scaled_by("openfaas", min=1))
    async with running(*stage.loops):
        await stage.clock.advance(10)
        most = 0
        for _ in range(round(LONG_SKIPS_S[0])):
            before = stage.stamping.looks
            await stage.clock.advance(1.0)
            most = max(most, stage.stamping.looks - before)
        assert most < len(names) / 4


async def test_function_under_load_is_never_skipped() -> None:
    stage = TwinStage(scaled_by("openfaas", min=1))
    async with running(*stage.loops):
        stage.stamping.known[FUNCTION].rps = 0.1
        await stage.clock.advance(15)
        before = stage.stamping.looks
        await stage.clock.advance(60)
        assert stage.stamping.looks - before >= 60  # each turn of its policy


async def test_only_counters_are_read_between_periods_and_bins_stay_exact() -> None:
    stage = TwinStage(scaled_by("mark", min=1))  # decides each 5 s
    async with running(*stage.loops):
        for second in range(120):
            for function in stage.functions:
                function.rps = 2.0 + second % 7
            if second == 60:
                before = stage.stamping.looks
            await stage.clock.advance(1.0)
        assert stage.stamping.looks - before <= 60 / 5 + 2  # 120 bins
        counted, looked = (loop.export_state([FUNCTION])["functions"] for loop in stage.loops)
    assert counted == looked


async def test_instance_of_a_busy_function_is_replaced_within_a_period() -> None:
    stage = TwinStage(scaled_by("mark", min=2))
    async with running(*stage.loops):
        for function in stage.functions:
            function.rps = 5.0
        await stage.clock.advance(41)
        stage.stamping.known[FUNCTION].instances.popitem()
        await stage.clock.advance(1.0)
        assert stage.counts[0] == 2


@pytest.mark.parametrize("policy", ["openfaas", "kpa", "od", "lv", "hpa", "mark", "target-tracking"])
async def test_skipped_function_wakes_for_a_burst_without_delay(policy: str) -> None:
    stage = TwinStage(scaled_by(policy, min=1, max=8))
    async with running(*stage.loops):
        for quiet_s, rps in ((100.0, 20.0), (400.0, 30.0), (47.0, 10.0)):
            for function in stage.functions:
                function.rps = 0.0
            await stage.clock.advance(quiet_s)
            for function in stage.functions:
                function.rps = rps
            for _ in range(60):
                await stage.clock.advance(0.5)
                resting, awake = stage.counts
                assert resting == awake, f"{policy} after {quiet_s} s, at {stage.clock.now_s()}"


async def test_idle_function_scales_to_zero_in_time() -> None:
    stage = TwinStage(scaled_by("openfaas", min=1, zero=True, zero_duration_s=100.0))
    async with running(*stage.loops):
        await stage.clock.advance(2)
        before = stage.stamping.looks
        await stage.clock.advance(50)
        assert stage.stamping.looks - before < 12
        for _ in range(120):
            await stage.clock.advance(0.5)
            resting, awake = stage.counts
            assert resting == awake
        assert stage.counts == (0, 0)


async def test_a_poke_and_an_operator_wake_it() -> None:
    stage = TwinStage(scaled_by("openfaas", min=1, max=5))
    async with running(*stage.loops):
        await stage.clock.advance(20)
        stage.loops[0].request(FUNCTION, 3)
        await stage.clock.advance(0.0)
        assert stage.counts[0] == 3


async def test_instance_of_an_idle_function_is_replaced_within_a_period() -> None:
    stage = TwinStage(scaled_by("openfaas", min=2))
    async with running(*stage.loops):
        await stage.clock.advance(40)
        stage.stamping.known[FUNCTION].instances.popitem()
        await stage.clock.advance(1.0)
        assert stage.counts[0] == 2

"""The runner of one function's policy: observations and their bins, start back-off, stored state, late decisions."""

import json
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import cast

import pytest

from gnomon_autoscaler.controller import Autoscaler
from gnomon_autoscaler.executor import at_once
from gnomon_autoscaler.registry import BUILT_IN
from gnomon_autoscaler.runner import InheritedInstances, Runner, StartBackoff, observe, state_from_json, state_to_json
from gnomon_autoscaler.testing import FUNCTION, MemoryFleet, MemoryFunction, Timeline
from gnomon_autoscaler.windows import LoadWindows
from gnomon_core.fleet import Instance, InstanceKind, InstanceState
from gnomon_core.json_types import JsonObject
from gnomon_core.pairs import Pair
from gnomon_core.policy_registry import PolicyPlugin
from gnomon_core.scaling import (
    Action,
    CreateBody,
    Decision,
    DestroyBody,
    DestroyShadow,
    FunctionLoad,
    History,
    LoadCounters,
    Observation,
    PolicyState,
    StateValue,
)
from gnomon_core.settings import ScaleSettings, Settings
from tests.timelines import play, running
from tests.unit.autoscaler.asyfunc_stage import LATENCY_S, PROFILE, body, node
from tests.virtual_clock import VirtualClock


class Moody:
    """A policy of a third party: counts its calls and fails when told to."""

    name = "moody"
    period_s = 2.0
    default_scheduler = "immediate"

    def __init__(self) -> None:
        self.broken = False
        self.times: list[float] = []
        self.queues: list[int] = []

    def decide(self, seen: Observation, state: PolicyState) -> tuple[Decision, PolicyState]:
        self.times.append(seen.now_s)
        self.queues.append(seen.queues)
        if self.broken:
            raise ZeroDivisionError("no load")
        asked = state.values.get("asked", 0)
        assert isinstance(asked, int)
        return Decision((), f"asked {asked} times before", 3), PolicyState(self.name, 1, {"asked": asked + 1})


def moody(policy: Moody) -> Mapping[str, PolicyPlugin]:
    return {**BUILT_IN, "moody": PolicyPlugin(lambda _: policy, "Moody.")}


def settings(name: str, **scale: object) -> Settings:
    return Settings(autoscaler=name, scale=ScaleSettings(**scale))


def test_a_policy_is_asked_each_period_and_remembers() -> None:
    policy = Moody()
    line = Timeline(settings("moody"), policies=moody(policy))
    line.play(6)
    assert policy.times == [0, 2, 4, 6]
    assert line.runner.state == PolicyState("moody", 1, {"asked": 4})


def test_a_policy_sees_in_how_many_queues_requests_wait() -> None:
    policy = Moody()
    line = Timeline(settings("moody"), policies=moody(policy))
    line.play(2)
    play(line, 2, queues=3)
    assert policy.queues == [1, 1, 3]


def test_a_late_tick_keeps_the_rhythm_and_a_pause_starts_a_new_one() -> None:
    policy = Moody()
    runner = Runner(FUNCTION, moody(policy))
    line = Timeline(settings("moody"), policies=moody(Moody()))
    load = line.fleet.load(FUNCTION)
    assert load is not None
    for now_s in (0.0, 2.3, 3.9, 4.1, 60.7, 62.0, 62.8):
        runner.tick(now_s, load)
    assert policy.times == [0.0, 2.3, 4.1, 60.7, 62.8]


def test_policy_decides_between_periods_if_a_request_waits_for_no_instance() -> None:
    policy = Moody()
    line = Timeline(settings("moody"), policies=moody(policy))
    line.queued = 1
    line.instances.clear()
    line.play(0.5)
    assert policy.times == [0, 0.5]
    play(line, 1, queued=0)
    assert policy.times == [0, 0.5]


def test_an_operators_request_asks_at_once_and_is_seen_once() -> None:
    line = Timeline(settings("lv"))
    line.play(3)
    assert play(line, 0.5, requested=5) == 5
    assert len(line.play(20)) == 0


def test_a_fleet_that_keeps_showing_a_request_asks_only_once() -> None:
    line = Timeline(settings("lv"))
    for _ in range(10):
        play(line, 0.5, requested=5)
    assert len(line.decisions) == 2  # at the start, and for the request


def test_an_operators_request_is_desired_before_any_policy_was_asked() -> None:
    runner = Runner(FUNCTION)
    runner.request(0)
    assert runner.desired == 0


def test_another_policy_takes_over_at_once_with_the_same_history_and_an_empty_memory() -> None:
    policy = Moody()
    line = Timeline(settings("moody", max=50), policies=moody(policy))
    play(line, 60, rps=20.0, concurrency=20.0)
    play(line, 0.5, settings=settings("lv", max=50))
    assert line.runner.policy_name == "lv"
    assert "20.00 rps in 30 s" in line.reason
    assert line.live == 20
    assert line.runner.state.policy == "lv"


def test_a_changed_setting_counts_at_once() -> None:
    line = Timeline(settings("lv", min=1))
    assert play(line, 0.5, settings=settings("lv", min=4)) == 4


def test_a_failing_policy_leaves_the_last_decision_in_force_and_is_replaced_after_three_times() -> None:
    policy = Moody()
    line = Timeline(settings("moody", min=1), policies=moody(policy))
    line.play(1)
    policy.broken = True
    line.play(2.5)
    assert line.reason == "moody failed (1 of 3): ZeroDivisionError: no load; the last decision stays in force"
    assert line.live == 3
    line.play(4.5)
    assert line.runner.policy_name == "fixed"
    assert line.reason.startswith("moody failed 3 times, fixed instead (ZeroDivisionError: no load): an operator asked for 3")
    assert play(line, 60) == 3  # not the minimum: a faulty policy takes nothing away
    assert policy.times == [0, 2, 4, 6, 21, 51], "tried again after 15 s, then after 30"
    assert line.reason.startswith("moody failed again, fixed instead for 60 s (ZeroDivisionError: no load)")
    policy.broken = False
    line.play(60)
    assert line.runner.policy_name == "moody"
    assert policy.times[6:8] == [111, 113], "after 60 s of back-off, and then at its own rhythm"


def test_a_policy_that_works_again_keeps_what_it_remembers() -> None:
    """Three failures must not cost an hour of counts."""
    policy = Moody()
    line = Timeline(settings("moody"), policies=moody(policy))
    line.play(3)
    policy.broken = True
    line.play(6)
    assert line.runner.fallback.startswith("moody failed 3 times, fixed instead")
    policy.broken = False
    line.play(14.5)
    assert line.reason == "asked 2 times before"
    assert not line.runner.fallback
    policy.broken = True
    line.play(4)
    assert line.reason.startswith("moody failed (2 of 3)"), "and it may fail twice again"


def test_a_success_in_between_starts_the_count_again() -> None:
    policy = Moody()
    line = Timeline(settings("moody"), policies=moody(policy))
    for broken in (True, True, False, True, True, False):
        policy.broken = broken
        line.play(2)
    assert line.runner.policy_name == "moody"


def test_changed_settings_give_a_failed_policy_another_chance() -> None:
    policy = Moody()
    line = Timeline(settings("moody"), policies=moody(policy))
    policy.broken = True
    line.play(10)
    assert line.runner.policy_name == "fixed"
    policy.broken = False
    play(line, 0.5, settings=settings("moody", min=2))
    assert line.runner.policy_name == "moody"


def test_an_answer_that_is_no_decision_is_a_failure() -> None:
    class Wrong(Moody):
        def decide(self, seen: Observation, state: PolicyState) -> tuple[Decision, PolicyState]:  # noqa: ARG002 - it looks at nothing
            return 4, state  # type: ignore[return-value]

    line = Timeline(settings("moody"), policies=moody(Wrong()))
    assert "answered int" in line.reason


def test_a_policy_that_is_not_there_any_more_is_replaced_by_fixed_with_the_reason() -> None:
    line = Timeline(settings("gone", min=2))
    assert line.live == 2
    assert "gone cannot be used, fixed instead" in line.reason
    assert "Known ones" in line.reason


def test_no_room_is_tried_again_at_the_next_turn() -> None:
    line = Timeline(settings("od", min=4), nodes=(("small", 3),))
    assert line.live == 3
    assert line.errors == ["no_capacity"]
    line.play(1)
    assert line.errors == ["no_capacity"] * 2
    line.fleet._nodes = (("small", 4),)
    assert play(line, 1) == 4


def test_while_a_new_version_is_rolled_out_only_its_instances_count() -> None:
    line = Timeline(settings("fixed", min=2))
    line.play(20)
    old = set(line.instances)
    line.version = 2
    line.fleet.carry_out(FUNCTION, [CreateBody(1)])
    line.play(10)
    new = set(line.instances) - old
    assert len(new) == 2
    assert old <= set(line.instances)  # ending them belongs to whoever rolls out


def test_a_saved_runner_goes_on_where_it_was() -> None:
    line = Timeline(settings("hpa", max=40))
    play(line, 60, busy_cores=4.0)
    there = line.live
    saved = json.loads(json.dumps(line.runner.to_json()))

    other = Runner(FUNCTION)
    other.restore(saved, shift_s=1000.0 - line.now_s)
    line.busy_cores = 0.0
    load = line.fleet.load(FUNCTION)
    assert load is not None
    decision = other.tick(1000.0, load)
    assert decision.desired == there  # the wish for that many is not yet 300 s old
    assert other.windows.history(1000.0).arrivals == line.runner.windows.history(60.0).arrivals


@pytest.mark.parametrize("damage", [{}, {"state": {}, "desired": 1, "windows": {}}])
def test_a_damaged_save_raises_what_the_loop_expects(damage: dict[str, object]) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        Runner(FUNCTION).restore(damage, 0.0)  # type: ignore[arg-type]


def test_an_instance_that_ended_by_itself_is_replaced_at_once_also_within_a_long_period() -> None:
    line = Timeline(Settings(autoscaler="lv", scale=ScaleSettings(min=3)))
    line.play(12)
    line.instances.popitem()
    assert [decision.desired for decision in line.play(0.5)] == [3]
    assert line.live == 3
    assert line.reason == "1 of 3 instances are missing: replaced"


def test_failing_starts_back_off_exponentially() -> None:
    line = Timeline(Settings(autoscaler="fixed"), start_s=5.0)
    created = []
    for _ in range(4 * 60 * 2):
        line.instances.clear()  # whatever was started has crashed
        created += [line.now_s for decision in line.play(0.5) if any(isinstance(a, CreateBody) for a in decision.actions)]
    waits = [round(later - earlier, 1) for earlier, later in pairwise(created)]
    assert waits == [1.5, 2.5, 4.5, 8.5, 16.5, 32.5, 60.5, 60.5]


def test_failing_starts_back_off_also_on_a_full_node() -> None:
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


async def test_instances_seen_during_their_decision_have_not_failed() -> None:
    clock = VirtualClock()
    fleet = Unhurried(clock)
    fleet.known["f.ns"] = MemoryFunction(Settings(autoscaler="fixed", scale=ScaleSettings(max=16)))
    autoscaler = Autoscaler(fleet, clock, executor=at_once, stamp_s=lambda: 1e9)
    async with running(autoscaler):
        for wanted in (3, 6, 9, 12, 15):
            autoscaler.request("f.ns", wanted)
            await clock.advance(2.5)
            assert len(fleet.known["f.ns"].instances) == wanted
    assert [decision.error for decision in autoscaler.decisions("f.ns", 50) if decision.error] == []


def test_instance_that_had_served_is_replaced_at_once() -> None:
    line = Timeline(Settings(autoscaler="fixed"), start_s=0.0)
    created = []
    for _ in range(20):
        line.instances.clear()
        line.runner.reset_start_backoff()
        created += [line.now_s for decision in line.play(0.5) if any(isinstance(a, CreateBody) for a in decision.actions)]
    assert len(created) == 20


def test_a_deployment_forgives() -> None:
    line = Timeline(Settings(autoscaler="fixed"), start_s=5.0)
    for _ in range(20):
        line.instances.clear()
        line.play(0.5)
    line.instances.clear()
    assert play(line, 0.5) == 0
    line.runner.reset_start_backoff()
    assert play(line, 0.5) == 1


def instance(id_: str, state: InstanceState, version: int = 1) -> Instance:
    return Instance(id_, "f.ns", version, "n", 1, 0, state, 0.0)


def look(*looks: tuple[float, tuple[Instance, ...]]) -> StartBackoff:
    starts = StartBackoff()
    for now_s, instances in looks:
        starts.observe(now_s, instances)
    return starts


def test_requested_ends_are_no_failed_starts() -> None:
    starts = StartBackoff()
    starts.observe(0, (instance("a", InstanceState.READY),))
    starts.expect_ends(["a"])
    starts.observe(1, ())
    assert starts.failures == 0
    assert look((0, (instance("a", InstanceState.DRAINING),)), (1, ())).failures == 0
    assert look((0, (instance("a", InstanceState.READY),)), (1, (instance("b", InstanceState.STARTING, 2),))).failures == 0


def test_crash_after_a_long_life_is_no_failed_start() -> None:
    ready = (instance("a", InstanceState.READY),)
    assert look((0, ready), (10, ready), (11, ())).failures == 0
    assert look((0, ready), (9, ready), (9.5, ())).failures == 1


def test_a_steady_instance_ends_the_row() -> None:
    starting, ready = instance("a", InstanceState.STARTING), instance("b", InstanceState.READY)
    starts = look((0, (starting,)), (1, ()), (2, (starting,)), (3, ()))
    assert starts.failures == 2
    starts.observe(4, (ready,))
    assert starts.failures == 2
    starts.observe(14, (ready,))
    assert starts.failures == 0


STATE = PolicyState(
    "kpa",
    3,
    {
        "most": 4,
        "empty_at_s": 100.5,
        "nothing_at_s": None,
        "inner": {"wished_at_s": (1.0, 2.0), "wished": (3, 4), "on": True, "text": "x"},
    },
)


def test_a_state_survives_json() -> None:
    assert state_from_json(json.loads(json.dumps(state_to_json(STATE)))) == STATE


def test_moments_move_to_another_clock_and_nothing_else_does() -> None:
    moved = state_from_json(json.loads(json.dumps(state_to_json(STATE))), shift_s=-90.0)
    assert moved.values == {
        "most": 4,
        "empty_at_s": 10.5,
        "nothing_at_s": None,
        "inner": {"wished_at_s": (-89.0, -88.0), "wished": (3, 4), "on": True, "text": "x"},
    }


@pytest.mark.parametrize("values", [{"seen": {1, 2}}, {"by": {1: 2}}, {"inner": {"at": [b"x"]}}], ids=str)
def test_a_third_partys_state_that_is_no_json_is_refused(values: Mapping[str, StateValue]) -> None:
    with pytest.raises(TypeError, match="JSON"):
        state_to_json(PolicyState("odd", 1, values))


SCALE = ScaleSettings(min=1, max=6)
PAIR = Pair(1, (0,), (0, 1, 1, 2, 2, 3, 3, 4))
SHADOW = body("s1", kind=InstanceKind.SHADOW, partner="b1", pair=PAIR)
FOUND = (replace(body("b1"), partner="s1", pair=PAIR), body("b2"), body("b3"), SHADOW)


def load(policy: str, rps: float, now_s: float, requested: int | None = None) -> FunctionLoad:
    """Three Bodies and a Shadow, as they are found and stay; so much has come since."""
    settings = Settings(autoscaler=policy, slo_s=1.0, max_batch=8, max_cores=1, scale=SCALE)
    come = int(rps * now_s)
    counters = LoadCounters(come, come, 3.0 * now_s, 3.0 * now_s, 0, 3, 0.0, now_s)
    return FunctionLoad(settings, counters, FOUND, (node(),), LATENCY_S, requested, PROFILE)


def played(runner: Runner, policy: str, rps: float, until_s: float, *, from_s: float = 0.0) -> list[tuple[float, type]]:
    """The instances that were decided to end, and when."""
    ended: list[tuple[float, type]] = []
    for tick in range(round(2 * from_s), round(2 * until_s) + 1):
        now_s = tick / 2
        decision = runner.tick(now_s, load(policy, rps, now_s))
        actions = decision.actions if decision is not None else ()
        ended += [(now_s, type(action)) for action in actions if isinstance(action, DestroyBody | DestroyShadow)]
    return ended


@pytest.mark.parametrize("policy", sorted(BUILT_IN))
def test_nothing_that_was_found_ends_before_its_load_is_known(policy: str) -> None:
    runner = Runner("f.ns")
    assert played(runner, policy, 1.0, 59.5) == []
    assert runner.desired is None or runner.desired >= 3


@pytest.mark.parametrize("policy", ["asyfunc", "lv", "od", "openfaas"])
def test_superfluous_inherited_instances_end(policy: str) -> None:
    runner = Runner("f.ns")
    assert {action for _, action in played(runner, policy, 1.0, 120.0)} >= {DestroyBody}


def test_reason_says_why_the_leader_waits() -> None:
    runner = Runner("f.ns")
    runner.tick(0.0, load("asyfunc", 1.0, 0.0))
    why = "a short history: what there was stays until 60 s of load are recorded"
    assert runner.held_back == why
    played(runner, "asyfunc", 1.0, 30.0, from_s=0.5)
    assert runner.held_back == why, "one record for as long as it waits, not one each time"
    played(runner, "asyfunc", 1.0, 120.0, from_s=30.5)
    assert runner.held_back == ""


def test_bodies_and_shadows_beyond_those_that_were_found_end_at_once() -> None:
    found = InheritedInstances()
    seen = [replace(load("lv", 1.0, 0.0).instances[0], id=f"b{number}") for number in range(4)]
    shadow = replace(seen[0], id="s0", kind=InstanceKind.SHADOW, partner="b0")
    found.observe(seen[:3], [shadow])
    removals = (*(DestroyBody(body.id) for body in reversed(seen)), DestroyShadow("s0"), DestroyShadow("s1"))
    now = observe(5.0, "f.ns", replace(load("lv", 1.0, 5.0), instances=tuple(seen)), History(0.5, 5.0, (1.0,) * 10), None)
    decision, why = found.restrict(Decision(removals, "none needed", 0), now)
    assert decision.actions == (DestroyBody("b3"), DestroyShadow("s1"))
    assert decision.desired == 3
    assert "short history" in why


def test_manual_scale_holds_at_once() -> None:
    runner = Runner("f.ns")
    played(runner, "fixed", 1.0, 1.0)
    decision = runner.tick(1.5, load("fixed", 1.0, 1.5, requested=1))
    assert sum(isinstance(action, DestroyBody) for action in decision.actions) == 2


def test_a_function_without_instances_holds_none() -> None:
    runner = Runner("f.ns")
    runner.tick(0.0, replace(load("lv", 0.0, 0.0), instances=()))
    assert played(runner, "lv", 1.0, 59.5, from_s=0.5)


def counters(arrivals: int = 0, concurrency_s: float = 0.0) -> LoadCounters:
    return LoadCounters(arrivals, arrivals, concurrency_s, concurrency_s / 2)


def test_counters_become_counts_and_means_per_bin() -> None:
    windows = LoadWindows(bin_s=0.5)
    windows.record(10.0, counters())
    windows.record(10.5, counters(3, 1.0))
    windows.record(11.0, counters(4, 1.0))
    history = windows.history(11.2)
    assert tuple(history.arrivals) == (3, 1)
    assert tuple(history.successes) == (3, 1)
    assert tuple(history.concurrency) == (2.0, 0.0)  # 1.0 request × seconds in half a second
    assert tuple(history.busy_cores) == (1.0, 0.0)
    assert history.end_s == 11.0
    assert history.rate_rps(history.arrivals, 1.0) == 4.0


def test_bins_align_with_the_observations() -> None:
    """Deployed at 10.1 s; looks come at 10.3, 10.8 …: that at 10.8 sees what came since the one before."""
    windows = LoadWindows(bin_s=0.5, origin_s=3.3)
    windows.record(10.1, counters())
    windows.record(10.3, counters(2))
    windows.record(10.8, counters(9))
    history = windows.history(10.8)
    assert tuple(history.arrivals) == pytest.approx((2, 7))
    assert history.end_s == pytest.approx(10.8)


def test_missed_ticks_are_spread_over_the_bins_they_missed() -> None:
    windows = LoadWindows(bin_s=0.5)
    windows.record(0.0, counters())
    windows.record(1.5, counters(12, 3.0))
    assert tuple(windows.history(1.5).arrivals) == (4, 4, 4)
    assert tuple(windows.history(1.5).concurrency) == (2.0, 2.0, 2.0)


def test_a_late_tick_belongs_to_the_bins_it_covers() -> None:
    windows = LoadWindows(bin_s=0.5)
    windows.record(0.0, counters())
    windows.record(0.6, counters(6))  # 10 rps
    windows.record(1.0, counters(6))
    assert tuple(windows.history(1.0).arrivals) == pytest.approx((5, 1))


def test_nothing_is_lost_or_counted_twice_over_many_ragged_ticks() -> None:
    windows = LoadWindows(bin_s=0.5, keep_s=300)
    windows.record(0.0, counters())
    now_s, arrivals = 0.0, 0
    for step in range(500):
        now_s, arrivals = now_s + 0.1 + (step % 7) * 0.13, arrivals + step % 5
        windows.record(now_s, counters(arrivals))
    edge_s = (int(now_s / 0.5) + 1) * 0.5
    windows.record(edge_s, counters(arrivals))
    history = windows.history(edge_s)
    assert sum(history.arrivals) == pytest.approx(arrivals)
    assert len(history.arrivals) == edge_s / 0.5


def test_a_sample_of_the_past_or_of_the_same_moment_changes_nothing() -> None:
    windows = LoadWindows(bin_s=0.5)
    windows.record(0.0, counters())
    windows.record(0.5, counters(2))
    windows.record(0.5, counters(9))
    windows.record(0.2, counters(9))
    assert tuple(windows.history(0.5).arrivals) == (2,)


def test_counters_that_fall_begin_a_new_curve_and_never_give_negative_load() -> None:
    windows = LoadWindows(bin_s=0.5)
    windows.record(0.0, counters(100))
    windows.record(0.5, counters(110))
    windows.record(1.0, counters(0))  # deployed again
    windows.record(1.5, counters(4))
    assert tuple(windows.history(1.5).arrivals) == (10, 4)


def test_only_what_is_kept_is_kept_also_after_a_pause_of_a_day() -> None:
    windows = LoadWindows(bin_s=0.5, keep_s=5)
    windows.record(0.0, counters())
    windows.record(86_400.0, counters(86_400))
    history = windows.history(86_400.0)
    assert len(history.arrivals) == 10
    assert tuple(history.arrivals) == pytest.approx((0.5,) * 10)
    assert history.end_s == 86_400.0


def test_before_the_first_sample_the_history_is_empty() -> None:
    history = LoadWindows().history(3.0)
    assert tuple(history.arrivals) == ()
    assert history.end_s == 3.0
    assert history.rate_rps(history.arrivals, 60) == 0.0


def test_saved_windows_go_on_without_the_time_in_between() -> None:
    windows = LoadWindows(bin_s=0.5)
    windows.record(0.0, counters())
    windows.record(1.0, counters(8))
    restored = LoadWindows.from_json(windows.to_json())
    restored.record(5000.0, counters())
    restored.record(5000.5, counters(2))
    assert tuple(restored.history(5000.5).arrivals) == (4, 4, 2)
    assert restored.history(5000.5).end_s == 5000.5


def test_windows_of_nothing_are_shared_and_small() -> None:
    many = [LoadWindows(bin_s=0.5, origin_s=0.0) for _ in range(3)]
    for windows in many:
        for step in range(1000):
            windows.record(step * 0.5, counters(7))
    histories = [windows.history(499.5) for windows in many]
    assert {len(history.arrivals) for history in histories} == {600}
    assert all(history.arrivals == (0.0,) * 600 == history.busy_cores for history in histories)
    assert len({id(history.arrivals) for history in histories}) == 1
    assert many[0].to_json() == {"bin_s": 0.5, "bins": [600]}


@pytest.mark.parametrize("quiet_s", [3.0, 299.0, 1000.0])
def test_load_between_silences_is_told_where_it_was(quiet_s: float) -> None:
    windows = LoadWindows(bin_s=0.5, keep_s=300)
    windows.record(0.0, counters())
    windows.record(10.0, counters())
    windows.record(11.0, counters(8, 2.0))
    windows.record(11.0 + quiet_s, counters(8, 2.0))
    arrivals = windows.history(11.0 + quiet_s).arrivals
    wanted = ([0.0] * 20 + [4.0, 4.0] + [0.0] * round(2 * quiet_s))[-600:]
    assert list(arrivals) == wanted
    restored = LoadWindows.from_json(windows.to_json())
    assert restored.history(0.0).arrivals == arrivals
    assert restored.history(0.0).concurrency == windows.history(11.0 + quiet_s).concurrency


def test_windows_that_were_saved_bin_by_bin_are_read() -> None:
    restored = LoadWindows.from_json({"bin_s": 0.5, "bins": [[0.0, 0.0, 0.0, 0.0], [2, 1, 0.5, 0.25], [0.0, 0.0, 0.0, 0.0]]})
    history = restored.history(9.0)
    assert (tuple(history.arrivals), tuple(history.successes)) == ((0.0, 2, 0.0), (0.0, 1, 0.0))
    assert (tuple(history.concurrency), tuple(history.busy_cores)) == ((0.0, 1.0, 0.0), (0.0, 0.5, 0.0))


def test_saved_windows_keep_every_bin_exactly() -> None:
    windows = LoadWindows(bin_s=0.5, keep_s=300)
    for second, arrivals in ((0, 0), (7, 0), (8, 1), (9, 4), (90, 4), (91, 11)):
        windows.record(second, counters(arrivals, arrivals / 3))
    saved = json.loads(json.dumps(windows.to_json()))
    restored = LoadWindows.from_json(saved)
    before, after = windows.history(91.0), restored.history(91.0)
    assert (after.arrivals, after.concurrency) == (before.arrivals, before.concurrency)
    assert restored.to_json() == windows.to_json()
    restored.record(0.0, counters())
    restored.record(1000.0, counters())
    assert restored.is_empty


@pytest.mark.parametrize("run", ["no Base64!", "AAAA", "", b64encode(bytes(8 * 5)).decode(), 1.5])
def test_saved_bins_that_are_not_four_columns_are_refused(run: object) -> None:
    with pytest.raises((ValueError, TypeError)):
        LoadWindows.from_json(cast("JsonObject", {"bin_s": 0.5, "bins": [3, run]}))

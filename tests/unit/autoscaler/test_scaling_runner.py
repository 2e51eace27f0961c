"""When a policy is asked, and what happens when it fails."""

import json
from collections.abc import Mapping

import pytest

from gnomon_autoscaler.registry import BUILT_IN, PolicyPlugin
from gnomon_autoscaler.runner import Runner
from gnomon_autoscaler.testing import FUNCTION, Timeline
from gnomon_core.scaling import CreateBody, Decision, Observation, PolicyState
from gnomon_core.settings import ScaleSettings, Settings


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
    line.queues = 3
    line.play(2)
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


def test_between_periods_it_is_asked_when_a_request_waits_and_nothing_lives() -> None:
    policy = Moody()
    line = Timeline(settings("moody"), policies=moody(policy))
    line.queued = 1
    line.instances.clear()
    line.play(0.5)
    assert policy.times == [0, 0.5]
    line.queued = 0
    line.play(1)
    assert policy.times == [0, 0.5]


def test_an_operators_request_asks_at_once_and_is_seen_once() -> None:
    line = Timeline(settings("lv"))
    line.play(3)
    line.requested = 5
    line.play(0.5)
    assert line.live == 5
    assert len(line.play(20)) == 0


def test_a_fleet_that_keeps_showing_a_request_asks_only_once() -> None:
    line = Timeline(settings("lv"))
    for _ in range(10):
        line.requested = 5
        line.play(0.5)
    assert len(line.decisions) == 2  # at the start, and for the request


def test_an_operators_request_is_desired_before_any_policy_was_asked() -> None:
    runner = Runner(FUNCTION)
    runner.request(0)
    assert runner.desired == 0


def test_another_policy_takes_over_at_once_with_the_same_history_and_an_empty_memory() -> None:
    policy = Moody()
    line = Timeline(settings("moody", max=50), policies=moody(policy))
    line.rps = line.concurrency = 20.0
    line.play(60)
    line.settings = settings("lv", max=50)
    line.play(0.5)
    assert line.runner.policy_name == "lv"
    assert "20.00 rps in 30 s" in line.reason
    assert line.live == 20
    assert line.runner.state.policy == "lv"


def test_a_changed_setting_counts_at_once() -> None:
    line = Timeline(settings("lv", min=1))
    line.settings = settings("lv", min=4)
    line.play(0.5)
    assert line.live == 4


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
    line.play(60)
    assert line.live == 3  # not the minimum: a faulty policy takes nothing away
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
    line.settings = settings("moody", min=2)
    line.play(0.5)
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
    line.play(1)
    assert line.live == 4


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
    line.busy_cores = 4.0
    line.play(60)
    there = line.live
    saved = json.loads(json.dumps(line.runner.to_json()))

    other = Runner(FUNCTION)
    other.restore(saved, shift_s=1000.0 - line.now_s)
    line.busy_cores = 0.0
    load = line.fleet.load(FUNCTION)
    assert load is not None
    decision = other.tick(1000.0, load)
    assert decision is not None
    assert decision.desired == there  # the wish for that many is not yet 300 s old
    assert other.windows.history(1000.0).arrivals == line.runner.windows.history(60.0).arrivals


@pytest.mark.parametrize("damage", [{}, {"state": {}, "desired": 1, "windows": {}}])
def test_a_damaged_save_raises_what_the_loop_expects(damage: dict[str, object]) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        Runner(FUNCTION).restore(damage, 0.0)  # type: ignore[arg-type]

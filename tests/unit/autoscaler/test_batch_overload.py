"""What `batch` does in the same decision when more comes than its plan can carry."""

from dataclasses import replace
from typing import Any

import pytest

from gnomon_autoscaler.policies.batch.overload import HOLD_S, overloaded
from gnomon_autoscaler.testing import Timeline
from gnomon_core.scaling import History, Observation, SetBufferPlan
from gnomon_core.settings import ScaleSettings, Settings
from tests.timelines import play

LATENCY_S = tuple(0.04 + 0.005 * batch for batch in range(1, 17))
SETTINGS = Settings(autoscaler="batch", slo_s=0.3, max_batch=16, scale=ScaleSettings(min=1, max=40))


def seen(rate_rps: float, queued: int = 0, *, now_s: float = 100.0, **more: Any) -> Observation:
    history = History(0.5, now_s, (rate_rps / 2.0,) * 2)
    given = {"latency_s": LATENCY_S, **more}
    return Observation(
        now_s, "f.ns", SETTINGS, (), (), queued=queued, executing=0, oldest_wait_s=0.0, last_request_s=now_s,
        history=history, **given,
    )  # fmt: skip


def test_the_worked_example() -> None:
    found = overloaded(seen(160.0, 90), 1, 5, {})
    assert (found.count, found.batch) == (4, 16)
    assert found.reason == "overload: 160.00 rps and 74 more than fit, of 133.33 rps that 1 carry"


@pytest.mark.parametrize(("rate_rps", "queued"), [(20.0, 0), (120.0, 16), (0.0, 0)])
def test_load_within_the_plan_is_no_overload(rate_rps: float, queued: int) -> None:
    assert overloaded(seen(rate_rps, queued), 1, 5, {}) is None


def test_a_backlog_alone_is_one_where_the_plan_cannot_clear_it_within_the_objective() -> None:
    found = overloaded(seen(20.0, 200), 1, 5, {})
    assert found.count == 2, "but it says nothing about how much is to come"


def test_instances_that_carry_nothing_in_time_are_counted_by_their_own_batches() -> None:
    """Full batches of the plan may take longer than half the objective: what they carry is what the plan counts on."""
    slow = tuple(0.15 + 0.05 * batch for batch in range(1, 9))
    assert overloaded(seen(75.0, latency_s=slow), 7, 6, {}) is None
    assert overloaded(seen(95.0, latency_s=slow), 7, 6, {}) is not None


def test_overload_response_lasts_for_seconds_without_shrinking() -> None:
    first = overloaded(seen(400.0, now_s=100.0), 1, 5, {})
    memory = first.remembered()
    again = overloaded(seen(160.0, now_s=101.0), 1, 5, memory)
    assert again.count == first.count
    calm = overloaded(seen(20.0, now_s=102.0), 1, 5, memory)
    assert calm.count == first.count
    assert calm.until_s == 100.0 + HOLD_S
    assert overloaded(seen(20.0, now_s=100.0 + HOLD_S), 1, 5, memory) is None
    assert overloaded(seen(20.0, now_s=102.0), first.count, 5, memory) is None, "a plan for as many has come"


def test_without_service_times_nothing_is_known_of_what_instances_carry() -> None:
    assert overloaded(seen(1000.0, 1000, latency_s=()), 1, 5, {}) is None


def test_a_burst_is_met_in_the_decision_that_sees_it_with_larger_batches() -> None:
    line = Timeline(SETTINGS)
    assert play(line, 60, rps=20.0, latency_s=LATENCY_S) == 1
    planned = line.plan
    assert planned is not None
    line.rps, line.queued = 160.0, 90
    decision = line.play(1)[-1]
    assert decision.reason.startswith("overload: 160.00 rps")
    assert line.live >= 4
    assert line.plan == SetBufferPlan(16, planned.max_wait_s)
    play(line, 10, queued=0)
    assert line.reason.startswith("160.00 rps in ")
    assert line.live <= 3


def test_under_adaptive_scheduling_an_overload_leaves_the_time_to_the_scheduler() -> None:
    line = Timeline(replace(SETTINGS, autoscaler="batch+"))
    play(line, 60, rps=20.0, latency_s=LATENCY_S)
    play(line, 1, rps=160.0, queued=90)
    assert line.plan == SetBufferPlan(16, 0.3)


def test_no_bound_of_the_function_is_passed() -> None:
    line = Timeline(replace(SETTINGS, scale=ScaleSettings(min=1, max=2)))
    play(line, 60, rps=20.0, latency_s=LATENCY_S)
    assert play(line, 2, rps=300.0, queued=200) == 2

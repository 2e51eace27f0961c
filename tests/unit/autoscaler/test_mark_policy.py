"""`mark` on timelines: instances once a minute for the predicted rate, and the share of a burst that overflows."""

import pytest

from gnomon_autoscaler.policies.mark import Mark
from gnomon_autoscaler.runner import Runner
from gnomon_autoscaler.testing import Timeline
from gnomon_core.settings import ScaleSettings, Settings
from tests.timelines import play

# One instance sustains 10 requests a second with any batch.
LATENCY_S = (0.1, 0.2, 0.3, 0.4)


def timeline(*, rps: float, start_s: float = 0.0, alpha: float = 0.8, low: int = 1) -> tuple[Timeline, Runner]:
    runner = Runner("echo.openfaas-fn", origin_s=0.0)
    settings = Settings(autoscaler="mark", slo_s=1.0, max_batch=4, alpha=alpha, scale=ScaleSettings(min=low, max=50))
    line = Timeline(settings, start_s=start_s, runner=runner)
    line.latency_s, line.rps = LATENCY_S, rps
    return line, runner


def test_there_are_instances_for_the_mean_of_two_minutes_with_room() -> None:
    line, _ = timeline(rps=40.0)
    assert play(line, 120) == 5  # 40 / (0.8 × 10)
    said = "1.25 × 40.00 rps in 120 s / 10.00 rps per instance at b = 1 = 5"
    assert any(decision.reason.startswith(said) for _, decision in line.decisions)


def test_alpha_is_how_full_instances_may_be() -> None:
    line, _ = timeline(rps=40.0, alpha=1.0)
    assert play(line, 120) == 4


def test_inherited_instances_stay_for_two_minutes() -> None:
    line, _ = timeline(rps=10.0, low=6)
    assert play(line, 30) == 6
    line.runner = Runner("echo.openfaas-fn", origin_s=0.0)
    assert play(line, 60, settings=Settings(autoscaler="mark", slo_s=1.0, max_batch=4, scale=ScaleSettings(min=1, max=50))) == 6
    assert "6 until there are 120 s" in line.reason or "6 planned" in line.reason
    assert play(line, 120) == 2  # 10 / (0.8 × 10)


def test_the_number_changes_once_a_minute() -> None:
    line, _ = timeline(rps=40.0)
    line.play(125)  # it has been deciding since second 5, the first with a latency
    assert play(line, 59, rps=120.0) == 5
    assert play(line, 1) == 10  # half of two minutes had 40 a second, half 120
    assert play(line, 60) == 15


def test_ready_instances_carry_their_share_and_the_rest_overflows() -> None:
    line, runner = timeline(rps=40.0, start_s=30.0)
    line.play(180)
    assert runner.overflow == 0.0
    play(line, 5, rps=200.0)
    # Five instances carry 50 of 200.
    assert runner.overflow == pytest.approx(0.75)
    assert line.reason.endswith("; 200.00 rps in 5 s and 0 waiting are more than 5 ready carry: 75% overflow to functions")
    play(line, 10, rps=40.0)
    assert runner.overflow == 0.0


def test_queue_must_leave_within_the_objective() -> None:
    line, runner = timeline(rps=40.0)
    line.play(180)
    play(line, 5, queued=55)
    # Each of five takes one at once; 50 in a second and 40 that come, of which 50 are carried.
    assert runner.overflow == pytest.approx(1 - 50 / 90)


def test_before_an_instance_is_ready_all_overflows() -> None:
    line, runner = timeline(rps=10.0, start_s=60.0)
    line.play(10)
    assert runner.overflow == 1.0


def test_without_a_latency_nothing_is_known_to_overflow() -> None:
    line, runner = timeline(rps=1000.0)
    play(line, 10, latency_s=())
    assert runner.overflow == 0.0
    assert line.live == 1
    assert "latency not known yet" in line.reason
    assert play(line, 5, latency_s=LATENCY_S) == 50  # scale.max, as soon as it is known


def test_another_policy_lets_nothing_overflow() -> None:
    line, runner = timeline(rps=10.0, start_s=60.0)
    line.play(10)
    play(line, 1, settings=Settings(autoscaler="fixed"))
    assert runner.overflow == 0.0


def test_mark_needs_no_platform_capability() -> None:
    assert Mark().needs == frozenset()

"""OpenFaaS's two rules on timelines."""

import pytest

from gnomon_autoscaler.registry import scaling_policy
from gnomon_autoscaler.testing import Timeline
from gnomon_core.settings import ScaleSettings, Settings
from tests.refusals import refused
from tests.timelines import play


def timeline(**scale: object) -> Timeline:
    return Timeline(Settings(autoscaler="openfaas", scale=ScaleSettings(**scale)))


def test_ten_requests_a_second_make_two_and_silence_one() -> None:
    line = timeline(min=1, max=2)
    assert play(line, 60, rps=10.0) == 2
    assert play(line, 60, rps=0.0) == 1


def test_the_alert_must_last_five_seconds() -> None:
    line = timeline()
    play(line, 3, rps=10.0)  # above 5 from the first second on
    play(line, 1, rps=0.0)
    assert "pending" in line.reason
    assert play(line, 20) == 1
    assert play(line, 15, rps=10.0) == 3  # 1 + 10 % of 20


def test_five_a_second_are_not_more_than_five() -> None:
    line = timeline()
    assert play(line, 120, rps=5.0) == 1


def test_a_slow_function_gets_instances_for_the_requests_in_the_system_though_no_alert_fires() -> None:
    """Ten clients of a handler that sleeps for a second, where an instance executes one at a time: 10 / 0.7 = 14.3."""
    line = timeline(min=1, max=20)
    assert play(line, 20, rps=4.0, concurrency=10.0, executing=10) == 15
    assert "no alert" in line.reason
    assert "10.00 in the system / target 0.70 = 15" in line.reason
    assert play(line, 20, rps=0.0, concurrency=0.0, executing=0) == 1


def test_the_step_repeats_every_thirty_seconds_up_to_the_maximum() -> None:
    line = timeline(max=10, factor=30)
    assert play(line, 10, rps=50.0) == 4
    assert play(line, 25) == 4
    assert play(line, 5) == 7
    assert play(line, 60) == 10


@pytest.mark.parametrize("scale", [{"min": 2, "max": 2}, {"min": 2, "factor": 0}])
def test_equal_bounds_or_factor_zero_switch_scaling_off(scale: dict[str, int]) -> None:
    line = timeline(**scale)
    assert play(line, 100, rps=100.0) == 2
    assert play(line, 60, rps=0.0) == 2


def test_an_operators_number_is_kept_until_an_alert() -> None:
    line = timeline()
    assert play(line, 60, requested=4) == 4
    assert play(line, 15, rps=10.0) == 6
    assert play(line, 20, rps=0.0) == 1


def test_an_operator_may_leave_the_bounds() -> None:
    line = timeline(max=5)
    assert play(line, 30, requested=8) == 8


def test_an_operators_zero_lasts_until_a_request_arrives() -> None:
    line = timeline()
    line.play(5)
    assert play(line, 30, requested=0) == 0
    line.queued = 1
    line.tick()
    assert line.live == 1
    assert play(line, 30, queued=0) == 1


def test_zero_after_the_idle_time_where_the_label_allows_it() -> None:
    line = timeline(zero=True, zero_duration_s=60.0)
    assert play(line, 59) == 1
    assert play(line, 1) == 0
    line.queued = 1
    line.tick()
    assert line.live == 1


def test_after_another_policy_the_count_goes_to_the_minimum_unless_the_alert_fires() -> None:
    line = Timeline(Settings(autoscaler="fixed", scale=ScaleSettings(min=4)))
    line.play(5)
    assert play(line, 1, settings=Settings(autoscaler="openfaas", scale=ScaleSettings(min=1))) == 1
    play(line, 20, settings=Settings(autoscaler="fixed", scale=ScaleSettings(min=4)), rps=10.0)
    assert play(line, 1, settings=Settings(autoscaler="openfaas", scale=ScaleSettings(min=1))) == 4


@pytest.mark.parametrize(
    ("kind", "load", "count"),
    [
        ("rps", {"rps": 180.0}, 4),  # 180 / (50 × 0.9)
        ("capacity", {"concurrency": 91.0}, 3),
        ("queue", {"queued": 46}, 2),
        ("cpu", {"busy_cores": 0.1}, 3),  # 100 milli-CPU / 45
    ],
)
def test_the_formula_divides_the_load_by_a_share_of_the_target(kind: str, load: dict[str, float], count: int) -> None:
    line = timeline(type=kind)
    for name, value in load.items():
        setattr(line, name, value)
    assert play(line, 20) == count


def test_the_formula_waits_for_the_down_window() -> None:
    line = timeline(type="rps", down_window_s=60.0)
    play(line, 20, rps=180.0)
    assert play(line, 60, rps=45.0) == 4
    assert play(line, 12) == 1


def test_a_custom_load_is_refused_with_what_to_do() -> None:
    with refused(400, "unsupported_scale_type", match="Prometheus", hint="rps, capacity"):
        scaling_policy("openfaas", Settings(scale=ScaleSettings(type="custom")))

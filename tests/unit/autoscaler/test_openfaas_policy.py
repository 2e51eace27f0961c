"""OpenFaaS's two rules on timelines."""

import pytest

from gnomon_autoscaler.registry import scaling_policy
from gnomon_autoscaler.testing import Timeline
from gnomon_core.errors import GnomonError
from gnomon_core.settings import ScaleSettings, Settings


def timeline(**scale: object) -> Timeline:
    return Timeline(Settings(autoscaler="openfaas", scale=ScaleSettings(**scale)))


def test_ten_requests_a_second_make_two_and_silence_one() -> None:
    line = timeline(min=1, max=2)
    line.rps = 10.0
    line.play(60)
    assert line.live == 2
    line.rps = 0.0
    line.play(60)
    assert line.live == 1


def test_the_alert_must_last_five_seconds() -> None:
    line = timeline()
    line.rps = 10.0
    line.play(3)  # above 5 from the first second on
    line.rps = 0.0
    line.play(1)
    assert "pending" in line.reason
    line.play(20)
    assert line.live == 1
    line.rps = 10.0
    line.play(15)
    assert line.live == 3  # 1 + 10 % of 20


def test_five_a_second_are_not_more_than_five() -> None:
    line = timeline()
    line.rps = 5.0
    line.play(120)
    assert line.live == 1


def test_a_slow_function_gets_instances_for_the_requests_in_the_system_though_no_alert_fires() -> None:
    """Ten clients of a handler that sleeps for a second, where an instance executes one at a time: 10 / 0.7 = 14.3."""
    line = timeline(min=1, max=20)
    line.rps, line.concurrency, line.executing = 4.0, 10.0, 10
    line.play(20)
    assert line.live == 15
    assert "no alert" in line.reason
    assert "10.00 in the system / target 0.70 = 15" in line.reason
    line.rps, line.concurrency, line.executing = 0.0, 0.0, 0
    line.play(20)
    assert line.live == 1


def test_the_step_repeats_every_thirty_seconds_up_to_the_maximum() -> None:
    line = timeline(max=10, factor=30)
    line.rps = 50.0
    line.play(10)
    assert line.live == 4
    line.play(25)
    assert line.live == 4
    line.play(5)
    assert line.live == 7
    line.play(60)
    assert line.live == 10


@pytest.mark.parametrize("scale", [{"min": 2, "max": 2}, {"min": 2, "factor": 0}])
def test_equal_bounds_or_factor_zero_switch_scaling_off(scale: dict[str, int]) -> None:
    line = timeline(**scale)
    line.rps = 100.0
    line.play(100)
    assert line.live == 2
    line.rps = 0.0
    line.play(60)
    assert line.live == 2


def test_an_operators_number_is_kept_until_an_alert() -> None:
    line = timeline()
    line.requested = 4
    line.play(60)
    assert line.live == 4
    line.rps = 10.0
    line.play(15)
    assert line.live == 6
    line.rps = 0.0
    line.play(20)
    assert line.live == 1


def test_an_operator_may_leave_the_bounds() -> None:
    line = timeline(max=5)
    line.requested = 8
    line.play(30)
    assert line.live == 8


def test_an_operators_zero_lasts_until_a_request_arrives() -> None:
    line = timeline()
    line.play(5)
    line.requested = 0
    line.play(30)
    assert line.live == 0
    line.queued = 1
    line.tick()
    assert line.live == 1
    line.queued = 0
    line.play(30)
    assert line.live == 1


def test_zero_after_the_idle_time_where_the_label_allows_it() -> None:
    line = timeline(zero=True, zero_duration_s=60.0)
    line.play(59)
    assert line.live == 1
    line.play(1)
    assert line.live == 0
    line.queued = 1
    line.tick()
    assert line.live == 1


def test_after_another_policy_the_count_goes_to_the_minimum_unless_the_alert_fires() -> None:
    line = Timeline(Settings(autoscaler="fixed", scale=ScaleSettings(min=4)))
    line.play(5)
    line.settings = Settings(autoscaler="openfaas", scale=ScaleSettings(min=1))
    line.play(1)
    assert line.live == 1
    line.settings = Settings(autoscaler="fixed", scale=ScaleSettings(min=4))
    line.rps = 10.0
    line.play(20)
    line.settings = Settings(autoscaler="openfaas", scale=ScaleSettings(min=1))
    line.play(1)
    assert line.live == 4


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
    line.play(20)
    assert line.live == count


def test_the_formula_waits_for_the_down_window() -> None:
    line = timeline(type="rps", down_window_s=60.0)
    line.rps = 180.0
    line.play(20)
    line.rps = 45.0
    line.play(60)
    assert line.live == 4
    line.play(12)
    assert line.live == 1


def test_a_custom_load_is_refused_with_what_to_do() -> None:
    with pytest.raises(GnomonError, match="Prometheus") as refused:
        scaling_policy("openfaas", Settings(scale=ScaleSettings(type="custom")))
    assert (refused.value.status, refused.value.code) == (400, "unsupported_scale_type")
    assert "rps, capacity" in refused.value.hint

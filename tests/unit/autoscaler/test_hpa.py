"""Kubernetes' CPU rule on timelines."""

from gnomon_autoscaler.testing import Timeline
from gnomon_core.settings import ScaleSettings, Settings


def timeline(*, start_s: float = 0.0, cores: int = 1, **scale: object) -> Timeline:
    settings = Settings(autoscaler="hpa", target_cpu_percent=60.0, cores=cores, scale=ScaleSettings(**scale))
    return Timeline(settings, start_s=start_s)


def test_instances_times_use_over_target() -> None:
    line = timeline(min=3)
    line.busy_cores = 2.7  # 3 instances at 90 % of 60 %: 4.5
    line.play(15)
    assert line.live == 5
    assert line.reason.startswith("90 % CPU in 15 s, target 60 %: 3 × 1.50 = 5")


def test_use_is_relative_to_the_cores_of_an_instance() -> None:
    line = timeline(cores=2)
    line.busy_cores = 1.2
    line.play(15)
    assert line.live == 1  # 60 % of two cores


def test_within_ten_percent_nothing_changes() -> None:
    line = timeline(min=2)
    line.settings = Settings(autoscaler="hpa", target_cpu_percent=60.0)
    line.busy_cores = 1.3  # 65 %
    line.play(60)
    assert line.live == 2
    assert "within 10%" in line.reason


def test_a_lower_wish_must_last_five_minutes() -> None:
    line = timeline()
    line.busy_cores = 1.0
    line.play(60)
    assert line.live == 2
    line.busy_cores = 0.2
    line.play(285)
    assert line.live == 2
    line.play(30)
    assert line.live == 1


def test_one_decision_doubles_at_most_or_adds_four() -> None:
    line = timeline(max=100)
    line.busy_cores = 30.0
    line.play(15)
    assert line.live == 5


def test_instances_that_start_count_as_idle() -> None:
    line = timeline(start_s=40.0)
    line.play(45)
    line.busy_cores = 1.0  # 1.67 × of one
    line.play(15)
    assert line.live == 2
    line.play(15)  # the second still starts: 1.67 × 1 / 2 is no growth
    assert line.live == 2

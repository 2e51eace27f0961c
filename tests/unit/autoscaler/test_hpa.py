"""Kubernetes' CPU rule on timelines."""

from gnomon_autoscaler.testing import Timeline
from gnomon_core.settings import ScaleSettings, Settings
from tests.timelines import play


def timeline(*, start_s: float = 0.0, cores: int = 1, **scale: object) -> Timeline:
    settings = Settings(autoscaler="hpa", target_cpu_percent=60.0, cores=cores, scale=ScaleSettings(**scale))
    return Timeline(settings, start_s=start_s)


def test_instances_times_use_over_target() -> None:
    line = timeline(min=3)
    line.busy_cores = 2.7  # 3 instances at 90 % of 60 %: 4.5
    assert play(line, 15) == 5
    assert line.reason.startswith("90 % CPU in 15 s, target 60 %: 3 × 1.50 = 5")


def test_use_is_relative_to_the_cores_of_an_instance() -> None:
    line = timeline(cores=2)
    assert play(line, 15, busy_cores=1.2) == 1  # 60 % of two cores


def test_within_ten_percent_nothing_changes() -> None:
    line = timeline(min=2)
    line.settings = Settings(autoscaler="hpa", target_cpu_percent=60.0)
    line.busy_cores = 1.3  # 65 %
    assert play(line, 60) == 2
    assert "within 10%" in line.reason


def test_a_lower_wish_must_last_five_minutes() -> None:
    line = timeline()
    assert play(line, 60, busy_cores=1.0) == 2
    assert play(line, 285, busy_cores=0.2) == 2
    assert play(line, 30) == 1


def test_one_decision_doubles_at_most_or_adds_four() -> None:
    line = timeline(max=100)
    assert play(line, 15, busy_cores=30.0) == 5


def test_instances_that_start_count_as_idle() -> None:
    line = timeline(start_s=40.0)
    line.play(45)
    line.busy_cores = 1.0  # 1.67 × of one
    assert play(line, 15) == 2
    assert play(line, 15) == 2  # the second still starts: 1.67 × 1 / 2 is no growth

"""`target-tracking` on timelines of minutes: alarms, targets and cooldowns as AWS documents them."""

from typing import Any

from gnomon_autoscaler.testing import Timeline
from gnomon_core.settings import ScaleSettings, Settings, read_settings
from tests.timelines import play

MINUTE_S = 60.0


def timeline(*, rps: float, target_rps: float | None = 10.0, start_s: float = 0.0, low: int = 1, **settings: Any) -> Timeline:
    scale = ScaleSettings(min=low, max=50)
    line = Timeline(Settings(autoscaler="target-tracking", target_rps=target_rps, scale=scale, **settings), start_s=start_s)
    line.rps = rps
    return line


def minutes(line: Timeline, count: float) -> int:
    line.play(count * MINUTE_S)
    return line.live


def test_three_figures_above_the_target_make_it_grow_to_what_the_load_needs() -> None:
    line = timeline(rps=15.0, low=2)
    assert minutes(line, 3) == 2
    line.rps = 30.0  # 2 instances get 900 a minute each, the target is 600
    assert minutes(line, 2) == 2
    assert line.reason == "900 a minute to each of 2, target 600, above it 2 of 3 times: 2"
    assert minutes(line, 1) == 3
    assert line.reason == "900 a minute to each of 2, target 600, above it 3 times: 3"


def test_a_figure_at_the_target_starts_the_count_again() -> None:
    line = timeline(rps=20.0)
    minutes(line, 2)
    line.rps = 10.0
    minutes(line, 1)
    line.rps = 20.0
    assert minutes(line, 2) == 1
    assert minutes(line, 1) == 2


def test_target_tracking_shrinks_after_15_min_once_per_cooldown() -> None:
    line = timeline(rps=40.0)
    assert minutes(line, 3) == 4
    line.rps = 20.0
    assert minutes(line, 14) == 4
    assert "below 90% of it 14 of 15 times" in line.reason
    assert minutes(line, 1) == 2
    line.rps = 10.0
    assert minutes(line, 4) == 2
    assert "1 after 60 s of scale-in cooldown" in line.reason
    assert minutes(line, 1) == 1


def test_between_nine_tenths_and_the_target_nothing_happens() -> None:
    line = timeline(rps=40.0)
    minutes(line, 3)
    line.rps = 36.5
    assert minutes(line, 60) == 4


def test_starting_instances_count_towards_the_target() -> None:
    line = timeline(rps=40.0, start_s=240.0)
    assert minutes(line, 3) == 4
    assert minutes(line, 3) == 4
    assert "and as many are coming: 4" in line.reason


def test_within_the_scale_out_cooldown_only_a_larger_step_counts() -> None:
    line = timeline(rps=40.0)
    assert minutes(line, 3) == 4  # a step of 3
    line.rps = 60.0
    assert minutes(line, 3) == 4  # a step of 2
    assert "6 after 120 s of scale-out cooldown: 4" in line.reason
    line.rps = 90.0
    assert minutes(line, 1) == 9  # a step of 5


def test_the_cooldown_ends() -> None:
    line = timeline(rps=40.0)
    minutes(line, 3)
    line.rps = 60.0
    assert minutes(line, 4) == 4
    assert minutes(line, 1) == 6


def test_cooldowns_are_settings() -> None:
    settings = read_settings({}, {"gnomon/scale-out-cooldown": "2m", "gnomon/scale-in-cooldown": "30m"})
    assert (settings.scale_out_cooldown_s, settings.scale_in_cooldown_s) == (120.0, 1800.0)
    assert (Settings().scale_out_cooldown_s, Settings().scale_in_cooldown_s) == (300.0, 300.0)
    line = timeline(rps=40.0, scale_in_cooldown_s=1800.0)
    minutes(line, 3)
    line.rps = 30.0
    assert minutes(line, 15) == 3
    line.rps = 10.0
    assert minutes(line, 29) == 3
    assert "after 60 s of scale-in cooldown" in line.reason
    assert minutes(line, 1) == 1


def test_growing_ends_the_scale_in_cooldown() -> None:
    line = timeline(rps=40.0, scale_in_cooldown_s=36_000.0)
    minutes(line, 3)
    line.rps = 20.0
    assert minutes(line, 15) == 2
    line.rps = 40.0
    assert minutes(line, 3) == 4
    line.rps = 20.0
    assert minutes(line, 15) == 2


def test_without_a_target_it_is_half_of_what_an_instance_sustains() -> None:
    line = timeline(rps=10.0, target_rps=None, slo_s=1.0)
    assert minutes(line, 3) == 1
    assert "latency is not known yet" in line.reason
    line.latency_s = (0.1,)  # 10 a second, so that 5 are the target
    assert minutes(line, 3) == 2
    assert line.reason == "600 a minute to each of 1, target 300, above it 3 times: 2"


def test_target_tracking_continues_from_a_manual_scale() -> None:
    line = timeline(rps=40.0)
    minutes(line, 3)
    assert play(line, 1, requested=6) == 6
    line.rps = 80.0
    assert minutes(line, 3) == 8


def test_a_change_of_settings_within_a_minute_takes_no_second_figure() -> None:
    line = timeline(rps=20.0)
    minutes(line, 2)
    for _ in range(5):
        play(
            line,
            5,
            settings=Settings(autoscaler="target-tracking", target_rps=10.0, scale=ScaleSettings(max=50 + int(line.now_s))),
        )
    assert line.live == 1
    assert "within the minute" in line.reason

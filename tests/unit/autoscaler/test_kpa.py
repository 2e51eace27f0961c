"""Count policies: kpa, hpa, target tracking and fixed."""

from dataclasses import replace

from gnomon_autoscaler.policies.kpa import Kpa
from gnomon_autoscaler.runner import Runner
from gnomon_autoscaler.testing import Timeline
from gnomon_core.fleet import Instance, InstanceState
from gnomon_core.scaling import FunctionLoad, History, LoadCounters, Observation
from gnomon_core.settings import ScaleSettings, Settings
from tests.timelines import play


def timeline(target: float = 10.0, *, rps: float | None = None, start_s: float = 0.0, **scale: object) -> Timeline:
    settings = Settings(autoscaler="kpa", target_concurrency=target, target_rps=rps, scale=ScaleSettings(**scale))
    return Timeline(settings, start_s=start_s)


def busy(line: Timeline, concurrency: float) -> None:
    line.concurrency = concurrency
    line.executing = round(concurrency)


def test_a_steady_load_gets_load_over_seventy_percent_of_the_target() -> None:
    line = timeline()
    busy(line, 7.0)
    assert play(line, 120) == 1
    busy(line, 10.0)  # 10 / 7, twice the one that is ready, which is a panic
    assert play(line, 130) == 2
    assert line.reason == "10.00 in the system in 60 s / target 7.00 = 2"


def test_a_slow_rise_follows_the_stable_window() -> None:
    line = timeline()
    busy(line, 28.0)
    assert play(line, 130) == 4
    busy(line, 49.0)  # 7 wanted is below twice the 4 that are ready: no panic
    assert play(line, 30) == 6  # (30 × 28 + 30 × 49) / 60 = 38.5
    assert "panic" not in line.reason


def test_a_burst_panics_within_six_seconds_and_never_scales_down_meanwhile() -> None:
    line = timeline()
    busy(line, 7.0)
    line.play(60)
    busy(line, 70.0)
    assert play(line, 6) == 10
    assert "panic" in line.reason
    busy(line, 7.0)
    assert play(line, 50) == 10
    assert "never scales down" in line.reason


def test_panic_ends_a_stable_window_after_it_was_last_justified() -> None:
    line = timeline()
    busy(line, 7.0)
    line.play(60)
    busy(line, 70.0)
    line.play(6)  # at 62 s 4 were wanted with 1 ready; at 64 s 7 with 4 ready are not twice as many
    busy(line, 7.0)
    line.play(56)
    assert (line.now_s, line.live) == (122, 10)
    assert play(line, 2) == 5  # at least half of what there was


def test_one_decision_takes_at_most_half_away() -> None:
    line = timeline()
    busy(line, 140.0)
    assert play(line, 200) == 20
    busy(line, 0.0)
    seen = []
    for _ in range(40):
        line.play(2)
        seen.append(line.live)
    assert all(after >= before // 2 for before, after in zip([20, *seen], seen, strict=False))
    assert seen[-1] == 1


def test_a_target_in_requests_per_second_replaces_concurrency() -> None:
    line = timeline(rps=100.0)
    assert play(line, 60, rps=140.0, executing=1) == 2
    assert "rps" in line.reason


def test_to_zero_after_an_empty_window_and_thirty_seconds_of_grace() -> None:
    line = timeline(min=0)
    assert play(line, 60, rps=5.0, executing=1, concurrency=5.0) == 1
    assert play(line, 58, rps=0.0, executing=0, concurrency=0.0) == 1
    assert play(line, 28) == 1
    assert "of grace" in line.reason
    assert play(line, 6) == 0


def test_a_request_in_the_grace_keeps_the_function_alive() -> None:
    line = timeline(min=0)
    busy(line, 5.0)
    line.play(60)
    busy(line, 0.0)
    line.play(80)
    busy(line, 1.0)
    line.play(2)
    busy(line, 0.0)
    assert play(line, 60) == 1


def test_the_first_request_after_zero_is_answered_at_once() -> None:
    line = timeline(min=0, start_s=1.0)
    assert play(line, 100) == 0
    line.queued = 1
    line.tick()
    assert line.live == 1
    assert "a request waits" in line.reason


BIN_S = 0.5


def seen(concurrency: list[float], settings: Settings, ready: int = 1) -> Observation:
    instances = tuple(Instance(f"i{n}", "f.ns", 1, "", 1, 0, InstanceState.READY, 0.0) for n in range(ready))
    bins = tuple(value for value in concurrency for _ in range(2))
    history = History(BIN_S, 1000.0, bins, bins, bins, (0.0,) * len(bins))
    return Observation(1000.0, "f.ns", settings, instances, (), 0, 0, 0.0, 900.0, history)


def test_the_stable_window_is_as_long_as_the_settings_say() -> None:
    load = [10.0] * 20 + [0.0] * 20
    short = Settings(target_concurrency=1.0, stable_window_s=20.0, zero_grace_s=0.0, scale=ScaleSettings(min=0))
    assert Kpa().wish(seen(load, short), {}).count == 0
    assert Kpa().wish(seen(load, replace(short, stable_window_s=40.0)), {}).count == 8


def test_the_share_of_the_target_and_the_panic_threshold_are_as_the_settings_say() -> None:
    full = Settings(target_concurrency=4.0, target_utilization=1.0)
    assert Kpa().wish(seen([8.0] * 60, full, ready=2), {}).count == 2
    rising = [0.0] * 54 + [16.0] * 6
    assert "panic" in Kpa().wish(seen(rising, full, ready=2), {}).reason
    assert "panic" not in Kpa().wish(seen(rising, replace(full, panic_threshold=3.0), ready=2), {}).reason
    assert "panic" not in Kpa().wish(seen(rising, replace(full, panic_share=0.5), ready=2), {}).reason


def test_a_runner_keeps_as_much_history_as_the_window_needs() -> None:
    runner = Runner("f.ns", origin_s=0.0)
    settings = Settings(autoscaler="kpa", stable_window_s=600.0)
    load = FunctionLoad(settings, LoadCounters(), (), ())
    for half_seconds in range(1400):
        runner.tick(half_seconds * BIN_S, load)
    assert len(runner.windows.history(700.0).arrivals) * BIN_S == 600.0


def fixed(**scale: object) -> Settings:
    return Settings(autoscaler="fixed", scale=ScaleSettings(**scale))


def test_the_minimum_whatever_the_load() -> None:
    line = Timeline(fixed(min=3))
    assert play(line, 60, rps=1000.0, concurrency=500.0, queued=400) == 3


def test_manual_scale_holds_until_the_minimum_changes() -> None:
    line = Timeline(fixed(min=1))
    assert play(line, 0.5, requested=4) == 4
    assert play(line, 600) == 4
    assert play(line, 0.5, settings=fixed(min=2)) == 2


def test_minimum_zero_means_one_while_in_use() -> None:
    line = Timeline(fixed(min=0, zero_duration_s=30.0))
    assert play(line, 35) == 0
    line.queued = 1
    line.tick()
    assert line.live == 1
    assert play(line, 29, queued=0) == 1
    assert play(line, 10) == 0

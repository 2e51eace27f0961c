"""Policies that count what is in the system or busy, as Knative, Kubernetes and OpenFaaS do: kpa, hpa, openfaas and fixed."""

from dataclasses import replace

import pytest

from gnomon_autoscaler.policies.kpa import Kpa
from gnomon_autoscaler.registry import scaling_policy
from gnomon_autoscaler.runner import Runner
from gnomon_autoscaler.testing import Timeline
from gnomon_core.fleet import Instance, InstanceState
from gnomon_core.scaling import FunctionLoad, History, LoadCounters, Observation
from gnomon_core.settings import ScaleSettings, Settings
from tests.refusals import refused
from tests.timelines import play


def kpa(target: float = 10.0, *, rps: float | None = None, start_s: float = 0.0, **scale: object) -> Timeline:
    settings = Settings(autoscaler="kpa", target_concurrency=target, target_rps=rps, scale=ScaleSettings(**scale))
    return Timeline(settings, start_s=start_s)


def busy(line: Timeline, concurrency: float) -> None:
    line.concurrency = concurrency
    line.executing = round(concurrency)


def test_a_steady_load_gets_load_over_seventy_percent_of_the_target() -> None:
    line = kpa()
    busy(line, 7.0)
    assert play(line, 120) == 1
    busy(line, 10.0)  # 10 / 7, twice the one that is ready, which is a panic
    assert play(line, 130) == 2
    assert line.reason == "10.00 in the system in 60 s / target 7.00 = 2"


def test_a_slow_rise_follows_the_stable_window() -> None:
    line = kpa()
    busy(line, 28.0)
    assert play(line, 130) == 4
    busy(line, 49.0)  # 7 wanted is below twice the 4 that are ready: no panic
    assert play(line, 30) == 6  # (30 × 28 + 30 × 49) / 60 = 38.5
    assert "panic" not in line.reason


def test_a_burst_panics_within_six_seconds_and_never_scales_down_meanwhile() -> None:
    line = kpa()
    busy(line, 7.0)
    line.play(60)
    busy(line, 70.0)
    assert play(line, 6) == 10
    assert "panic" in line.reason
    busy(line, 7.0)
    assert play(line, 50) == 10
    assert "never scales down" in line.reason


def test_panic_ends_a_stable_window_after_it_was_last_justified() -> None:
    line = kpa()
    busy(line, 7.0)
    line.play(60)
    busy(line, 70.0)
    line.play(6)  # at 62 s 4 were wanted with 1 ready; at 64 s 7 with 4 ready are not twice as many
    busy(line, 7.0)
    line.play(56)
    assert (line.now_s, line.live) == (122, 10)
    assert play(line, 2) == 5  # at least half of what there was


def test_one_decision_takes_at_most_half_away() -> None:
    line = kpa()
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
    line = kpa(rps=100.0)
    assert play(line, 60, rps=140.0, executing=1) == 2
    assert "rps" in line.reason


def test_to_zero_after_an_empty_window_and_thirty_seconds_of_grace() -> None:
    line = kpa(min=0)
    assert play(line, 60, rps=5.0, executing=1, concurrency=5.0) == 1
    assert play(line, 58, rps=0.0, executing=0, concurrency=0.0) == 1
    assert play(line, 28) == 1
    assert "of grace" in line.reason
    assert play(line, 6) == 0


def test_a_request_in_the_grace_keeps_the_function_alive() -> None:
    line = kpa(min=0)
    busy(line, 5.0)
    line.play(60)
    busy(line, 0.0)
    line.play(80)
    busy(line, 1.0)
    line.play(2)
    busy(line, 0.0)
    assert play(line, 60) == 1


def test_the_first_request_after_zero_is_answered_at_once() -> None:
    line = kpa(min=0, start_s=1.0)
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
    assert Kpa().desired_count(seen(load, short), {}).count == 0
    assert Kpa().desired_count(seen(load, replace(short, stable_window_s=40.0)), {}).count == 8


def test_the_share_of_the_target_and_the_panic_threshold_are_as_the_settings_say() -> None:
    full = Settings(target_concurrency=4.0, target_utilization=1.0)
    assert Kpa().desired_count(seen([8.0] * 60, full, ready=2), {}).count == 2
    rising = [0.0] * 54 + [16.0] * 6
    assert "panic" in Kpa().desired_count(seen(rising, full, ready=2), {}).reason
    assert "panic" not in Kpa().desired_count(seen(rising, replace(full, panic_threshold=3.0), ready=2), {}).reason
    assert "panic" not in Kpa().desired_count(seen(rising, replace(full, panic_share=0.5), ready=2), {}).reason


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


def hpa(*, start_s: float = 0.0, cores: int = 1, **scale: object) -> Timeline:
    settings = Settings(autoscaler="hpa", target_cpu_percent=60.0, cores=cores, scale=ScaleSettings(**scale))
    return Timeline(settings, start_s=start_s)


def test_instances_times_use_over_target() -> None:
    line = hpa(min=3)
    line.busy_cores = 2.7  # 3 instances at 90 % of 60 %: 4.5
    assert play(line, 15) == 5
    assert line.reason.startswith("90 % CPU in 15 s, target 60 %: 3 × 1.50 = 5")


def test_use_is_relative_to_the_cores_of_an_instance() -> None:
    line = hpa(cores=2)
    assert play(line, 15, busy_cores=1.2) == 1  # 60 % of two cores


def test_within_ten_percent_nothing_changes() -> None:
    line = hpa(min=2)
    line.settings = Settings(autoscaler="hpa", target_cpu_percent=60.0)
    line.busy_cores = 1.3  # 65 %
    assert play(line, 60) == 2
    assert "within 10%" in line.reason


def test_a_lower_wish_must_last_five_minutes() -> None:
    line = hpa()
    assert play(line, 60, busy_cores=1.0) == 2
    assert play(line, 285, busy_cores=0.2) == 2
    assert play(line, 30) == 1


def test_one_decision_doubles_at_most_or_adds_four() -> None:
    line = hpa(max=100)
    assert play(line, 15, busy_cores=30.0) == 5


def test_instances_that_start_count_as_idle() -> None:
    line = hpa(start_s=40.0)
    line.play(45)
    line.busy_cores = 1.0  # 1.67 × of one
    assert play(line, 15) == 2
    assert play(line, 15) == 2  # the second still starts: 1.67 × 1 / 2 is no growth


def openfaas(**scale: object) -> Timeline:
    return Timeline(Settings(autoscaler="openfaas", scale=ScaleSettings(**scale)))


def test_ten_requests_a_second_make_two_and_silence_one() -> None:
    line = openfaas(min=1, max=2)
    assert play(line, 60, rps=10.0) == 2
    assert play(line, 60, rps=0.0) == 1


def test_the_alert_must_last_five_seconds() -> None:
    line = openfaas()
    play(line, 3, rps=10.0)  # above 5 from the first second on
    play(line, 1, rps=0.0)
    assert "pending" in line.reason
    assert play(line, 20) == 1
    assert play(line, 15, rps=10.0) == 3  # 1 + 10 % of 20


def test_five_a_second_are_not_more_than_five() -> None:
    line = openfaas()
    assert play(line, 120, rps=5.0) == 1


def test_a_slow_function_gets_instances_for_the_requests_in_the_system_though_no_alert_fires() -> None:
    """Ten clients of a handler that sleeps for a second, where an instance executes one at a time: 10 / 0.7 = 14.3."""
    line = openfaas(min=1, max=20)
    assert play(line, 20, rps=4.0, concurrency=10.0, executing=10) == 15
    assert "no alert" in line.reason
    assert "10.00 in the system / target 0.70 = 15" in line.reason
    assert play(line, 20, rps=0.0, concurrency=0.0, executing=0) == 1


def test_the_step_repeats_every_thirty_seconds_up_to_the_maximum() -> None:
    line = openfaas(max=10, factor=30)
    assert play(line, 10, rps=50.0) == 4
    assert play(line, 25) == 4
    assert play(line, 5) == 7
    assert play(line, 60) == 10


@pytest.mark.parametrize("scale", [{"min": 2, "max": 2}, {"min": 2, "factor": 0}])
def test_equal_bounds_or_factor_zero_switch_scaling_off(scale: dict[str, int]) -> None:
    line = openfaas(**scale)
    assert play(line, 100, rps=100.0) == 2
    assert play(line, 60, rps=0.0) == 2


def test_an_operators_number_is_kept_until_an_alert() -> None:
    line = openfaas()
    assert play(line, 60, requested=4) == 4
    assert play(line, 15, rps=10.0) == 6
    assert play(line, 20, rps=0.0) == 1


def test_an_operator_may_leave_the_bounds() -> None:
    line = openfaas(max=5)
    assert play(line, 30, requested=8) == 8


def test_an_operators_zero_lasts_until_a_request_arrives() -> None:
    line = openfaas()
    line.play(5)
    assert play(line, 30, requested=0) == 0
    line.queued = 1
    line.tick()
    assert line.live == 1
    assert play(line, 30, queued=0) == 1


def test_zero_after_the_idle_time_where_the_label_allows_it() -> None:
    line = openfaas(zero=True, zero_duration_s=60.0)
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
    line = openfaas(type=kind)
    for name, value in load.items():
        setattr(line, name, value)
    assert play(line, 20) == count


def test_the_formula_waits_for_the_down_window() -> None:
    line = openfaas(type="rps", down_window_s=60.0)
    play(line, 20, rps=180.0)
    assert play(line, 60, rps=45.0) == 4
    assert play(line, 12) == 1


def test_a_custom_load_is_refused_with_what_to_do() -> None:
    with refused(400, "unsupported_scale_type", match="Prometheus", hint="rps, capacity"):
        scaling_policy("openfaas", Settings(scale=ScaleSettings(type="custom")))

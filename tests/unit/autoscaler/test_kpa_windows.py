"""`kpa` with other windows, targets and thresholds, as Knative's annotations set them."""

from __future__ import annotations

from dataclasses import replace

from gnomon_autoscaler.policies.kpa import Kpa
from gnomon_autoscaler.runner import Runner
from gnomon_core.fleet import Instance, InstanceState
from gnomon_core.scaling import FunctionLoad, History, LoadCounters, Observation
from gnomon_core.settings import ScaleSettings, Settings

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

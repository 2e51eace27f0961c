"""What holds for every scaling policy whatever the load does."""

import json
import math
from collections.abc import Sequence

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnomon_autoscaler.registry import BUILT_IN, scaling_policy
from gnomon_autoscaler.replica_policy import towards
from gnomon_autoscaler.runner import state_from_json, state_to_json
from gnomon_autoscaler.testing import Timeline
from gnomon_autoscaler.windows import LoadWindows
from gnomon_core.fleet import Instance, InstanceState
from gnomon_core.scaling import CreateBody, History, LoadCounters, Observation, PolicyState
from gnomon_core.settings import ScaleSettings, Settings
from tests.timelines import play

LOADS = st.floats(0, 1000, allow_nan=False)
BINS = 140
# What their docstrings promise: from the same state, more load never asks for fewer. The rate policies with batches of one.
MONOTONE = ("fixed", "hpa", "k-lv", "kpa", "lv", "mark", "od", "openfaas", "target-tracking")


@st.composite
def scales(draw: st.DrawFn) -> ScaleSettings:
    low = draw(st.integers(0, 5))
    return ScaleSettings(
        min=low,
        max=draw(st.integers(max(low, 1), 30)),
        zero=draw(st.booleans()),
        zero_duration_s=draw(st.sampled_from([5.0, 60.0])),
        type=draw(st.sampled_from([None, "rps", "capacity", "cpu", "queue"])),
        target=draw(st.floats(0.5, 100)),
        factor=draw(st.integers(0, 100)),
        down_window_s=draw(st.sampled_from([0.0, 20.0])),
    )


PLANNING = ("batch", "batch+")
"""Each of their plans takes a tenth of a second: a few examples of them, and many of the others."""
QUICK = sorted(set(BUILT_IN) - set(PLANNING))
FEW = hypothesis.settings(max_examples=10, deadline=None)


@st.composite
def all_settings(draw: st.DrawFn, names: Sequence[str] = QUICK) -> Settings:
    return Settings(
        autoscaler=draw(st.sampled_from(names)),
        slo_s=draw(st.sampled_from([0.05, 0.5, 5.0])),
        max_batch=draw(st.sampled_from([1, 4])),
        target_concurrency=draw(st.floats(0.1, 50)),
        target_rps=draw(st.none() | st.floats(1, 100)),
        scale=draw(scales()),
    )


LATENCIES = st.sampled_from([(), (0.1,), (0.04, 0.06, 0.08, 0.1), (3.0,)])


TIMELINES = st.lists(st.tuples(LOADS, st.integers(1, 20)), min_size=1, max_size=6)


@given(all_settings(), LATENCIES, TIMELINES)
def test_live_instances_stay_within_the_bounds_on_any_timeline(
    settings: Settings, latency_s: tuple[float, ...], load: list[tuple[float, int]]
) -> None:
    stay_within_bounds(settings, latency_s, load)


@FEW
@given(all_settings(PLANNING), LATENCIES, TIMELINES)
def test_planning_policies_are_deterministic_too(
    settings: Settings, latency_s: tuple[float, ...], load: list[tuple[float, int]]
) -> None:
    stay_within_bounds(settings, latency_s, load)


def stay_within_bounds(settings: Settings, latency_s: tuple[float, ...], load: list[tuple[float, int]]) -> None:
    line = Timeline(settings, nodes=(("n", 1000),))
    line.latency_s = latency_s
    may_be_zero = settings.scale.zero
    for rps, duration_s in load:
        play(
            line,
            duration_s,
            rps=rps,
            concurrency=rps / 10,
            executing=round(rps / 10) if line.live else 0,
            queued=math.ceil(rps / 50),
            busy_cores=min(rps / 10, line.live),
        )
        lowest = 0 if may_be_zero and not line.executing and not line.queued else settings.scale.min
        assert lowest <= line.live <= max(settings.scale.max, 1)
        if line.executing or line.queued:
            assert line.live >= 1


@given(all_settings(), LATENCIES, st.lists(LOADS, min_size=1, max_size=8), st.integers(0, 40))
def test_a_state_that_went_through_json_decides_the_same(
    settings: Settings, latency_s: tuple[float, ...], loads: list[float], asked: int
) -> None:
    decide_the_same(settings, latency_s, loads, asked)


@FEW
@given(all_settings(PLANNING), LATENCIES, st.lists(LOADS, min_size=1, max_size=4), st.integers(0, 40))
def test_a_plan_that_went_through_json_is_the_same(
    settings: Settings, latency_s: tuple[float, ...], loads: list[float], asked: int
) -> None:
    decide_the_same(settings, latency_s, loads, asked)


def decide_the_same(settings: Settings, latency_s: tuple[float, ...], loads: list[float], asked: int) -> None:
    policy = scaling_policy(settings.autoscaler, settings)
    state = PolicyState()
    for step, load in enumerate(loads):
        seen = observation(settings, load, latency_s, now_s=100.0 + 7 * step, requested=asked if step == 2 else None)
        decision, after = policy.decide(seen, state)
        restored = state_from_json(json.loads(json.dumps(state_to_json(state))))
        assert policy.decide(seen, restored) == (decision, after)
        state = after


@pytest.mark.parametrize("name", MONOTONE)
@given(st.tuples(LOADS, LOADS), LATENCIES, st.integers(0, 12), st.sampled_from([None, "rps", "capacity", "cpu", "queue"]))
def test_more_load_never_asks_for_fewer(
    name: str, loads: tuple[float, float], latency_s: tuple[float, ...], live: int, kind: str | None
) -> None:
    settings = Settings(autoscaler=name, scale=ScaleSettings(max=10_000, type=kind))
    policy = scaling_policy(name, settings)
    fewer, more = (
        policy.decide(observation(settings, load, latency_s[:1], live=live), PolicyState())[0].desired for load in sorted(loads)
    )
    assert fewer is not None
    assert more is not None
    assert fewer <= more


def observation(
    settings: Settings,
    load: float,
    latency_s: tuple[float, ...],
    *,
    now_s: float = 100.0,
    live: int = 1,
    requested: int | None = None,
) -> Observation:
    bins = (load / 2,) * BINS
    instances = tuple(Instance(str(i), "f.ns", 1, "n", 1, 0, InstanceState.READY, 0.0) for i in range(live))
    history = History(0.5, now_s, bins, bins, (load / 10,) * BINS, (min(load / 100, live),) * BINS)
    return Observation(
        now_s,
        "f.ns",
        settings,
        instances,
        (),
        int(load / 50),
        int(load / 10),
        0.0,
        now_s if load else 0.0,
        history,
        latency_s,
        requested,
    )


STATES = st.sampled_from([InstanceState.STARTING, InstanceState.READY, InstanceState.DRAINING])


@given(st.lists(st.tuples(STATES, st.booleans(), st.integers(0, 5), st.floats(0, 100)), max_size=12), st.integers(0, 15))
def test_actions_reach_the_count_and_never_end_a_ready_one_before_a_starting_one(
    there: list[tuple[InstanceState, bool, int, float]], count: int
) -> None:
    instances = tuple(
        Instance(f"i-{number}", "f.ns", 1, "n", 1, 0, state, started_s, busy, in_flight)
        for number, (state, busy, in_flight, started_s) in enumerate(there)
    )
    seen = Observation(0.0, "f.ns", Settings(), instances, (), 0, 0, 0.0, 0.0, History(0.5, 0.0))
    actions = towards(count, seen)
    made = sum(isinstance(action, CreateBody) for action in actions)
    ended = {action.id for action in actions if not isinstance(action, CreateBody)}
    assert len(seen.live) + made - len(ended) == count
    assert ended <= {instance.id for instance in seen.live}
    survivors = [instance for instance in seen.live if instance.id not in ended]
    if any(instance.state is InstanceState.STARTING for instance in survivors):
        assert all(instance.id not in ended for instance in seen.ready)


@given(st.lists(st.tuples(st.floats(0.01, 5), st.integers(0, 50)), min_size=1, max_size=60))
def test_windows_neither_lose_nor_invent_a_request(samples: list[tuple[float, int]]) -> None:
    windows = LoadWindows(bin_s=0.5, keep_s=1000)
    windows.record(0.0, LoadCounters())
    now_s, total = 0.0, 0
    for pause_s, arrivals in samples:
        now_s, total = now_s + pause_s, total + arrivals
        windows.record(now_s, LoadCounters(total, total, total / 4, total / 8))
    windows.record(now_s + 1.0, LoadCounters(total, total, total / 4, total / 8))
    history = windows.history(now_s + 1.0)
    assert sum(history.arrivals) == pytest.approx(total)
    assert sum(history.concurrency) * 0.5 == pytest.approx(total / 4)
    assert min(history.arrivals, default=0.0) >= -1e-9

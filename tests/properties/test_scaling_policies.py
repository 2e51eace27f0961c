"""Properties of every scaling policy for any fleet and load; and of AsyFunc's, with Shadows."""

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import hypothesis
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnomon_autoscaler.policies.asyfunc import AsyFunc, Options
from gnomon_autoscaler.policies.asyfunc.mls import from_nothing
from gnomon_autoscaler.policies.asyfunc.pairing import Knowledge, sustained
from gnomon_autoscaler.registry import BUILT_IN, scaling_policy
from gnomon_autoscaler.replica_policy import actions_towards
from gnomon_autoscaler.runner import state_from_json, state_to_json
from gnomon_autoscaler.testing import Timeline
from gnomon_autoscaler.windows import LoadWindows
from gnomon_core.fleet import Instance, InstanceKind, InstanceState, Node
from gnomon_core.pairs import Pair, best_split, pair_seconds
from gnomon_core.policy_registry import PolicyPlugin
from gnomon_core.profiles import ModelProfile, Network
from gnomon_core.scaling import (
    CreateBody,
    CreateShadow,
    DestroyBody,
    DestroyShadow,
    History,
    LoadCounters,
    Observation,
    PolicyState,
    Resize,
)
from gnomon_core.settings import ScaleSettings, Settings
from tests.made_up_models import BlockPlan, made_up_profile
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
    actions = actions_towards(count, seen)
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


BLOCKS = st.lists(
    st.tuples(st.floats(0.1, 1.0), st.sampled_from([0, 1_000, 10**6, 50 * 10**6]), st.booleans()), min_size=1, max_size=8
)


@st.composite
def profiles(draw: st.DrawFn) -> ModelProfile:
    """Any chain of blocks on up to four cores."""
    blocks = draw(BLOCKS)
    total = sum(share for share, _, _ in blocks)
    each_s = draw(st.floats(0.005, 0.3))
    fixed_s = draw(st.floats(0.0, 0.3))
    return made_up_profile(
        [BlockPlan(share / total, size, splittable) for share, size, splittable in blocks],
        [fixed_s + each_s * size for size in range(1, 9)],
        cores=range(1, draw(st.integers(1, 4)) + 1),
        serial_fraction=draw(st.floats(0.0, 0.5)),
        gmacs=draw(st.floats(0.1, 40.0)),
        border_bytes=draw(st.integers(0, 10**6)),
        overhead_bytes=draw(st.sampled_from([0, 10**8])),
        load_s=draw(st.floats(0.0, 1.0)),
        transfer_seconds_per_byte=draw(st.sampled_from([0.0, 1e-10, 1e-7])),
        network=draw(st.sampled_from([None, Network(0.0005, 1e-9), Network(0.05, 1e-7)])),
    )


@st.composite
def any_options(draw: st.DrawFn) -> Options:
    return Options(
        gamma=draw(st.floats(0.5, 2.0)),
        kappa=draw(st.floats(0.01, 100.0)),
        weight_mode=draw(st.sampled_from(["shared", "private"])),
        layers=draw(st.booleans()),
        adaptive=draw(st.booleans()),
        shadows_count=draw(st.booleans()),
        overhead_counts=draw(st.booleans()),
        objective=draw(st.booleans()),
        printed_kappa=draw(st.booleans()),
        contiguous=draw(st.booleans()),
        fewer_shadow_cores=draw(st.booleans()),
        load_counts=draw(st.booleans()),
        gain=draw(st.booleans()),
        backlog=draw(st.booleans()),
        burst_cores=draw(st.sampled_from(["shadow", "resize", "either"])),
    )


MOSTLY_READY = st.sampled_from([InstanceState.STARTING, InstanceState.READY, InstanceState.READY, InstanceState.DRAINING])


@st.composite
def observations(draw: st.DrawFn) -> Observation:
    """Any fleet on three nodes, some Bodies with Shadows, under any load."""
    profile = draw(profiles())
    most = max(profile.whole.seconds)
    nodes = tuple(
        Node(
            f"n{number}", 64, 10**12, draw(st.floats(0, 9)), draw(st.sampled_from([0, 150 * 10**6, 10**12])),
            draw(st.sampled_from([0.0, 0.5, 2.0])),
        )
        for number in range(3)
    )  # fmt: skip
    instances: list[Instance] = []
    for number in range(draw(st.integers(0, 6))):
        cores, node = draw(st.integers(1, most)), draw(st.sampled_from(nodes)).name
        body = Instance(f"b{number}", "f.ns", 1, node, cores, 10**8, draw(MOSTLY_READY), float(number))
        if draw(st.booleans()):
            blocks = tuple(range(draw(st.integers(1, len(profile.blocks)))))
            pair = Pair(1, blocks, best_split(profile, (cores, 1), blocks, 8))
            state = draw(MOSTLY_READY)
            shadow = Instance(
                f"s{number}", "f.ns", 1, node, 1, 10**8, state, 0.0, kind=InstanceKind.SHADOW, partner=body.id, pair=pair
            )
            instances.append(shadow)
            if state is InstanceState.READY:
                body = replace(body, partner=shadow.id, pair=pair)
        instances.append(body)
    lowest = draw(st.integers(0, 3))
    chosen = Settings(
        autoscaler="asyfunc",
        slo_s=draw(st.floats(0.02, 3.0)),
        max_batch=draw(st.integers(1, 8)),
        scale=ScaleSettings(min=lowest, max=draw(st.integers(max(1, lowest), 9))),
    )
    rate_rps = draw(st.floats(0, 300))
    bins = tuple(draw(st.lists(st.floats(0, 400), min_size=30, max_size=30))) if draw(st.booleans()) else (rate_rps / 2,) * 30
    queued = draw(st.integers(0, 3))
    return Observation(
        100.0, "f.ns", chosen, tuple(instances), nodes, queued, 0, 0.0, 100.0, History(0.5, 100.0, bins), profile=profile
    )  # fmt: skip


@given(observations(), any_options())
@settings(deadline=None, max_examples=300)
def test_no_decision_asks_for_what_is_not_there(seen: Observation, options: Options) -> None:
    decision, _ = AsyFunc("asyfunc", options).decide(seen, PolicyState())
    free = {node.name: node.free_cores + node.reserve_cores for node in seen.nodes}
    unreserved = {node.name: node.free_cores for node in seen.nodes}
    by_id = {instance.id: instance for instance in seen.instances}
    ending = {action.id for action in decision.actions if isinstance(action, DestroyBody | DestroyShadow)}
    assert len(ending) == sum(isinstance(action, DestroyBody | DestroyShadow) for action in decision.actions)
    paired = {each.partner for each in seen.instances if each.kind is InstanceKind.SHADOW}
    for action in decision.actions:
        if isinstance(action, CreateBody) and action.node is not None:
            free[action.node] -= action.cores
        if isinstance(action, CreateShadow):
            body = by_id[action.body]
            assert body.state is InstanceState.READY
            assert body.id not in paired
            assert body.id not in ending
            paired.add(body.id)
            free[action.pair.node or body.node] -= action.pair.shadow_cores
            if action.pair.node is not None:
                assert action.pair.node != body.node
                assert seen.profile is not None
                assert seen.profile.network is not None
            assert options.burst_cores != "resize"
            blocks = seen.profile.layers.blocks if seen.profile else ()
            assert all(blocks[number].splittable for number in action.pair.blocks)
            assert all(0 <= there < size for size, there in enumerate(action.pair.split, start=1))
        if isinstance(action, Resize):
            body = by_id[action.id]
            assert (body.kind, body.state) == (InstanceKind.BODY, InstanceState.READY)
            assert body.id not in paired | ending
            assert body.cores < action.cores <= seen.settings.max_cores
            paired.add(body.id)  # it grows once, and no Shadow is made for it as well
            free[body.node] -= action.cores - body.cores
            unreserved[body.node] -= action.cores - body.cores
            assert options.layers
            assert options.burst_cores != "shadow"
    assert min(free.values()) >= -1e-9
    assert min(unreserved.values()) >= -1e-9, "what is held for Shadows is nothing to grow by"
    # A Body that ends takes its Shadow along; a Shadow without a Body does not stay.
    live = {body.id for body in seen.live} - ending
    assert all(shadow.id in ending for shadow in seen.shadows if shadow.partner not in live)
    assert not (options.layers is False and any(isinstance(action, CreateShadow) for action in decision.actions))


@given(observations(), any_options())
@settings(deadline=None, max_examples=150)
def test_bodies_stay_within_the_bounds(seen: Observation, options: Options) -> None:
    decision, _ = AsyFunc("asyfunc", options).decide(seen, PolicyState())
    made = sum(isinstance(action, CreateBody) for action in decision.actions)
    ended = sum(isinstance(action, DestroyBody) for action in decision.actions)
    scale = seen.settings.scale
    lowest = max(scale.min, 1) if seen.queued else scale.min
    assert lowest <= len(seen.live) + made - ended <= scale.max
    assert decision.desired == len(seen.live) + made - ended
    assert not (made and ended)


@given(observations(), st.lists(st.floats(0, 60), min_size=30, max_size=30))
@settings(deadline=None, max_examples=150)
def test_no_shadow_is_released_that_what_waits_needs(seen: Observation, there: list[float]) -> None:
    """The instances that stay sustain the rate that answers all requests in the system within the objective."""
    seen = replace(seen, history=replace(seen.history, concurrency=tuple(there)))
    decision, _ = AsyFunc("asyfunc", Options()).decide(seen, PolicyState())
    ended = {action.id for action in decision.actions if isinstance(action, DestroyBody | DestroyShadow)}
    serving = {body.id: body for body in seen.ready if body.id not in ended}
    if not any(shadow.id in ended and shadow.partner in serving for shadow in seen.shadows):
        return
    assert seen.profile is not None
    rates = Knowledge(seen.profile, seen.settings, Options()).rates
    pairs = {shadow.partner: shadow.pair for shadow in seen.shadows if shadow.id not in ended}
    left_rps = sum(rates.rate_rps(body.cores, pairs.get(body.id)) for body in serving.values())
    assert left_rps * (1 + 1e-6) >= there[-1] / seen.settings.slo_s


@given(observations(), any_options(), st.lists(st.floats(0, 400), min_size=1, max_size=25))
@settings(deadline=None, max_examples=60)
def test_decision_is_deterministic_and_survives_json(seen: Observation, options: Options, rates: list[float]) -> None:
    first, second = AsyFunc("asyfunc", options), AsyFunc("asyfunc", options)
    state = PolicyState()
    for tick, rate_rps in enumerate(rates):
        now = replace(seen, now_s=100.0 + tick / 2, history=History(0.5, 100.0, (rate_rps / 2,) * 30))
        restored = state_from_json(json.loads(json.dumps(state_to_json(state))))
        decision, after = first.decide(now, state)
        assert second.decide(now, restored) == (decision, after)
        state = after


@given(profiles(), st.floats(0.02, 3.0), st.floats(0.02, 3.0), st.integers(1, 4))
@settings(deadline=None, max_examples=150)
def test_r_max_never_falls_with_the_objective_or_with_a_shadow_that_is_chosen(
    profile: ModelProfile, one_s: float, other_s: float, cores: int
) -> None:
    body = [seconds for size in range(1, 9) if (seconds := profile.whole.at(cores, size)) is not None]
    if not body:
        return
    tight_s, loose_s = sorted((one_s, other_s))
    assert sustained(body, tight_s).rate_rps <= sustained(body, loose_s).rate_rps
    known = Knowledge(profile, Settings(slo_s=loose_s, max_batch=8), Options())
    for pairing in known.pairings.ranked(cores, 1):
        assert pairing.rate_rps > known.rates.rate_rps(cores)
        assert pairing.latency_s == pytest.approx(pair_seconds(profile, cores, pairing.pair, pairing.batch))
        assert known.rates.rate_rps(cores, pairing.pair) == pytest.approx(pairing.rate_rps)


@given(profiles(), st.integers(0, 60), st.sampled_from([0.3, 1.0, 3.0]), st.integers(1, 3))
@settings(deadline=None, max_examples=40)
def test_a_constant_load_settles(profile: ModelProfile, pairs_rps: int, slo_s: float, lowest: int) -> None:
    chosen = Settings(autoscaler="asyfunc", slo_s=slo_s, max_batch=8, max_cores=4, scale=ScaleSettings(min=lowest, max=12))
    line = Timeline(chosen, nodes=(("n1", 12), ("n2", 9)), start_s=0.5, profile=profile)
    line.rps = 2.0 * pairs_rps  # the same whole number of requests in each half second
    line.play(60)
    before = [action for _, decision in line.decisions for action in decision.actions]
    line.play(120)
    assert [action for _, decision in line.decisions for action in decision.actions] == before
    assert not line.errors


@given(
    profiles(),
    any_options(),
    st.lists(st.integers(0, 150), min_size=1, max_size=12),
    st.integers(1, 4),
    st.tuples(st.integers(1, 3), st.booleans()),
)
@settings(deadline=None, max_examples=40)
def test_cores_taken_for_bursts_are_released(
    profile: ModelProfile, options: Options, bursts: list[int], most: int, beyond: tuple[int, bool]
) -> None:
    options = replace(options, layers=True, max_shadows=beyond[0], promotion=beyond[1])
    policies = {**BUILT_IN, "asyfunc": PolicyPlugin(lambda _: AsyFunc("asyfunc", options), "Any reading.")}
    chosen = Settings(autoscaler="asyfunc", slo_s=1.0, max_batch=8, max_cores=4, scale=ScaleSettings(min=1, max=most))
    line = Timeline(chosen, nodes=(("n1", 12), ("n2", 9)), start_s=0.5, profile=profile, policies=policies)
    born = {body.id: body.cores for body in line.instances.values()}
    for rate_rps in [*bursts, 0]:
        line.rps = float(rate_rps)
        for _ in range(6 if rate_rps else 60):
            line.play(0.5)
            for body in line.instances.values():
                assert body.cores >= born.setdefault(body.id, body.cores)
            assert max(Counter(shadow.partner for shadow in line.shadows).values(), default=0) <= options.max_shadows
        assert line.live <= most
    assert line.shadows == []
    assert {body.id: body.cores for body in line.instances.values()} == {name: born[name] for name in line.instances}
    assert "grown" not in line.runner.state.values


@given(profiles(), st.floats(0.5, 200.0), st.tuples(st.floats(1e-4, 1e3), st.floats(1e-4, 1e3)), st.sampled_from([0.3, 1.0, 3.0]))
@settings(deadline=None, max_examples=300)
def test_dearer_memory_never_uses_more_of_it(
    profile: ModelProfile, rate_rps: float, prices: tuple[float, float], slo_s: float
) -> None:
    """The memory of all Bodies that the rate needs, whatever κ."""
    cheap, dear = sorted(prices)
    chosen = Settings(autoscaler="asyfunc", slo_s=slo_s, max_batch=8, max_cores=4)

    def memory_bytes(kappa: float) -> float:
        known = Knowledge(profile, chosen, Options(kappa=kappa))
        return from_nothing(known, rate_rps, 0.8) * profile.memory_bytes(known.parameter_bytes)

    assert memory_bytes(dear) <= memory_bytes(cheap)

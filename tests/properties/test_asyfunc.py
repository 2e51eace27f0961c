"""What holds for AsyFunc's policies whatever the fleet and the load."""

import json
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnomon_autoscaler.policies.asyfunc import AsyFunc, Options
from gnomon_autoscaler.policies.asyfunc.pairing import Knowledge, sustained
from gnomon_autoscaler.registry import BUILT_IN, PolicyPlugin
from gnomon_autoscaler.runner import state_from_json, state_to_json
from gnomon_autoscaler.testing import Timeline
from gnomon_core.fleet import Instance, InstanceKind, InstanceState, Node
from gnomon_core.pairs import Pair, best_split, pair_seconds
from gnomon_core.profiles import ModelProfile, Network
from gnomon_core.scaling import CreateBody, CreateShadow, DestroyBody, DestroyShadow, History, Observation, PolicyState, Resize
from gnomon_core.settings import ScaleSettings, Settings
from tests.made_up_models import BlockPlan, made_up_profile

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
        contiguous=draw(st.booleans()),
        fewer_shadow_cores=draw(st.booleans()),
        load_counts=draw(st.booleans()),
        gain=draw(st.booleans()),
        other_nodes=draw(st.booleans()),
        backlog=draw(st.booleans()),
        burst_cores=draw(st.sampled_from(["shadow", "resize", "either"])),
    )


STATES = st.sampled_from([InstanceState.STARTING, InstanceState.READY, InstanceState.READY, InstanceState.DRAINING])


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
        body = Instance(f"b{number}", "f.ns", 1, node, cores, 10**8, draw(STATES), float(number))
        if draw(st.booleans()):
            blocks = tuple(range(draw(st.integers(1, len(profile.blocks)))))
            pair = Pair(1, blocks, best_split(profile, (cores, 1), blocks, 8))
            state = draw(STATES)
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
                assert options.other_nodes
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
    """Those that stay sustain what it takes to answer within the objective all that is in the system."""
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

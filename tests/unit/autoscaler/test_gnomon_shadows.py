"""Shadows until Bodies have started: those of `gnomon`, and those of `fixed+shadows`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnomon_autoscaler.policies.gnomon import Gnomon, Options
from gnomon_autoscaler.policies.gnomon.replay import Help, Rule, Speed, cheapest, lost_by, window
from gnomon_autoscaler.testing import Timeline
from gnomon_core.fleet import Instance, InstanceKind, InstanceState, Node
from gnomon_core.pairs import Pair
from gnomon_core.profiles import ModelProfile
from gnomon_core.scaling import (
    Action,
    CreateBody,
    CreateShadow,
    DestroyShadow,
    History,
    Observation,
    PolicyState,
)
from gnomon_core.settings import ScaleSettings, Settings
from tests.made_up_models import BlockPlan, made_up_profile
from tests.timelines import play

MB = 10**6
# 0.1 s a sample on one core, no part of it serial: a Body of two cores answers 20 rps, and a third more with a Shadow of two.
HALVES = (BlockPlan(0.5, 20 * MB), BlockPlan(0.5, 80 * MB))
LATENCY_S = tuple(0.1 * size for size in range(1, 9))
MODEL = replace(
    made_up_profile(HALVES, LATENCY_S, cores=(1, 2), gmacs=4.0, overhead_bytes=100 * MB), body_start_s=5.0, shadow_start_s=0.05
)
UNSPLITTABLE = replace(
    made_up_profile([BlockPlan(1.0, 100 * MB, splittable=False)], LATENCY_S, cores=(1, 2), gmacs=4.0), body_start_s=5.0
)
SETTINGS = Settings(
    autoscaler="gnomon", slo_s=1.5, cores=2, max_cores=2, max_batch=8, scale=ScaleSettings(max=12), without=("lending",)
)
BURSTS = ([10.0] * 100 + [25.0] * 20) * 5
"""Counts per half second: 20 rps, and 50 rps for ten seconds of each minute: what two Bodies answer with Shadows only."""
CALM = [10.0] * 600


def bodies(count: int, **fields: Any) -> tuple[Instance, ...]:
    return tuple(
        replace(Instance(f"b{n}", "f", 1, f"n{n}", 2, 100 * MB, InstanceState.READY, 0.0), **fields) for n in range(count)
    )


def shadow(name: str, of: str, node: str, cores: int = 2) -> Instance:
    pair = Pair(cores, (0, 1), (0, 1, 1, 2, 2, 3, 3, 4))
    kind = InstanceKind.SHADOW
    return Instance(name, "f", 1, node, cores, 100 * MB, InstanceState.READY, 0.0, kind=kind, partner=of, pair=pair)


def seen(
    counts: Sequence[float],
    instances: tuple[Instance, ...],
    *,
    now_s: float = 300.0,
    free_cores: float = 6.0,
    queued: int = 0,
    profile: ModelProfile | None = MODEL,
    **node: Any,
) -> Observation:
    nodes = tuple(Node(f"n{n}", 8, 10**12, free_cores, 10**12, **node) for n in range(6))
    history = History(0.5, now_s, *[tuple(counts)] * 4)
    latency_s = () if profile is not None else (0.05,)
    return Observation(now_s, "f", SETTINGS, instances, nodes, queued, 0, 0.0, now_s, history, latency_s, profile=profile)


def decided(policy: Gnomon, *observations: Observation) -> list[tuple[Action, ...]]:
    state, found = PolicyState(), []
    for observation in observations:
        decision, state = policy.decide(observation, state)
        found.append(decision.actions)
    return found


def of_kind(kind: type, actions: Sequence[Action]) -> list[Any]:
    return [action for action in actions if isinstance(action, kind)]


def policy(*without: str) -> Gnomon:
    return Gnomon(Options().without(("lending", *without)))


IN_BURST = (*BURSTS[:-20], *[25.0] * 2)
"""The arrivals when a burst has lasted for a second."""


def later(observation: Observation, seconds: float, rps: float) -> Observation:
    """The fleet after so many seconds at this rate."""
    counts = (*observation.history.arrivals, *[rps / 2] * round(seconds / 0.5))
    return replace(
        observation, now_s=observation.now_s + seconds, history=History(0.5, observation.now_s + seconds, *[counts] * 4)
    )


# Replays

EACH = Speed(tuple(10.0 * count for count in range(41)), 0.1, 4.6)
QUICK = Help(gain=0.5, each_rps=5.0, cost=0.5, load_s=0.05)


def rule(counts: Sequence[float], help_: Help | None, load_s: float = 4.6) -> Rule:
    return cheapest(window(counts, 0.5, 2.9), replace(EACH, load_s=load_s), 3.0, 0.001, help_=lambda: help_)


STEPS = ([20.0] * 100 + [50.0] * 20) * 5


def test_fewer_bodies_are_kept_for_bursts_that_shadows_carry() -> None:
    alone, helped = rule(STEPS, None), rule(STEPS, QUICK)
    assert helped.shadows
    assert helped.floor < alone.floor
    assert helped.bodies < alone.bodies
    assert helped.loss <= 0.001


def test_shadows_are_not_used_where_bodies_start_as_quickly_or_where_they_cost_more_than_they_save() -> None:
    for expensive in (rule(STEPS, QUICK, load_s=0.05), rule(STEPS, replace(QUICK, cost=20.0))):
        assert not expensive.shadows
    assert rule(STEPS, replace(QUICK, cost=20.0)) == rule(STEPS, None)


COUNTS = st.lists(st.integers(0, 60).map(float), min_size=2, max_size=60)


@given(COUNTS, st.floats(0.05, 2.0), st.floats(0.1, 3.0), st.sampled_from([0.05, 1.0, 6.0]))
@settings(max_examples=25, deadline=None)
def test_the_choice_of_shadows_never_costs_more_or_keeps_the_objective_less(
    counts: list[float], gain: float, cost: float, load_s: float
) -> None:
    points = window(counts, 0.5, 0.9)
    alone = cheapest(points, EACH, 1.0, 0.001)
    helped = cheapest(points, EACH, 1.0, 0.001, help_=lambda: Help(gain, 10.0 * gain, cost, load_s))
    assert helped.bodies <= alone.bodies or helped.loss < alone.loss
    assert helped.loss <= max(0.001, alone.loss)


@given(COUNTS, st.floats(0.05, 2.0))
@settings(max_examples=25, deadline=None)
def test_the_replay_of_a_single_rule_with_shadows_is_the_one_by_which_it_was_chosen(counts: list[float], gain: float) -> None:
    points, help_ = window(counts, 0.5, 0.9), Help(gain, 10.0 * gain, 0.1, 0.05)
    rule = cheapest(points, EACH, 1.0, 0.001, help_=lambda: help_)
    assert lost_by(rule, points, EACH, 1.0, most=40, help_=lambda: help_) == rule.loss


def test_a_rule_with_shadows_is_not_enough_where_there_are_none() -> None:
    points = window(STEPS, 0.5, 2.9)
    assert lost_by(rule(STEPS, QUICK), points, EACH, 3.0, most=40) == 1.0


# Decisions


def test_a_burst_gets_shadows_at_once_and_bodies_once_it_has_lasted_for_as_long_as_one_starts() -> None:
    calm = seen(BURSTS[:-20], bodies(2))
    burst = replace(seen(IN_BURST, bodies(2)), now_s=301.0)
    lasting = later(burst, 5.5, 50.0)
    before, at_once, after = decided(policy(), calm, burst, lasting)
    assert not of_kind(CreateShadow, before)
    assert {action.body for action in of_kind(CreateShadow, at_once)} <= {"b0", "b1"}
    assert of_kind(CreateShadow, at_once)
    assert not of_kind(CreateBody, at_once)
    assert of_kind(CreateBody, after)


@pytest.mark.parametrize(
    ("refuses", "observation"),
    [
        ("the switch", {}),
        ("nodes", {"pairs": False}),
        ("room", {"free_cores": 0.0}),
        ("the model", {"profile": UNSPLITTABLE}),
        ("no profile", {"profile": None}),
    ],
)
def test_no_shadow_is_made_where_it_cannot_be_or_would_not_help(refuses: str, observation: dict[str, Any]) -> None:
    chosen = policy("shadows") if refuses == "the switch" else policy()
    calm = seen(BURSTS[:-20], bodies(2), **observation)
    burst = replace(seen(IN_BURST, bodies(2), queued=200, **observation), now_s=301.0)
    assert not any(of_kind(CreateShadow, actions) for actions in decided(chosen, calm, burst))


def test_a_burst_that_is_not_in_the_window_gets_shadows_as_soon_as_it_waits() -> None:
    first = replace(seen((*CALM, 30.0, 30.0), bodies(2), queued=80), now_s=301.0)
    assert not of_kind(CreateShadow, decided(policy(), seen(CALM, bodies(2)))[0])
    actions = decided(policy(), seen(CALM, bodies(2)), first)[1]
    assert of_kind(CreateShadow, actions)
    assert of_kind(CreateBody, actions), "Bodies start at once: nobody knows how long it lasts"
    assert not of_kind(CreateShadow, decided(policy("shadows"), seen(CALM, bodies(2)), first)[1])


def test_shadows_end_when_the_bodies_answer_what_is_wanted_and_when_their_body_ends() -> None:
    helped = (*bodies(2), shadow("s0", "b0", "n0"))
    actions = decided(policy(), seen(CALM, helped))[0]
    assert of_kind(DestroyShadow, actions) == [DestroyShadow("s0")]
    orphan = (*bodies(1), shadow("s9", "b9", "n0"))
    assert DestroyShadow("s9") in decided(policy(), seen(IN_BURST, orphan))[0]


def served(load: Sequence[tuple[int, int, bool]]) -> Timeline:
    """A timeline under this load, then nearly none; at each second Shadows fit their nodes and serve a live Body."""
    line = Timeline(SETTINGS, nodes=(("n0", 8), ("n1", 12)), start_s=1.0, profile=MODEL)
    for rps, duration_s, waits in (*load, (5, 30, False)):
        for _ in range(duration_s):
            play(line, 1.0, rps=float(rps), queued=rps if waits else 0)
            live = {instance.id for instance in line.instances.values() if instance.kind is InstanceKind.BODY}
            assert all(shadow.partner in live for shadow in line.shadows)
            assert all(node.free_cores >= 0 for node in line.fleet.nodes())
    return line


@given(st.lists(st.tuples(st.integers(0, 160), st.integers(1, 8), st.booleans()), min_size=1, max_size=4))
@settings(max_examples=15, deadline=None)
def test_on_any_timeline_shadows_fit_their_nodes_serve_a_body_and_end(load: list[tuple[int, int, bool]]) -> None:
    assert served(load).shadows == []


def test_a_timeline_with_an_unexpected_queue_has_shadows() -> None:
    made = [action for _, decision in served([(20, 8, False), (120, 4, True)]).decisions for action in decision.actions]
    assert of_kind(CreateShadow, made)


BRIDGED = made_up_profile(HALVES, LATENCY_S, cores=(1, 2), gmacs=4.0, overhead_bytes=100 * MB)
WHOLE = made_up_profile([BlockPlan(1.0, 100 * MB, splittable=False)], LATENCY_S, cores=(1, 2), gmacs=4.0)
BRIDGING = Settings(autoscaler="fixed+shadows", slo_s=1.5, cores=2, max_cores=2, max_batch=8, scale=ScaleSettings(max=12))
NODE = (("n0", 8),)
START_S = 3.0


def one_ready(**fields: Any) -> Timeline:
    """A function with one ready Body."""
    line = Timeline(BRIDGING, **{"nodes": NODE, "start_s": START_S, "profile": BRIDGED} | fields)
    assert play(line, 2 * START_S, rps=15.0) == 1
    assert not line.shadows
    return line


def test_body_that_is_asked_for_starts_at_once_and_a_shadow_helps_until_it_has() -> None:
    line = one_ready()
    (first,) = line.instances
    line.requested = 2
    (decision,) = [candidate for candidate in line.play(0.5) if candidate.actions]
    assert [type(action) for action in decision.actions] == [CreateShadow, CreateBody], "the Shadow is the more urgent one"
    assert [shadow.partner for shadow in line.shadows] == [first]
    line.play(START_S - 1.0)
    assert len(line.shadows) == 1
    line.play(2.0)
    assert (line.live, line.shadows) == (2, [])
    line.play(10.0)
    assert (line.live, line.shadows) == (2, [])


def test_each_ready_body_gets_a_shadow_where_more_is_missing_than_one_adds() -> None:
    line = one_ready(nodes=(("n0", 16),))
    line.requested = 2
    line.play(2 * START_S)
    line.requested = 5
    line.play(1.0)
    assert len({shadow.partner for shadow in line.shadows}) == 2
    line.play(2 * START_S)
    assert (line.live, line.shadows) == (5, [])


def test_fewer_bodies_end_their_shadows() -> None:
    line = one_ready()
    line.requested = 2
    line.play(0.5)
    assert line.shadows
    line.requested = 1
    line.play(1.0)
    assert (line.live, line.shadows) == (1, [])


@pytest.mark.parametrize(
    "fields", [{"profile": None}, {"profile": WHOLE}, {"nodes": (("n0", 4),)}], ids=["no profile", "whole", "no room"]
)
def test_without_a_pair_that_pays_or_room_for_it_bodies_are_the_only_help(fields: dict[str, Any]) -> None:
    line = one_ready(**fields)
    line.requested = 2
    line.play(START_S)
    assert not line.shadows
    line.play(START_S)
    assert line.live == 2


def test_first_body_starts_alone() -> None:
    line = Timeline(
        replace(BRIDGING, scale=ScaleSettings(min=0, max=12, zero=True)), nodes=NODE, start_s=START_S, profile=BRIDGED
    )
    line.requested = 3
    line.play(1.0)
    assert (line.live, line.shadows) == (3, [])

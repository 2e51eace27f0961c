"""`fixed+shadows`: Shadows help the ready Bodies until further ones that were asked for have started, and then end."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gnomon_autoscaler.testing import Timeline
from gnomon_core.scaling import CreateBody, CreateShadow
from gnomon_core.settings import ScaleSettings, Settings
from tests.made_up_models import BlockPlan, made_up_profile
from tests.timelines import play

MB = 10**6
HALVES = (BlockPlan(0.5, 20 * MB), BlockPlan(0.5, 80 * MB))
LATENCY_S = tuple(0.1 * size for size in range(1, 9))
MODEL = made_up_profile(HALVES, LATENCY_S, cores=(1, 2), gmacs=4.0, overhead_bytes=100 * MB)
UNSPLITTABLE = made_up_profile([BlockPlan(1.0, 100 * MB, splittable=False)], LATENCY_S, cores=(1, 2), gmacs=4.0)
SETTINGS = Settings(autoscaler="fixed+shadows", slo_s=1.5, cores=2, max_cores=2, max_batch=8, scale=ScaleSettings(max=12))
NODE = (("n0", 8),)
START_S = 3.0


def one_ready(**fields: Any) -> Timeline:
    """A function with one ready Body."""
    line = Timeline(SETTINGS, **{"nodes": NODE, "start_s": START_S, "profile": MODEL} | fields)
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
    "fields", [{"profile": None}, {"profile": UNSPLITTABLE}, {"nodes": (("n0", 4),)}], ids=["no profile", "whole", "no room"]
)
def test_without_a_pair_that_pays_or_room_for_it_bodies_are_the_only_help(fields: dict[str, Any]) -> None:
    line = one_ready(**fields)
    line.requested = 2
    line.play(START_S)
    assert not line.shadows
    line.play(START_S)
    assert line.live == 2


def test_first_body_starts_alone() -> None:
    line = Timeline(replace(SETTINGS, scale=ScaleSettings(min=0, max=12, zero=True)), nodes=NODE, start_s=START_S, profile=MODEL)
    line.requested = 3
    line.play(1.0)
    assert (line.live, line.shadows) == (3, [])

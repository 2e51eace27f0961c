"""Shadows that become Bodies where model-level scaling wants one, as docs/decisions/0015-promotion-and-resizing.md has it."""

from dataclasses import replace
from typing import Any

import pytest

from gnomon_autoscaler.policies.asyfunc import Options, asyfunc
from gnomon_autoscaler.policies.asyfunc.mls import as_bodies, promotable
from gnomon_autoscaler.policies.asyfunc.pairing import Knowledge
from gnomon_autoscaler.testing import MEMORY_BYTES, Timeline
from gnomon_core.errors import GnomonError
from gnomon_core.fleet import Instance, InstanceKind, InstanceState, Node
from gnomon_core.pairs import Pair
from gnomon_core.scaling import Action, History, Observation, PromoteShadow
from gnomon_core.settings import ScaleSettings, Settings, read_settings
from tests.made_up_models import made_up_profile
from tests.timelines import play
from tests.unit.autoscaler.asyfunc_stage import LATENCY_S, MB, MODEL, kinds

# A Shadow of both halves makes 20 rps of a Body's 10.
PROFILE = made_up_profile(MODEL, LATENCY_S, cores=(1, 2), serial_fraction=0.5, gmacs=4.0, overhead_bytes=100 * MB)
SETTINGS = Settings(
    autoscaler="asyfunc", slo_s=1.0, max_batch=8, max_cores=1, kappa=1.0, promotion=True, scale=ScaleSettings(min=1, max=6)
)
BOTH = Pair(1, (0, 1), (0, 1, 1, 2, 2, 3, 3, 4))


def timeline(settings: Settings = SETTINGS, *, cores: int = 8, start_s: float = 0.5) -> Timeline:
    line = Timeline(settings, nodes=(("n1", cores),), start_s=start_s, profile=PROFILE)
    play(line, 20, rps=6.0)
    return line


def test_a_long_burst_gets_its_second_body_out_of_the_shadow() -> None:
    line = timeline()
    play(line, 1, rps=16.0)
    [shadow] = line.shadows
    line.play(30)
    assert kinds(line) == ["CreateBody", "CreateShadow", "PromoteShadow"]
    assert (line.live, line.shadows) == (2, [])
    assert shadow.id in line.instances
    said = [decision.reason for _, decision in line.decisions if any(isinstance(one, PromoteShadow) for one in decision.actions)]
    assert "above α = 0.8, 1 Shadow as Body, 0 more of 1 core" in said[0]


def test_promotion_needs_no_core_where_a_new_body_does_not_fit() -> None:
    for promotion, live in ((True, 2), (False, 1)):
        line = timeline(replace(SETTINGS, promotion=promotion), cores=2)
        assert play(line, 40, rps=16.0) == live
        assert not line.errors


def test_without_the_option_nothing_is_promoted() -> None:
    line = timeline(replace(SETTINGS, promotion=False))
    play(line, 30, rps=16.0)
    assert "PromoteShadow" not in kinds(line)
    assert asyfunc(replace(SETTINGS, promotion=False)).needs == {"pair", "place", "size"}


def test_promotion_counts_as_a_starting_body_within_bounds() -> None:
    line = timeline(replace(SETTINGS, scale=ScaleSettings(min=1, max=2)), start_s=4.0)
    line.rps = 60.0
    for _ in range(80):
        line.play(0.5)
        assert line.live <= 2
    assert kinds(line).count("PromoteShadow") + kinds(line).count("CreateBody") == 2
    full = timeline(replace(SETTINGS, scale=ScaleSettings(min=1, max=1)))
    full.rps = 60.0
    full.play(30)
    assert "PromoteShadow" not in kinds(full)


def test_an_operator_who_asks_for_more_gets_the_shadow_first() -> None:
    line = timeline()
    play(line, 1, rps=12.0)
    assert line.shadows
    line.requested = 3
    decision = line.tick()
    assert [type(action).__name__ for action in decision.actions] == ["PromoteShadow", "CreateBody"]
    assert line.live == 3


def test_a_promoted_shadow_that_dies_is_replaced() -> None:
    line = timeline(start_s=3.0)
    line.rps = 16.0
    while "PromoteShadow" not in kinds(line):
        line.play(0.5)
    [rising] = [one for one in line.instances.values() if one.state is InstanceState.STARTING]
    del line.instances[rising.id]
    for body in line.instances.values():
        line.instances[body.id] = replace(body, partner=None, pair=None)
    assert play(line, 6) == 2


# Which ones


def instance(name: str, **fields: Any) -> Instance:
    return replace(Instance(name, "f.ns", 1, "n1", 1, 200 * MB, InstanceState.READY, 0.0), **fields)


def shadow(name: str, of: str, **fields: Any) -> Instance:
    return instance(name, **{"kind": InstanceKind.SHADOW, "partner": of, "pair": BOTH, "memory_bytes": 120 * MB, **fields})


def able(*instances: Instance, free_bytes: int = 10**12, max_cores: int = 1) -> list[str]:
    settings = replace(SETTINGS, max_cores=max_cores)
    nodes = (Node("n1", 8, 10**12, 0.0, free_bytes),)
    seen = Observation(10.0, "f.ns", settings, instances, nodes, 0, 0, 0.0, 0.0, History(0.5, 10.0))
    options = Options(promotion=True)
    return [one.id for one in promotable(Knowledge(PROFILE, settings, options), options, seen, 10.0, 200 * MB)]


def test_promotion_requires_a_serving_body() -> None:
    assert able(instance("a"), shadow("s", "a")) == ["s"]
    for state in (InstanceState.STARTING, InstanceState.DRAINING):
        assert able(instance("a"), shadow("s", "a", state=state)) == []
        assert able(instance("a", state=state), shadow("s", "a")) == []


def test_the_rest_of_the_model_fits_and_no_two_count_on_the_same_room() -> None:
    two = (instance("a"), shadow("s", "a"), instance("b"), shadow("t", "b"))
    assert able(*two, free_bytes=160 * MB) == ["s", "t"]
    assert able(*two, free_bytes=159 * MB) == ["s"]
    assert able(*two, free_bytes=79 * MB) == []


def test_promotion_sustains_as_much_as_a_new_body() -> None:
    assert able(instance("a"), shadow("s", "a"), instance("b"), shadow("t", "b", cores=2), max_cores=2) in (["t", "s"], ["t"])
    known = Knowledge(PROFILE, replace(SETTINGS, max_cores=2), Options())
    assert known.rates.rate_rps(2) > known.rates.rate_rps(1)


def test_the_rest_of_the_decision_sees_it_as_the_body_that_it_becomes() -> None:
    seen = Observation(
        10.0, "f.ns", SETTINGS, (instance("a"), shadow("s", "a")), (), 0, 0, 0.0, 0.0, History(0.5, 10.0)
    )  # fmt: skip
    after = as_bodies(seen, ["s"])
    assert ([one.id for one in after.live], after.shadows) == (["a", "s"], ())
    assert as_bodies(seen, []) is seen


def test_the_annotation_says_what_is_allowed() -> None:
    with pytest.raises(GnomonError, match="gnomon/promotion is 'maybe'") as refused:
        read_settings({}, {"gnomon/promotion": "maybe"})
    assert (refused.value.status, refused.value.hint) == (400, "It must be true or false.")
    policy = asyfunc(read_settings({}, {"gnomon/autoscaler": "asyfunc", "gnomon/promotion": "true"}))
    assert policy.needs == {"pair", "promote", "place", "size"}


def test_bodies_out_of_shadows_hold_a_whole_model() -> None:
    line = timeline()
    play(line, 30, rps=16.0)
    assert {one.memory_bytes for one in line.instances.values()} == {MEMORY_BYTES}
    actions: list[Action] = [action for _, decision in line.decisions for action in decision.actions]
    assert sum(isinstance(action, PromoteShadow) for action in actions) == 1

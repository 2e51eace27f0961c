"""Cores that a node holds for Shadows: a burst gets them, and a Body where no node has anything else (AsyFunc, section 3.4)."""

from dataclasses import replace

import pytest

from gnomon_autoscaler.policies.asyfunc import AsyFunc, Options
from gnomon_autoscaler.policies.asyfunc.lls import best_growth
from gnomon_autoscaler.policies.asyfunc.mls import scale_out, so_many_more
from gnomon_autoscaler.policies.asyfunc.pairing import Knowledge
from gnomon_autoscaler.replica_policy import Room
from gnomon_core.fleet import InstanceKind
from gnomon_core.pairs import Pair
from gnomon_core.profiles import Network
from gnomon_core.scaling import Action, CreateBody, CreateShadow, PolicyState
from gnomon_core.settings import ScaleSettings, Settings
from gnomon_platforms.local.nodes import LocalNode
from tests.made_up_models import made_up_profile
from tests.unit.autoscaler.asyfunc_stage import LATENCY_S, MB, MODEL, PROFILE, body, look, node, observed

# On one core 10 rps, on two 20, on four 40.
LARGER = made_up_profile(
    MODEL, LATENCY_S, cores=(1, 2, 4), gmacs=4.0, overhead_bytes=100 * MB, border_bytes=MB, network=Network(0.01, 5e-9)
)
KNOWN = Knowledge(LARGER, Settings(slo_s=1.0, max_batch=8), Options())
CALM, BURST = [5.0] * 19, [15.0]


def decided(rates_rps: list[float], held: LocalNode) -> tuple[Action, ...]:
    """What `asyfunc` does with one Body of one core on this node."""
    seen = observed(rates_rps, body("a", node=held.name), nodes=[held.value()])
    settings = replace(seen.settings, max_cores=1, scale=ScaleSettings(min=1, max=4))
    decision, _ = AsyFunc("asyfunc", Options()).decide(replace(seen, settings=settings, profile=PROFILE), PolicyState())
    return decision.actions


def test_a_burst_on_a_full_node_gets_the_core_that_is_held_for_it() -> None:
    """Two cores, one of them in reserve, one Body: nothing is free, and the Shadow that is asked for has room."""
    held = LocalNode((0, 1), 2, 10**12, "n1", reserved_cores=1.0)
    held.claim("a", 1.0, 0, 1)
    assert held.value().free_cores == 0
    (shadow,) = decided(CALM + BURST, held)
    assert isinstance(shadow, CreateShadow)
    held.claim("s", shadow.pair.shadow_cores, 100 * MB, 1, from_reserve=True)
    assert decided(CALM + BURST, held) == (), "it is in use"


def test_a_lasting_rise_on_a_full_node_gets_a_body_instead() -> None:
    held = LocalNode((0, 1), 2, 10**12, "n1", reserved_cores=1.0)
    held.claim("a", 1.0, 0, 1)
    assert decided(BURST * 20, held) == (CreateBody(1, "n1"),)
    held.claim("b", 1.0, 0, 1)
    assert held.value().reserve_cores == 0


def test_a_shadow_may_have_what_is_free_beside_the_reserve() -> None:
    for free, reserve, cores in ((1, 0, 1), (0, 2, 2), (1, 1, 2), (0.5, 1.5, 2)):
        found = look(observed([99.0] * 8, body("a")), Options(), node(cores=free, reserve=reserve), profile=LARGER)
        assert [made.pair.shadow_cores for made in found.created] == [cores]


def test_no_two_shadows_count_on_the_same_reserve() -> None:
    found = look(observed([99.0] * 8, body("a"), body("b")), Options(), node(cores=0, reserve=1))
    assert len(found.created) == 1
    found = look(observed([99.0] * 8, body("a"), body("b")), Options(), node(cores=1, reserve=1))
    assert len(found.created) == 2


def test_a_further_shadow_may_have_it() -> None:
    pair = Pair(1, (0, 1), (0, 1, 1, 2, 2, 3, 3, 4))
    there = [body("a", partner="s", pair=pair), body("s", kind=InstanceKind.SHADOW, partner="a", pair=pair)]
    for reserve, shadows in ((0, 0), (1, 1)):
        found = look(observed([99.0] * 8, *there), Options(max_shadows=2), node(cores=0, reserve=reserve))
        assert len(found.created) == shadows


def test_a_shadow_elsewhere_may_have_that_nodes() -> None:
    nodes = [node("full", 0), node("n2", 0.5), node("n3", 0, reserve=2)]
    found = look(observed([99.0] * 8, body("a", node="full"), nodes=nodes), Options(), *nodes, profile=LARGER)
    assert [(made.pair.node, made.pair.shadow_cores) for made in found.created] == [("n3", 2)]


def test_a_body_does_not_grow_by_it() -> None:
    assert best_growth(KNOWN, Options(), body("a"), 15.0, Room([node(cores=0, reserve=2)])) is None
    assert best_growth(KNOWN, Options(), body("a"), 15.0, Room([node(cores=1, reserve=2)])) is not None


@pytest.mark.parametrize("free", [4, 1])
def test_bodies_come_to_the_reserve_when_no_node_has_room_for_any(free: int) -> None:
    """The best size fits into n1's reserve at once; the room that n2 has, for a smaller one too, comes first."""
    room = Room([node("n1", 0, reserve=4), node("n2", free)])
    made = so_many_more(KNOWN, room, rate_rps=10.0, count=3, memory_bytes=0)
    assert made == [CreateBody(free, "n2"), CreateBody(4, "n1"), CreateBody(4, None)]
    room = Room([node("n1", 0, reserve=4), node("n2", free)])
    assert scale_out(KNOWN, Options(), room, rate_rps=999.0, rate_max_rps=0.0, memory_bytes=0) == made[:2]


def test_of_other_nodes_the_one_with_most_room_for_shadows_is_asked_first() -> None:
    assert Room([node("n1", 8), node("n2", 1), node("n3", 1, reserve=2), node("n4", 2)]).others("n1") == ["n3", "n4", "n2"]


def test_a_body_leaves_of_the_reserve_what_it_does_not_need() -> None:
    room = Room([node(cores=1, reserve=2)])
    room.take("n1", 2)
    assert (room.cores("n1"), room.shadow_cores("n1")) == (0, 1)
    room = Room([node(cores=1, reserve=2)])
    room.take_for_shadow("n1", 1)
    assert (room.cores("n1"), room.shadow_cores("n1")) == (1, 2)
    room.take_for_shadow("n1", 2)
    assert (room.cores("n1"), room.shadow_cores("n1")) == (0, 0)

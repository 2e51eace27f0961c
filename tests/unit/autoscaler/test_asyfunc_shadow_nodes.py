"""On which node a Shadow is made, as docs/decisions/0016-shadow-on-another-node.md settles it; each test is an example of it."""

from dataclasses import replace
from typing import Any

import pytest

from gnomon_autoscaler.policies.asyfunc.lls import LayerLevel
from gnomon_autoscaler.policies.asyfunc.options import Options
from gnomon_core.fleet import Instance, InstanceKind, Node
from gnomon_core.pairs import best_split, pair_seconds
from gnomon_core.profiles import ModelProfile, Network
from tests.made_up_models import made_up_profile
from tests.unit.autoscaler.asyfunc_stage import LATENCY_S, MB, MODEL, look, node, observed
from tests.unit.autoscaler.asyfunc_stage import body as body_on

DEFAULTS = Options()
# 1 MB a sample crosses each border; the network takes 10 ms and 5 ms/MB.
PROFILE = made_up_profile(MODEL, LATENCY_S, gmacs=4.0, overhead_bytes=100 * MB, border_bytes=MB, network=Network(0.01, 5e-9))
# Eight as 4 + 4: 0.4 s here; there 10 ms + 4 · 5 ms more each way, 0.46 s. Seven as 4 + 3 take 0.4 s: the way costs no time then.
HERE, THERE = 8 / 0.4, 7 / 0.4


def body(name: str, node: str = "full", **fields: Any) -> Instance:
    return body_on(name, node=node, **fields)


def scaled(
    rate_rps: float,
    nodes: list[Node],
    *instances: Instance,
    options: Options = DEFAULTS,
    profile: ModelProfile = PROFILE,
    slo_s: float = 1.0,
) -> LayerLevel:
    return look(observed([rate_rps] * 8, *instances, slo_s=slo_s, nodes=nodes), options, *nodes, profile=profile)


def test_a_bodys_own_node_comes_first_however_much_room_another_has() -> None:
    found = scaled(99.0, [node("own", 1), node("large", 8)], body("a", "own"))
    assert [made.pair.node for made in found.created] == [None]
    assert f"R_max {HERE:.2f} then" in found.reason


def test_where_its_own_has_no_room_another_node_has_it_with_the_way_priced_in() -> None:
    found = scaled(99.0, [node("full", 0.5), node("n2", 1)], body("a"))
    (made,) = found.created
    assert (made.body, made.pair.node) == ("a", "n2")
    assert made.pair.split == best_split(PROFILE, (1, 1), made.pair.blocks, 8, elsewhere=True)
    assert pair_seconds(PROFILE, 1, made.pair, 8) == pytest.approx(0.46)
    assert "a (1 core) gets a Shadow of 1 core on n2 with 2 blocks" in found.reason
    assert f"R_max {THERE:.2f} then" in found.reason


def test_no_memory_on_its_own_node_is_no_room_either() -> None:
    found = scaled(99.0, [node("full", 4, 99 * MB), node("n2", 1)], body("a"))
    assert [made.pair.node for made in found.created] == ["n2"]


def test_elsewhere_a_shadow_brings_its_blocks_along() -> None:
    """On its Body's node it maps pages that the Body holds: 100 MB are enough. Elsewhere its blocks' 20 or 100 MB come to it."""
    assert [made.pair.node for made in scaled(99.0, [node("full", 1, 100 * MB)], body("a")).created] == [None]
    for memory, blocks in ((119 * MB, []), (120 * MB, [(0,)]), (200 * MB, [(0, 1)])):
        found = scaled(99.0, [node("full", 0), node("n2", 1, memory)], body("a"))
        assert [made.pair.blocks for made in found.created] == blocks


def test_room_elsewhere_shrinks_with_each_shadow() -> None:
    nodes = [node("full", 0), node("n2", 1), node("n3", 1)]
    found = scaled(99.0, nodes, body("a"), body("b"), body("c"))
    assert [(made.body, made.pair.node) for made in found.created] == [("a", "n2"), ("b", "n3")]


def test_a_way_that_eats_up_the_gain_is_not_gone() -> None:
    for network in (None, Network(1.0, 0.0)):
        found = scaled(99.0, [node("full", 0), node("n2", 8)], body("a"), profile=replace(PROFILE, network=network))
        assert found.created == ()
        assert "no room for a Shadow that would help" in found.reason


def test_remote_shadows_can_be_forbidden() -> None:
    found = scaled(99.0, [node("full", 0), node("n2", 8)], body("a"), options=Options(other_nodes=False))
    assert found.created == ()


def test_the_wait_and_the_way_must_both_be_in_time() -> None:
    # At 8 per 0.54 s eight have come together after 0.4725 s and end 0.46 s later; on its own node 0.4 s later.
    rate_rps = 8 / 0.54
    for nodes, larger in (([node("full", 1)], True), ([node("full", 0), node("n2", 1)], False)):
        found = scaled(rate_rps, nodes, body("a"), slo_s=0.9)
        (made,) = found.created
        assert ("b = 8" in found.reason) == larger
        assert made.pair.node == (None if larger else "n2")


def test_a_shadow_elsewhere_carries_less_and_is_released_first() -> None:
    near, far = (
        scaled(99.0, nodes, body("a")).created[0].pair for nodes in ([node("full", 1)], [node("full", 0), node("n2", 1)])
    )
    there = [
        body("a", partner="s-a", pair=near),
        body("s-a", kind=InstanceKind.SHADOW, partner="a", pair=near),
        body("b", partner="s-b", pair=far),
        body("s-b", "n2", kind=InstanceKind.SHADOW, partner="b", pair=far),
    ]
    # 20 + 17.5 with both; 30 without the one elsewhere.
    assert scaled(37.0, [], *there) == LayerLevel()
    assert [gone.id for gone in scaled(29.0, [], *there).released] == ["s-b"]


def test_a_body_whose_own_node_cannot_tell_it_gets_none_elsewhere() -> None:
    """It hears of its Shadow from its own node. Were one asked for all the same, it would be refused at each tick."""
    deaf = replace(node("full", 0), pairs=False)
    assert scaled(99.0, [deaf, node("n2", 8)], body("a")).created == ()

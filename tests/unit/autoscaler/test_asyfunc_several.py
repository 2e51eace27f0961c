"""More than one Shadow per Body, as docs/decisions/0014-several-shadows.md has it worked out."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from gnomon_autoscaler.policies.asyfunc import asyfunc
from gnomon_autoscaler.policies.asyfunc.lls import LayerLevel
from gnomon_autoscaler.policies.asyfunc.mls import as_bodies
from gnomon_autoscaler.policies.asyfunc.options import Options
from gnomon_autoscaler.policies.asyfunc.pairing import Knowledge
from gnomon_core.fleet import Instance, InstanceKind, InstanceState, Node
from gnomon_core.pairs import MAX_SHADOWS, Pair, best_splits
from gnomon_core.profiles import ModelProfile, Network
from gnomon_core.settings import Settings, read_settings
from tests.made_up_models import made_up_profile
from tests.refusals import refused
from tests.unit.autoscaler.asyfunc_stage import LATENCY_S, MB, MODEL, PROFILE, look, node, observed
from tests.unit.autoscaler.asyfunc_stage import body as lone_body

# Alone 10 rps. With one Shadow 4 + 4 take 0.4 s, 20 rps; with two 2 + 2 + 2 take 0.2 s, 30 rps.
BOTH = (0, 1)
[HALVES] = best_splits(PROFILE, (1, 1), BOTH, 8)
ONE, TWO = (Pair(1, BOTH, split) for split in best_splits(PROFILE, (1, 1, 1), BOTH, 8))
PAIR = Pair(1, BOTH, HALVES)
# A network that takes 10 ms and 5 ms/MB; 1 MB a sample crosses each border. As 3 + 3 at home + 2 elsewhere eight take 0.3 s.
PRICED = made_up_profile(MODEL, LATENCY_S, gmacs=4.0, overhead_bytes=100 * MB, border_bytes=MB, network=Network(0.01, 5e-9))
NEAR, FAR = best_splits(PRICED, (1, 1, 1), BOTH, 8, elsewhere=(1,))
READY, STARTING = InstanceState.READY, InstanceState.STARTING


def body(name: str, *shadows: Instance) -> tuple[Instance, ...]:
    """A Body and these Shadows of it."""
    mine = tuple(replace(each, partner=name) for each in shadows)
    serving = {each.id: each.pair for each in mine if each.state is READY and each.pair is not None}
    return (lone_body(name).working_with(serving), *mine)


def shadow(name: str, pair: Pair, state: InstanceState = READY) -> Instance:
    return Instance(name, "f.ns", 1, "n1", pair.shadow_cores, 1, state, 0.0, kind=InstanceKind.SHADOW, pair=pair)


def scaled(
    rates_rps: Sequence[float],
    *instances: Instance,
    most: int = 2,
    free: float = 8,
    memory: int = 10**12,
    profile: ModelProfile = PROFILE,
) -> LayerLevel:
    """What layer-level scaling does at these rates of the last half seconds, oldest first."""
    options = Options(max_shadows=most, kappa=1.0)
    return look(observed(rates_rps, *instances), options, node(cores=free, memory=memory), profile=profile)


def test_the_paper_has_one_shadow_a_body() -> None:
    assert Options().max_shadows == Settings().max_shadows == 1
    assert scaled([99.0], *body("a", shadow("s1", PAIR)), most=1).created == ()


def test_another_is_made_where_every_body_has_one_and_the_burst_goes_on() -> None:
    found = scaled([25.0], *body("a", shadow("s1", PAIR)))
    [made] = found.created
    assert (made.body, made.pair) == ("a", TWO)
    assert found.changed == (), "the first keeps its share until the second serves"
    assert "R_max 20.00: above γ = 1; a gets Shadow 2 of 1 core: 30.00 rps" in found.reason
    assert scaled([20.0], *body("a", shadow("s1", PAIR))) == LayerLevel()


def test_draining_or_promoted_shadow_still_counts_for_its_body() -> None:
    """A promotion may be refused: then the Body keeps its Shadow, and had one more than it may have."""
    draining = body("a", shadow("s1", PAIR), shadow("s2", TWO, InstanceState.DRAINING))
    assert scaled([25.0], *draining).created == ()
    assert len(scaled([25.0], *draining, most=3).created) == 1
    rising = as_bodies(observed([25.0], *body("a", shadow("s1", ONE), shadow("s2", TWO))), ["s1"])
    assert look(rising, Options(max_shadows=2), node()).created == ()
    assert len(look(rising, Options(max_shadows=3), node()).created) == 1


def test_a_body_without_a_shadow_comes_first() -> None:
    """R_burst is 45: the pair sustains 20, the lone Body 10, and its Shadow makes that 40. The next look is for the rest."""
    found = scaled([45.0], *body("a", shadow("s1", PAIR)), *body("b"))
    assert [made.body for made in found.created] == ["b"]


def test_where_a_body_cannot_get_its_first_others_get_their_second() -> None:
    elsewhere = tuple(replace(each, node="n2") for each in body("b"))
    found = scaled([45.0], *body("a", shadow("s1", PAIR)), *elsewhere)
    assert [made.body for made in found.created] == ["a"]


def test_the_fewest_first_and_no_more_than_are_needed() -> None:
    there = (*body("a", shadow("s1", ONE), shadow("s2", TWO)), *body("b", shadow("s3", PAIR)))
    assert [made.body for made in scaled([55.0], *there, most=3).created] == ["b"]
    # 30 + 30 are not enough for 61: a third for the first as well, as 2 + 2 + 2 + 2 in 0.2 s.
    assert [made.body for made in scaled([61.0], *there, most=3).created] == ["b", "a"]


@pytest.mark.parametrize("most", [2, 3])
def test_there_are_so_many_and_no_more(most: int) -> None:
    there = body("a", shadow("s1", ONE), shadow("s2", TWO))
    assert len(scaled([99.0], *there, most=most).created) == most - 2


@pytest.mark.parametrize("room", [{"free": 0.5}, {"memory": 10}])
def test_without_room_there_is_none(room: dict[str, int]) -> None:
    found = scaled([99.0], *body("a", shadow("s1", PAIR)), **room)  # type: ignore[arg-type]
    assert found.created == ()
    assert found.reason


def test_shadow_without_benefit_is_not_created() -> None:
    """Two samples at most: the Body has one and its first Shadow the other."""
    two = made_up_profile(MODEL, (0.1, 0.2, 9.0, 9.1, 9.2, 9.3, 9.4, 9.5), gmacs=4.0, overhead_bytes=100 * MB)
    [split] = best_splits(two, (1, 1), BOTH, 2)
    dear = made_up_profile(MODEL, LATENCY_S, border_bytes=1000, transfer_seconds_per_byte=1e-3)
    for profile, pair in ((two, Pair(1, BOTH, split)), (dear, PAIR)):
        seen = body("a", shadow("s1", pair))
        assert all(made.pair.split != () for made in scaled([99.0], *seen, profile=profile).created)
    assert scaled([99.0], *body("a", shadow("s1", PAIR)), profile=dear).created == ()


def test_once_the_second_serves_both_share_anew() -> None:
    loading = body("a", shadow("s1", PAIR), shadow("s2", TWO, STARTING))
    assert scaled([25.0], *loading) == LayerLevel()
    serving = scaled([25.0], *body("a", shadow("s1", PAIR), shadow("s2", TWO)))
    assert [(change.id, change.pair) for change in serving.changed] == [("s1", ONE)]
    assert serving.reason == "1 Shadow with other shares"
    assert scaled([25.0], *body("a", shadow("s1", ONE), shadow("s2", TWO))) == LayerLevel()


def test_remaining_shadow_takes_the_share_back() -> None:
    left = scaled([15.0], *body("a", shadow("s1", ONE)))
    assert [(change.id, change.pair) for change in left.changed] == [("s1", PAIR)]


def test_the_one_of_least_efficiency_is_released_first_and_only_what_is_superfluous() -> None:
    """Together 30 rps, with one 20, alone 10."""
    there = body("a", shadow("s1", ONE), shadow("s2", TWO))
    assert scaled([21.0] * 5, *there) == LayerLevel()
    assert [gone.id for gone in scaled([15.0] * 5, *there).released] == ["s1"]
    assert [gone.id for gone in scaled([9.0] * 5, *there).released] == ["s1", "s2"]
    assert [(change.id, change.pair) for change in scaled([15.0] * 5, *there).changed] == [("s2", PAIR)]


def test_a_small_shadow_goes_before_a_large_one() -> None:
    two_cores = made_up_profile(MODEL, LATENCY_S, cores=(1, 2), gmacs=4.0, overhead_bytes=100 * MB)
    large, small = best_splits(two_cores, (1, 2, 1), BOTH, 8)
    there = body("a", shadow("s1", Pair(2, BOTH, large)), shadow("s2", Pair(1, BOTH, small)))
    known = Knowledge(two_cores, Settings(autoscaler="asyfunc", slo_s=1.0, max_batch=8), Options(max_shadows=2, kappa=1.0))
    both = there[0].pair
    assert both is not None
    weaker = min((known.pairings.efficiency(1, both, number), name) for number, name in enumerate(("s1", "s2")))[1]
    assert scaled([15.0] * 5, *there, profile=two_cores).released[0].id == weaker


def test_the_annotation_says_what_is_allowed() -> None:
    settings = read_settings({}, {"gnomon/autoscaler": "asyfunc", "gnomon/max-shadows": "3"})
    assert asyfunc(settings).options.max_shadows == settings.max_shadows == 3
    for wrong in ("0", str(MAX_SHADOWS + 1), "two", "1.5", ""):
        with refused(400, hint=f"from 1 to {MAX_SHADOWS}"):
            read_settings({}, {"gnomon/max-shadows": wrong})


def crowded(*nodes: Node, profile: ModelProfile = PRICED, other_nodes: bool = True) -> LayerLevel:
    """A burst, and a Body on n1 that has its first Shadow there."""
    options = Options(max_shadows=2, kappa=1.0, other_nodes=other_nodes)
    return look(observed([99.0], *body("a", shadow("s1", PAIR)), nodes=nodes), options, *nodes, profile=profile)


def test_the_next_one_is_on_another_node_where_its_bodys_is_full() -> None:
    found = crowded(node("n1", 0.5), node("n2", 1), node("n3", 1))
    [made] = found.created
    assert (made.body, made.pair) == ("a", Pair(1, BOTH, FAR, "n2"))
    assert "a gets Shadow 2 of 1 core on n2: 26.67 rps" in found.reason
    assert [made.pair.node for made in crowded(node("n1", 1), node("n2", 8)).created] == [None], "at home first"


def test_elsewhere_the_next_one_brings_its_blocks_along() -> None:
    """The model's 100 MB, which at home its Body holds, beside the 100 MB of any instance."""
    for memory, made in ((199 * MB, 0), (200 * MB, 1)):
        assert len(crowded(node("n1", 0), node("n2", 1, memory)).created) == made


def test_the_next_one_is_nowhere_else_where_that_is_forbidden_has_no_price_or_nobody_tells_its_body() -> None:
    full, free = node("n1", 0), node("n2", 8)
    assert crowded(full, free, other_nodes=False).created == ()
    assert crowded(full, free, profile=replace(PRICED, network=None)).created == ()
    assert crowded(full, free, profile=replace(PRICED, network=Network(1.0, 0.0))).created == ()
    assert crowded(replace(full, pairs=False), free).created == ()


def test_room_elsewhere_shrinks_with_each_further_shadow() -> None:
    nodes = [node("n1", 0), node("n2", 1), node("n3", 1)]
    there = [one for name in "abc" for one in body(name, shadow(f"s-{name}", PAIR))]
    options = Options(max_shadows=2, kappa=1.0)
    found = look(observed([99.0], *there, nodes=nodes), options, *nodes, profile=PRICED)
    assert [(made.body, made.pair.node) for made in found.created] == [("a", "n2"), ("b", "n3")]


def test_the_one_elsewhere_shares_with_the_one_at_home_and_is_released_first() -> None:
    loading = body("a", shadow("s1", PAIR), shadow("s2", Pair(1, BOTH, FAR, "n2")))
    serving = scaled([25.0], *loading, profile=PRICED)
    assert [(change.id, change.pair) for change in serving.changed] == [("s1", Pair(1, BOTH, NEAR))]
    both = body("a", shadow("s1", Pair(1, BOTH, NEAR)), shadow("s2", Pair(1, BOTH, FAR, "n2")))
    assert scaled([21.0] * 5, *both, profile=PRICED) == LayerLevel()
    assert [gone.id for gone in scaled([15.0] * 5, *both, profile=PRICED).released] == ["s2"]

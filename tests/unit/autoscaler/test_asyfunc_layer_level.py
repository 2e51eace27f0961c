"""Layer-level scaling, as docs/decisions 0012, 0014 and 0016 settle it: which Body gets which Shadows, how many, and where."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from gnomon_autoscaler.policies.asyfunc import asyfunc
from gnomon_autoscaler.policies.asyfunc.lls import LayerLevel, Tick
from gnomon_autoscaler.policies.asyfunc.mls import as_bodies
from gnomon_autoscaler.policies.asyfunc.options import Options
from gnomon_autoscaler.policies.asyfunc.pairing import Knowledge, block_sets, candidates
from gnomon_autoscaler.replica_policy import FreeCapacity
from gnomon_core.fleet import Instance, InstanceKind, InstanceState, Node
from gnomon_core.pairs import MAX_SHADOWS, Pair, best_split, best_splits, pair_seconds
from gnomon_core.profiles import ModelProfile, Network
from gnomon_core.scaling import Observation
from gnomon_core.settings import Settings, read_settings
from tests.made_up_models import BlockPlan, made_up_profile
from tests.refusals import refused
from tests.unit.autoscaler.asyfunc_stage import LATENCY_S, MB, MODEL, PROFILE, body, look, node, observed

DEFAULTS = Options(kappa=1.0, printed_kappa=True)
TWO_CORES = made_up_profile(MODEL, LATENCY_S, cores=(1, 2), gmacs=4.0, overhead_bytes=100 * MB)
# With a Shadow of one core: the first half as 4 + 4 makes eight in 0.6 s, 13.33 rps; both halves in 0.4 s, 20 rps.
FIRST, BOTH = 8 / 0.6, 8 / 0.4


def shadow(of: str, pair: Pair, state: InstanceState = InstanceState.READY) -> Instance:
    return body(f"s-{of}", pair.shadow_cores, kind=InstanceKind.SHADOW, partner=of, pair=pair, state=state)


def scaled(
    seen: Observation, *, free: float = 8, memory: int = 10**12, options: Options = DEFAULTS, profile: ModelProfile = PROFILE
) -> LayerLevel:
    return look(seen, options, node(cores=free, memory=memory), profile=profile)


# Candidates


def layers_of(*plans: tuple[float, int, bool]) -> ModelProfile:
    return made_up_profile([BlockPlan(share, size, splittable) for share, size, splittable in plans], (1.0, 2.0))


def test_a_block_without_parameters_joins_its_neighbour() -> None:
    """The ratio of such a block would be infinite: it would come first, for a hand-over and no work."""
    profile = layers_of((0.1, 0, True), (0.2, 5, True), (0.1, 0, True), (0.1, 0, True), (0.5, 7, True))
    assert candidates(profile.layers) == [(0, 1, 2, 3), (4,)]


def test_blocks_that_cannot_be_split_part_the_candidates() -> None:
    profile = layers_of((0.2, 5, True), (0.1, 3, False), (0.1, 0, True), (0.1, 2, True), (0.1, 9, False), (0.1, 0, True))
    assert candidates(profile.layers) == [(0,), (2, 3)]
    assert candidates(layers_of((1.0, 5, False)).layers) == []


def test_candidates_are_added_by_macs_per_parameter() -> None:
    profile = layers_of((0.1, 10, True), (0.4, 10, True), (0.2, 100, True), (0.3, 10, True))
    assert [each.blocks for each in block_sets(profile.layers)] == [(1,), (1, 3), (0, 1, 3), (0, 1, 2, 3)]
    assert [len(each.runs) for each in block_sets(profile.layers)] == [1, 2, 2, 1]
    assert [each.parameter_bytes for each in block_sets(profile.layers)] == [10, 20, 30, 130]


def test_contiguous_sets_grow_to_the_better_neighbour() -> None:
    profile = layers_of((0.1, 10, True), (0.4, 10, True), (0.2, 100, True), (0.3, 10, True))
    found = block_sets(profile.layers, contiguous=True)
    assert [each.blocks for each in found] == [(1,), (0, 1), (0, 1, 2), (0, 1, 2, 3)]
    assert {len(each.runs) for each in found} == {1}


def test_contiguous_sets_end_at_what_cannot_be_split() -> None:
    profile = layers_of((0.1, 10, True), (0.4, 10, False), (0.2, 10, True), (0.3, 20, True))
    assert [each.blocks for each in block_sets(profile.layers, contiguous=True)] == [(2,), (2, 3)]


# A burst


def test_without_a_burst_nothing_is_made() -> None:
    assert scaled(observed([10.0] * 8, body("a"))) == LayerLevel()


def test_a_burst_gets_the_shadow_of_best_eta_with_a_table_of_splits() -> None:
    """κ = 1: a Shadow of the first half holds 120 MB, 4.8 cores; of both 200 MB, 8 cores. η for four, two of them there:

    2/0.3·(1/1 + 1/4.8) = 8.06 with the first half, 2/0.2·(1/1 + 1/8) = 11.25 with both.
    """
    found = scaled(observed([2.0, 15.0], body("a"), max_batch=4))
    (made,) = found.created
    assert made.body == "a"
    assert made.pair == Pair(1, (0, 1), (0, 1, 1, 2))
    assert found.reason == (
        "burst of 15.00 rps in 500 ms, R_max 10.00: above γ = 1; a (1 core) gets a Shadow of 1 core with 2 blocks, 100% of the "
        "weights: b = 4 as 2 + 2 in 200 ms instead of 400, η 11.2; R_max 20.00 then"
    )


def test_dear_memory_chooses_fewer_blocks_by_the_objective() -> None:
    # κ = 10 by Eq. 4: 13.33 / (1 + 48) < 20 / (1 + 80)? 0.272 > 0.247 for the gain 3.33 and 10 it is 0.068 < 0.123.
    options = Options(kappa=10.0, objective=True)
    found = scaled(observed([15.0], body("a")), free=1, options=options)
    eta_first, eta_both = 4 / 0.6 / (1 + 48), 4 / 0.4 / (1 + 80)
    assert eta_first > eta_both
    assert found.created[0].pair.blocks == (0,)
    by_gain = scaled(observed([15.0], body("a")), free=1, options=replace(options, gain=True))
    assert (FIRST - 10) / (1 + 48) < (BOTH - 10) / (1 + 80)
    assert by_gain.created[0].pair.blocks == (0, 1)


def test_m_phi_without_overhead_always_prefers_the_smallest_block_set() -> None:
    """A stem with 0.01 % of the weights and 2 % of the work: its memory is nothing, so that its η has no rival."""
    stem = (BlockPlan(0.02, 10_000), BlockPlan(0.98, 99_990_000))
    profile = made_up_profile(stem, LATENCY_S, gmacs=4.0, overhead_bytes=100 * MB)
    seen = observed([15.0], body("a"))
    literal = scaled(seen, options=replace(DEFAULTS, overhead_counts=False), profile=profile)
    assert literal.created[0].pair.blocks == (0,)
    assert "R_max 10.10 then" in literal.reason  # a Shadow that carries nothing
    assert scaled(seen, profile=profile).created[0].pair.blocks == (0, 1)


def test_the_split_is_the_quickest_and_its_latency_that_of_the_pair() -> None:
    profile = replace(TWO_CORES, transfer_fixed_s=0.01)
    known = Knowledge(profile, Settings(slo_s=1.0, max_batch=8), DEFAULTS)
    assert known.pairings.ranked(2, 1)
    for pairing in known.pairings.ranked(2, 1):
        assert pairing.pair.split == best_split(profile, (2, 1), pairing.pair.blocks, 8)
        assert pairing.latency_s == pytest.approx(pair_seconds(profile, 2, pairing.pair, pairing.batch))


def test_one_sample_is_never_split() -> None:
    assert scaled(observed([99.0], body("a"), max_batch=1)).created == ()


def test_shadows_are_added_until_the_burst_is_met() -> None:
    # 20 rps serve; 25 need one more, which makes 30.
    bodies = (body("a"), body("b"), body("c"))
    assert len(scaled(observed([25.0], *bodies[:2]), free=2).created) == 1
    assert len(scaled(observed([41.0], *bodies), free=3).created) == 2
    assert len(scaled(observed([99.0], *bodies), free=3).created) == 3


def test_a_body_whose_node_is_full_is_passed_over_and_not_the_end() -> None:
    """Line 3 breaks off at the first node without free cores."""
    seen = observed([40.0], body("a", node="full"), body("b"))
    known = Knowledge(PROFILE, seen.settings, DEFAULTS)
    capacity = FreeCapacity([node("full", 0.5), node("n1", 1.0)])
    found = Tick(known, DEFAULTS, seen, seen.live).scale(capacity)
    assert [made.body for made in found.created] == ["b"]


def test_free_cores_shrink_with_each_shadow() -> None:
    seen = observed([99.0], body("a"), body("b"), body("c"))
    assert [made.pair.shadow_cores for made in scaled(seen, free=3, profile=TWO_CORES).created] == [2, 1]
    assert scaled(seen, free=0.99).created == ()
    assert "no room" in scaled(seen, free=0.99).reason


def test_fewer_cores_for_a_shadow_where_they_are_better() -> None:
    # On two cores it is hardly quicker, 0.9 of the time.
    serial = made_up_profile(MODEL, LATENCY_S, cores=(1, 2), serial_fraction=0.8, gmacs=4.0)
    seen = observed([15.0], body("a"))
    assert scaled(seen, profile=serial).created[0].pair.shadow_cores == 2
    assert scaled(seen, profile=serial, options=replace(DEFAULTS, fewer_shadow_cores=True)).created[0].pair.shadow_cores == 1


def test_memory_must_be_free_as_well() -> None:
    seen = observed([15.0], body("a"))
    private = replace(DEFAULTS, weight_mode="private")
    assert scaled(seen, memory=119 * MB, options=private).created == ()
    assert scaled(seen, memory=120 * MB, options=private).created[0].pair.blocks == (0,)
    # Of shared weights the Body holds every page already.
    assert scaled(seen, memory=100 * MB).created[0].pair.blocks == (0, 1)


def test_the_largest_bodies_come_first() -> None:
    seen = observed([31.0], body("a"), body("large", 2))
    assert [made.body for made in scaled(seen, profile=TWO_CORES).created] == ["large"]


def test_only_bodies_that_serve_alone_get_one() -> None:
    pair = Pair(1, (0,), (0, 1))
    for paired in (
        [body("a"), shadow("a", pair)],
        [body("a"), shadow("a", pair, InstanceState.STARTING)],
        [body("a"), shadow("a", pair, InstanceState.DRAINING)],
        [body("a", partner="s-a", pair=pair)],
        [body("a", state=InstanceState.STARTING)],
    ):
        assert scaled(observed([99.0], *paired)).created == ()


def test_the_wait_counts_and_loading_does_not() -> None:
    # At 4 rps four fill in 0.75 s and would end 0.6 s later; two are in time. At 40 rps six are.
    slow = made_up_profile(MODEL, tuple(0.3 * size for size in range(1, 9)), gmacs=4.0, overhead_bytes=100 * MB, load_s=5.0)
    seen = observed([4.0], body("a"), slo_s=1.2)
    assert "b = 2 as 1 + 1" in scaled(seen, profile=slow).reason
    assert "b = 6 as 3 + 3" in scaled(observed([40.0], body("a"), slo_s=1.2), profile=slow).reason
    # Line 13 puts the loading of 5 s on the first batch. Here none waits for it: a pair begins when its Shadow has registered.
    assert scaled(seen, profile=slow, options=replace(DEFAULTS, load_counts=True)).created == ()


def test_where_no_set_raises_r_max_there_is_no_shadow() -> None:
    # Handing a sample over and back takes 2 s.
    far = made_up_profile(MODEL, LATENCY_S, border_bytes=1000, transfer_seconds_per_byte=1e-3)
    assert scaled(observed([99.0], body("a")), profile=far).created == ()


def holding(seen: Observation, *requests: float) -> Observation:
    """The observation with so many requests in the system in the last half seconds, oldest first."""
    return replace(seen, history=replace(seen.history, concurrency=requests))


def test_queue_that_cannot_end_in_time_is_a_burst() -> None:
    """14 requests that all have to end within a second take 14 rps, and the Body sustains 10."""
    seen = observed([9.0], body("a"))
    found = scaled(holding(seen, 14))
    assert [made.body for made in found.created] == ["a"]
    assert found.reason.startswith("burst of 14.00 rps, for 14 requests to end in 1000 ms, R_max 10.00: above γ = 1; a (1 core)")
    assert scaled(holding(seen, 14), options=replace(DEFAULTS, backlog=False)) == LayerLevel()


def test_queue_that_ends_in_time_is_no_burst() -> None:
    """By Little's law 9 rps that stay a whole second, as long as they may, are nine in the system."""
    assert scaled(holding(observed([9.0], body("a")), 9)) == LayerLevel()


# Release

PAIR = Pair(1, (0, 1), (0, 1, 1, 2, 2, 3, 3, 4))
SMALL = Pair(1, (0,), (0, 1, 1, 2, 2, 3, 3, 4))


def test_a_shadow_is_released_when_the_body_alone_has_been_enough_for_n_ticks() -> None:
    there = (body("a", partner="s-a", pair=PAIR), shadow("a", PAIR))
    assert scaled(observed([15.0, 9.0, 9.0, 9.0], *there)).released == ()
    found = scaled(observed([15.0, 9.0, 9.0, 9.0, 9.0], *there))
    assert [gone.id for gone in found.released] == ["s-a"]
    assert "at most 9.00 rps for 2 s" in found.reason


def test_a_rate_that_the_pair_carries_and_the_body_does_not_keeps_the_shadow() -> None:
    """Read literally it goes as soon as R_burst ≤ R_max with it, 15 ≤ 20, and comes back at once, 15 > 10."""
    there = (body("a", partner="s-a", pair=PAIR), shadow("a", PAIR))
    assert scaled(observed([15.0] * 20, *there)) == LayerLevel()


def test_a_shadow_stays_while_what_waits_needs_it() -> None:
    """The burst is over, 9 rps arrive; its queue of 15 falls to 12, 9 and 5, and four ticks later the Body is enough."""
    there = (body("a", partner="s-a", pair=PAIR), shadow("a", PAIR))
    calm = observed([9.0] * 8, *there)
    assert scaled(holding(calm, 15, 12)) == LayerLevel()
    assert scaled(holding(calm, 15, 12, 9, 5)) == LayerLevel()
    assert scaled(holding(calm, 12, 9, 5, 5)) == LayerLevel()
    assert [gone.id for gone in scaled(holding(calm, 12, 9, 5, 5, 5)).released] == ["s-a"]
    literal = scaled(holding(calm, 15, 12), options=replace(DEFAULTS, backlog=False))
    assert [gone.id for gone in literal.released] == ["s-a"]


def test_the_shadow_of_least_eta_goes_first_and_only_so_many_as_may() -> None:
    there = (
        body("a", partner="s-a", pair=PAIR),
        shadow("a", PAIR),
        body("b", partner="s-b", pair=SMALL),
        shadow("b", SMALL),
    )
    # 33.3 with both, 30 without the small one, 20 without either.
    assert [gone.id for gone in scaled(observed([25.0] * 4, *there)).released] == ["s-b"]
    assert [gone.id for gone in scaled(observed([20.0] * 4, *there)).released] == ["s-b", "s-a"]


def test_gamma_moves_both() -> None:
    early = replace(DEFAULTS, gamma=0.5)
    assert scaled(observed([6.0], body("a")), options=early).created
    there = (body("a", partner="s-a", pair=PAIR), shadow("a", PAIR))
    assert scaled(observed([6.0] * 4, *there), options=early).released == ()


# 1 MB a sample crosses each border; the network takes 10 ms and 5 ms/MB.
PRICED = made_up_profile(MODEL, LATENCY_S, gmacs=4.0, overhead_bytes=100 * MB, border_bytes=MB, network=Network(0.01, 5e-9))
# Eight as 4 + 4: 0.4 s here; there 10 ms + 4 · 5 ms more each way, 0.46 s. Seven as 4 + 3 take 0.4 s: the way costs no time then.
HERE, THERE = 8 / 0.4, 7 / 0.4


def body_on_full_node(name: str, node: str = "full", **fields: Any) -> Instance:
    return body(name, node=node, **fields)


def placed(
    rate_rps: float,
    nodes: list[Node],
    *instances: Instance,
    options: Options = DEFAULTS,
    profile: ModelProfile = PRICED,
    slo_s: float = 1.0,
) -> LayerLevel:
    return look(observed([rate_rps] * 8, *instances, slo_s=slo_s, nodes=nodes), options, *nodes, profile=profile)


def test_a_bodys_own_node_comes_first_however_much_room_another_has() -> None:
    found = placed(99.0, [node("own", 1), node("large", 8)], body_on_full_node("a", "own"))
    assert [made.pair.node for made in found.created] == [None]
    assert f"R_max {HERE:.2f} then" in found.reason


def test_full_node_leads_to_a_remote_shadow_with_network_cost_included() -> None:
    found = placed(99.0, [node("full", 0.5), node("n2", 1)], body_on_full_node("a"))
    (made,) = found.created
    assert (made.body, made.pair.node) == ("a", "n2")
    assert made.pair.split == best_split(PRICED, (1, 1), made.pair.blocks, 8, elsewhere=True)
    assert pair_seconds(PRICED, 1, made.pair, 8) == pytest.approx(0.46)
    assert "a (1 core) gets a Shadow of 1 core on n2 with 2 blocks" in found.reason
    assert f"R_max {THERE:.2f} then" in found.reason


def test_no_memory_on_its_own_node_is_no_room_either() -> None:
    found = placed(99.0, [node("full", 4, 99 * MB), node("n2", 1)], body_on_full_node("a"))
    assert [made.pair.node for made in found.created] == ["n2"]


def test_elsewhere_a_shadow_brings_its_blocks_along() -> None:
    """On its Body's node it maps pages that the Body holds: 100 MB are enough. Elsewhere its blocks' 20 or 100 MB come to it."""
    assert [made.pair.node for made in placed(99.0, [node("full", 1, 100 * MB)], body_on_full_node("a")).created] == [None]
    for memory, blocks in ((119 * MB, []), (120 * MB, [(0,)]), (200 * MB, [(0, 1)])):
        found = placed(99.0, [node("full", 0), node("n2", 1, memory)], body_on_full_node("a"))
        assert [made.pair.blocks for made in found.created] == blocks


def test_room_elsewhere_shrinks_with_each_shadow() -> None:
    nodes = [node("full", 0), node("n2", 1), node("n3", 1)]
    found = placed(99.0, nodes, body_on_full_node("a"), body_on_full_node("b"), body_on_full_node("c"))
    assert [(made.body, made.pair.node) for made in found.created] == [("a", "n2"), ("b", "n3")]


def test_a_way_that_eats_up_the_gain_is_not_gone() -> None:
    for network in (None, Network(1.0, 0.0)):
        found = placed(99.0, [node("full", 0), node("n2", 8)], body_on_full_node("a"), profile=replace(PRICED, network=network))
        assert found.created == ()
        assert "no room for a Shadow that would help" in found.reason


def test_the_wait_and_the_way_must_both_be_in_time() -> None:
    # At 8 per 0.54 s eight have come together after 0.4725 s and end 0.46 s later; on its own node 0.4 s later.
    rate_rps = 8 / 0.54
    for nodes, larger in (([node("full", 1)], True), ([node("full", 0), node("n2", 1)], False)):
        found = placed(rate_rps, nodes, body_on_full_node("a"), slo_s=0.9)
        (made,) = found.created
        assert ("b = 8" in found.reason) == larger
        assert made.pair.node == (None if larger else "n2")


def test_a_shadow_elsewhere_carries_less_and_is_released_first() -> None:
    near, far = (
        placed(99.0, nodes, body_on_full_node("a")).created[0].pair
        for nodes in ([node("full", 1)], [node("full", 0), node("n2", 1)])
    )
    there = [
        body_on_full_node("a", partner="s-a", pair=near),
        body_on_full_node("s-a", kind=InstanceKind.SHADOW, partner="a", pair=near),
        body_on_full_node("b", partner="s-b", pair=far),
        body_on_full_node("s-b", "n2", kind=InstanceKind.SHADOW, partner="b", pair=far),
    ]
    # 20 + 17.5 with both; 30 without the one elsewhere.
    assert placed(37.0, [], *there) == LayerLevel()
    assert [gone.id for gone in placed(29.0, [], *there).released] == ["s-b"]


def test_a_body_whose_own_node_cannot_tell_it_gets_none_elsewhere() -> None:
    """The Body has its Shadow from its own node. A request for one elsewhere would be refused at each tick."""
    deaf = replace(node("full", 0), pairs=False)
    assert placed(99.0, [deaf, node("n2", 8)], body_on_full_node("a")).created == ()


# Alone 10 rps. With one Shadow 4 + 4 take 0.4 s, 20 rps; with two 2 + 2 + 2 take 0.2 s, 30 rps.
BOTH_BLOCKS = (0, 1)
[HALVES] = best_splits(PROFILE, (1, 1), BOTH_BLOCKS, 8)
ONE, TWO = (Pair(1, BOTH_BLOCKS, split) for split in best_splits(PROFILE, (1, 1, 1), BOTH_BLOCKS, 8))
HALVED = Pair(1, BOTH_BLOCKS, HALVES)
NEAR, FAR = best_splits(PRICED, (1, 1, 1), BOTH_BLOCKS, 8, elsewhere=(1,))
READY, STARTING = InstanceState.READY, InstanceState.STARTING


def body_with(name: str, *shadows: Instance) -> tuple[Instance, ...]:
    """A Body and these Shadows of it."""
    mine = tuple(replace(each, partner=name) for each in shadows)
    serving = {each.id: each.pair for each in mine if each.state is READY and each.pair is not None}
    return (body(name).working_with(serving), *mine)


def nth_shadow(name: str, pair: Pair, state: InstanceState = READY) -> Instance:
    return Instance(name, "f.ns", 1, "n1", pair.shadow_cores, 1, state, 0.0, kind=InstanceKind.SHADOW, pair=pair)


def scaled_further(
    rates_rps: Sequence[float],
    *instances: Instance,
    most: int = 2,
    free: float = 8,
    memory: int = 10**12,
    profile: ModelProfile = PROFILE,
) -> LayerLevel:
    """The actions of layer-level scaling at these rates of the last half seconds, oldest first."""
    options = Options(max_shadows=most, kappa=1.0, printed_kappa=True)
    return look(observed(rates_rps, *instances), options, node(cores=free, memory=memory), profile=profile)


def test_the_paper_has_one_shadow_a_body() -> None:
    assert Options().max_shadows == Settings().max_shadows == 1
    assert scaled_further([99.0], *body_with("a", nth_shadow("s1", HALVED)), most=1).created == ()


def test_another_is_made_where_every_body_has_one_and_the_burst_goes_on() -> None:
    found = scaled_further([25.0], *body_with("a", nth_shadow("s1", HALVED)))
    [made] = found.created
    assert (made.body, made.pair) == ("a", TWO)
    assert found.changed == (), "the first keeps its share until the second serves"
    assert "R_max 20.00: above γ = 1; a gets Shadow 2 of 1 core: 30.00 rps" in found.reason
    assert scaled_further([20.0], *body_with("a", nth_shadow("s1", HALVED))) == LayerLevel()


def test_draining_or_promoted_shadow_still_counts_for_its_body() -> None:
    """A promotion may be refused: then the Body keeps its Shadow, and had one more than it may have."""
    draining = body_with("a", nth_shadow("s1", HALVED), nth_shadow("s2", TWO, InstanceState.DRAINING))
    assert scaled_further([25.0], *draining).created == ()
    assert len(scaled_further([25.0], *draining, most=3).created) == 1
    rising = as_bodies(observed([25.0], *body_with("a", nth_shadow("s1", ONE), nth_shadow("s2", TWO))), ["s1"])
    assert look(rising, replace(DEFAULTS, max_shadows=2), node()).created == ()
    assert len(look(rising, replace(DEFAULTS, max_shadows=3), node()).created) == 1


def test_a_body_without_a_shadow_comes_first() -> None:
    """R_burst is 45: the pair sustains 20, the lone Body 10, and its Shadow makes that 40. The next look is for the rest."""
    found = scaled_further([45.0], *body_with("a", nth_shadow("s1", HALVED)), *body_with("b"))
    assert [made.body for made in found.created] == ["b"]


def test_where_a_body_cannot_get_its_first_others_get_their_second() -> None:
    elsewhere = tuple(replace(each, node="n2") for each in body_with("b"))
    found = scaled_further([45.0], *body_with("a", nth_shadow("s1", HALVED)), *elsewhere)
    assert [made.body for made in found.created] == ["a"]


def test_the_fewest_first_and_no_more_than_are_needed() -> None:
    there = (*body_with("a", nth_shadow("s1", ONE), nth_shadow("s2", TWO)), *body_with("b", nth_shadow("s3", HALVED)))
    assert [made.body for made in scaled_further([55.0], *there, most=3).created] == ["b"]
    # 30 + 30 are not enough for 61: a third for the first as well, as 2 + 2 + 2 + 2 in 0.2 s.
    assert [made.body for made in scaled_further([61.0], *there, most=3).created] == ["b", "a"]


@pytest.mark.parametrize("most", [2, 3])
def test_body_gets_as_many_shadows_as_are_allowed(most: int) -> None:
    there = body_with("a", nth_shadow("s1", ONE), nth_shadow("s2", TWO))
    assert len(scaled_further([99.0], *there, most=most).created) == most - 2


@pytest.mark.parametrize("capacity", [{"free": 0.5}, {"memory": 10}])
def test_node_without_room_gets_no_further_shadow(capacity: dict[str, int]) -> None:
    found = scaled_further([99.0], *body_with("a", nth_shadow("s1", HALVED)), **capacity)  # type: ignore[arg-type]
    assert found.created == ()
    assert found.reason


def test_shadow_without_benefit_is_not_created() -> None:
    """Two samples at most: the Body has one and its first Shadow the other."""
    two = made_up_profile(MODEL, (0.1, 0.2, 9.0, 9.1, 9.2, 9.3, 9.4, 9.5), gmacs=4.0, overhead_bytes=100 * MB)
    [split] = best_splits(two, (1, 1), BOTH_BLOCKS, 2)
    dear = made_up_profile(MODEL, LATENCY_S, border_bytes=1000, transfer_seconds_per_byte=1e-3)
    for profile, pair in ((two, Pair(1, BOTH_BLOCKS, split)), (dear, HALVED)):
        seen = body_with("a", nth_shadow("s1", pair))
        assert all(made.pair.split != () for made in scaled_further([99.0], *seen, profile=profile).created)
    assert scaled_further([99.0], *body_with("a", nth_shadow("s1", HALVED)), profile=dear).created == ()


def test_once_the_second_serves_both_share_anew() -> None:
    loading = body_with("a", nth_shadow("s1", HALVED), nth_shadow("s2", TWO, STARTING))
    assert scaled_further([25.0], *loading) == LayerLevel()
    serving = scaled_further([25.0], *body_with("a", nth_shadow("s1", HALVED), nth_shadow("s2", TWO)))
    assert [(change.id, change.pair) for change in serving.changed] == [("s1", ONE)]
    assert serving.reason == "1 Shadow with other shares"
    assert scaled_further([25.0], *body_with("a", nth_shadow("s1", ONE), nth_shadow("s2", TWO))) == LayerLevel()


def test_remaining_shadow_takes_the_share_back() -> None:
    left = scaled_further([15.0], *body_with("a", nth_shadow("s1", ONE)))
    assert [(change.id, change.pair) for change in left.changed] == [("s1", HALVED)]


def test_least_efficient_shadow_is_released_first_and_only_if_superfluous() -> None:
    """Together 30 rps, with one 20, alone 10."""
    there = body_with("a", nth_shadow("s1", ONE), nth_shadow("s2", TWO))
    assert scaled_further([21.0] * 5, *there) == LayerLevel()
    assert [gone.id for gone in scaled_further([15.0] * 5, *there).released] == ["s1"]
    assert [gone.id for gone in scaled_further([9.0] * 5, *there).released] == ["s1", "s2"]
    assert [(change.id, change.pair) for change in scaled_further([15.0] * 5, *there).changed] == [("s2", HALVED)]


def test_a_small_shadow_goes_before_a_large_one() -> None:
    two_cores = made_up_profile(MODEL, LATENCY_S, cores=(1, 2), gmacs=4.0, overhead_bytes=100 * MB)
    large, small = best_splits(two_cores, (1, 2, 1), BOTH_BLOCKS, 8)
    there = body_with("a", nth_shadow("s1", Pair(2, BOTH_BLOCKS, large)), nth_shadow("s2", Pair(1, BOTH_BLOCKS, small)))
    known = Knowledge(
        two_cores, Settings(autoscaler="asyfunc", slo_s=1.0, max_batch=8), Options(max_shadows=2, kappa=1.0, printed_kappa=True)
    )
    both = there[0].pair
    assert both is not None
    weaker = min((known.pairings.efficiency(1, both, number), name) for number, name in enumerate(("s1", "s2")))[1]
    assert scaled_further([15.0] * 5, *there, profile=two_cores).released[0].id == weaker


def test_the_annotation_says_what_is_allowed() -> None:
    settings = read_settings({}, {"gnomon/autoscaler": "asyfunc", "gnomon/max-shadows": "3"})
    assert asyfunc(settings).options.max_shadows == settings.max_shadows == 3
    for wrong in ("0", str(MAX_SHADOWS + 1), "two", "1.5", ""):
        with refused(400, hint=f"from 1 to {MAX_SHADOWS}"):
            read_settings({}, {"gnomon/max-shadows": wrong})


def crowded(*nodes: Node, profile: ModelProfile = PRICED) -> LayerLevel:
    """A burst, and a Body on n1 that has its first Shadow there."""
    options = Options(max_shadows=2, kappa=1.0, printed_kappa=True)
    return look(observed([99.0], *body_with("a", nth_shadow("s1", HALVED)), nodes=nodes), options, *nodes, profile=profile)


def test_the_next_one_is_on_another_node_where_its_bodys_is_full() -> None:
    found = crowded(node("n1", 0.5), node("n2", 1), node("n3", 1))
    [made] = found.created
    assert (made.body, made.pair) == ("a", Pair(1, BOTH_BLOCKS, FAR, "n2"))
    assert "a gets Shadow 2 of 1 core on n2: 26.67 rps" in found.reason
    assert [made.pair.node for made in crowded(node("n1", 1), node("n2", 8)).created] == [None], "at home first"


def test_elsewhere_the_next_one_brings_its_blocks_along() -> None:
    """The model's 100 MB, which at home its Body holds, beside the 100 MB of any instance."""
    for memory, made in ((199 * MB, 0), (200 * MB, 1)):
        assert len(crowded(node("n1", 0), node("n2", 1, memory)).created) == made


def test_further_shadow_on_another_node_needs_a_price_and_a_node_that_connects_its_body() -> None:
    full, free = node("n1", 0), node("n2", 8)
    assert crowded(full, free, profile=replace(PRICED, network=None)).created == ()
    assert crowded(full, free, profile=replace(PRICED, network=Network(1.0, 0.0))).created == ()
    assert crowded(replace(full, pairs=False), free).created == ()


def test_room_elsewhere_shrinks_with_each_further_shadow() -> None:
    nodes = [node("n1", 0), node("n2", 1), node("n3", 1)]
    there = [instance for name in "abc" for instance in body_with(name, nth_shadow(f"s-{name}", HALVED))]
    options = Options(max_shadows=2, kappa=1.0, printed_kappa=True)
    found = look(observed([99.0], *there, nodes=nodes), options, *nodes, profile=PRICED)
    assert [(made.body, made.pair.node) for made in found.created] == [("a", "n2"), ("b", "n3")]


def test_remote_shadow_shares_the_batch_and_is_released_first() -> None:
    loading = body_with("a", nth_shadow("s1", HALVED), nth_shadow("s2", Pair(1, BOTH_BLOCKS, FAR, "n2")))
    serving = scaled_further([25.0], *loading, profile=PRICED)
    assert [(change.id, change.pair) for change in serving.changed] == [("s1", Pair(1, BOTH_BLOCKS, NEAR))]
    both = body_with("a", nth_shadow("s1", Pair(1, BOTH_BLOCKS, NEAR)), nth_shadow("s2", Pair(1, BOTH_BLOCKS, FAR, "n2")))
    assert scaled_further([21.0] * 5, *both, profile=PRICED) == LayerLevel()
    assert [gone.id for gone in scaled_further([15.0] * 5, *both, profile=PRICED).released] == ["s2"]

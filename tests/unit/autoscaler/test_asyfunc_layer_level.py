"""Algorithm 2 as docs/decisions/0012-lls.md settles it; each test is one of its worked examples."""

from dataclasses import replace

import pytest

from gnomon_autoscaler.policies.asyfunc.lls import LayerLevel, Tick
from gnomon_autoscaler.policies.asyfunc.options import Options
from gnomon_autoscaler.policies.asyfunc.pairing import Knowledge, block_sets, candidates
from gnomon_autoscaler.replica_policy import Room
from gnomon_core.fleet import Instance, InstanceKind, InstanceState
from gnomon_core.pairs import Pair, best_split, pair_seconds
from gnomon_core.profiles import ModelProfile
from gnomon_core.scaling import Observation
from gnomon_core.settings import Settings
from tests.made_up_models import BlockPlan, made_up_profile
from tests.unit.autoscaler.asyfunc_stage import LATENCY_S, MB, MODEL, PROFILE, body, look, node, observed

DEFAULTS = Options()
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
    """Its ratio would be infinite: it would come first, for a hand-over and no work."""
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


def test_m_phi_without_what_a_shadow_holds_besides_makes_the_smallest_set_the_best() -> None:
    """A stem with 0.01 % of the weights and 2 % of the work: its memory is nothing, so that its η has no rival."""
    stem = (BlockPlan(0.02, 10_000), BlockPlan(0.98, 99_990_000))
    profile = made_up_profile(stem, LATENCY_S, gmacs=4.0, overhead_bytes=100 * MB)
    seen = observed([15.0], body("a"))
    literal = scaled(seen, options=Options(overhead_counts=False), profile=profile)
    assert literal.created[0].pair.blocks == (0,)
    assert "R_max 10.10 then" in literal.reason  # a Shadow that carries nothing
    assert scaled(seen, profile=profile).created[0].pair.blocks == (0, 1)


def test_the_split_is_the_quickest_and_its_latency_that_of_the_pair() -> None:
    profile = replace(TWO_CORES, transfer_fixed_s=0.01)
    known = Knowledge(profile, Settings(slo_s=1.0, max_batch=8), Options())
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
    known = Knowledge(PROFILE, seen.settings, Options())
    room = Room([node("full", 0.5), node("n1", 1.0)])
    found = Tick(known, Options(), seen, seen.live).scale(room)
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
    assert scaled(seen, profile=serial, options=Options(fewer_shadow_cores=True)).created[0].pair.shadow_cores == 1


def test_memory_must_be_free_as_well() -> None:
    seen = observed([15.0], body("a"))
    private = Options(weight_mode="private")
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
    assert scaled(seen, profile=slow, options=Options(load_counts=True)).created == ()


def test_where_no_set_raises_r_max_there_is_no_shadow() -> None:
    # Handing a sample over and back takes 2 s.
    far = made_up_profile(MODEL, LATENCY_S, border_bytes=1000, transfer_seconds_per_byte=1e-3)
    assert scaled(observed([99.0], body("a")), profile=far).created == ()


def holding(seen: Observation, *requests: float) -> Observation:
    """The same with so many requests in the system in the last half seconds, oldest first."""
    return replace(seen, history=replace(seen.history, concurrency=requests))


def test_queue_that_cannot_end_in_time_is_a_burst() -> None:
    """14 requests that all have to end within a second take 14 rps, and the Body sustains 10."""
    seen = observed([9.0], body("a"))
    found = scaled(holding(seen, 14))
    assert [made.body for made in found.created] == ["a"]
    assert found.reason.startswith("burst of 14.00 rps, for 14 requests to end in 1000 ms, R_max 10.00: above γ = 1; a (1 core)")
    assert scaled(holding(seen, 14), options=Options(backlog=False)) == LayerLevel()


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
    literal = scaled(holding(calm, 15, 12), options=Options(backlog=False))
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
    early = Options(gamma=0.5)
    assert scaled(observed([6.0], body("a")), options=early).created
    there = (body("a", partner="s-a", pair=PAIR), shadow("a", PAIR))
    assert scaled(observed([6.0] * 4, *there), options=early).released == ()

"""Cores of a burst: Bodies grow for it and give them back (docs/decisions/0015), and nodes hold a reserve for Shadows."""

from dataclasses import replace

import pytest

from gnomon_autoscaler.policies.asyfunc import AsyFunc, Options, asyfunc
from gnomon_autoscaler.policies.asyfunc.lls import (
    ARRIVES_WITHIN_S,
    Growth,
    LayerLevel,
    best_growth,
    cores_before,
    grown_after,
    growths_in,
    overdue,
    pair_efficiency,
    refused_growths,
    whole_efficiency,
)
from gnomon_autoscaler.policies.asyfunc.mls import scale_out, so_many_more
from gnomon_autoscaler.policies.asyfunc.pairing import Knowledge
from gnomon_autoscaler.replica_policy import FreeCapacity
from gnomon_core.errors import GnomonError
from gnomon_core.fleet import Instance, InstanceKind, InstanceState
from gnomon_core.pairs import Pair
from gnomon_core.profiles import ModelProfile, Network
from gnomon_core.scaling import Action, CreateBody, CreateShadow, DestroyShadow, Observation, PolicyState, Resize, StateValue
from gnomon_core.settings import ScaleSettings, Settings, read_settings
from gnomon_platforms.local.nodes import LocalNode
from tests.made_up_models import made_up_profile
from tests.unit.autoscaler.asyfunc_stage import LATENCY_S, MB, MODEL, PROFILE, body, look, node, observed, partly_serial

# 10 rps on one core, 20 on two; and 13.3 on two where half of it is serial.
PARALLEL, SERIAL = partly_serial(0.0), partly_serial(0.5)
PRINTED = Options(kappa=1.0, printed_kappa=True)
RESIZE, EITHER = replace(PRINTED, burst_cores="resize"), replace(PRINTED, burst_cores="either")
BOTH = Pair(1, (0, 1), (0, 1, 1, 2, 2, 3, 3, 4))


def small_batches(rates_rps: list[float], *instances: Instance, max_batch: int = 4) -> Observation:
    return observed(rates_rps, *instances, max_batch=max_batch)


def scaled(
    seen: Observation, options: Options, model: ModelProfile = PARALLEL, *, free: float = 1, grown: dict[str, int] | None = None
) -> LayerLevel:
    return look(seen, options, node(cores=free), profile=model, grown=grown)


def test_a_body_grows_where_that_is_what_free_cores_are_for() -> None:
    found = scaled(small_batches([2.0, 15.0], body("a")), RESIZE)
    assert (found.created, found.resized) == ((), (Resize("a", 2),))
    assert found.reason == (
        "burst of 15.00 rps in 500 ms, R_max 10.00: above γ = 1; a grows from 1 core to 2 cores (b = 1 in 50 ms, η 12.5); "
        "R_max 20.00 then"
    )
    assert scaled(small_batches([2.0, 15.0], body("a")), PRINTED).resized == ()


def test_a_pair_and_a_larger_body_are_compared_as_wholes() -> None:
    """A batch of four takes either 0.2 s on two cores: 4/0.2·(1/2 + 1/8) = 12.5 against 4/0.2·(1/2 + 1/16) = 11.25.

    Where half of the work is serial the Body takes 0.3 s: 4/0.3·(1/2 + 1/8) = 8.33.
    """
    seen = small_batches([15.0], body("a"))
    assert scaled(seen, EITHER).resized == (Resize("a", 2),)
    found = scaled(seen, EITHER, SERIAL)
    assert (found.resized, [made.body for made in found.created]) == ((), ["a"])
    for model, larger_eta in ((PARALLEL, 12.5), (SERIAL, 25 / 3)):
        known = Knowledge(model, seen.settings, EITHER)
        larger = best_growth(known, EITHER, body("a"), 15.0, FreeCapacity([node(cores=1)]))
        assert larger.efficiency == pytest.approx(larger_eta)
        chosen = next(plan for plan in known.pairings.ranked(1, 1) if plan.pair.blocks == (0, 1) and plan.batch == 4)
        assert pair_efficiency(known, body("a"), chosen) == pytest.approx(11.25)
        assert whole_efficiency(known, body("a"), chosen.pair) == pytest.approx(11.25)


def test_growth_takes_free_cores_up_to_c_max() -> None:
    four = partly_serial(0.0, 4)
    seen = small_batches([99.0], body("a"), body("b"))
    assert scaled(seen, RESIZE, four, free=9).resized == (Resize("a", 4), Resize("b", 4))
    assert scaled(seen, RESIZE, four, free=2).resized == (Resize("a", 3),)
    assert scaled(seen, RESIZE, four, free=0.9).resized == ()
    assert "no room for anything that would help" in scaled(seen, RESIZE, four, free=0.9).reason
    assert scaled(small_batches([25.0], body("a"), body("b")), RESIZE, four, free=9).resized == (Resize("a", 4),)  # 50 rps


def test_no_cores_where_they_do_not_help() -> None:
    assert scaled(small_batches([99.0], body("a")), RESIZE, partly_serial(1.0)).resized == ()


def test_grown_body_may_grow_more_and_gets_no_shadow() -> None:
    four = partly_serial(0.9, 4)
    assert scaled(small_batches([99.0], body("a", 2)), EITHER, four, free=2, grown={"a": 1}).created == ()
    assert scaled(small_batches([99.0], body("a", 2)), EITHER, four, free=2).created
    assert scaled(small_batches([99.0], body("a", 2)), RESIZE, four, free=1, grown={"a": 1}).resized == (Resize("a", 3),)


def test_a_body_with_a_shadow_does_not_grow() -> None:
    shadow = body("s-a", kind=InstanceKind.SHADOW, partner="a", pair=BOTH)
    for state in (InstanceState.STARTING, InstanceState.READY, InstanceState.DRAINING):
        paired = small_batches([99.0], body("a"), replace(shadow, state=state))
        assert scaled(paired, RESIZE).resized == ()


def test_burst_cores_are_returned_after_n_calm_ticks() -> None:
    larger = body("a", 2)
    assert scaled(small_batches([15.0, 9.0, 9.0, 9.0], larger), RESIZE, grown={"a": 1}).resized == ()
    found = scaled(small_batches([15.0, 9.0, 9.0, 9.0, 9.0], larger), RESIZE, grown={"a": 1})
    assert found.resized == (Resize("a", 1),)
    assert "at most 9.00 rps for 2 s, R_max 10.00 without 1 larger Body" in found.reason
    # 15 rps are within 20 with the cores and above 10 without: neither more nor fewer.
    assert scaled(small_batches([15.0] * 8, larger), RESIZE, grown={"a": 1}) == LayerLevel()


def test_the_weakest_help_ends_first() -> None:
    """η of the pair 20·(1/2 + 1/16) = 11.25, of the larger Body 13.3·(1/2 + 1/8) = 8.33: 33.3 rps, 30 without what it grew by."""
    there = (
        body("a", partner="s-a", pair=BOTH),
        body("s-a", kind=InstanceKind.SHADOW, partner="a", pair=BOTH),
        body("b", 2),
    )
    decision = scaled(small_batches([25.0] * 4, *there, max_batch=8), EITHER, SERIAL, grown={"b": 1})
    assert (decision.resized, decision.released) == ((Resize("b", 1),), ())
    both = scaled(small_batches([20.0] * 4, *there, max_batch=8), EITHER, SERIAL, grown={"b": 1})
    assert (both.resized, both.released) == ((Resize("b", 1),), (DestroyShadow("s-a"),))
    assert "without 1 Shadow and 1 larger Body" in both.reason


def remembered(**growths: tuple[int, float | None]) -> dict[str, StateValue]:
    """The memory that a decision left."""
    return {name: {"before": before, "asked_at_s": asked_at_s} for name, (before, asked_at_s) in growths.items()}


def test_policy_remembers_only_existing_and_coming_cores() -> None:
    seen = small_batches([1.0], body("a", 2), body("b", 1, coming_cores=2), body("c", 4), body("d", 1))
    memory = {"grown": remembered(a=(1, 3.0), b=(1, 9.0), c=(2, None), d=(1, None), gone=(1, 9.0))}
    growths = growths_in(memory, seen)  # d has given its cores back
    assert growths == {"a": Growth(1, 3.0), "b": Growth(1, 9.0), "c": Growth(2, None)}
    assert cores_before(growths) == {"a": 1, "b": 1, "c": 2}
    assert growths_in({}, seen) == growths_in({"grown": (("a", 1), 5)}, seen) == {}
    actions = (Resize("a", 1), Resize("b", 3), Resize("c", 6), Resize("d", 2))
    after = grown_after(growths, actions, seen, {"c"})
    assert after == remembered(a=(1, None), b=(1, 9.0), d=(1, seen.now_s))
    assert growths_in({"grown": after}, seen).keys() == {"a", "b", "d"}, "a has its cores until they are gone"


def test_refused_cores_are_requested_again_later() -> None:
    """Of three that were to grow at 3 s the first is about to, the second has, and the third was refused."""
    seen = small_batches([1.0], body("a", 1, coming_cores=2), body("b", 2), body("c", 1))
    growths = {name: Growth(1, 3.0) for name in ("a", "b", "c")}
    assert refused_growths(growths, seen) == {"c"}
    again = grown_after(growths, [Resize(name, 3) for name in growths], seen, set())
    assert again == remembered(a=(1, 3.0), b=(1, 3.0), c=(1, seen.now_s))


def test_cores_are_waited_for_so_long_and_no_longer() -> None:
    seen = small_batches([1.0], body("a", 2), body("b", 1), body("c", 1), body("d", 1))
    long_ago_s = seen.now_s - ARRIVES_WITHIN_S
    growths = {"a": Growth(1, long_ago_s), "b": Growth(1, long_ago_s), "c": Growth(1, long_ago_s + 1), "d": Growth(1, None)}
    assert overdue(growths, seen) == (Resize("b", 1),)


def test_burst_cores_annotation_is_validated_and_sets_the_needed_capabilities() -> None:
    with pytest.raises(GnomonError, match="gnomon/burst-cores is 'bigger'") as refused:
        read_settings({}, {"gnomon/burst-cores": "bigger"})
    assert (refused.value.status, refused.value.hint) == (400, "It must be shadow, resize or either.")
    for text, needs in (("shadow", {"pair"}), ("resize", {"resize"}), ("either", {"pair", "resize"})):
        settings = read_settings({}, {"gnomon/autoscaler": "asyfunc", "gnomon/burst-cores": text})
        assert asyfunc(settings).needs == needs | {"place", "size"}


def test_a_shadow_is_chosen_as_before_where_bodies_may_not_grow() -> None:
    assert [type(action) for action in scaled(small_batches([15.0], body("a")), PRINTED).created] == [CreateShadow]


# On one core 10 rps, on two 20, on four 40.
LARGER = made_up_profile(
    MODEL, LATENCY_S, cores=(1, 2, 4), gmacs=4.0, overhead_bytes=100 * MB, border_bytes=MB, network=Network(0.01, 5e-9)
)
KNOWN = Knowledge(LARGER, Settings(slo_s=1.0, max_batch=8), PRINTED)
CALM, BURST = [5.0] * 19, [15.0]


def decided(rates_rps: list[float], held: LocalNode) -> tuple[Action, ...]:
    """The actions of `asyfunc` with one Body of one core on this node."""
    seen = observed(rates_rps, body("a", node=held.name), nodes=[held.value()])
    settings = replace(seen.settings, max_cores=1, scale=ScaleSettings(min=1, max=4))
    decision, _ = AsyFunc("asyfunc", PRINTED).decide(replace(seen, settings=settings, profile=PROFILE), PolicyState())
    return decision.actions


def test_a_burst_on_a_full_node_gets_the_core_that_is_held_for_it() -> None:
    """Two cores, one of them in reserve, one Body: nothing is free, and the Shadow that is asked for has room."""
    held = LocalNode((0, 1), 2, 10**12, "n1", reserved_cores=1.0)
    held.allocate("a", 1.0, 0, 1)
    assert held.value().free_cores == 0
    (shadow,) = decided(CALM + BURST, held)
    assert isinstance(shadow, CreateShadow)
    held.allocate("s", shadow.pair.shadow_cores, 100 * MB, 1, from_reserve=True)
    assert decided(CALM + BURST, held) == (), "it is in use"


def test_a_lasting_rise_on_a_full_node_gets_a_body_instead() -> None:
    held = LocalNode((0, 1), 2, 10**12, "n1", reserved_cores=1.0)
    held.allocate("a", 1.0, 0, 1)
    assert decided(BURST * 20, held) == (CreateBody(1, "n1"),)
    held.allocate("b", 1.0, 0, 1)
    assert held.value().reserve_cores == 0


def test_a_shadow_may_have_what_is_free_beside_the_reserve() -> None:
    for free, reserve, cores in ((1, 0, 1), (0, 2, 2), (1, 1, 2), (0.5, 1.5, 2)):
        found = look(observed([99.0] * 8, body("a")), PRINTED, node(cores=free, reserve=reserve), profile=LARGER)
        assert [made.pair.shadow_cores for made in found.created] == [cores]


def test_no_two_shadows_count_on_the_same_reserve() -> None:
    found = look(observed([99.0] * 8, body("a"), body("b")), PRINTED, node(cores=0, reserve=1))
    assert len(found.created) == 1
    found = look(observed([99.0] * 8, body("a"), body("b")), PRINTED, node(cores=1, reserve=1))
    assert len(found.created) == 2


def test_a_further_shadow_may_have_it() -> None:
    pair = Pair(1, (0, 1), (0, 1, 1, 2, 2, 3, 3, 4))
    there = [body("a", partner="s", pair=pair), body("s", kind=InstanceKind.SHADOW, partner="a", pair=pair)]
    for reserve, shadows in ((0, 0), (1, 1)):
        found = look(observed([99.0] * 8, *there), replace(PRINTED, max_shadows=2), node(cores=0, reserve=reserve))
        assert len(found.created) == shadows


def test_a_shadow_elsewhere_may_have_that_nodes() -> None:
    nodes = [node("full", 0), node("n2", 0.5), node("n3", 0, reserve=2)]
    found = look(observed([99.0] * 8, body("a", node="full"), nodes=nodes), PRINTED, *nodes, profile=LARGER)
    assert [(made.pair.node, made.pair.shadow_cores) for made in found.created] == [("n3", 2)]


def test_a_body_does_not_grow_by_it() -> None:
    assert best_growth(KNOWN, PRINTED, body("a"), 15.0, FreeCapacity([node(cores=0, reserve=2)])) is None
    assert best_growth(KNOWN, PRINTED, body("a"), 15.0, FreeCapacity([node(cores=1, reserve=2)])) is not None


@pytest.mark.parametrize("free", [4, 1])
def test_bodies_come_to_the_reserve_when_no_node_has_room_for_any(free: int) -> None:
    """The best size fits into n1's reserve at once; the room that n2 has, for a smaller one too, comes first."""
    capacity = FreeCapacity([node("n1", 0, reserve=4), node("n2", free)])
    made = so_many_more(KNOWN, capacity, rate_rps=10.0, count=3, memory_bytes=0)
    assert made == [CreateBody(free, "n2"), CreateBody(4, "n1"), CreateBody(4, None)]
    capacity = FreeCapacity([node("n1", 0, reserve=4), node("n2", free)])
    assert scale_out(KNOWN, PRINTED, capacity, rate_rps=999.0, rate_max_rps=0.0, memory_bytes=0) == made[:2]


def test_other_nodes_are_ordered_by_their_capacity_for_shadows() -> None:
    capacity = FreeCapacity([node("n1", 8), node("n2", 1), node("n3", 1, reserve=2), node("n4", 2)])
    assert capacity.other_nodes("n1") == ["n3", "n4", "n2"]


def test_a_body_leaves_of_the_reserve_what_it_does_not_need() -> None:
    capacity = FreeCapacity([node(cores=1, reserve=2)])
    capacity.take("n1", 2)
    assert (capacity.cores("n1"), capacity.shadow_cores("n1")) == (0, 1)
    capacity = FreeCapacity([node(cores=1, reserve=2)])
    capacity.take_for_shadow("n1", 1)
    assert (capacity.cores("n1"), capacity.shadow_cores("n1")) == (1, 2)
    capacity.take_for_shadow("n1", 2)
    assert (capacity.cores("n1"), capacity.shadow_cores("n1")) == (0, 0)

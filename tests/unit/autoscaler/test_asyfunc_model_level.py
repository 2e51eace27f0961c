"""Model-level scaling (docs/decisions/0011-mls.md): how many Bodies of which size, and which Shadows become one (0015)."""

from dataclasses import replace
from typing import Any

import pytest

from gnomon_autoscaler.policies.asyfunc import asyfunc
from gnomon_autoscaler.policies.asyfunc.mls import (
    as_bodies,
    best_batch,
    configurations,
    from_nothing,
    promotable,
    scale_in,
    scale_out,
    so_many_more,
)
from gnomon_autoscaler.policies.asyfunc.options import Options, asyfunc_options
from gnomon_autoscaler.policies.asyfunc.pairing import Knowledge
from gnomon_autoscaler.replica_policy import FreeCapacity
from gnomon_autoscaler.testing import MEMORY_BYTES, Timeline
from gnomon_core.errors import GnomonError
from gnomon_core.fleet import Instance, InstanceKind, InstanceState, Node
from gnomon_core.pairs import Pair
from gnomon_core.scaling import Action, CreateBody, History, Observation, PromoteShadow
from gnomon_core.settings import ScaleSettings, Settings, read_settings
from tests.made_up_models import BlockPlan, made_up_profile
from tests.timelines import play
from tests.unit.autoscaler.asyfunc_stage import LATENCY_S, MB, MODEL, kinds

OPTIONS = Options(kappa=1.0, printed_kappa=True)
ONE_BLOCK = (BlockPlan(1.0, 100_000_000),)
# 1, 2, 3, 4 samples on one core; half of it on two, a quarter on four. 2 GMACs are worth 2 cores at κ = 1.
PROFILE = made_up_profile(ONE_BLOCK, (0.2, 0.3, 0.4, 0.5), cores=(1, 2, 4), gmacs=2.0)
KNOWN = Knowledge(PROFILE, Settings(slo_s=0.5, max_batch=4), OPTIONS)


def sized_body(name: str, cores: int = 1, state: InstanceState = InstanceState.READY, started_s: float = 0.0) -> Instance:
    return Instance(name, "f.ns", 1, "n1", cores, 100, state, started_s)


def ended(bodies: list[Instance], rate_rps: float) -> list[str]:
    rates_rps = {each.id: KNOWN.rates.rate_rps(each.cores) for each in bodies}
    return [victim.id for victim in scale_in(KNOWN, OPTIONS, bodies, rates_rps, rate_rps)]


def capacity(**cores: int) -> FreeCapacity:
    return FreeCapacity([Node(name, 32, 10**12, free, 10**12) for name, free in cores.items()])


def test_a_batch_must_fill_and_end_within_the_objective() -> None:
    # At 10 rps, one core: two fill in 0.1 s and end after 0.4; three would end after 0.6.
    best = best_batch(KNOWN, 1, 10.0)
    assert (best.batch, best.efficiency) == (2, pytest.approx(2 / 0.3 + 2 / (2 * 0.3)))
    # R_max of such a Body is Eq. 1's, which looks at t_l alone: four in 0.5 s.
    assert best.rate_rps == pytest.approx(8.0)


def test_c_best_maximises_eta_over_cores_and_batches() -> None:
    # η: 10 on one core (b = 2), 15 on two (b = 3), 24 on four (b = 4).
    found = [(each.cores, each.batch, each.efficiency) for each in configurations(KNOWN, 10.0)]
    assert found == [(4, 4, pytest.approx(24)), (2, 3, pytest.approx(15)), (1, 2, pytest.approx(10))]


def test_without_a_rate_only_a_batch_of_one_fills() -> None:
    assert {each.batch for each in configurations(KNOWN, 0.0)} == {1}


@pytest.mark.parametrize(("unit", "cores"), [(1.0, 16), (1e9, 1)])
def test_the_unit_of_rho_m_decides_the_cores(unit: float, cores: int) -> None:
    """5 % serial: in GMACs 10 choose 16 cores, in MACs 10,000,000,000 choose 1. Hence κ."""
    amdahl = made_up_profile(ONE_BLOCK, (1.0,), cores=range(1, 17), serial_fraction=0.05, gmacs=10.0)
    options = Options(kappa=unit, printed_kappa=True)
    known = Knowledge(amdahl, Settings(slo_s=2.0), options)
    assert configurations(known, 1.0)[0].cores == cores


def test_kappa_follows_from_the_profile_and_the_objective() -> None:
    """Four samples of 2 GMACs in 0.5 s on one core: 0.0625 core-seconds per GMAC, an eighth of the SLO."""
    assert PROFILE.core_seconds_per_gmac() == pytest.approx(0.0625)
    settings = Settings(slo_s=0.5, max_batch=4)
    assert Knowledge(PROFILE, settings, asyfunc_options(settings)).kappa == pytest.approx(0.125)
    chosen = replace(settings, kappa=3.0)
    assert Knowledge(PROFILE, chosen, asyfunc_options(chosen)).kappa == 3.0


def test_the_sum_and_the_objective_move_in_opposite_directions() -> None:
    """The dearer memory, the fewer and larger Bodies Eq. 2 wants; line 7's sum wants small ones then."""
    amdahl = made_up_profile(ONE_BLOCK, (1.0,), cores=range(1, 17), serial_fraction=0.05, gmacs=10.0)

    def cores(kappa: float, *, objective: bool) -> int:
        known = Knowledge(amdahl, Settings(slo_s=2.0), Options(kappa=kappa, objective=objective, printed_kappa=True))
        return configurations(known, 1.0)[0].cores

    assert [cores(kappa, objective=False) for kappa in (0.1, 100.0)] == [16, 1]
    assert [cores(kappa, objective=True) for kappa in (0.1, 100.0)] == [4, 16]


def test_bodies_are_created_on_the_roomiest_node_until_the_rate_is_met() -> None:
    # One Body of four cores sustains 32 rps. 60 rps / 0.8 = 75: two, and then n2 has room for two cores only, the next best.
    made = scale_out(KNOWN, OPTIONS, capacity(n1=8, n2=3), rate_rps=60.0, rate_max_rps=0.0, memory_bytes=0)
    assert made == [CreateBody(4, "n1"), CreateBody(4, "n1"), CreateBody(2, "n2")]


def test_existing_bodies_count_towards_the_need() -> None:
    assert scale_out(KNOWN, OPTIONS, capacity(n1=8), rate_rps=6.4, rate_max_rps=8.0, memory_bytes=0) == []
    assert len(scale_out(KNOWN, OPTIONS, capacity(n1=8), rate_rps=6.5, rate_max_rps=8.0, memory_bytes=0)) == 1


def test_creation_ends_when_no_node_has_room() -> None:
    assert scale_out(KNOWN, OPTIONS, capacity(n1=1), rate_rps=1000.0, rate_max_rps=0.0, memory_bytes=0) == [CreateBody(1, "n1")]
    short = FreeCapacity([Node("n1", 32, 10**9, 32, 50)])
    assert scale_out(KNOWN, OPTIONS, short, rate_rps=10.0, rate_max_rps=0.0, memory_bytes=100) == []


def test_an_objective_out_of_reach_still_gets_the_quickest_body() -> None:
    known = Knowledge(PROFILE, Settings(slo_s=0.01, max_batch=4), OPTIONS)
    assert [(each.cores, each.batch) for each in configurations(known, 10.0)] == [(4, 1)]
    made = scale_out(known, OPTIONS, capacity(n1=8), rate_rps=30.0, rate_max_rps=0.0, memory_bytes=0)
    assert made == [CreateBody(4, "n1"), CreateBody(4, "n1")]  # 20 rps each, late as they are


def test_more_bodies_than_there_is_room_for_are_left_to_the_platform() -> None:
    made = so_many_more(KNOWN, capacity(n1=5), rate_rps=10.0, count=3, memory_bytes=0)
    assert made == [CreateBody(4, "n1"), CreateBody(1, "n1"), CreateBody(4, None)]


@pytest.mark.parametrize(("rate_rps", "victims"), [(9.7, 0), (9.0, 0), (6.5, 0), (6.4, 1), (0.1, 1)])
def test_two_equal_bodies_do_not_oscillate(rate_rps: float, victims: int) -> None:
    """At 9 rps two of 8 are above need, 9 < 0.6 · 16; read literally one ends, and 9 > 0.8 · 8 makes it again, for ever."""
    assert len(ended([sized_body("a"), sized_body("b")], rate_rps)) == victims


@pytest.mark.parametrize(("rate_rps", "victims"), [(13.0, 0), (12.8, 1), (6.4, 2)])
def test_three_equal_bodies_do_not_oscillate(rate_rps: float, victims: int) -> None:
    assert len(ended([sized_body("a"), sized_body("b"), sized_body("c")], rate_rps)) == victims


def test_without_a_rate_one_body_stays() -> None:
    assert len(ended([sized_body("a"), sized_body("b"), sized_body("c")], 0.0)) == 2


def test_scale_in_ends_the_least_efficient_body_that_is_not_needed() -> None:
    # 8 and 32 rps; η of the single core is the least. Without it 6 ≤ 25.6; the large one is then the last.
    assert ended([sized_body("large", 4), sized_body("small", 1)], 6.0) == ["small"]
    # One of 1 core, three of 2 (16 each): at 26 rps the single core goes, and no other.
    assert ended([sized_body("small", 1), *(sized_body(name, 2) for name in "abc")], 26.0) == ["small"]


def test_a_body_that_serves_does_not_end_for_one_that_still_loads() -> None:
    loading = sized_body("large", 4, InstanceState.STARTING)
    assert ended([sized_body("small", 1), loading], 7.0) == []
    assert ended([sized_body("small", 1), sized_body("large", 4)], 7.0) == ["small"]


def test_scale_in_ends_the_youngest_of_equal_bodies() -> None:
    assert ended([sized_body("old", started_s=1.0), sized_body("young", started_s=2.0)], 1.0) == ["young"]


def test_bodies_for_a_rate_without_any_existing_ones() -> None:
    assert [from_nothing(KNOWN, rate_rps, 0.8) for rate_rps in (0.0, 25.6, 25.7)] == [1, 1, 2]


# A Shadow of both halves makes 20 rps of a Body's 10.
HALVES = made_up_profile(MODEL, LATENCY_S, cores=(1, 2), serial_fraction=0.5, gmacs=4.0, overhead_bytes=100 * MB)
SETTINGS = Settings(
    autoscaler="asyfunc",
    slo_s=1.0,
    max_batch=8,
    max_cores=1,
    kappa=1.0,
    readings=("kappa",),
    promotion=True,
    scale=ScaleSettings(min=1, max=6),
)
PAIR = Pair(1, (0, 1), (0, 1, 1, 2, 2, 3, 3, 4))


def timeline(settings: Settings = SETTINGS, *, cores: int = 8, start_s: float = 0.5) -> Timeline:
    line = Timeline(settings, nodes=(("n1", cores),), start_s=start_s, profile=HALVES)
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
    said = [
        decision.reason for _, decision in line.decisions if any(isinstance(action, PromoteShadow) for action in decision.actions)
    ]
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
    [rising] = [instance for instance in line.instances.values() if instance.state is InstanceState.STARTING]
    del line.instances[rising.id]
    for body in line.instances.values():
        line.instances[body.id] = replace(body, partner=None, pair=None)
    assert play(line, 6) == 2


# Which ones


def instance(name: str, **fields: Any) -> Instance:
    return replace(Instance(name, "f.ns", 1, "n1", 1, 200 * MB, InstanceState.READY, 0.0), **fields)


def shadow(name: str, of: str, **fields: Any) -> Instance:
    return instance(name, **{"kind": InstanceKind.SHADOW, "partner": of, "pair": PAIR, "memory_bytes": 120 * MB, **fields})


def able(*instances: Instance, free_bytes: int = 10**12, max_cores: int = 1) -> list[str]:
    settings = replace(SETTINGS, max_cores=max_cores)
    nodes = (Node("n1", 8, 10**12, 0.0, free_bytes),)
    seen = Observation(10.0, "f.ns", settings, instances, nodes, 0, 0, 0.0, 0.0, History(0.5, 10.0))
    options = Options(promotion=True)
    return [instance.id for instance in promotable(Knowledge(HALVES, settings, options), options, seen, 10.0, 200 * MB)]


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
    known = Knowledge(HALVES, replace(SETTINGS, max_cores=2), OPTIONS)
    assert known.rates.rate_rps(2) > known.rates.rate_rps(1)


def test_the_rest_of_the_decision_sees_it_as_the_body_that_it_becomes() -> None:
    seen = Observation(
        10.0, "f.ns", SETTINGS, (instance("a"), shadow("s", "a")), (), 0, 0, 0.0, 0.0, History(0.5, 10.0)
    )  # fmt: skip
    after = as_bodies(seen, ["s"])
    assert ([instance.id for instance in after.live], after.shadows) == (["a", "s"], ())
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
    assert {instance.memory_bytes for instance in line.instances.values()} == {MEMORY_BYTES}
    actions: list[Action] = [action for _, decision in line.decisions for action in decision.actions]
    assert sum(isinstance(action, PromoteShadow) for action in actions) == 1


def test_dearer_memory_raises_the_weight_of_throughput_per_memory() -> None:
    """κ₀ = 0.125, so that ρ₀·m of 100 MB is 0.25 cores; four times κ₀ count the second term four times, as printed a quarter."""
    settings = Settings(slo_s=0.5, max_batch=4)
    found = {
        printed: best_batch(Knowledge(PROFILE, settings, Options(kappa=0.5, printed_kappa=printed)), 1, 10.0)
        for printed in (False, True)
    }
    assert found[False] is not None
    assert found[False].efficiency == pytest.approx(2 / 0.3 + 4 * 2 / (0.25 * 0.3))
    assert found[True] is not None
    assert found[True].efficiency == pytest.approx(2 / 0.3 + 2 / (0.25 * 0.3) / 4)
    calibrated = Knowledge(PROFILE, settings, Options())
    named = Knowledge(PROFILE, settings, Options(kappa=0.125))
    printed = Knowledge(PROFILE, settings, Options(kappa=0.125, printed_kappa=True))
    assert configurations(calibrated, 10.0) == configurations(named, 10.0) == configurations(printed, 10.0)

"""Algorithm 1 as docs/decisions/0011-mls.md settles it; each test is one of its worked examples."""

from dataclasses import replace

import pytest

from gnomon_autoscaler.policies.asyfunc.mls import (
    best_batch,
    configurations,
    from_nothing,
    scale_in,
    scale_out,
    so_many_more,
)
from gnomon_autoscaler.policies.asyfunc.options import Options, asyfunc_options
from gnomon_autoscaler.policies.asyfunc.pairing import Knowledge
from gnomon_autoscaler.replica_policy import Room
from gnomon_core.fleet import Instance, InstanceState, Node
from gnomon_core.scaling import CreateBody
from gnomon_core.settings import Settings
from tests.made_up_models import BlockPlan, made_up_profile

OPTIONS = Options()
MODEL = (BlockPlan(1.0, 100_000_000),)
# 1, 2, 3, 4 samples on one core; half of it on two, a quarter on four. 2 GMACs are worth 2 cores at κ = 1.
PROFILE = made_up_profile(MODEL, (0.2, 0.3, 0.4, 0.5), cores=(1, 2, 4), gmacs=2.0)
KNOWN = Knowledge(PROFILE, Settings(slo_s=0.5, max_batch=4), OPTIONS)


def body(name: str, cores: int = 1, state: InstanceState = InstanceState.READY, started_s: float = 0.0) -> Instance:
    return Instance(name, "f.ns", 1, "n1", cores, 100, state, started_s)


def ended(bodies: list[Instance], rate_rps: float) -> list[str]:
    rates_rps = {each.id: KNOWN.rates.rate_rps(each.cores) for each in bodies}
    return [victim.id for victim in scale_in(KNOWN, OPTIONS, bodies, rates_rps, rate_rps)]


def room(**cores: int) -> Room:
    return Room([Node(name, 32, 10**12, free, 10**12) for name, free in cores.items()])


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
    amdahl = made_up_profile(MODEL, (1.0,), cores=range(1, 17), serial_fraction=0.05, gmacs=10.0)
    options = Options(kappa=unit)
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
    amdahl = made_up_profile(MODEL, (1.0,), cores=range(1, 17), serial_fraction=0.05, gmacs=10.0)

    def cores(kappa: float, *, objective: bool) -> int:
        known = Knowledge(amdahl, Settings(slo_s=2.0), Options(kappa=kappa, objective=objective))
        return configurations(known, 1.0)[0].cores

    assert [cores(kappa, objective=False) for kappa in (0.1, 100.0)] == [16, 1]
    assert [cores(kappa, objective=True) for kappa in (0.1, 100.0)] == [4, 16]


def test_bodies_are_created_on_the_roomiest_node_until_the_rate_is_met() -> None:
    # One Body of four cores sustains 32 rps. 60 rps / 0.8 = 75: two, and then n2 has room for two cores only, the next best.
    made = scale_out(KNOWN, OPTIONS, room(n1=8, n2=3), rate_rps=60.0, rate_max_rps=0.0, memory_bytes=0)
    assert made == [CreateBody(4, "n1"), CreateBody(4, "n1"), CreateBody(2, "n2")]


def test_existing_bodies_count_towards_the_need() -> None:
    assert scale_out(KNOWN, OPTIONS, room(n1=8), rate_rps=6.4, rate_max_rps=8.0, memory_bytes=0) == []
    assert len(scale_out(KNOWN, OPTIONS, room(n1=8), rate_rps=6.5, rate_max_rps=8.0, memory_bytes=0)) == 1


def test_creation_ends_when_no_node_has_room() -> None:
    assert scale_out(KNOWN, OPTIONS, room(n1=1), rate_rps=1000.0, rate_max_rps=0.0, memory_bytes=0) == [CreateBody(1, "n1")]
    short = Room([Node("n1", 32, 10**9, 32, 50)])
    assert scale_out(KNOWN, OPTIONS, short, rate_rps=10.0, rate_max_rps=0.0, memory_bytes=100) == []


def test_an_objective_out_of_reach_still_gets_the_quickest_body() -> None:
    known = Knowledge(PROFILE, Settings(slo_s=0.01, max_batch=4), OPTIONS)
    assert [(each.cores, each.batch) for each in configurations(known, 10.0)] == [(4, 1)]
    made = scale_out(known, OPTIONS, room(n1=8), rate_rps=30.0, rate_max_rps=0.0, memory_bytes=0)
    assert made == [CreateBody(4, "n1"), CreateBody(4, "n1")]  # 20 rps each, late as they are


def test_more_bodies_than_there_is_room_for_are_left_to_the_platform() -> None:
    made = so_many_more(KNOWN, room(n1=5), rate_rps=10.0, count=3, memory_bytes=0)
    assert made == [CreateBody(4, "n1"), CreateBody(1, "n1"), CreateBody(4, None)]


@pytest.mark.parametrize(("rate_rps", "victims"), [(9.7, 0), (9.0, 0), (6.5, 0), (6.4, 1), (0.1, 1)])
def test_two_equal_bodies_do_not_come_and_go(rate_rps: float, victims: int) -> None:
    """At 9 rps two of 8 are above need, 9 < 0.6 · 16; read literally one ends, and 9 > 0.8 · 8 makes it again, for ever."""
    assert len(ended([body("a"), body("b")], rate_rps)) == victims


@pytest.mark.parametrize(("rate_rps", "victims"), [(13.0, 0), (12.8, 1), (6.4, 2)])
def test_nor_do_three(rate_rps: float, victims: int) -> None:
    assert len(ended([body("a"), body("b"), body("c")], rate_rps)) == victims


def test_without_a_rate_one_body_stays() -> None:
    assert len(ended([body("a"), body("b"), body("c")], 0.0)) == 2


def test_the_least_efficient_end_first_and_those_that_are_needed_are_passed_over() -> None:
    # 8 and 32 rps; η of the single core is the least. Without it 6 ≤ 25.6; the large one is then the last.
    assert ended([body("large", 4), body("small", 1)], 6.0) == ["small"]
    # One of 1 core, three of 2 (16 each): at 26 rps the single core goes, and no other.
    assert ended([body("small", 1), *(body(name, 2) for name in "abc")], 26.0) == ["small"]


def test_a_body_that_serves_does_not_end_for_one_that_still_loads() -> None:
    loading = body("large", 4, InstanceState.STARTING)
    assert ended([body("small", 1), loading], 7.0) == []
    assert ended([body("small", 1), body("large", 4)], 7.0) == ["small"]


def test_of_equal_ones_the_youngest_ends() -> None:
    assert ended([body("old", started_s=1.0), body("young", started_s=2.0)], 1.0) == ["young"]


def test_from_nothing_a_rate_has_so_many() -> None:
    assert [from_nothing(KNOWN, rate_rps, 0.8) for rate_rps in (0.0, 25.6, 25.7)] == [1, 1, 2]

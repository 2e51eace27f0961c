"""R_max and η of AsyFunc, worked by hand."""

import pytest

from gnomon_autoscaler.policies.asyfunc.pairing import Efficiency, Rates, sustained
from gnomon_core.pairs import Pair, best_split
from tests.made_up_models import BlockPlan, made_up_profile

MB = 10**6
HALVES = (BlockPlan(0.5, 20 * MB), BlockPlan(0.5, 80 * MB))
LATENCY_S = (0.2, 0.3, 0.4, 0.5)


def test_r_max_of_a_body_is_the_best_batch_that_ends_in_time() -> None:
    # 5, 6.67, 7.5 and 8 rps; the objective of 0.45 s leaves out the batch of four.
    assert sustained(LATENCY_S, 0.5).rate_rps == pytest.approx(8.0)
    found = sustained(LATENCY_S, 0.45)
    assert (found.rate_rps, found.batch) == (pytest.approx(7.5), 3)


def test_every_batch_is_looked_at_because_throughput_need_not_rise_with_it() -> None:
    # Algorithm 1 breaks off at the largest timely batch, which is 6.67 rps here.
    assert sustained((0.2, 0.25, 0.45), 0.5) == sustained((0.2, 0.25, 0.45), 0.25 + 0.2)
    assert sustained((0.2, 0.25, 0.45), 0.5).batch == 2


def test_a_body_without_a_timely_batch_sustains_nothing() -> None:
    profile = made_up_profile(HALVES, LATENCY_S, cores=(1, 2))
    rates = Rates(profile, 0.15, 4, 16)
    assert (rates.rate_rps(1), rates.rate_rps(2)) == (0.0, pytest.approx(2 / 0.15))
    assert not rates.out_of_reach


def test_where_no_number_of_cores_is_timely_a_body_counts_with_what_it_serves_one_by_one() -> None:
    rates = Rates(made_up_profile(HALVES, LATENCY_S, cores=(1, 2)), 0.05, 4, 16)
    assert rates.out_of_reach
    assert (rates.rate_rps(1), rates.rate_rps(2)) == (pytest.approx(5.0), pytest.approx(10.0))


def test_cores_that_the_profile_does_not_know_are_no_choice() -> None:
    rates = Rates(made_up_profile(HALVES, LATENCY_S, cores=(1, 2, 8)), 0.5, 4, max_cores=4)
    assert rates.cores == (1, 2)
    assert rates.body(3) is None
    assert rates.rate_rps(3) == 0.0


def test_a_pair_counts_with_its_own_latency() -> None:
    # Both halves of the model with half of the batch each: four in 0.3 s, which is what two take alone. 13.3 rps, not 8.
    profile = made_up_profile(HALVES, LATENCY_S)
    both = Pair(1, (0, 1), best_split(profile, (1, 1), (0, 1), 4))
    rates = Rates(profile, 0.5, 4, 16)
    assert both.split == (0, 1, 1, 2)
    assert rates.rate_rps(1, both) == pytest.approx(4 / 0.3)
    # Only the first half: 0.25 s for four of its own second half, 0.15 s for the halved first.
    first = Pair(1, (0,), best_split(profile, (1, 1), (0,), 4))
    assert rates.rate_rps(1, first) == pytest.approx(4 / 0.4)


def test_eta_is_throughput_per_core_and_per_memory_in_cores() -> None:
    profile = made_up_profile(HALVES, LATENCY_S, gmacs=4.0, overhead_bytes=50 * MB)
    # 4 GMACs for 100 MB: 150 MB are worth 6 cores at κ = 1.
    efficiency = Efficiency.of(profile, 1.0)
    assert efficiency.memory_cores(100 * MB) == pytest.approx(6.0)
    assert efficiency.at(8, 0.5, 2, 100 * MB) == pytest.approx(8 / (2 * 0.5) + 8 / (6 * 0.5))
    assert Efficiency.of(profile, 1.0, overhead_counts=False).memory_cores(100 * MB) == pytest.approx(4.0)
    assert Efficiency.of(profile, 1.0, objective=True).at(8, 0.5, 2, 100 * MB) == pytest.approx(16 / 8)


def test_memory_costs_nothing_where_a_model_has_no_parameters() -> None:
    profile = made_up_profile((BlockPlan(1.0, 0),), LATENCY_S)
    assert Efficiency.of(profile, 1.0).at(2, 0.5, 4, 0) == pytest.approx(1.0)

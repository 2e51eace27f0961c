"""Arrival processes, their fit, and when to fit again."""

import json
import math
import time
from pathlib import Path

import numpy as np
import pytest

from benchmarks.simulation.markov import markov_arrivals
from gnomon_core.errors import GnomonError
from gnomon_planner.changes import Change, ChangeRule, CusumState, Reference, detect_change
from gnomon_planner.fit import POISSON, fit
from gnomon_planner.map_families import (
    Chain,
    Shape,
    chains_of,
    decay_for,
    map2,
    mmpp2,
    mmpp_of_counts,
    skewness_bounds,
    with_skewness,
)
from gnomon_planner.maps import Counting, Map
from gnomon_planner.numerics import expm_generator, interpolated, stationary_of
from gnomon_planner.samples import Estimate, Sample, sample_of_counts, sample_of_times, statistics_of_map
from tests.processes import is_mmpp, superposed
from tests.refusals import refused

W16 = Map.mmpp2((10.0, 200.0), (0.01, 0.01))


def erlang(steps: int, rate: float) -> Map:
    d0 = rate * (np.eye(steps, k=1) - np.eye(steps))
    d1 = np.zeros((steps, steps))
    d1[-1, 0] = rate
    return Map(d0, d1)


def test_a_poisson_process_has_the_numbers_of_one() -> None:
    poisson = Map.poisson(50.0)
    assert poisson.rate_rps == pytest.approx(50.0)
    assert poisson.moments(3) == pytest.approx([1 / 50, 2 / 50**2, 6 / 50**3])
    assert (poisson.scv, poisson.skewness) == (pytest.approx(1.0), pytest.approx(2.0))
    assert poisson.autocorrelation(1) == pytest.approx(0.0, abs=1e-12)
    assert poisson.dispersion() == pytest.approx(1.0)
    assert poisson.dispersion(3.0) == pytest.approx(1.0)


def test_erlang_gaps_are_regular() -> None:
    process = erlang(4, 8.0)
    assert process.rate_rps == pytest.approx(2.0)
    assert process.scv == pytest.approx(1 / 4)
    assert process.skewness == pytest.approx(2 / math.sqrt(4))
    # A renewal process's counts disperse as its gaps vary.
    assert process.dispersion() == pytest.approx(1 / 4)
    assert process.autocorrelation(3) == pytest.approx(0.0, abs=1e-12)


def test_an_mmpp_has_the_dispersion_of_its_formula() -> None:
    # I(∞) = 1 + 2·π1·π2·(λ1 − λ2)²/((ω1 + ω2)·λ)
    assert W16.dispersion() == pytest.approx(1 + 2 * 0.25 * 190**2 / (0.02 * 105))
    # I(t) = 1 + (I(∞) − 1)·(1 − (1 − e^(−rt))/(rt)) with r = ω1 + ω2
    x = 0.02 * 60.0
    assert W16.dispersion(60.0) == pytest.approx(1 + (W16.dispersion() - 1) * (1 - (1 - math.exp(-x)) / x))


def test_the_phase_at_an_arrival_is_more_often_the_busy_one() -> None:
    assert W16.stationary == pytest.approx([0.5, 0.5])
    assert W16.embedded == pytest.approx([10 / 210, 200 / 210])


def test_correlations_of_two_phases_fall_geometrically() -> None:
    first, second, third = (W16.autocorrelation(lag) for lag in (1, 2, 3))
    assert second / first == pytest.approx(third / second)
    assert W16.autocorrelation(1) < (1 - 1 / W16.scv) / 2


def test_superposition_adds_rates_and_variances() -> None:
    both = superposed(W16, Map.poisson(95.0))
    assert both.rate_rps == pytest.approx(200.0)
    # Var = 105·I(t) + 95
    assert both.dispersion(10.0) == pytest.approx((105 * W16.dispersion(10.0) + 95) / 200)


def test_another_tempo_leaves_the_shape() -> None:
    slow = W16.rescaled(1.0)
    assert slow.rate_rps == pytest.approx(1.0)
    assert slow.scv == pytest.approx(W16.scv)
    assert slow.skewness == pytest.approx(W16.skewness)
    assert slow.autocorrelation(5) == pytest.approx(W16.autocorrelation(5))
    assert slow.dispersion() == pytest.approx(W16.dispersion())


def test_half_of_the_requests_are_half_as_many_and_half_as_bursty() -> None:
    half = W16.thinned(0.5)
    assert half == Map.mmpp2((5.0, 100.0), (0.01, 0.01))
    assert half.rate_rps == pytest.approx(52.5)
    assert half.dispersion() == pytest.approx(1 + (W16.dispersion() - 1) / 2)


@pytest.mark.parametrize("share", [0.0, -0.5, 1.1, math.nan, math.inf])
def test_a_share_of_none_or_of_more_than_there_are_is_refused(share: float) -> None:
    with refused(code="bad_share", match=f"share {share} of"):
        W16.thinned(share)


def test_requests_that_a_coin_keeps_are_as_the_thinned_process_says() -> None:
    """Drawn from the whole process and kept by chance, against the thinned one's moments."""
    process, rng = Map.mmpp2((10.0, 120.0), (2.0, 5.0)), np.random.default_rng(6)
    times = markov_arrivals(process, 400_000, rng)
    kept = sample_of_times(times[rng.random(len(times)) < 0.25])
    thinned = process.thinned(0.25)
    assert kept.rate_rps == pytest.approx(thinned.rate_rps, rel=0.02)
    assert kept.gaps.scv.value == pytest.approx(thinned.scv, rel=0.03)
    assert kept.gaps.correlations[0].value == pytest.approx(thinned.autocorrelation(1), abs=0.01)


def test_a_map_survives_json() -> None:
    again = Map.from_json(json.loads(json.dumps(W16.to_json())))
    assert again == W16
    assert hash(again) == hash(W16)
    assert again != Map.poisson(105.0)


def test_published_maps_are_read_though_they_were_rounded() -> None:
    # Twitter's hour 4 as BATCH published it: −9.517349 + 0.039149 + 9.4782 = 0, the second row too.
    hour = Map.from_json({"D0": [[-9.517349, 0.0], [0.0, -43.831124]], "D1": [[0.039149, 9.4782], [0.00319, 43.827934]]})
    assert np.abs((hour.D0 + hour.D1).sum(axis=1)).max() < 1e-12
    assert hour.rate_rps == pytest.approx(43.82, rel=1e-3)


@pytest.mark.parametrize(
    ("d0", "d1", "words"),
    [
        ([[-1.0]], [[2.0]], "sums to"),
        ([[-1.0, 0.0]], [[1.0, 0.0]], "shapes"),
        ([[float("nan")]], [[1.0]], "NaN"),
        ([[-1.0, 1.0], [-1.0, -1.0]], [[0.0, 0.0], [1.0, 1.0]], "negative"),
        ([[-1.0, 0.0], [0.0, -1.0]], [[1.0, 0.0], [0.0, 1.0]], "reached"),
        ([[-1.0, 1.0], [1.0, -1.0]], [[0.0, 0.0], [0.0, 0.0]], "There are no arrivals"),
        ([[0.0]], [[0.0]], "never left"),
        ([["a"]], [[1.0]], "not matrices"),
        ([[-1e300]], [[1e300]], "largest rate of 1e.300"),
        ([[-1e-300]], [[1e-300]], "largest rate of 1e-300"),
    ],
)
def test_invalid_map_is_refused_with_the_reason(d0: object, d1: object, words: str) -> None:
    with refused(code="bad_map", match=words):
        Map.from_json({"D0": d0, "D1": d1})


def test_a_number_that_is_too_large_is_refused_as_well() -> None:
    with pytest.raises(GnomonError, match="not matrices of numbers"):
        Map.from_json({"D0": [[-(10**400)]], "D1": [[10**400]]})


@pytest.mark.parametrize("document", [None, [], {"D0": [[-1.0]]}])
def test_a_document_without_matrices_is_refused(document: object) -> None:
    with pytest.raises(GnomonError, match="missing"):
        Map.from_json(document)


def test_a_map_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="read-only"):
        W16.D0[0, 0] = 5.0


@pytest.mark.parametrize("time_s", [0.0, 1e-6, 0.3, 50.0, 1e5])
def test_the_exponential_of_two_states_is_known(time_s: float) -> None:
    generator = np.array([[-2.0, 2.0], [0.5, -0.5]])
    fade = math.exp(-2.5 * time_s)
    expected = np.array([[0.2 + 0.8 * fade, 0.8 - 0.8 * fade], [0.2 - 0.2 * fade, 0.8 + 0.2 * fade]])
    assert expm_generator(generator, time_s) == pytest.approx(expected, rel=1e-9)


def test_stationary_distributions_keep_their_digits() -> None:
    stiff = np.array([[-1e-9, 1e-9, 0.0], [1.0, -1e6 - 1.0, 1e6], [1e-3, 0.0, -1e-3]])
    theta = stationary_of(stiff)
    assert theta @ stiff == pytest.approx(np.zeros(3), abs=1e-15)
    assert theta.sum() == pytest.approx(1.0)
    assert (theta > 0).all()


def test_the_planner_imports_without_torch_or_scipy() -> None:
    import subprocess  # noqa: PLC0415
    import sys  # noqa: PLC0415

    code = "import sys, pkgutil, importlib, gnomon_planner as p\n"
    code += "[importlib.import_module(m.name) for m in pkgutil.walk_packages(p.__path__, 'gnomon_planner.')]\n"
    code += "assert not {'torch', 'scipy'} & set(sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=Path(__file__).parent)
    assert done.returncode == 0, done.stderr


def exactly(process: Map, duration_s: float = 1e6) -> Sample:
    """The sample that a process would give if there were no chance."""
    windows = tuple(2.0**power for power in range(12))
    dispersions = tuple(Estimate(process.dispersion(window_s), 0.01) for window_s in windows)
    return Sample(process.rate_rps * duration_s, duration_s, windows, dispersions, (0.0,) * len(windows))


def test_chain_matches_variance_and_rate_of_the_process() -> None:
    process = Map.mmpp2((40.0, 60.0), (0.01, 0.01))
    (chain,) = chains_of(exactly(process), 1) or ()
    assert chain.variance == pytest.approx(100.0, rel=0.1)
    assert chain.pace_per_s == pytest.approx(0.02, rel=0.3)


def test_two_chains_have_the_curve_of_two_processes() -> None:
    process = superposed(Map.mmpp2((10.0, 60.0), (0.5, 0.5)), Map.mmpp2((20.0, 30.0), (0.002, 0.002)))
    found = mmpp_of_counts(exactly(process), 2)
    assert (found.order, is_mmpp(found)) == (4, True)
    for window_s in (1.0, 8.0, 100.0, 2000.0):
        assert found.dispersion(window_s) == pytest.approx(process.dispersion(window_s), rel=0.05)


@pytest.mark.parametrize("skewness", [-3.0, 0.0, 3.0])
def test_a_chain_has_the_mean_variance_and_skewness_it_is_asked_for(skewness: float) -> None:
    process = with_skewness(50.0, (Chain(25.0, 0.1),), skewness)
    rates, theta = process.D1.diagonal(), process.stationary
    mean = float(theta @ rates)
    variance = float(theta @ (rates - mean) ** 2)
    assert mean == pytest.approx(50.0)
    assert variance == pytest.approx(25.0)
    assert float(theta @ (rates - mean) ** 3) / variance**1.5 == pytest.approx(skewness, abs=1e-9)


def test_a_variance_too_large_for_the_mean_is_made_of_rare_bursts() -> None:
    # A deviation of 10 around a mean of 1 cannot be symmetric: no rate is negative.
    process = with_skewness(1.0, (Chain(100.0, 0.1), Chain(4.0, 2.0)), 0.0)
    assert process.rate_rps == pytest.approx(1.0)
    assert process.D1.min() >= 0.0
    theta, rates = process.stationary, process.D1.diagonal()
    assert float(theta @ (rates - 1.0) ** 2) == pytest.approx(104.0)


def test_a_poisson_trace_asks_for_hardly_any_modulation() -> None:
    sample = sample_of_counts(np.random.default_rng(8).poisson(50.0, 2000), 1.0)
    found = mmpp_of_counts(sample, 1)
    assert found is None or found.dispersion(30.0) < 1.6


def test_a_trace_too_short_for_a_pace_has_none() -> None:
    assert mmpp_of_counts(sample_of_counts([3.0, 4.0, 5.0] * 7, 1.0), 1) is None


MMPPS = [
    Map.mmpp2((10.0, 200.0), (0.01, 0.01)),
    Map.mmpp2((10.0, 120.0), (0.05, 0.05)),
    Map.mmpp2((5.0, 0.1), (1.0, 3.0)),
    Map.mmpp2((52.0, 60.0), (0.002, 0.02)),
]
# BATCH's hour 13 of Twitter and its synthetic W21: a renewal-like MAP, and one with negative correlation.
MAPS = [
    Map.from_json({"D0": [[-44.757515, 0.0], [0.0, -92.659377]], "D1": [[44.527356, 0.23016], [92.044566, 0.61481]]}),
    Map.from_json({"D0": [[-10.1, 0.0], [0.0, -202.0]], "D1": [[0.1, 10.0], [200.0, 2.0]]}),
    Map.from_json({"D0": [[-10.0, 6.0], [0.0, -10.0]], "D1": [[4.0, 0.0], [3.0, 7.0]]}),
]


def shape_of(process: Map) -> Shape:
    return Shape(process.scv, process.skewness, process.autocorrelation(2) / process.autocorrelation(1))


@pytest.mark.parametrize("process", [*MMPPS, *MAPS])
def test_a_process_of_two_phases_is_found_again(process: Map) -> None:
    wanted = shape_of(process)
    found, has = map2(process.mean_s, wanted)
    assert has.scv == pytest.approx(wanted.scv)
    assert found.moments(3) == pytest.approx(process.moments(3), rel=1e-6)
    for lag in (1, 2, 7):
        assert found.autocorrelation(lag) == pytest.approx(process.autocorrelation(lag), rel=1e-5, abs=1e-10)
    assert found.dispersion(0.1) == pytest.approx(process.dispersion(0.1), rel=1e-5)


@pytest.mark.parametrize("process", MMPPS)
def test_an_mmpp_is_found_again_with_its_very_rates(process: Map) -> None:
    found, _ = mmpp2(process.mean_s, shape_of(process))
    assert is_mmpp(found)
    assert sorted(found.D1.diagonal()) == pytest.approx(sorted(process.D1.diagonal()), rel=1e-5, abs=1e-6)
    assert sorted([found.D0[0, 1], found.D0[1, 0]]) == pytest.approx(sorted([process.D0[0, 1], process.D0[1, 0]]), rel=1e-4)


def test_decay_and_lag_1_say_the_same() -> None:
    shape = Shape(4.0, 5.0, 0.8)
    assert shape.lag1 == pytest.approx(0.8 * 0.75 / 2)
    assert decay_for(4.0, shape.lag1) == pytest.approx(0.8)


def test_regular_gaps_are_raised_to_what_two_phases_can_have() -> None:
    found, has = map2(2.0, Shape(0.1, 1.0))
    assert found.mean_s == pytest.approx(2.0)
    assert found.scv == pytest.approx(0.5, rel=1e-6)
    assert has.scv == pytest.approx(0.5, rel=1e-6)


def test_a_skewness_out_of_reach_is_moved_to_its_bound() -> None:
    low, high = skewness_bounds(0.7)
    assert map2(1.0, Shape(0.7, 9.0))[0].skewness == pytest.approx(high, rel=1e-6)
    assert map2(1.0, Shape(0.7, -9.0))[0].skewness == pytest.approx(low, rel=1e-6)
    low, _ = skewness_bounds(4.0)
    assert map2(1.0, Shape(4.0, 0.0))[0].skewness == pytest.approx(low, rel=1e-6)


def test_a_phase_rarer_than_any_trace_could_show_is_not_taken() -> None:
    found, has = map2(1.0, Shape(1.0156, 4e5))
    assert has.skewness < 4e5
    assert found.skewness == pytest.approx(has.skewness, rel=1e-3)
    assert found.scv == pytest.approx(1.0156, rel=1e-5)


def test_a_correlation_out_of_reach_is_moved_to_its_bound() -> None:
    found, has = map2(1.0, Shape(3.0, 4.0, -0.9))
    assert -0.9 < has.decay < 0.0
    assert found.autocorrelation(1) == pytest.approx(has.lag1, rel=1e-6)
    assert found.scv == pytest.approx(3.0)


def test_without_variation_or_correlation_an_mmpp_is_poisson() -> None:
    assert mmpp2(0.5, Shape(0.9, 2.0, 0.3))[0] == Map.poisson(2.0)
    assert mmpp2(0.5, Shape(2.0, 3.0, 0.0))[0] == Map.poisson(2.0)


@pytest.mark.parametrize(
    ("mean_s", "shape"), [(0.0, Shape(1.0, 2.0)), (float("inf"), Shape(1.0, 2.0)), (1.0, Shape(float("nan"), 2.0))]
)
def test_moments_that_are_none_are_refused(mean_s: float, shape: Shape) -> None:
    with pytest.raises(GnomonError, match="finite"):
        map2(mean_s, shape)


BURSTY = Map.mmpp2((10.0, 200.0), (2.0, 2.0))


def test_a_poisson_trace_gets_one_phase() -> None:
    for seed in range(5):
        times = np.cumsum(np.random.default_rng(seed).exponential(0.02, 30_000))
        fitted = fit(sample_of_times(times))
        assert fitted.chosen.family == POISSON
        assert fitted.process.rate_rps == pytest.approx(29_999 / (times[-1] - times[0]))


def test_counts_of_a_poisson_process_get_one_phase() -> None:
    for seed in range(20):
        assert fit(sample_of_counts(np.random.default_rng(seed).poisson(50.0, 3600), 1.0)).chosen.family == POISSON


def test_a_bursty_trace_gets_the_moments_of_the_trace() -> None:
    sample = sample_of_times(markov_arrivals(BURSTY, 200_000, np.random.default_rng(5)))
    process = fit(sample).process
    assert sample.gaps is not None
    assert process.order == 2
    assert process.rate_rps == pytest.approx(sample.rate_rps)
    assert process.scv == pytest.approx(sample.gaps.scv.value, rel=0.05)
    assert process.autocorrelation(1) == pytest.approx(sample.gaps.correlations[0].value, rel=0.05)
    assert process.scv == pytest.approx(BURSTY.scv, rel=0.05)
    assert process.dispersion() == pytest.approx(BURSTY.dispersion(), rel=0.25)


def test_two_paces_get_more_than_two_phases() -> None:
    both = superposed(Map.mmpp2((0.0, 120.0), (20.0, 30.0)), Map.mmpp2((5.0, 90.0), (0.05, 0.05)))
    fitted = fit(sample_of_times(markov_arrivals(both, 200_000, np.random.default_rng(9))))
    assert fitted.process.order in (4, 8)
    assert fitted.process.dispersion(1.0) == pytest.approx(both.dispersion(1.0), rel=0.15)
    best_pair = min(each.misfit.total for each in fitted.considered if each.process.order == 2)
    assert fitted.chosen.misfit.total < best_pair / 2


def test_counts_are_fitted_as_counts() -> None:
    times = markov_arrivals(Map.mmpp2((40.0, 80.0), (0.02, 0.02)), 180_000, np.random.default_rng(2))
    counts = np.bincount(times.astype(int)).astype(float)[:-1]
    fitted = fit(sample_of_counts(counts, 1.0))
    assert fitted.chosen.family == "MMPP(2) of counts"
    assert sorted(fitted.process.D1.diagonal()) == pytest.approx([40.0, 80.0], rel=0.12)
    assert fitted.process.rate_rps == pytest.approx(counts.mean())


def test_an_hour_of_counts_by_the_minute_is_as_bursty_as_they_are() -> None:
    """Two windows fit into 60 bins: few to tell a pace from, and enough to tell that it is no Poisson process."""
    counts = np.random.default_rng(3).integers(0, 91, 60).astype(float)
    sample = sample_of_counts(counts, 60.0)
    fitted = fit(sample)
    assert sample.dispersions[0].value > 10.0
    assert fitted.process.dispersion(60.0) == pytest.approx(sample.dispersions[0].value, rel=0.1)


def test_twenty_counts_have_one_window_and_are_fitted_by_it() -> None:
    counts = np.random.default_rng(4).integers(0, 91, 20).astype(float)
    sample = sample_of_counts(counts, 60.0)
    assert len(sample.windows_s) == 1
    assert fit(sample).process.dispersion(60.0) == pytest.approx(sample.dispersions[0].value, rel=0.05)


def test_counts_that_vary_alike_in_all_windows_wander_within_a_bin() -> None:
    counts = np.random.default_rng(5).negative_binomial(12, 0.3, 1440).astype(float)
    sample = sample_of_counts(counts, 60.0)
    fitted = fit(sample)
    for window_s, found in zip(sample.windows_s[:4], sample.dispersions, strict=False):
        assert fitted.process.dispersion(window_s) == pytest.approx(found.value, rel=0.2)


def test_single_burst_is_not_fitted_as_poisson() -> None:
    """The burst makes most of I(w), whose own deviation is then as large as its value: it proves nothing."""
    counts = np.random.default_rng(6).poisson(50.0, 3600).astype(float)
    counts[1800:1860] *= 3.0
    fitted = fit(sample_of_counts(counts, 1.0))
    assert fitted.chosen.family != POISSON
    assert max(fitted.process.D1.diagonal()) > 100.0


def test_equal_gaps_get_the_most_regular_process_and_a_word() -> None:
    fitted = fit(sample_of_times([0.01 * index for index in range(5000)]))
    assert fitted.process.scv == pytest.approx(1 / 8)
    assert fitted.process.rate_rps == pytest.approx(100.0)
    assert any("more regular" in note for note in fitted.notes)


@pytest.mark.parametrize("times", [[0.0, 2.0], [0.0, 0.0, 4.0], list(range(20))])
def test_few_arrivals_get_a_rate_and_a_word(times: list[float]) -> None:
    fitted = fit(sample_of_times(times))
    assert fitted.process == Map.poisson((len(times) - 1) / times[-1])
    said = f"{len(times) - 1} arrivals or gaps say how quickly requests arrive, not how evenly: Poisson."
    assert fitted.notes == (said,), "three gaps are neither regular nor far from any process"
    assert fitted.chosen.misfit.total == 0.0


def test_bursts_of_equal_time_stamps_are_fitted() -> None:
    times = np.repeat(np.cumsum(np.random.default_rng(1).exponential(1.0, 1000)), 10)
    fitted = fit(sample_of_times(times))
    assert fitted.process.rate_rps == pytest.approx(10.0, rel=0.1)
    assert fitted.process.scv > 10.0
    assert -fitted.process.D0.diagonal().min() < 1e5


def test_a_fit_is_a_document_that_is_read_as_its_map() -> None:
    fitted = fit(sample_of_times(markov_arrivals(BURSTY, 5000, np.random.default_rng(5))))
    document = json.loads(json.dumps(fitted.to_json(), allow_nan=False))
    assert Map.from_json(document) == fitted.process
    assert document["phases"] == fitted.process.order


def test_an_hour_is_fitted_in_less_than_a_second() -> None:
    times = markov_arrivals(Map.mmpp2((40.0, 60.0), (0.01, 0.01)), 180_000, np.random.default_rng(1))
    begun_s = time.process_time()
    fit(sample_of_times(times))
    assert time.process_time() - begun_s < 1.0


def poisson_times(seed: int, count: int = 20_000, rate: float = 50.0) -> list[float]:
    return np.cumsum(np.random.default_rng(seed).exponential(1 / rate, count)).tolist()


def test_a_poisson_trace_looks_like_one() -> None:
    sample = sample_of_times(poisson_times(1))
    assert sample.rate_rps == pytest.approx(50.0, rel=0.02)
    for found, expected in ((sample.gaps.scv, 1.0), (sample.gaps.skewness, 2.0), *((c, 0.0) for c in sample.gaps.correlations)):
        assert abs(found.value - expected) < 4 * found.deviation
    for dispersion in sample.dispersions:
        assert abs(dispersion.value - 1.0) < 4 * dispersion.deviation


def test_deviations_are_those_of_repeated_samples() -> None:
    samples = [sample_of_times(poisson_times(seed, 4000)) for seed in range(40)]
    scvs = [sample.gaps.scv for sample in samples if sample.gaps]
    spread = float(np.std([estimate.value for estimate in scvs]))
    assert float(np.mean([estimate.deviation for estimate in scvs])) == pytest.approx(spread, rel=0.4)
    dispersions = [sample.dispersions[5] for sample in samples]
    spread = float(np.std([estimate.value for estimate in dispersions]))
    assert float(np.mean([estimate.deviation for estimate in dispersions])) == pytest.approx(spread, rel=0.4)


def test_equal_gaps_do_not_vary() -> None:
    sample = sample_of_times([0.1 * index for index in range(1000)])
    assert sample.rate_rps == pytest.approx(10.0)
    assert sample.gaps.scv.value == 0.0
    assert sample.gaps.correlations[0].value == 0.0


def test_scale_changes_nothing_but_the_rate() -> None:
    times = np.array(poisson_times(5, 3000))
    slow, quick = sample_of_times(times * 1000.0 + 5e5), sample_of_times(times)
    assert slow.rate_rps == pytest.approx(quick.rate_rps / 1000.0)
    assert slow.gaps.scv.value == pytest.approx(quick.gaps.scv.value, rel=1e-6)
    assert slow.gaps.skewness.value == pytest.approx(quick.gaps.skewness.value, rel=1e-6)


def test_counts_have_windows_and_no_gaps() -> None:
    counts = np.random.default_rng(2).poisson(52.0, 3600)
    sample = sample_of_counts(counts.tolist(), 1.0)
    assert sample.gaps is None
    assert sample.rate_rps == pytest.approx(52.0, rel=0.01)
    assert sample.windows_s == (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0)
    assert sample.dispersions[0].value == pytest.approx(1.0, abs=0.1)


def test_a_bin_more_or_less_fine_sees_the_same_dispersion() -> None:
    fine = np.random.default_rng(4).poisson(5.0, 40_000).astype(float)
    coarse = fine.reshape(-1, 10).sum(axis=1)
    first, second = sample_of_counts(fine, 0.1), sample_of_counts(coarse, 1.0)
    for window_s in (1.6, 6.4):
        of_fine = dict(zip(first.windows_s, first.dispersions, strict=True))[window_s]
        of_coarse = min(zip(second.windows_s, second.dispersions, strict=True), key=lambda pair: abs(pair[0] - window_s))[1]
        assert of_fine.value == pytest.approx(of_coarse.value, abs=0.25)


def test_a_map_is_described_at_the_windows_and_lags_of_the_sample() -> None:
    sample = sample_of_times(poisson_times(1))
    model = statistics_of_map(Map.poisson(sample.rate_rps), sample)
    assert model.rate_rps == pytest.approx(sample.rate_rps)
    assert [estimate.value for estimate in model.dispersions] == pytest.approx([1.0] * len(sample.windows_s))


@pytest.mark.parametrize(
    ("times", "words"),
    [
        ([], "no gap"),
        ([1.0], "no gap"),
        ([1.0, 1.0, 1.0], "infinite"),
        ([1.0, 3.0, 2.0], "descend after number 2"),
        ([0.0, float("nan")], "NaN"),
        ([0.0, float("inf")], "infinite"),
        ([0.0, 1e308], "span 1e.308 s"),
        (["a", "b"], "numbers"),
    ],
)
def test_time_stamps_that_are_none_are_refused(times: list[float], words: str) -> None:
    with refused(code="bad_arrivals", match=words):
        sample_of_times(times)


@pytest.mark.parametrize(
    ("counts", "bin_s", "words"),
    [
        ([], 1.0, "no bin"),
        ([0.0, 0.0], 1.0, "rate is 0"),
        ([1.0, -1.0], 1.0, "negative"),
        ([1.0, float("nan")], 1.0, "NaN"),
        ([1.0], 0.0, "bin of 0"),
        ([1e200, 2e200] * 100, 1.0, "up to 2e.200 in 200 bins"),
        ([1.0, 2.0], 1e300, "bins of 1e.300 s"),
    ],
)
def test_counts_that_are_none_are_refused(counts: list[float], bin_s: float, words: str) -> None:
    with pytest.raises(GnomonError, match=words):
        sample_of_counts(counts, bin_s)


BURSTS = Map.mmpp2((10.0, 1000.0), (2.0, 5.0))
PROCESSES = {
    "poisson": Map.poisson(60.0),
    "bursts": BURSTS,
    "four phases": superposed(BURSTS, Map.mmpp2((20.0, 60.0), (0.1, 0.1))),
    "in turn": Map(np.array([[-10.1, 0.0], [0.0, -202.0]]), np.array([[0.1, 10.0], [200.0, 2.0]])),
}


@pytest.mark.parametrize("name", PROCESSES)
def test_a_time_among_others_has_the_counts_that_it_has_alone(name: str) -> None:
    counting = Counting(PROCESSES[name], 12)
    # Up to 128 steps of the quickest phase are summed, longer times halved: at most once to five times here.
    times_s = np.array([0.0, 1.0, 100.0, 128.0, 129.0, 300.0, 4000.0]) / counting.rate
    together = counting.at(times_s)
    for number, time_s in enumerate(times_s):
        alone = counting.at(np.array([time_s]))[0]
        assert together[number] == pytest.approx(alone, abs=1e-14)
    poisson = Counting(Map.poisson(10.0), 4).at(np.array([0.1, 40.0]))
    assert poisson[0, :, 0, 0] == pytest.approx(np.exp(-1.0) / np.array([1.0, 1.0, 2.0, 6.0]))
    assert poisson[1].max() < 1e-100


@pytest.mark.parametrize("name", PROCESSES)
def test_counts_between_those_that_were_worked_out_are_the_same(name: str) -> None:
    counting = Counting(PROCESSES[name], 31)
    curves = interpolated(lambda times_s: counting.at(times_s).reshape(len(times_s), -1), 1.5, 1.0 / counting.rate)
    times_s = np.concatenate([np.geomspace(1e-6, 1.5, 200), np.linspace(0.0, 1.5, 201)])
    exact = counting.at(times_s).reshape(len(times_s), -1).T
    found = curves.every(times_s)
    assert found == pytest.approx(exact, abs=2e-9)
    function = np.full(len(times_s), len(exact) // 2)
    assert curves.at(times_s, function) == pytest.approx(found[len(exact) // 2], abs=1e-12)


def test_digits_that_squaring_took_are_not_looked_for() -> None:
    """Bursts of a millisecond, 1,000 s apart: over 10¹⁰ steps the counts are known to some 1e-6, however short a panel is."""
    counting = Counting(Map.mmpp2((1e-6, 1e6), (1e-3, 1e3)), 7)
    curves = interpolated(lambda times_s: counting.at(times_s).reshape(len(times_s), -1), 1e4, 1.0 / counting.rate)
    assert len(curves.edges) < 200
    times_s = np.geomspace(1e-7, 1e4, 60)
    assert curves.every(times_s) == pytest.approx(counting.at(times_s).reshape(len(times_s), -1).T, abs=1e-4)


RULE = ChangeRule()


def alarms(counts: list[float], reference: Reference, rule: ChangeRule = RULE) -> list[tuple[float, Change]]:
    """Every alarm, the test beginning anew after each."""
    evidence, found = CusumState(), []
    for second, count in enumerate(counts, start=1):
        evidence, change = detect_change(evidence, reference, rule, count, bin_s=1.0, now_s=float(second))
        if change is not None:
            found.append((float(second), change))
            evidence = CusumState()
    return found


def test_a_poisson_process_is_left_alone_for_a_day_on_average() -> None:
    counts = np.random.default_rng(1).poisson(52.0, 6 * 86_400).astype(float).tolist()
    # Six days: six alarms are promised at most, give or take their square root.
    assert len(alarms(counts, Reference(52.0))) <= 6 + 3 * math.sqrt(6)


def test_false_alarms_come_about_as_often_as_asked_for() -> None:
    rule = ChangeRule(false_alarm_s=600.0)
    counts = np.random.default_rng(2).poisson(52.0, 200_000).astype(float).tolist()
    found = 200_000 / len(alarms(counts, Reference(52.0), rule))
    assert 600.0 <= found <= 3 * 600.0


def test_bursts_that_belong_to_the_fit_are_no_change() -> None:
    bursty = Map.mmpp2((10.0, 100.0), (0.5, 0.5))
    times = markov_arrivals(bursty, 2_000_000, np.random.default_rng(3))
    counts = np.bincount(times.astype(int)).astype(float).tolist()
    reference = Reference.of(bursty, RULE)
    assert reference.dispersion > 30.0
    assert len(alarms(counts, reference)) <= 3
    # A test that took it for a Poisson process would cry all the time.
    assert len(alarms(counts, Reference(bursty.rate_rps))) > 100


@pytest.mark.parametrize(("change", "stated_s"), [(0.1, 43.0), (0.2, 15.0), (0.5, 2.5), (-0.1, 43.0), (-0.3, 5.4)])
def test_a_change_is_noticed_as_soon_as_stated(change: float, stated_s: float) -> None:
    reference = Reference(52.0)
    assert reference.delay_s(RULE, change) == pytest.approx(stated_s, rel=0.15)
    delays, rng = [], np.random.default_rng(4)
    for _ in range(60):
        counts = rng.poisson(52.0 * (1 + change), 600).astype(float).tolist()
        when_s, found = alarms(counts, reference)[0]
        assert found.higher == (change > 0)
        delays.append(when_s)
    assert float(np.mean(delays)) == pytest.approx(reference.delay_s(RULE, change), rel=0.25, abs=1.0)


def test_an_alarm_says_since_when() -> None:
    rng = np.random.default_rng(5)
    counts = [*rng.poisson(50.0, 1000).tolist(), *rng.poisson(65.0, 100).tolist()]
    ((when_s, change),) = alarms(counts, Reference(50.0))[:1]
    assert 1000.0 < when_s < 1025.0
    assert change.higher
    assert change.since_s == pytest.approx(1000.0, abs=8.0)


def test_a_change_too_small_to_matter_is_never_promised() -> None:
    assert Reference(52.0).delay_s(RULE, 0.02) == math.inf


def test_silence_is_a_change_and_so_is_its_end() -> None:
    assert alarms([0.0] * 30, Reference(52.0))[0][0] <= 3.0
    assert detect_change(CusumState(), Reference(0.0), RULE, 0, bin_s=1.0, now_s=10.0)[1] is None
    assert detect_change(CusumState(), Reference(0.0), RULE, 1, bin_s=1.0, now_s=10.0)[1] == Change(higher=True, since_s=9.0)


def _after(window: list[float], rate_rps: float, seconds: int = 120) -> float:
    """Seconds until a rate that comes after this window is noticed, with the reference of a fit to the window."""
    reference = Reference.of(fit(sample_of_counts(window, 1.0)).process, RULE, window, 1.0)
    counts = np.random.default_rng(9).poisson(rate_rps, seconds).astype(float).tolist()
    found = alarms(counts, reference)
    return found[0][0] if found else math.inf


@pytest.mark.parametrize("idle_s", [1, 3, 10])
@pytest.mark.parametrize(("times", "within_s"), [(4.5, 1.0), (2.0, 4.0), (0.4, 7.0)])
def test_a_jump_is_noticed_in_seconds_after_idle_seconds(idle_s: int, times: float, within_s: float) -> None:
    rng = np.random.default_rng(6)
    window = [float(n) for _ in range(6) for n in (*rng.poisson(20.0, 20), *(0,) * idle_s)]
    assert _after(window, 20.0 * times) <= within_s
    assert _after(window, 20.0, 3600) > 60.0


@pytest.mark.parametrize(("times", "within_s"), [(4.5, 1.0), (2.0, 6.0)])
def test_a_jump_is_noticed_in_seconds_after_a_burst(times: float, within_s: float) -> None:
    """A burst of eight times the rate for one minute of ten."""
    rng = np.random.default_rng(7)
    window = [*rng.poisson(20.0, 300), *rng.poisson(160.0, 60), *rng.poisson(20.0, 240)]
    mean_rps = sum(window) / len(window)
    assert _after([float(n) for n in window], mean_rps * times) <= within_s


def test_end_of_a_burst_is_detected_as_a_change_of_rate() -> None:
    rng = np.random.default_rng(8)
    window = [*rng.poisson(20.0, 100), *rng.poisson(160.0, 60), *rng.poisson(20.0, 40)]
    assert _after([float(n) for n in window], 20.0) <= 5.0


def test_bursts_that_come_again_and_again_are_no_jump() -> None:
    """Two seconds of ten times the rate each time, and the fit's own counts: neither test cries."""
    bursty = Map.mmpp2((10.0, 100.0), (0.5, 0.5))
    times = markov_arrivals(bursty, 400_000, np.random.default_rng(3))
    counts = np.bincount(times.astype(int)).astype(float)
    reference = Reference.of(fit(sample_of_counts(counts[:1200], 1.0)).process, RULE, counts[:1200].tolist(), 1.0)
    assert reference.active[1] > 20.0
    assert len(alarms(counts[1200:].tolist(), reference)) <= 6


def test_few_arrivals_with_empty_seconds_are_not_idle() -> None:
    counts = np.random.default_rng(4).poisson(0.5, 86_400).astype(float)
    reference = Reference.of(fit(sample_of_counts(counts[:3600], 1.0)).process, RULE, counts[:3600].tolist(), 1.0)
    assert reference.active[0] == pytest.approx(counts[:3600].mean())
    assert len(alarms(counts[3600:].tolist(), reference)) <= 3


@pytest.mark.parametrize("wrong", [{"margin": 0.0}, {"margin": 1.0}, {"false_alarm_s": 0.0}, {"jump": 1.0}])
def test_a_rule_that_is_none_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(GnomonError, match="margin"):
        ChangeRule(**wrong)

"""From a trace to a MAP: known processes are found, the fewest phases win, and odd samples get a declared best answer."""

from __future__ import annotations

import json
import time

import numpy as np
import pytest

from gnomon_planner.fit import POISSON, fit
from gnomon_planner.maps import Map
from gnomon_planner.samples import of_counts, of_times
from gnomon_simulator.markov import markov_arrivals
from tests.processes import superposed

BURSTY = Map.mmpp2((10.0, 200.0), (2.0, 2.0))


def test_a_poisson_trace_gets_one_phase() -> None:
    for seed in range(5):
        times = np.cumsum(np.random.default_rng(seed).exponential(0.02, 30_000))
        fitted = fit(of_times(times))
        assert fitted.chosen.family == POISSON
        assert fitted.process.rate_rps == pytest.approx(29_999 / (times[-1] - times[0]))


def test_counts_of_a_poisson_process_get_one_phase() -> None:
    for seed in range(20):
        assert fit(of_counts(np.random.default_rng(seed).poisson(50.0, 3600), 1.0)).chosen.family == POISSON


def test_a_bursty_trace_gets_the_moments_of_the_trace() -> None:
    sample = of_times(markov_arrivals(BURSTY, 200_000, np.random.default_rng(5)))
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
    fitted = fit(of_times(markov_arrivals(both, 200_000, np.random.default_rng(9))))
    assert fitted.process.order in (4, 8)
    assert fitted.process.dispersion(1.0) == pytest.approx(both.dispersion(1.0), rel=0.15)
    best_pair = min(each.misfit.total for each in fitted.considered if each.process.order == 2)
    assert fitted.chosen.misfit.total < best_pair / 2


def test_counts_are_fitted_as_counts() -> None:
    times = markov_arrivals(Map.mmpp2((40.0, 80.0), (0.02, 0.02)), 180_000, np.random.default_rng(2))
    counts = np.bincount(times.astype(int)).astype(float)[:-1]
    fitted = fit(of_counts(counts, 1.0))
    assert fitted.chosen.family == "MMPP(2) of counts"
    assert sorted(fitted.process.D1.diagonal()) == pytest.approx([40.0, 80.0], rel=0.12)
    assert fitted.process.rate_rps == pytest.approx(counts.mean())


def test_an_hour_of_counts_by_the_minute_is_as_bursty_as_they_are() -> None:
    """Two windows fit into 60 bins: few to tell a pace from, and enough to tell that it is no Poisson process."""
    counts = np.random.default_rng(3).integers(0, 91, 60).astype(float)
    sample = of_counts(counts, 60.0)
    fitted = fit(sample)
    assert sample.dispersions[0].value > 10.0
    assert fitted.process.dispersion(60.0) == pytest.approx(sample.dispersions[0].value, rel=0.1)


def test_twenty_counts_have_one_window_and_are_fitted_by_it() -> None:
    counts = np.random.default_rng(4).integers(0, 91, 20).astype(float)
    sample = of_counts(counts, 60.0)
    assert len(sample.windows_s) == 1
    assert fit(sample).process.dispersion(60.0) == pytest.approx(sample.dispersions[0].value, rel=0.05)


def test_counts_that_vary_alike_in_all_windows_wander_within_a_bin() -> None:
    counts = np.random.default_rng(5).negative_binomial(12, 0.3, 1440).astype(float)
    sample = of_counts(counts, 60.0)
    fitted = fit(sample)
    for window_s, found in zip(sample.windows_s[:4], sample.dispersions, strict=False):
        assert fitted.process.dispersion(window_s) == pytest.approx(found.value, rel=0.2)


def test_one_burst_in_an_hour_is_no_poisson_process() -> None:
    """It makes most of I(w), whose own deviation is then as large as it is: that speaks for nothing."""
    counts = np.random.default_rng(6).poisson(50.0, 3600).astype(float)
    counts[1800:1860] *= 3.0
    fitted = fit(of_counts(counts, 1.0))
    assert fitted.chosen.family != POISSON
    assert max(fitted.process.D1.diagonal()) > 100.0


def test_equal_gaps_get_the_most_regular_process_and_a_word() -> None:
    fitted = fit(of_times([0.01 * index for index in range(5000)]))
    assert fitted.process.scv == pytest.approx(1 / 8)
    assert fitted.process.rate_rps == pytest.approx(100.0)
    assert any("more regular" in note for note in fitted.notes)


@pytest.mark.parametrize("times", [[0.0, 2.0], [0.0, 0.0, 4.0], list(range(20))])
def test_few_arrivals_get_a_rate_and_a_word(times: list[float]) -> None:
    fitted = fit(of_times(times))
    assert fitted.process == Map.poisson((len(times) - 1) / times[-1])
    said = f"{len(times) - 1} arrivals or gaps say how quickly requests arrive, not how evenly: Poisson."
    assert fitted.notes == (said,), "three gaps are neither regular nor far from any process"
    assert fitted.chosen.misfit.total == 0.0


def test_bursts_of_equal_time_stamps_are_fitted() -> None:
    times = np.repeat(np.cumsum(np.random.default_rng(1).exponential(1.0, 1000)), 10)
    fitted = fit(of_times(times))
    assert fitted.process.rate_rps == pytest.approx(10.0, rel=0.1)
    assert fitted.process.scv > 10.0
    assert -fitted.process.D0.diagonal().min() < 1e5


def test_a_fit_is_a_document_that_is_read_as_its_map() -> None:
    fitted = fit(of_times(markov_arrivals(BURSTY, 5000, np.random.default_rng(5))))
    document = json.loads(json.dumps(fitted.to_json(), allow_nan=False))
    assert Map.from_json(document) == fitted.process
    assert document["phases"] == fitted.process.order


def test_an_hour_is_fitted_in_less_than_a_second() -> None:
    times = markov_arrivals(Map.mmpp2((40.0, 60.0), (0.01, 0.01)), 180_000, np.random.default_rng(1))
    begun_s = time.process_time()
    fit(of_times(times))
    assert time.process_time() - begun_s < 1.0

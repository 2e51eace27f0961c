"""Whatever is asked, a valid MAP comes back: with the moments asked for where there is one, and with the rate always."""

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gnomon_planner.fit import fit
from gnomon_planner.map_families import Chain, Shape, map2, mmpp2, regular, skewness_bounds, with_skewness
from gnomon_planner.maps import Map
from gnomon_planner.samples import of_counts, of_times

means = st.floats(1e-4, 1e4)
positive = st.floats(1e-3, 1e3)
shares = st.floats(0.02, 0.98)


@given(means, st.floats(1.02, 60.0), st.floats(1.01, 20.0), st.floats(0.0, 0.999))
def test_hyperexponential_moments_and_any_positive_decay_are_met(mean_s: float, scv: float, beyond: float, decay: float) -> None:
    low, _ = skewness_bounds(scv)
    process, has = map2(mean_s, Shape(scv, low * beyond, decay))
    assert has == Shape(scv, low * beyond, decay)
    assert process.mean_s == pytest.approx(mean_s, rel=1e-6)
    assert process.scv == pytest.approx(scv, rel=1e-5)
    assert process.skewness == pytest.approx(low * beyond, rel=1e-4)
    assert process.autocorrelation(1) == pytest.approx(has.lag1, rel=1e-4, abs=1e-8)


@given(st.floats(0.51, 0.98), shares)
def test_moments_below_one_are_met(scv: float, share: float) -> None:
    low, high = skewness_bounds(scv)
    skewness = low + share * (high - low)
    process, _ = map2(1.0, Shape(scv, skewness))
    assert process.scv == pytest.approx(scv, rel=1e-5)
    assert process.skewness == pytest.approx(skewness, rel=1e-3, abs=1e-5)


@given(means, st.floats(0.0, 1e4), st.floats(-1e4, 1e6), st.floats(-2.0, 2.0))
def test_any_four_numbers_get_a_process_of_that_mean(mean_s: float, scv: float, skewness: float, decay: float) -> None:
    for made in (map2, mmpp2):
        process, has = made(mean_s, Shape(scv, skewness, decay))
        assert process.mean_s == pytest.approx(mean_s, rel=1e-4)
        assert process.order <= 2
        assert process.scv == pytest.approx(has.scv, rel=1e-2)


@given(st.tuples(positive, st.floats(0.0, 1e3)), st.tuples(positive, positive))
def test_every_mmpp2_is_found_again(rates: tuple[float, float], leaving: tuple[float, float]) -> None:
    process = Map.mmpp2(rates, leaving)
    if process.scv < 1.01 or process.autocorrelation(1) < 1e-5:
        return
    decay = process.autocorrelation(2) / process.autocorrelation(1)
    found, _ = mmpp2(process.mean_s, Shape(process.scv, process.skewness, decay))
    assert found.moments(2) == pytest.approx(process.moments(2), rel=1e-3)
    assert found.autocorrelation(1) == pytest.approx(process.autocorrelation(1), rel=1e-2, abs=1e-6)


@given(st.floats(0.0, 1.0), means)
def test_regular_gaps_have_the_nearest_scv_of_eight_phases(scv: float, mean_s: float) -> None:
    process = regular(mean_s, scv)
    assert process.scv == pytest.approx(max(scv, 1 / 8), rel=1e-6)
    assert process.mean_s == pytest.approx(mean_s, rel=1e-9)


@given(means, st.lists(st.tuples(positive, positive), min_size=1, max_size=3), st.floats(-50.0, 50.0))
def test_any_chains_get_their_mean_and_variance(rate: float, chains: list[tuple[float, float]], skewness: float) -> None:
    process = with_skewness(rate, tuple(Chain(variance, pace) for variance, pace in chains), skewness)
    theta, rates = process.stationary, process.D1.diagonal()
    assert float(theta @ rates) == pytest.approx(rate, rel=1e-6)
    assert float(theta @ (rates - rate) ** 2) == pytest.approx(math.fsum(variance for variance, _ in chains), rel=1e-3)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(1e-9, 1e9), min_size=2, max_size=200), st.integers(1, 4))
def test_a_fit_never_fails_on_positive_gaps(gaps: list[float], times: int) -> None:
    stamps = np.cumsum(gaps * times)
    assume(stamps[-1] > stamps[0])  # which rounding may prevent
    fitted = fit(of_times(stamps))
    assert fitted.process.rate_rps == pytest.approx(fitted.sample.rate_rps, rel=1e-6)
    assert math.isfinite(fitted.chosen.misfit.total)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 10_000), min_size=1, max_size=300).filter(any), st.floats(1e-3, 1e3))
def test_a_fit_never_fails_on_counts(counts: list[int], bin_s: float) -> None:
    fitted = fit(of_counts(counts, bin_s))
    assert fitted.process.rate_rps == pytest.approx(sum(counts) / (len(counts) * bin_s), rel=1e-6)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 1000), st.integers(-12, 12))
def test_another_unit_of_time_gives_the_same_process_in_that_unit(seed: int, power: int) -> None:
    # A power of two scales without rounding, so that even choices between near equals are the same.
    chance = np.random.default_rng(seed)
    gaps = chance.exponential(1.0, 400) * np.where(np.arange(400) // 50 % 2, 0.1, 1.0)
    unit = 2.0**power
    one, two = fit(of_times(np.cumsum(gaps))), fit(of_times(np.cumsum(gaps) * unit))
    assert two.chosen.family == one.chosen.family
    assert two.process.D0 * unit == pytest.approx(one.process.D0, rel=1e-6, abs=1e-12)
    assert two.process.D1 * unit == pytest.approx(one.process.D1, rel=1e-6, abs=1e-12)

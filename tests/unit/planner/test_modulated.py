"""Rates that wander: the variance-time curve goes in, and comes out of the MMPP."""

from __future__ import annotations

import numpy as np
import pytest

from gnomon_planner.map_families import Chain, chains_of, modulated, with_skewness
from gnomon_planner.maps import Map
from gnomon_planner.samples import Estimate, Sample, of_counts
from tests.processes import is_mmpp, superposed


def exactly(process: Map, duration_s: float = 1e6) -> Sample:
    """The sample that a process would give if there were no chance."""
    windows = tuple(2.0**power for power in range(12))
    dispersions = tuple(Estimate(process.dispersion(window_s), 0.01) for window_s in windows)
    return Sample(process.rate_rps * duration_s, duration_s, windows, dispersions, (0.0,) * len(windows))


def test_one_chain_has_the_variance_and_the_pace_of_the_process() -> None:
    process = Map.mmpp2((40.0, 60.0), (0.01, 0.01))
    (chain,) = chains_of(exactly(process), 1) or ()
    assert chain.variance == pytest.approx(100.0, rel=0.1)
    assert chain.pace_per_s == pytest.approx(0.02, rel=0.3)


def test_two_chains_have_the_curve_of_two_processes() -> None:
    process = superposed(Map.mmpp2((10.0, 60.0), (0.5, 0.5)), Map.mmpp2((20.0, 30.0), (0.002, 0.002)))
    found = modulated(exactly(process), 2)
    assert found is not None
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
    sample = of_counts(np.random.default_rng(8).poisson(50.0, 2000), 1.0)
    found = modulated(sample, 1)
    assert found is None or found.dispersion(30.0) < 1.6


def test_a_trace_too_short_for_a_pace_has_none() -> None:
    assert modulated(of_counts([3.0, 4.0, 5.0] * 7, 1.0), 1) is None

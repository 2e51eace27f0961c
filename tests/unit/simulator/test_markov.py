"""Arrivals drawn from a MAP have its statistics, and the same seed gives the same arrivals."""

from __future__ import annotations

import numpy as np
import pytest

from gnomon_planner.maps import Map
from gnomon_planner.samples import of_times
from gnomon_simulator.markov import markov_arrivals
from tests.processes import superposed

PROCESSES = [
    Map.poisson(40.0),
    Map.mmpp2((10.0, 200.0), (5.0, 5.0)),
    Map.from_json({"D0": [[-10.1, 0.0], [0.0, -202.0]], "D1": [[0.1, 10.0], [200.0, 2.0]]}),
    superposed(Map.mmpp2((0.0, 100.0), (20.0, 30.0)), Map.mmpp2((5.0, 30.0), (2.0, 8.0))),
]


@pytest.mark.parametrize("process", PROCESSES)
def test_they_have_the_statistics_of_the_process(process: Map) -> None:
    times = markov_arrivals(process, 200_000, np.random.default_rng(3))
    assert len(times) == 200_000
    sample = of_times(times)
    assert sample.rate_rps == pytest.approx(process.rate_rps, rel=0.02)
    assert sample.gaps is not None
    assert sample.gaps.scv.value == pytest.approx(process.scv, rel=0.04)
    assert sample.gaps.skewness.value == pytest.approx(process.skewness, rel=0.08)
    for lag, found in zip(sample.gaps.lags, sample.gaps.correlations, strict=True):
        assert found.value == pytest.approx(process.autocorrelation(lag), abs=5 * found.deviation + 0.003)


def test_the_same_seed_gives_the_same_arrivals() -> None:
    one, two = (markov_arrivals(PROCESSES[1], 5000, np.random.default_rng(11)) for _ in range(2))
    assert (one == two).all()
    assert (np.diff(one) >= 0.0).all()


def test_few_arrivals_of_a_process_that_mostly_rests() -> None:
    times = markov_arrivals(Map.mmpp2((0.0, 1.0), (1.0, 50.0)), 30, np.random.default_rng(1))
    assert len(times) == 30
    assert times[0] > 0.0

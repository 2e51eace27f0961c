"""How many arrivals there are within a time, whatever other times are asked for with it, and between those worked out."""

import numpy as np
import pytest

from gnomon_planner.maps import Counting, Map
from gnomon_planner.numerics import interpolated
from tests.processes import superposed

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

"""Two phases in closed form: a process is found again from its moments, and impossible ones are moved to the nearest."""

from __future__ import annotations

import pytest

from gnomon_core.errors import GnomonError
from gnomon_planner.map_families import Shape, decay_for, map2, mmpp2, skewness_bounds
from gnomon_planner.maps import Map
from tests.processes import is_mmpp

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

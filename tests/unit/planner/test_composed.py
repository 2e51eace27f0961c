"""Products of processes multiply what gaps are made of; chains of steps are as regular as asked."""

from __future__ import annotations

import math

import pytest

from gnomon_planner.map_families import Shape, composed, hyperexponential, kronecker, regular
from gnomon_planner.maps import Map
from gnomon_planner.samples import Estimate, GapStatistics

ONE = hyperexponential(Shape(3.0, 4.0, 0.9))
TWO = hyperexponential(Shape(2.0, 4.5, 0.2))


def test_a_factor_has_the_shape_it_is_asked_for() -> None:
    assert ONE.rate_rps == pytest.approx(1.0)
    assert (ONE.scv, ONE.skewness) == (pytest.approx(3.0), pytest.approx(4.0))
    assert ONE.autocorrelation(3) == pytest.approx(0.9**3 * (1 - 1 / 3) / 2)


def test_a_product_multiplies_moments_and_joint_moments() -> None:
    product = kronecker(ONE, TWO)
    for power, (whole, one, two) in enumerate(zip(product.moments(3), ONE.moments(3), TWO.moments(3), strict=True), start=1):
        assert whole == pytest.approx(one * two / math.factorial(power))
    for lag in (1, 5):
        joint = [1 + process.scv * process.autocorrelation(lag) for process in (product, ONE, TWO)]
        assert joint[0] == pytest.approx(joint[1] * joint[2])


def gaps_of(process: Map) -> GapStatistics:
    lags = (1, 2, 3, 5, 10, 20, 50, 100)
    correlations = tuple(Estimate(process.autocorrelation(lag), 0.001) for lag in lags)
    return GapStatistics(Estimate(process.scv, 0.01), Estimate(process.skewness, 0.01), lags, correlations)


@pytest.mark.parametrize("factors", [2, 3])
def test_a_composition_has_the_moments_exactly_and_the_correlations_nearly(factors: int) -> None:
    target = kronecker(hyperexponential(Shape(3.0, 5.0, 0.99)), hyperexponential(Shape(3.0, 5.0, 0.5)))
    found = composed(0.02, gaps_of(target), factors)
    assert found is not None
    assert found.order == 2**factors
    assert found.mean_s == pytest.approx(0.02)
    assert (found.scv, found.skewness) == (pytest.approx(target.scv, rel=1e-6), pytest.approx(target.skewness, rel=1e-6))
    for lag in (1, 5, 50):
        assert found.autocorrelation(lag) == pytest.approx(target.autocorrelation(lag), rel=0.06)


def test_gaps_as_even_as_poissons_have_no_composition() -> None:
    assert composed(1.0, gaps_of(Map.poisson(1.0)), 2) is None


@pytest.mark.parametrize("scv", [1.0, 0.8, 0.5, 0.4, 1 / 3, 0.2, 1 / 8])
def test_steps_have_the_scv_they_are_asked_for(scv: float) -> None:
    process = regular(0.25, scv)
    assert process.mean_s == pytest.approx(0.25)
    assert process.scv == pytest.approx(scv)
    assert process.order <= 8


def test_equal_gaps_get_eight_steps() -> None:
    process = regular(1.0, 0.0)
    assert (process.order, process.scv) == (8, pytest.approx(1 / 8))

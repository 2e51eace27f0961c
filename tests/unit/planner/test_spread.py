"""Ratios stand for how far batches are from their usual time: many for what they cost, a few for how long they take."""

from __future__ import annotations

import math

import numpy as np
import pytest

from gnomon_core.errors import GnomonError
from gnomon_planner.service_time import ALWAYS, EDGES, MOST, few, of_deviation, of_range, of_ratios, of_runs


def test_all_measured_runs_are_kept_relative_to_the_median_of_their_cell() -> None:
    assert of_runs([[0.1, 0.12, 0.09], [2.0, 2.0, 3.0]]) == pytest.approx((1.0, 1.2, 0.9, 1.0, 1.0, 1.5))


def test_of_more_runs_than_are_kept_the_mean_and_the_quantiles_are() -> None:
    cells = [
        median_s * np.exp(0.08 * np.random.default_rng(cell).standard_normal(500)) for cell, median_s in enumerate((0.1, 2.0))
    ]
    ratios = of_runs(cells)
    assert len(ratios) == MOST
    together = np.concatenate([cell / np.median(cell) for cell in cells])
    assert np.mean(ratios) == pytest.approx(together.mean())
    for q in (0.05, 0.5, 0.95, 0.99):
        assert np.quantile(ratios, q) == pytest.approx(np.quantile(together, q), rel=5e-3)


def test_the_few_are_the_percentiles_that_are_asked_for() -> None:
    """Served at once, a request's percentiles are those of the runs; the worked number of the module."""
    runs = np.exp(0.1 * np.random.default_rng(1).standard_normal(300_000))
    ratios, shares = few(of_runs([runs]))
    assert len(ratios) == len(shares) == len(EDGES) - 1 == 9
    assert np.dot(ratios, shares) == pytest.approx((runs / np.median(runs)).mean())
    upto = np.cumsum(shares)
    for percent, worked in ((50.0, 1.0), (90.0, 1.14), (95.0, 1.18), (99.0, 1.26)):
        found = ratios[int(np.searchsorted(upto, percent / 100.0))]
        assert found == pytest.approx(np.quantile(runs, percent / 100.0), rel=5e-3)
        assert round(found, 2) == worked


@pytest.mark.parametrize("cells", [[], [[0.1]], [[0.1], [0.2]], [[0.1, 0.1, 0.10001]]])
def test_runs_that_say_nothing_of_a_spread_make_one_service_time(cells: list[list[float]]) -> None:
    ratios, shares = few(of_runs(cells))
    assert ratios == pytest.approx((1.0,), abs=1e-4)
    assert shares == (1.0,)


def test_a_range_and_a_deviation_stand_for_the_same_law() -> None:
    times = np.exp(0.05 * np.random.default_rng(1).standard_normal(200_000))
    quarter, three = np.quantile(times, (0.25, 0.75))
    runs = few(of_runs([times]))
    for ratios in (of_range(float(three - quarter)), of_deviation(float(np.abs(times - 1.0).mean()))):
        assert few(ratios)[0] == pytest.approx(runs[0], rel=2e-3)
    assert of_range(0.0) == of_deviation(0.0) == ALWAYS


@pytest.mark.parametrize("run", [0.0, -1.0, math.nan, math.inf])
def test_a_run_that_is_no_time_is_refused(run: float) -> None:
    with pytest.raises(GnomonError) as refused:
        of_runs([[0.1, run]])
    assert refused.value.code == "bad_measurements"


def test_few_ratios_stay_as_they_are_and_many_are_condensed_with_their_mean() -> None:
    assert few((1.5, 1.0)) == ((1.5, 1.0), (0.5, 0.5))
    many = tuple(0.9 + number / 500.0 for number in range(100))
    assert of_ratios(many[::-1]) == many[::-1]
    ratios, shares = few(many[::-1])
    assert ratios == tuple(sorted(ratios))
    assert np.dot(ratios, shares) == pytest.approx(np.mean(many))
    # The largest fortieth: two whole ones, and half of the one below them.
    assert ratios[-1] == pytest.approx((many[-1] + many[-2] + many[-3] / 2.0) / 2.5)


@pytest.mark.parametrize("ratios", [[], [0.0], [1.0, -1.0], [math.nan], [math.inf] * 20])
def test_ratios_that_are_none_are_refused(ratios: list[float]) -> None:
    with pytest.raises(GnomonError) as refused:
        of_ratios(ratios)
    assert refused.value.code == "bad_measurements"

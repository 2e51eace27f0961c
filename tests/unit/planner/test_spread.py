"""A few ratios stand for how far batches are from their usual time."""

from __future__ import annotations

import math

import numpy as np
import pytest

from gnomon_core.errors import GnomonError
from gnomon_planner.spread import ALWAYS, COUNT, of_deviation, of_range, of_ratios, of_runs


def test_ratios_have_the_mean_and_the_quantiles_of_the_runs() -> None:
    cells = [
        median_s * np.exp(0.08 * np.random.default_rng(cell).standard_normal(500)) for cell, median_s in enumerate((0.1, 2.0))
    ]
    ratios = of_runs(cells)
    assert len(ratios) == COUNT
    assert np.mean(ratios) == pytest.approx(np.mean([cell / np.median(cell) for cell in cells]), rel=1e-3)
    together = np.concatenate([cell / np.median(cell) for cell in cells])
    assert ratios[COUNT // 2] == pytest.approx(1.0, abs=0.005)
    assert np.quantile(together, 0.93) < ratios[-1] < np.quantile(together, 0.97)


@pytest.mark.parametrize("cells", [[], [[0.1]], [[0.1], [0.2]], [[0.1, 0.1, 0.10001]]])
def test_runs_that_say_nothing_of_a_spread_are_deterministic(cells: list[list[float]]) -> None:
    assert of_runs(cells) == ALWAYS


def test_a_range_and_a_deviation_stand_for_the_same_law() -> None:
    times = np.exp(0.05 * np.random.default_rng(1).standard_normal(200_000))
    quarter, three = np.quantile(times, (0.25, 0.75))
    for ratios in (of_range(float(three - quarter)), of_deviation(float(np.abs(times - 1.0).mean()))):
        assert ratios == pytest.approx(of_runs([times]), rel=2e-3)
    assert of_range(0.0) == of_deviation(0.0) == ALWAYS


@pytest.mark.parametrize("run", [0.0, -1.0, math.nan, math.inf])
def test_a_run_that_is_no_time_is_refused(run: float) -> None:
    with pytest.raises(GnomonError) as refused:
        of_runs([[0.1, run]])
    assert refused.value.code == "bad_measurements"


def test_few_ratios_are_kept_and_many_are_condensed_with_their_mean() -> None:
    assert of_ratios([1.5, 1.0]) == (1.5, 1.0)
    many = [0.9 + number / 500.0 for number in range(100)]
    condensed = of_ratios(many[::-1])
    assert len(condensed) == COUNT
    assert np.mean(condensed) == pytest.approx(np.mean(many))
    assert condensed == tuple(sorted(condensed))
    # The largest ninth: eleven whole ones, and a ninth of the one below them.
    assert condensed[-1] == pytest.approx((sum(many[-11:]) + many[-12] / 9.0) / (100.0 / 9.0))


@pytest.mark.parametrize("ratios", [[], [0.0], [1.0, -1.0], [math.nan], [math.inf] * 20])
def test_ratios_that_are_none_are_refused(ratios: list[float]) -> None:
    with pytest.raises(GnomonError) as refused:
        of_ratios(ratios)
    assert refused.value.code == "bad_measurements"

"""A percentile is a value that was measured."""

import pytest

from gnomon_simulator.results import percentile, spread_ms


@pytest.mark.parametrize(("percent", "value"), [(0, 1.0), (1, 1.0), (50, 50.0), (95, 95.0), (99.9, 100.0), (100, 100.0)])
def test_nearest_rank(percent: float, value: float) -> None:
    assert percentile([float(n) for n in range(1, 101)], percent) == value


def test_binary_fractions_do_not_shift_the_rank() -> None:
    assert percentile([float(n) for n in range(1, 1001)], 99.9) == 999.0


def test_nothing_measured_has_no_percentile() -> None:
    assert percentile([], 50) is None
    assert spread_ms([])["p50"] is None


def test_spread_is_in_milliseconds() -> None:
    assert spread_ms([0.003, 0.001])["max"] == 3.0
    assert spread_ms([0.003, 0.001])["mean"] == 2.0

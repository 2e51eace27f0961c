"""Service times from less than 3 % of the cells."""

from __future__ import annotations

import math
import random

import pytest

from gnomon_core.errors import GnomonError
from gnomon_planner.service_time import Measured, fitted, to_measure

MEMORIES = [512 + 64 * number for number in range(46)]
BATCHES = list(range(1, 21))


def amdahl(memory: float, batch: int) -> float:
    """A serial part, a part per sample on the memory's share of a core."""
    return 0.004 + (0.010 + 0.022 * batch) * 1769 / memory


def measured(seconds: float, memory: float, batch: int) -> Measured:
    return Measured(memory, batch, seconds)


def test_fewer_than_three_percent_of_the_cells_are_measured_corners_included() -> None:
    cells = to_measure(MEMORIES, BATCHES)
    assert len(set(cells)) == len(cells) <= 27
    assert {(512, 1), (512, 20), (3392, 1), (3392, 20)} <= set(cells)


def test_all_other_cells_are_predicted_within_two_percent() -> None:
    chance = random.Random(5)
    noisy = [
        measured(amdahl(memory, batch) * chance.gauss(1.0, 0.01), memory, batch)
        for memory, batch in to_measure(MEMORIES, BATCHES)
    ]
    model = fitted(noisy)
    errors = [abs(model.seconds(memory, batch) / amdahl(memory, batch) - 1.0) for memory in MEMORIES for batch in BATCHES]
    assert sum(errors) / len(errors) < 0.01
    assert max(errors) < 0.04
    assert model.error < 0.02 <= model.worst * 2.0


def test_a_surface_without_noise_is_found_exactly() -> None:
    model = fitted([measured(amdahl(memory, batch), memory, batch) for memory, batch in to_measure(MEMORIES, BATCHES)])
    assert model.error < 1e-9
    assert model.row(1000.0, 3) == pytest.approx([amdahl(1000.0, batch) for batch in (1, 2, 3)])


def test_what_lies_beyond_is_refused_unless_asked_for() -> None:
    model = fitted([measured(amdahl(memory, batch), memory, batch) for memory, batch in to_measure(MEMORIES, BATCHES)])
    for memory, batch in ((256, 4), (4000, 4), (1024, 21)):
        with pytest.raises(GnomonError, match="beyond what was measured"):
            model.seconds(memory, batch)
        assert model.seconds(memory, batch, extrapolate=True) == pytest.approx(amdahl(memory, batch), rel=1e-6)


def test_too_little_is_refused() -> None:
    with pytest.raises(GnomonError, match="too few"):
        to_measure([1, 2, 3], [1, 2])
    for seconds in (0.0, math.nan, math.inf):
        with pytest.raises(GnomonError, match="positive times"):
            fitted([measured(seconds, 512, batch) for batch in (1, 2, 3, 4, 5)])
    with pytest.raises(GnomonError, match="at least 4"):
        fitted([measured(1.0, 512, 1)])

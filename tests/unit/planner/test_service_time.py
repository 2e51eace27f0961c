"""Service times from less than 3 % of the cells."""

from __future__ import annotations

import math
import random

import pytest

from gnomon_core.errors import GnomonError
from gnomon_planner.service_time import Measured, ServiceModel, fitted, to_measure

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


WHOLE = 1769.0
LAMBDAS = list(range(128, 3009, 64))


def on_threads(memory: float, batch: int) -> float:
    """One thread up to a core, two beyond: 5 ms that nobody shares and 20 ms for each sample, all under the memory's quota."""
    threads = math.ceil(memory / WHOLE)
    return (threads * 0.005 + 0.020 * batch) * WHOLE / memory


def test_times_that_jump_where_a_thread_is_added_are_told_within_two_percent() -> None:
    chance = random.Random(11)
    cells = to_measure(LAMBDAS, BATCHES, whole=WHOLE)
    assert len(set(cells)) == len(cells) <= 27
    # Both sides of the jump have their edges measured: 1,728 MB is the last size with one thread.
    assert {128, 1728, 1792, 3008} <= {memory for memory, _ in cells}
    points = [measured(on_threads(memory, batch) * chance.gauss(1.0, 0.005), memory, batch) for memory, batch in cells]
    aware, smooth = fitted(points, whole=WHOLE), fitted(points)

    def worst(model: ServiceModel) -> float:
        return max(abs(model.seconds(memory, batch) / on_threads(memory, batch) - 1.0) for memory in LAMBDAS for batch in BATCHES)

    assert worst(aware) < 0.02 < worst(smooth)


def test_without_noise_the_simplest_polynomial_is_found_exactly() -> None:
    cells = to_measure(LAMBDAS, BATCHES, whole=WHOLE)
    model = fitted([measured(on_threads(memory, batch), memory, batch) for memory, batch in cells], whole=WHOLE)
    assert model.error < 1e-9
    assert model.seconds(1856, 7) == pytest.approx(on_threads(1856, 7))


def test_one_number_of_threads_is_as_if_nothing_was_said_of_them() -> None:
    sizes = LAMBDAS[:20]
    assert to_measure(sizes, BATCHES, whole=WHOLE) == to_measure(sizes, BATCHES)
    points = [measured(amdahl(memory, batch), memory, batch) for memory, batch in to_measure(sizes, BATCHES)]
    assert fitted(points, whole=WHOLE).powers == fitted(points).powers


def test_noise_never_leads_to_times_that_are_not_positive_between_the_measured_cells() -> None:
    for seed in range(5):
        chance = random.Random(seed)
        cells = to_measure(LAMBDAS, BATCHES, whole=WHOLE)
        points = [measured(on_threads(memory, batch) * chance.uniform(0.5, 1.5), memory, batch) for memory, batch in cells]
        model = fitted(points, whole=WHOLE)
        assert min(model.seconds(memory, batch) for memory in LAMBDAS for batch in BATCHES) > 0.0


ROW_MS = {
    128: (368.4, 1550.9, 3831.4, 7080.0, 8211.9),
    896: (40.3, 156.9, 405.0, 821.1, 991.6),
    1728: (20.7, 70.9, 187.4, 377.3, 463.1),
    1792: (26.0, 96.2, 259.7, 473.8, 573.1),
    3008: (14.4, 49.4, 124.1, 233.2, 274.6),
}
"""EfficientNet-Lite0 under quotas of Lambda's memory sizes, batches of 1, 4, 10, 17 and 20: medians of a noisy machine."""
BETWEEN_MS = {(320, 1): 123.0, (448, 2): 153.8, (448, 10): 950.4, (512, 20): 1911.3, (1280, 5): 123.3, (2432, 4): 67.5}


def test_what_lies_between_two_sizes_is_judged_by_leaving_out_a_size() -> None:
    """With the others of its size a cell is told by them: a polynomial of log x was 3 % off then, and 44 % between the sizes."""
    points = [
        measured(ms / 1000, memory, batch)
        for memory, row in ROW_MS.items()
        for batch, ms in zip((1, 4, 10, 17, 20), row, strict=True)
    ]
    model = fitted(points, whole=WHOLE)
    off = {cell: abs(model.seconds(*cell) * 1000 / ms - 1.0) for cell, ms in BETWEEN_MS.items()}
    assert max(off.values()) < 0.16, off
    assert sum(off.values()) / len(off) < 0.08, off


def test_many_sizes_have_few_batches_each_and_not_all_the_same() -> None:
    cells = to_measure(LAMBDAS, BATCHES, whole=WHOLE)
    batches = {memory: {batch for one, batch in cells if one == memory} for memory, _ in cells}
    assert len(batches) == 9
    assert all({1, 20} <= those and len(those) == 3 for those in batches.values())
    assert len(set().union(*batches.values())) == 5


def test_sizes_of_a_number_of_threads_each_are_left_out_too() -> None:
    """`gnomon lambda-profile` measures these unless told otherwise: 22 coefficients for 25 cells were up to 99 % off between."""
    sizes, chance = (1024, 1769, 3538, 5307, 8845), random.Random(1)
    points = [
        measured(on_threads(size, batch) * chance.gauss(1.0, 0.03), size, batch) for size in sizes for batch in (1, 2, 4, 8, 16)
    ]
    model = fitted(points, whole=WHOLE)
    between = [(size, batch) for size in range(1024, 8846, 64) for batch in range(1, 17)]
    assert max(abs(model.seconds(*cell) / on_threads(*cell) - 1.0) for cell in between) < 0.1


def test_numbers_of_cores_are_left_out_too() -> None:
    chance = random.Random(1)
    points = [
        measured(amdahl(WHOLE * cores, batch) * chance.gauss(1.0, 0.04), cores, batch)
        for cores in (1, 2, 4, 8)
        for batch in (1, 2, 4, 8, 16)
    ]
    model = fitted(points, whole=1.0)
    cells = [(cores, batch) for cores in range(1, 9) for batch in range(1, 17)]
    assert max(abs(model.seconds(*cell) / amdahl(WHOLE * cell[0], cell[1]) - 1.0) for cell in cells) < 0.1

"""How well the cells that were trained on tell the others, and how repeatable any of them is."""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.regression.cells import TRAINED_VISITS, Cell, Grid, Kept
from benchmarks.report import Figure
from gnomon_core.errors import GnomonError
from gnomon_core.units import MB_PER_CORE
from gnomon_planner.service_time import Measured, ServiceModel, fitted

GOAL = 0.02
SHARE_OF_95 = 0.95
MANY = 3
"""One in so many cells, with all batches among them: far more than a regression is meant to have. What they leave is noise."""


@dataclass(frozen=True, slots=True)
class Judged:
    """A model, and its relative errors on cells that it has not seen."""

    model: ServiceModel
    errors: dict[Cell, float]

    @property
    def mean(self) -> float:
        return statistics.fmean(abs(error) for error in self.errors.values())


def judged(grid: Grid, kept: Kept, *, whole: float | None = MB_PER_CORE, trained: Sequence[Cell] = ()) -> Judged:
    """The model of the grid's trained cells, or of those given, against the medians of all others that are there."""
    found = kept.cells()
    trained = trained or grid.trained
    points = [Measured(memory, batch, found[memory, batch].median_s) for memory, batch in trained]
    model = fitted(points, whole=whole)
    others = [cell for cell in grid.cells if cell in found and cell not in trained]
    return Judged(model, {cell: _told(model, cell) / found[cell].median_s - 1.0 for cell in others})


def _told(model: ServiceModel, cell: Cell) -> float:
    """The model's seconds; none where it refuses to tell a time that is not positive, which is an error of the whole time."""
    try:
        return model.seconds(*cell)
    except GnomonError:
        return 0.0


def figures(grid: Grid, kept: Kept, rounds: int, model: str, how: str) -> list[Figure]:
    """Of so many rounds: the claim, what limits it, and what a model that knows nothing of threads would say."""
    found, plain = judged(grid, kept), judged(grid, kept, whole=None)
    many = sorted(kept.cells())[::MANY]
    worst = max(found.errors, key=lambda cell: abs(found.errors[cell]))
    magnitudes = sorted(abs(error) for error in found.errors.values())
    fewest = min(len(times.seconds) for times in kept.cells().values())
    said = (
        f"{model}, {len(grid.trained)} of {len(grid.cells)} cells trained, {len(found.errors)} others; medians of {fewest} runs "
        f"in {rounds} rounds, of those trained of {TRAINED_VISITS} times as many; {how}; {found.model.shape}, "
        f"{len(found.model.powers)} coefficients"
    )
    found_figures = [
        Figure("mean_error", found.mean, "relative", GOAL, "<=", "met" if found.mean <= GOAL else "missed", said),
        Figure("error_p95", magnitudes[int(SHARE_OF_95 * (len(magnitudes) - 1))], "relative"),
        Figure("worst_error", abs(found.errors[worst]), "relative", detail=f"a batch of {worst[1]} at {worst[0]} MB"),
        Figure(
            "expected_error",
            found.model.error,
            "relative",
            detail="mean error by leaving out trained cells, and sizes between others",
        ),
        Figure("mean_error_without_threads", plain.mean, "relative", detail="one smooth surface over one and two threads"),
        Figure("mean_error_of_many", judged(grid, kept, trained=many).mean, "relative", detail=f"of {len(many)} cells trained"),
        *_repeatability(kept, rounds),
    ]
    for name, cells in _parts(found.errors):
        found_figures.append(Figure(f"mean_error, {name}", _mean(found.errors, cells), "relative", detail=f"{len(cells)} cells"))
    return found_figures


def table(kept: Kept) -> str:
    """Every measured cell as CSV."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(("memory_mb", "batch", "median_s", "spread", "runs", "core_s"))
    for (memory, batch), times in sorted(kept.cells().items()):
        core_s = statistics.median(times.core_s)
        rows.writerow((memory, batch, f"{times.median_s:.6f}", f"{times.spread:.4f}", len(times.seconds), f"{core_s:.6f}"))
    return text.getvalue()


def _repeatability(kept: Kept, rounds: int) -> list[Figure]:
    """What the medians themselves are worth."""
    every = kept.cells().values()
    found = [
        Figure(
            "spread_of_runs",
            statistics.fmean(times.spread for times in every),
            "relative",
            detail="mean interquartile range of a cell's runs",
        ),
        Figure(
            "uncertainty",
            statistics.fmean(times.uncertainty for times in every),
            "relative",
            detail="mean half width of a median's 95 % interval",
        ),
    ]
    early, late = kept.cells(range(rounds // 2)), kept.cells(range(rounds - rounds // 2, rounds))
    apart = [late[cell].median_s / early[cell].median_s - 1.0 for cell in early.keys() & late.keys()]
    if apart:
        said = (
            f"mean distance of a cell's median in the last {rounds // 2} rounds from that in the first; "
            f"{statistics.fmean(apart):+.3g} with its sign"
        )
        found.append(Figure("repeatability", statistics.fmean(map(abs, apart)), "relative", detail=said))
    return found


def _parts(errors: dict[Cell, float]) -> Sequence[tuple[str, list[Cell]]]:
    """Where the errors lie."""
    parts = [
        ("up to a quarter of a core", [cell for cell in errors if cell[0] <= MB_PER_CORE / 4]),
        ("up to a core", [cell for cell in errors if MB_PER_CORE / 4 < cell[0] <= MB_PER_CORE]),
        ("two threads", [cell for cell in errors if cell[0] > MB_PER_CORE]),
    ]
    return [(name, cells) for name, cells in parts if cells]


def _mean(errors: dict[Cell, float], cells: Sequence[Cell]) -> float:
    return statistics.fmean(abs(errors[cell]) for cell in cells)

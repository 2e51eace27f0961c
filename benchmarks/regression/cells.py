"""Cells of the measurement: 46 of Lambda's memory sizes × 20 batches, their order, and the results on disk.

128 to 3,008 MB in steps of 64 MB are the sizes that Lambda had when BATCH was published: 0.07 to 1.70 cores at 1,769 MB for each,
so that a machine of two cores has them all. As on Lambda an instance computes on as many threads as it has cores or parts of
one: one up to 1,769 MB, two beyond.

A machine is not the same an hour later. So each cell is visited once in each of several rounds, in an order of chance, for a few
runs at a time, and its median is over all of them: what changes meanwhile falls on all cells alike. Those that the regression is
trained on are visited three times in a round, because all others rest on them.

How well the cells that were trained on tell the others, and how repeatable any of them is.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
import random
import statistics
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias

from benchmarks.report import Figure
from gnomon_core.errors import GnomonError
from gnomon_core.lambda_pricing import MB_PER_CORE
from gnomon_core.whole_files import replace_file
from gnomon_planner.service_time import Measured, ServiceModel, fitted, to_measure

MEMORIES_MB = tuple(range(128, 3009, 64))
BATCHES = tuple(range(1, 21))
ORDER = 17
TRAINED_VISITS = 3
Cell: TypeAlias = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Visit:
    """One measurement of a cell in one round, and its number among all of them."""

    number: int
    round: int
    cell: Cell


@dataclass(frozen=True, slots=True)
class Grid:
    """The cells, and which of them are trained on."""

    memories_mb: tuple[int, ...]
    batches: tuple[int, ...]
    trained: tuple[Cell, ...]

    @staticmethod
    def of(memories_mb: Sequence[int], batches: Sequence[int], share: float) -> Grid:
        cells = to_measure(memories_mb, batches, share, whole=MB_PER_CORE)
        return Grid(tuple(memories_mb), tuple(batches), tuple((int(memory), batch) for memory, batch in cells))

    @property
    def cells(self) -> list[Cell]:
        """All of them."""
        return [(memory, batch) for memory in self.memories_mb for batch in self.batches]

    def visits(self, rounds: int) -> list[Visit]:
        """All visits of so many rounds in the order of measuring, which is always the same."""
        found: list[Visit] = []
        for number in range(rounds):
            cells = self.cells + list(self.trained) * (TRAINED_VISITS - 1)
            random.Random(ORDER + number).shuffle(cells)
            found += [Visit(len(found) + place, number, cell) for place, cell in enumerate(cells)]
        return found


def cores_of(memory_mb: int) -> float:
    """The cores that Lambda gives a function of this memory size."""
    return memory_mb / MB_PER_CORE


def threads_of(memory_mb: int) -> int:
    """How many threads an instance of that size computes on."""
    return math.ceil(memory_mb / MB_PER_CORE)


@dataclass(frozen=True, slots=True)
class Times:
    """Runs of one cell, in seconds, and the processor time that they took."""

    seconds: tuple[float, ...]
    core_s: tuple[float, ...]

    def __add__(self, others: Times) -> Times:
        return Times(self.seconds + others.seconds, self.core_s + others.core_s)

    @property
    def median_s(self) -> float:
        return statistics.median(self.seconds)

    @property
    def spread(self) -> float:
        """The interquartile range relative to the median."""
        quarters = statistics.quantiles(self.seconds, n=4, method="inclusive")
        return (quarters[2] - quarters[0]) / self.median_s

    @property
    def uncertainty(self) -> float:
        """Half of the 95 % interval of the median, by order statistics, relative to it."""
        ordered, count = sorted(self.seconds), len(self.seconds)
        rank = max(0, math.floor(count / 2.0 - 0.98 * math.sqrt(count)))
        return (ordered[count - 1 - rank] - ordered[rank]) / 2.0 / self.median_s


class Kept:
    """Visits on disk, a line each behind a line that says what they are of; one that was cut off by a kill is dropped."""

    def __init__(self, path: Path, identity: Mapping[str, Any]) -> None:
        self._path = path
        self._visits: dict[int, tuple[Visit, Times]] = {}
        lines = _whole_lines(path)
        if not lines or lines[0] != dict(identity):
            lines = [dict(identity)]
        for line in lines[1:]:
            self._take(line)
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, "".join(json.dumps(line) + "\n" for line in lines), durable=False)

    def add(self, visit: Visit, times: Times) -> None:
        """Keep a visit; it is on disk when this returns."""
        line = {**asdict(visit), **asdict(times)}
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self._take(line)

    def missing(self, visits: Iterable[Visit]) -> list[Visit]:
        """Which of them are still to be made."""
        return [visit for visit in visits if visit.number not in self._visits]

    def cells(self, rounds: Container[int] | None = None) -> dict[Cell, Times]:
        """The results of each cell, in all rounds or in some."""
        found: dict[Cell, Times] = {}
        for visit, times in self._visits.values():
            if rounds is None or visit.round in rounds:
                found[visit.cell] = found.get(visit.cell, Times((), ())) + times
        return found

    def _take(self, line: Mapping[str, Any]) -> None:
        memory, batch = line["cell"]
        visit = Visit(line["number"], line["round"], (memory, batch))
        self._visits[visit.number] = visit, Times(tuple(line["seconds"]), tuple(line["core_s"]))


def _whole_lines(path: Path) -> list[dict[str, Any]]:
    try:
        data = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in data.splitlines(keepends=True) if line.endswith("\n")]


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
    """How repeatable the medians are."""
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
    """Errors by part of the range."""
    parts = [
        ("up to a quarter of a core", [cell for cell in errors if cell[0] <= MB_PER_CORE / 4]),
        ("up to a core", [cell for cell in errors if MB_PER_CORE / 4 < cell[0] <= MB_PER_CORE]),
        ("two threads", [cell for cell in errors if cell[0] > MB_PER_CORE]),
    ]
    return [(name, cells) for name, cells in parts if cells]


def _mean(errors: dict[Cell, float], cells: Sequence[Cell]) -> float:
    return statistics.fmean(abs(errors[cell]) for cell in cells)

"""What is measured: 46 of Lambda's memory sizes × 20 batches, the order of it, and what has been found, on disk.

128 to 3,008 MB in steps of 64 MB are the sizes that Lambda had when BATCH was published: 0.07 to 1.70 cores at 1,769 MB for each,
so that a machine of two cores has them all. As on Lambda an instance computes on as many threads as it has cores or parts of
one: one up to 1,769 MB, two beyond.

A machine is not the same an hour later. So each cell is visited once in each of several rounds, in an order of chance, for a few
runs at a time, and its median is over all of them: what changes meanwhile falls on all cells alike. Those that the regression is
trained on are visited three times in a round, because all others rest on them.
"""

from __future__ import annotations

import json
import math
import os
import random
import statistics
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias

from gnomon_core.units import MB_PER_CORE
from gnomon_core.whole_files import replace_file
from gnomon_planner.service_time import to_measure

MEMORIES_MB = tuple(range(128, 3009, 64))
BATCHES = tuple(range(1, 21))
ORDER = 17
TRAINED_VISITS = 3
Cell: TypeAlias = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Visit:
    """One of a cell, in one of the rounds; its number among all of them."""

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
    """What Lambda gives with so much memory."""
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
        """What was found of each cell, in all rounds or in some."""
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

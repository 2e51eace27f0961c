"""What is measured: 46 of Lambda's memory sizes × 20 batches, the order of it, and what has been found, on disk.

128 to 3,008 MB in steps of 64 MB are the sizes that Lambda had when BATCH was published: 0.07 to 1.70 cores at 1,769 MB for each,
so that a machine of two cores has them all. As on Lambda an instance computes on as many threads as it has cores or parts of
one: one up to 1,769 MB, two beyond.

The cells that the regression is trained on come first, then all others in an order of chance: at any time what is there says
how well it does, and what changes on the machine meanwhile falls on no particular sizes. The trained cells are then measured
once more, by which they are repeatable or not.
"""

from __future__ import annotations

import json
import math
import os
import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from gnomon_core.memory_sizes import MB_PER_CORE
from gnomon_planner.service_time import to_measure

MEMORIES_MB = tuple(range(128, 3009, 64))
BATCHES = tuple(range(1, 21))
ORDER = 17
Cell: TypeAlias = tuple[int, int]


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
        """All of them in the order of measuring."""
        others = [(memory, batch) for memory in self.memories_mb for batch in self.batches if (memory, batch) not in self.trained]
        random.Random(ORDER).shuffle(others)
        return [*self.trained, *others]


def cores_of(memory_mb: int) -> float:
    """What Lambda gives with so much memory."""
    return memory_mb / MB_PER_CORE


def threads_of(memory_mb: int) -> int:
    """How many threads an instance of that size computes on."""
    return math.ceil(memory_mb / MB_PER_CORE)


@dataclass(frozen=True, slots=True)
class Times:
    """The runs of one cell, in seconds, and the processor time that they took."""

    seconds: tuple[float, ...]
    core_s: tuple[float, ...]

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
    """Cells on disk, a line each behind a line that says what they are of; one that was cut off by a kill is dropped."""

    def __init__(self, path: Path, identity: Mapping[str, Any]) -> None:
        self._path = path
        self.first: dict[Cell, Times] = {}
        self.again: dict[Cell, Times] = {}
        lines = _whole_lines(path)
        if not lines or lines[0] != dict(identity):
            lines = [dict(identity)]
        for line in lines[1:]:
            self._take(line)
        path.parent.mkdir(parents=True, exist_ok=True)
        incoming = path.with_name(f"{path.name}.incoming")
        incoming.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        incoming.replace(path)

    def add(self, cell: Cell, times: Times, *, again: bool) -> None:
        """Keep a cell; it is on disk when this returns."""
        line = {"cell": cell, "again": again, "seconds": times.seconds, "core_s": times.core_s}
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self._take(line)

    def missing(self, grid: Grid) -> list[tuple[Cell, bool]]:
        """What is still to be measured, and whether for the second time."""
        return [(cell, False) for cell in grid.cells if cell not in self.first] + [
            (cell, True) for cell in grid.trained if cell not in self.again
        ]

    def _take(self, line: Mapping[str, Any]) -> None:
        memory, batch = line["cell"]
        found = self.again if line["again"] else self.first
        found[memory, batch] = Times(tuple(line["seconds"]), tuple(line["core_s"]))


def _whole_lines(path: Path) -> list[dict[str, Any]]:
    try:
        data = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in data.splitlines(keepends=True) if line.endswith("\n")]

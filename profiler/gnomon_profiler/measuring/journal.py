"""Finished cells on disk, a line each, so that a run that was killed goes on where it stopped.

The first line says what the cells are of: the model's files, the machine, the software and the settings. A journal of anything
else is not gone on with; it is begun anew. A line that was cut off by a kill is dropped. A cell may have several lines, since
noisy ones are measured again: the quickest counts, because what disturbs a measurement only ever adds to it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

from gnomon_core.whole_files import make_folder, replace_file
from gnomon_profiler.measuring.cells import Cell

FORMAT = "gnomon-profile-journal/1"
Result: TypeAlias = dict[str, Any]


class Journal:
    """The cells that are finished. `identity` is what they are of."""

    def __init__(self, path: Path, identity: Mapping[str, Any]) -> None:
        self._path = path
        self._results: dict[str, list[Result]] = {}
        head = {"format": FORMAT, **identity}
        lines = _whole_lines(path)
        if not lines or lines[0] != head:
            lines = [head]
        for line in lines[1:]:
            self._results.setdefault(str(line["cell"]), []).append(dict(line["result"]))
        make_folder(path.parent)
        replace_file(path, "".join(_line(line) for line in lines), durable=True)

    def __len__(self) -> int:
        return len(self._results)

    def get(self, cell: Cell) -> Result | None:
        """The best measurement of a cell; None when there is none."""
        return min(self._results.get(cell.key, []), key=_seconds, default=None)

    def tries(self, cell: Cell) -> int:
        """How often it has been measured."""
        return len(self._results.get(cell.key, []))

    def add(self, cell: Cell, result: Result) -> None:
        """Keep a measurement; it is on disk when this returns."""
        self._results.setdefault(cell.key, []).append(result)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(_line({"cell": cell.key, "result": result}))
            file.flush()
            os.fsync(file.fileno())

    def remove(self) -> None:
        """Forget everything: the profile is written."""
        self._path.unlink(missing_ok=True)


def spread_of(result: Mapping[str, Any]) -> float:
    """The interquartile range of a latency cell relative to its median; 0 for cells of other kinds."""
    return float(result["range_s"]) / float(result["whole_s"]) if result.get("whole_s") else 0.0


def _seconds(result: Mapping[str, Any]) -> float:
    return float(result.get("whole_s", 0.0))


def _whole_lines(path: Path) -> list[dict[str, Any]]:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return []
    lines: list[dict[str, Any]] = []
    for text in data.splitlines(keepends=True):
        if not text.endswith(b"\n"):
            break
        try:
            lines.append(json.loads(text))
        except ValueError:
            break
    return lines


def _line(document: Mapping[str, Any]) -> str:
    return json.dumps(document, separators=(",", ":"), sort_keys=True) + "\n"

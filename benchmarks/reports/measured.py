"""What other benchmarks have measured: their JSON in `benchmarks/results`, as tables and numbers of a report."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.report import RESULTS
from benchmarks.reports.tables import Table, table


class Measured:
    """One benchmark's document; `there` says whether it has been measured."""

    def __init__(self, name: str, folder: Path = RESULTS) -> None:
        self.name, self.command = name, f"python -m benchmarks {name}"
        path = folder / f"{name}.json"
        self.document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}

    @property
    def there(self) -> bool:
        return bool(self.document.get("figures"))

    @property
    def figures(self) -> Sequence[dict[str, Any]]:
        """Its figures, as `benchmarks.report.Figure` has them."""
        found: Sequence[dict[str, Any]] = self.document.get("figures", [])
        return found

    def figure(self, key: str) -> dict[str, Any] | None:
        """The figure of that name."""
        return next((one for one in self.figures if one["key"] == key), None)

    def having(self, *words: str) -> list[dict[str, Any]]:
        """The figures whose names have all of these words."""
        return [one for one in self.figures if all(word in one["key"] for word in words)]

    def table(self, name: str, title: str) -> Table:
        """All of its figures."""
        rows = [
            (
                one["key"],
                one["value"],
                one["unit"],
                f"{one['comparison']} {one['goal']:g}" if one["goal"] is not None else "",
                one["detail"],
            )
            for one in self.figures
        ]
        note = f"{self.command}, {self.document.get('measured_at', '')}, {self.document.get('machine', '')}"
        return table(name, title, ("figure", "value", "unit", "goal", "detail"), rows, note)

"""A report: it is measured step by step, and written as a page with its tables beside it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.reports.claims import Claim, counted
from benchmarks.reports.listing import listed
from benchmarks.reports.page import html
from benchmarks.reports.pictures import Picture
from benchmarks.reports.sections import Section
from benchmarks.reports.steps import Results, Step, Store
from benchmarks.reports.tables import Table, table

S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class Report:
    """All sections under one title. `about` is what a reader has to know first, paragraph by paragraph."""

    title: str
    about: tuple[str, ...]
    facts: dict[str, str]
    sections: tuple[Section, ...]

    @property
    def claims(self) -> list[Claim]:
        """Of all sections."""
        return [claim for section in self.sections for claim in section.claims]

    @property
    def tables(self) -> list[Table]:
        """All tables, that of the claims first."""
        rows = [tuple(asdict(claim).values()) for claim in self.claims]
        heads = ("where", "the paper says", "found here", "verdict", "why")
        return [table("claims", "All claims", heads, rows), *(one for section in self.sections for one in section.tables)]

    @property
    def pictures(self) -> list[Picture]:
        """Of all sections."""
        return [one for section in self.sections for one in section.pictures]

    def to_json(self) -> dict[str, Any]:
        return {
            "title": self.title,
            "facts": self.facts,
            "claims": [asdict(claim) for claim in self.claims],
            "tables": {one.name: one.to_json() for one in self.tables[1:]},
        }

    def to_markdown(self) -> str:
        """The claims alone, for a document to quote."""
        return listed(self.title, self.facts, self.claims)

    def write(self, folder: Path) -> Path:
        """Write `index.html`, `report.json`, `claims.md`, each table as CSV and JSON and each picture as SVG; the page's path."""
        folder.mkdir(parents=True, exist_ok=True)
        for one in self.tables:
            (folder / f"{one.name}.csv").write_text(one.to_csv(), encoding="utf-8")
            (folder / f"{one.name}.json").write_text(_json(one.to_json()), encoding="utf-8")
        for drawn in self.pictures:
            (folder / f"{drawn.name}.svg").write_text(drawn.svg, encoding="utf-8")
        (folder / "report.json").write_text(_json(self.to_json()), encoding="utf-8")
        (folder / "claims.md").write_text(self.to_markdown(), encoding="utf-8")
        page = folder / "index.html"
        page.write_text(html(self.title, self.about, self.facts, self.sections), encoding="utf-8")
        return page

    def __str__(self) -> str:
        return f"{self.title}: {len(self.claims)} claims, {counted(self.claims)}"


def sections_of(
    steps: Sequence[Callable[[S], Iterable[Step]]], sections: Sequence[Callable[[S, Results], Section]], setting: S, store: Store
) -> tuple[Section, ...]:
    """Measure what is not kept, in the order of `steps`, then make the sections of all results, in theirs."""
    results = store.results([step for each in steps for step in each(setting)])
    return tuple(section(setting, results) for section in sections)


def _json(document: dict[str, Any]) -> str:
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"

"""A report: it is measured step by step, and written as a page with its tables beside it.

Steps: pieces of measuring whose results are kept, so that a report that was interrupted goes on where it was.

A result is JSON, in one file for each step. With it is a key: a digest of the step's name and parameters, of the sources that
it is computed by, and of the results that it is computed from. A step whose key is the kept one's is not run again; one whose key
has changed is. So a change in a part of the planner runs again what the planner computed, and not what was measured of models.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from benchmarks.reports.claims import Claim, counted, listed
from benchmarks.reports.figures import Picture, Table, table
from benchmarks.reports.page import Section, html
from gnomon_core.whole_files import replace_file

Results = Mapping[str, Any]
Work = Callable[[Mapping[str, Any], Results], Any]


@dataclass(frozen=True, slots=True)
class Step:
    """`work(parameters, results)` makes JSON; `results` are those of the steps named in `after`, which come earlier.

    `sources` are packages, modules or files that it depends on, beside the module of `work` itself.
    """

    name: str
    work: Work
    parameters: Mapping[str, Any] = field(default_factory=dict)
    after: tuple[str, ...] = ()
    sources: tuple[ModuleType | Path, ...] = ()


class Store:
    """The results of steps, in a folder."""

    def __init__(self, folder: Path, say: Callable[[str], None] = print) -> None:
        self.folder, self._say = folder, say

    def results(self, steps: Sequence[Step]) -> dict[str, Any]:
        """Each step's result by its name; what is not kept is measured, in the order given.

        Raises:
            ValueError: two steps have one name, or one needs a step that does not come before it.

        """
        found: dict[str, Any] = {}
        # Of all steps before the first: a source that is edited meanwhile is not the one that this process runs.
        digests = {step.name: sources_of(step) for step in steps}
        for number, step in enumerate(steps, start=1):
            if step.name in found or not set(step.after) <= set(found):
                raise ValueError(f"step {step.name!r} is there twice, or comes before one that it needs")
            earlier = {name: found[name] for name in step.after}
            key = key_of(step, earlier, digests[step.name])
            found[step.name] = self._result(step, earlier, key, f"[{number}/{len(steps)}]")
        return found

    def _result(self, step: Step, earlier: Results, key: str, place: str) -> Any:
        path = self.folder / f"{step.name}.json"
        kept = _read(path)
        if kept.get("key") == key:
            self._say(f"{place} {step.name}: kept")
            return kept["result"]
        self._say(f"{place} {step.name} …")
        begun_s = time.monotonic()
        # What is given to later steps and to the page is what a file can hold, whether it was just measured or kept.
        result = json.loads(json.dumps(step.work(step.parameters, earlier)))
        taken_s = time.monotonic() - begun_s
        self.folder.mkdir(parents=True, exist_ok=True)
        kept = {"step": step.name, "key": key, "seconds": round(taken_s, 3), "result": result}
        replace_file(path, json.dumps(kept), durable=False)
        self._say(f"{place} {step.name}: {taken_s:.1f} s")
        return result


def key_of(step: Step, earlier: Results, sources: str) -> str:
    """The digest of all that the result depends on."""
    return hashlib.sha256(
        json.dumps([step.name, dict(step.parameters), dict(earlier), sources], sort_keys=True).encode()
    ).hexdigest()


def sources_of(step: Step) -> str:
    """The digest of the sources that it is computed by."""
    digest = hashlib.sha256()
    for source in (Path(inspect.getsourcefile(step.work) or ""), *step.sources):
        for file in _files(source):
            digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


def _files(source: ModuleType | Path) -> Iterator[Path]:
    """The files of a source: a package's modules, one module, or a file of data."""
    if isinstance(source, Path):
        yield source
    elif hasattr(source, "__path__"):
        yield from sorted(Path(next(iter(source.__path__))).rglob("*.py"))
    else:
        yield Path(str(source.__file__))


def _read(path: Path) -> dict[str, Any]:
    """The kept results; empty where there are none or the file was cut off."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


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

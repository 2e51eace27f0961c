"""A report on a paper: it is measured step by step, and written as one HTML page with its tables beside it.

Step      a piece of measuring; its result is kept as JSON with a key, the digest of its name, parameters, sources and of
the results that it is computed from. A step whose key has not changed is not run again.
Claim     what a paper says, what was found here, and whether that is the same; kept as a list in Markdown for a document
to quote, and renewed when the benchmarks that it rests on are run again
Picture   SVG with text as text, its colours named by role, so that the page can be light or dark
Table     rows of plain values, as CSV, as JSON and as HTML
Measured  the JSON of other benchmarks in `benchmarks/results`
Section   one figure of a paper, or one group of its claims, as it was found here
"""

from __future__ import annotations

import csv
import hashlib
import inspect
import io
import json
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from html import escape
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, TypeVar, cast

from benchmarks.programs import RESULTS
from gnomon_core.atomic_files import replace_file

Verdict = Literal["reproduced", "not reproduced", "not comparable", "not measured"]
VERDICTS: tuple[Verdict, ...] = ("reproduced", "not reproduced", "not comparable", "not measured")


@dataclass(frozen=True, slots=True)
class Claim:
    """`where` in the paper, what it `says`, what was `found`, the verdict, and `why`, unless it is simply reproduced.

    Raises:
        ValueError: no reason for what is not reproduced.

    """

    where: str
    says: str
    found: str
    verdict: Verdict
    why: str = ""

    def __post_init__(self) -> None:
        if self.verdict not in VERDICTS or (self.verdict != "reproduced" and not self.why):
            raise ValueError(f"{self.where}: a verdict that is not known, or without a reason")


def judged(where: str, says: str, found: str, *, holds: bool, why: str) -> Claim:
    """Reproduced if it holds; else not, and why."""
    return Claim(where, says, found, "reproduced" if holds else "not reproduced", "" if holds else why)


def unmeasured(where: str, says: str, command: str) -> Claim:
    """A claim that waits for a benchmark to be run."""
    return Claim(where, says, "not measured yet", "not measured", f"run: {command}")


def counted(claims: Iterable[Claim]) -> str:
    """The number of claims for each verdict."""
    found = Counter(claim.verdict for claim in claims)
    return ", ".join(f"{found[verdict]} {verdict}" for verdict in VERDICTS if found[verdict])


HEADS = ("| where | the paper | here | verdict |", "| --- | --- | --- | --- |")


def listed(title: str, facts: Mapping[str, str], claims: Sequence[Claim]) -> str:
    """The list: its title, how many claims have each verdict, the facts, and a row for each claim."""
    said = "; ".join(f"{name}: {value}" for name, value in facts.items())
    summary = f"{title}: {len(claims)} claims, {counted(claims)}. {said}."
    return f"# {title}\n\n{summary}\n\n{rows_of(claims)}"


def rows_of(claims: Iterable[Claim]) -> str:
    """The claims as a table in Markdown, a row each."""
    return "\n".join((*HEADS, *(_row(claim) for claim in claims))) + "\n"


def read(text: str) -> tuple[str, dict[str, str], list[Claim]]:
    """The title, the facts and the claims of a list.

    Raises:
        ValueError: a row is not one of four cells, or its verdict is not known.

    """
    title, _, summary, _, _, _, *rows = text.splitlines()
    said = summary.partition(". ")[2].removesuffix(".")
    facts = dict(fact.split(": ", 1) for fact in said.split("; "))
    return title.removeprefix("# "), facts, [_claim(row) for row in rows]


def renewed(text: str, claims: Iterable[Claim], facts: Mapping[str, str]) -> str:
    """The list with these claims and facts in the places of its own.

    Raises:
        ValueError: a claim that the list does not have: the report has to be made again.

    """
    title, before, old = read(text)
    new = {(claim.where, claim.says): claim for claim in claims}
    if unknown := new.keys() - {(claim.where, claim.says) for claim in old}:
        raise ValueError(f"the list has no such claim: {sorted(unknown)}")
    return listed(title, {**before, **facts}, [new.get((claim.where, claim.says), claim) for claim in old])


def _row(claim: Claim) -> str:
    verdict = f"{claim.verdict}: {claim.why}" if claim.why else claim.verdict
    return f"| {claim.where} | {claim.says} | {claim.found} | {verdict} |"


def _claim(row: str) -> Claim:
    cells = row.removeprefix("| ").removesuffix(" |").split(" | ")
    if len(cells) != 4:
        raise ValueError(f"no row of four cells: {row[:200]!r}")
    where, says, found, judged = cells
    verdict, _, why = judged.partition(": ")
    return Claim(where, says, found, cast("Verdict", verdict), why)


INK, MUTED, LINE, PAPER = "#1c2229", "#69727d", "#d8dde3", "#fdfdfc"
SERIES = ("#1f6f8b", "#d9722e", "#5f8a3a", "#8a5fb0", "#b8435f", "#8c7a3d")
ROLES = {INK: "--ink", MUTED: "--muted", LINE: "--line", PAPER: "--paper"} | {
    colour: f"--series-{number}" for number, colour in enumerate(SERIES, start=1)
}
_PANEL_INCHES = (3.9, 2.7)
_FONT = re.compile(r"font: ([^'\";]*?)(\d+(?:\.\d+)?px) [^;\"]*")


@dataclass(frozen=True, slots=True)
class Picture:
    """`name` is its file's name; the caption says what is to be seen."""

    name: str
    caption: str
    svg: str

    def inlined(self) -> str:
        """The SVG for inclusion in a page: with the page's colours and unique identifiers."""
        svg = self.svg[self.svg.index("<svg") :]
        for colour, role in ROLES.items():
            svg = svg.replace(colour, f"var({role})")
        svg = _FONT.sub(r"font: \1\2 var(--sans)", svg)
        for before in (' id="', "url(#", 'href="#'):
            svg = svg.replace(before, f"{before}{self.name}-")
        return svg


def picture(name: str, caption: str, draw: Callable[[list[Any]], None], *, rows: int = 1, columns: int = 1) -> Picture:
    """A picture of rows × columns panels; `draw` gets their axes, row by row."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    with mpl.rc_context(_style(name)):
        size = (_PANEL_INCHES[0] * max(columns, 1.4), _PANEL_INCHES[1] * rows)
        figure, axes = plt.subplots(rows, columns, squeeze=False, figsize=size, layout="constrained")
        draw(list(axes.flat))
        text = io.StringIO()
        figure.savefig(text, format="svg", transparent=True, metadata={"Date": None})
        plt.close(figure)
    return Picture(name, caption, text.getvalue())


def legend_above(panels: Sequence[Any], columns: int) -> None:
    """A legend for all panels above them, where it covers no data; the first panel has every entry."""
    handles, labels = panels[0].get_legend_handles_labels()
    panels[0].figure.legend(handles, labels, fontsize=6.5, ncols=columns, loc="outside upper left")


def _style(name: str) -> Any:
    from cycler import cycler

    return {
        "svg.fonttype": "none",
        "svg.hashsalt": name,
        "font.size": 8.5,
        "axes.prop_cycle": cycler(color=list(SERIES)),
        "axes.edgecolor": LINE,
        "axes.labelcolor": MUTED,
        "axes.titlecolor": INK,
        "axes.titlesize": 9.5,
        "axes.titlelocation": "left",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "grid.color": LINE,
        "grid.linewidth": 0.6,
        "axes.axisbelow": True,
        "text.color": INK,
        "xtick.color": MUTED,
        "ytick.color": MUTED,
        "legend.frameon": False,
        "legend.labelcolor": INK,
        "legend.fontsize": 7.5,
        "lines.linewidth": 1.5,
        "axes.formatter.useoffset": False,
    }


Cell = str | int | float | None
DIGITS = 4


@dataclass(frozen=True, slots=True)
class Table:
    """`name` is its file's name; units stand in the heads of columns.

    Raises:
        ValueError: a row is shorter or longer than the heads.

    """

    name: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""

    def __post_init__(self) -> None:
        if any(len(row) != len(self.columns) for row in self.rows):
            raise ValueError(f"table {self.name}: a row does not fit the heads")

    def to_csv(self) -> str:
        """The table as CSV with all digits, one row a line."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(self.columns)
        writer.writerows(self.rows)
        return text.getvalue()

    def to_json(self) -> dict[str, Any]:
        rows = [dict(zip(self.columns, row, strict=True)) for row in self.rows]
        return {"name": self.name, "title": self.title, "columns": list(self.columns), "rows": rows, "note": self.note}

    def to_markdown(self) -> str:
        """The table for a document; numbers are shown with four digits."""
        lines = ["| " + " | ".join(self.columns) + " |", "| --- " * len(self.columns) + "|"]
        return "\n".join([*lines, *("| " + " | ".join(shown(value) for value in row) + " |" for row in self.rows)]) + "\n"

    def to_html(self) -> str:
        """Numbers are shown with four digits; the CSV has the others."""
        head = "".join(f"<th scope='col'>{escape(column)}</th>" for column in self.columns)
        body = "".join(f"<tr>{''.join(_cell(value) for value in row)}</tr>" for row in self.rows)
        note = f"<p class='note'>{escape(self.note)}</p>" if self.note else ""
        link = f"<a href='{escape(self.name)}.csv' download>CSV</a>"
        caption = f"<caption>{escape(self.title)} {link}</caption>"
        return f"<div class='wide'><table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>{note}"


def table(name: str, title: str, columns: Sequence[str], rows: Sequence[Sequence[Cell]], note: str = "") -> Table:
    """A table of any sequences."""
    return Table(name, title, tuple(columns), tuple(tuple(row) for row in rows), note)


def shown(value: Cell) -> str:
    """A value as people read it."""
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 10**DIGITS else f"{value:.{DIGITS}g}"
    return str(value)


def _cell(value: Cell) -> str:
    kind = " class='number'" if isinstance(value, int | float) else ""
    return f"<td{kind}>{escape(shown(value))}</td>"


class Measured:
    """The document of one benchmark; `there` says whether it has been measured."""

    def __init__(self, name: str, folder: Path = RESULTS) -> None:
        self.name, self.command = name, f"python -m benchmarks {name}"
        path = folder / f"{name}.json"
        self.document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}

    @property
    def there(self) -> bool:
        return bool(self.document.get("figures"))

    @property
    def figures(self) -> Sequence[dict[str, Any]]:
        """The document's figures, as `benchmarks.report.Figure` has them."""
        found: Sequence[dict[str, Any]] = self.document.get("figures", [])
        return found

    def figure(self, key: str) -> dict[str, Any] | None:
        """The figure of that name."""
        return next((figure for figure in self.figures if figure["key"] == key), None)

    def having(self, *words: str) -> list[dict[str, Any]]:
        """The figures whose names have all of these words."""
        return [figure for figure in self.figures if all(word in figure["key"] for word in words)]

    def table(self, name: str, title: str) -> Table:
        """The table of all figures."""
        rows = [
            (
                figure["key"],
                figure["value"],
                figure["unit"],
                f"{figure['comparison']} {figure['goal']:g}" if figure["goal"] is not None else "",
                figure["detail"],
            )
            for figure in self.figures
        ]
        note = f"{self.command}, {self.document.get('measured_at', '')}, {self.document.get('machine', '')}"
        return table(name, title, ("figure", "value", "unit", "goal", "detail"), rows, note)


@dataclass(frozen=True, slots=True)
class Section:
    """`name` is its place in the page; `text` says how it was measured, paragraph by paragraph."""

    name: str
    title: str
    text: tuple[str, ...]
    pictures: tuple[Picture, ...] = ()
    tables: tuple[Table, ...] = ()
    claims: tuple[Claim, ...] = ()


STYLE = Path(__file__).parent / "page.css"


def html(title: str, about: Sequence[str], facts: Mapping[str, str], sections: Sequence[Section]) -> str:
    """The whole document."""
    claims = [claim for section in sections for claim in section.claims]
    contents = "".join(
        f"<li><a href='#{section.name}'>{escape(section.title)}</a>{_dots(section.claims)}</li>" for section in sections
    )
    known = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in facts.items())
    body = "".join(_section(section) for section in sections)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escape(title)}</title>
<style>
{STYLE.read_text(encoding="utf-8")}</style>
</head>
<body>
<header>
<h1>{escape(title)}</h1>
{_paragraphs(about)}
<ul class="counts">{_counts(claims)}</ul>
<dl>{known}</dl>
</header>
<nav aria-label="Contents"><ol>{contents}</ol></nav>
<main>
{body}
</main>
<footer><p>Every table is also a CSV and a JSON file beside this page; <a href="claims.csv">claims.csv</a> has all claims,
<a href="report.json">report.json</a> everything.</p></footer>
</body>
</html>
"""


def _section(section: Section) -> str:
    pictures = "".join(
        f"<figure>{picture.inlined()}<figcaption>{escape(picture.caption)} <a href='{picture.name}.svg' "
        "download>SVG</a></figcaption></figure>"
        for picture in section.pictures
    )
    claims = "".join(_claim_html(claim) for claim in section.claims)
    tables = "".join(
        f"<details{' open' if len(table.rows) <= 12 else ''}><summary>{escape(table.title)}: {len(table.rows)} "
        f"rows</summary>{table.to_html()}</details>"
        for table in section.tables
    )
    return (
        "<section "
        f"id='{section.name}'><h2>{escape(section.title)}</h2>{_paragraphs(section.text)}{pictures}{claims}{tables}</section>\n"
    )


def _claim_html(claim: Claim) -> str:
    why = f"<dt>Why</dt><dd>{escape(claim.why)}</dd>" if claim.why else ""
    return (
        f"<article class='claim {_kind(claim)}'><p class='verdict'>{escape(claim.verdict)}</p><p "
        f"class='where'>{escape(claim.where)}</p><dl><dt>The "
        f"paper</dt><dd>{escape(claim.says)}</dd><dt>Here</dt><dd>{escape(claim.found)}</dd>{why}</dl></article>"
    )


def _counts(claims: Sequence[Claim]) -> str:
    pairs = [(verdict, sum(claim.verdict == verdict for claim in claims)) for verdict in VERDICTS]
    return "".join(f"<li class='{verdict.replace(' ', '-')}'><b>{count}</b> {verdict}</li>" for verdict, count in pairs if count)


def _dots(claims: Iterable[Claim]) -> str:
    dots = "".join(f"<i class='{_kind(claim)}' title='{escape(claim.where)}: {claim.verdict}'></i>" for claim in claims)
    return f"<span class='dots'>{dots}</span>"


def _kind(claim: Claim) -> str:
    return claim.verdict.replace(" ", "-")


def _paragraphs(text: Sequence[str]) -> str:
    return "".join(f"<p>{escape(paragraph)}</p>" for paragraph in text)


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
        """The claims of all sections."""
        return [claim for section in self.sections for claim in section.claims]

    @property
    def tables(self) -> list[Table]:
        """All tables, that of the claims first."""
        rows = [tuple(asdict(claim).values()) for claim in self.claims]
        heads = ("where", "the paper says", "found here", "verdict", "why")
        return [table("claims", "All claims", heads, rows), *(table for section in self.sections for table in section.tables)]

    @property
    def pictures(self) -> list[Picture]:
        """The pictures of all sections."""
        return [picture for section in self.sections for picture in section.pictures]

    def to_json(self) -> dict[str, Any]:
        return {
            "title": self.title,
            "facts": self.facts,
            "claims": [asdict(claim) for claim in self.claims],
            "tables": {table.name: table.to_json() for table in self.tables[1:]},
        }

    def to_markdown(self) -> str:
        """The claims alone, for a document to quote."""
        return listed(self.title, self.facts, self.claims)

    def write(self, folder: Path) -> Path:
        """Write `index.html`, `report.json`, `claims.md`, each table as CSV and JSON and each picture as SVG; the page's path."""
        folder.mkdir(parents=True, exist_ok=True)
        for table in self.tables:
            (folder / f"{table.name}.csv").write_text(table.to_csv(), encoding="utf-8")
            (folder / f"{table.name}.json").write_text(_json(table.to_json()), encoding="utf-8")
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

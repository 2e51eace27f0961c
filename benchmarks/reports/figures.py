"""Pictures: matplotlib draws, and what it draws follows the page into the dark.

A picture is SVG with text as text. Its colours are names of roles (`INK`, `SERIES`…); standing alone it has those of a light
page, and in a page each is a variable of the page's style sheet, which has two sets of them.

Tables: rows of plain values, as CSV, as JSON and as HTML.

What other benchmarks have measured: their JSON in `benchmarks/results`, as tables and numbers of a report.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from benchmarks.programs import RESULTS

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
        """For a page: its colours are the page's, and its identifiers are no other picture's."""
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
        figure, axes = plt.subplots(rows, columns, squeeze=False, figsize=size)
        draw(list(axes.flat))
        figure.tight_layout()
        text = io.StringIO()
        figure.savefig(text, format="svg", transparent=True, metadata={"Date": None})
        plt.close(figure)
    return Picture(name, caption, text.getvalue())


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
        """All digits, one row a line."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(self.columns)
        writer.writerows(self.rows)
        return text.getvalue()

    def to_json(self) -> dict[str, Any]:
        rows = [dict(zip(self.columns, row, strict=True)) for row in self.rows]
        return {"name": self.name, "title": self.title, "columns": list(self.columns), "rows": rows, "note": self.note}

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

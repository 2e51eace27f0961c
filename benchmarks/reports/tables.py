"""Tables: rows of plain values, as CSV, as JSON and as HTML."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

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

"""Demand as others publish it: a table with a header, separated by commas, semicolons or tabs.

| the header has | a row is | it becomes |
| --- | --- | --- |
| `HashFunction` and `1`, `2`, … (Azure Functions 2019) | a function, a column a minute | a Trace |
| `end_timestamp` and `duration` (Azure Functions 2021) | a request, by its end | times, ascending |
| a column of times and one of counts: `minute,invocations` | a bin | a Trace |
| a column of times: `TIMESTAMP,ContextTokens,…` (Azure's LLM traces) | a request | times, ascending |

A column of times is called `timestamp`, `time`, `arrival_time` or the like, perhaps with its unit (`time_ms`, `minute`); what its
cells mean is in `moments`. Where a column says whose row it is (`func`, `function`, `model`), one of them can be chosen.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from gnomon_core.errors import GnomonError, bad_request
from gnomon_simulator.results import from_the_first, seconds
from gnomon_simulator.traces import SHOWN_NAMES, Trace, open_text, trace_of

Value = TypeVar("Value")
HINT = "A table has a header with a column of times, such as timestamp; with one of counts beside it, a row is a bin."
MINUTE_S = 60.0
_TIMES = (
    "timestamp", "time", "datetime", "date", "arrival", "arrival_time", "arrival_timestamp", "request_time", "request_timestamp",
    "start", "start_time", "start_timestamp", "invocation_time", "t", "ts", "second", "minute", "hour",
)  # fmt: skip
_UNITS = {"_ns": 1e-9, "_us": 1e-6, "_ms": 1e-3, "_s": 1.0, "_seconds": 1.0}
_WORDS = {"second": 1.0, "minute": MINUTE_S, "hour": 3600.0}
_COUNTS = ("count", "requests", "invocations", "arrivals")
_FUNCTIONS = ("func", "function", "hashfunction", "model", "model_name")


def read_table(path: Path, function: str | None = None) -> Trace | list[float]:
    """The demand in a table; where `function` is named, of its rows only.

    Raises:
        GnomonError: 400 `bad_trace`, with the line that is wrong; `unknown_trace_function`.

    """
    with open_text(path) as lines:
        table = _Table(path, lines, function)
        if "hashfunction" in table.columns:
            return Trace(MINUTE_S, table.sums([place for name, place in table.columns.items() if name.isdecimal()]))
        if {"end_timestamp", "duration"} <= table.columns.keys():
            end, took = table.columns["end_timestamp"], table.columns["duration"]
            return _ascending(table.each(lambda row: seconds(row[end]) - float(row[took])))
        named = (*_TIMES, *(name + unit for name in _TIMES for unit in _UNITS))
        time = table.first(named)
        if time is None:
            raise _bad(path, 1, "names no column of times")
        place = table.columns[time]
        unit_s = next((unit_s for unit, unit_s in _UNITS.items() if time.endswith(unit)), _WORDS.get(time))
        count = table.first(_COUNTS)
        if count is None:
            return _ascending(table.each(lambda row: seconds(row[place], unit_s)))
        counted = table.columns[count]
        return _binned(path, table.each(lambda row: (seconds(row[place], unit_s), float(row[counted]))))


class _Table:
    """The rows of a file below its header, and where its columns are."""

    def __init__(self, path: Path, lines: Iterator[str], function: str | None) -> None:
        self._path = path
        header = next(lines)
        self._before = 1
        while not header.strip():
            header, self._before = next(lines), self._before + 1
        separator = max(",;\t", key=header.count)
        titles = next(csv.reader([header], delimiter=separator))
        self.columns: dict[str, int] = {}
        for place, title in enumerate(titles):
            self.columns.setdefault(_plain(title), place)
        self._rows = csv.reader(lines, delimiter=separator)
        self._function = function
        self._whose = self.first(_FUNCTIONS)
        if function is not None and self._whose is None:
            raise bad_request("unknown_trace_function", f"{path.name} does not say whose a row is.", "Leave the function out.")

    def first(self, known: Iterable[str]) -> str | None:
        """The first of these names that a column has."""
        return next((name for name in known if name in self.columns), None)

    def each(self, read: Callable[[Sequence[str]], Value]) -> list[Value]:
        """What is read from every row that counts."""
        found: list[Value] = []
        others: dict[str, None] = {}
        for row in self._rows:
            try:
                if not row or self._is_another(row, others):
                    continue
                found.append(read(row))
            except (ValueError, IndexError):
                raise _bad(self._path, self._before + self._rows.line_num, "is not a row of this table") from None
        if not found and others:
            shown = ", ".join(list(others)[:SHOWN_NAMES])
            more = " …" if len(others) > SHOWN_NAMES else ""
            raise bad_request("unknown_trace_function", f"{self._path.name} has no {self._function!r}.", f"It has {shown}{more}.")
        return found

    def sums(self, places: Sequence[int]) -> tuple[float, ...]:
        """Each of these columns, added up over the rows."""
        sums = [0.0] * len(places)
        for row in self.each(lambda row: [float(row[place]) for place in places]):
            sums = [total + count for total, count in zip(sums, row, strict=True)]
        return tuple(sums)

    def _is_another(self, row: Sequence[str], others: dict[str, None]) -> bool:
        if self._function is None or self._whose is None or row[self.columns[self._whose]] == self._function:
            return False
        others[row[self.columns[self._whose]]] = None
        return True


def _plain(title: str) -> str:
    """`Arrival Time (ms)` is `arrival_time_ms`, `Minutes` is `minute`."""
    name = "".join(letter for letter in title.strip().lower().replace(" ", "_").replace("-", "_") if letter not in "()[]")
    return name[:-1] if name in ("counts", "hours", "minutes", "seconds", "timestamps") else name


def _ascending(times_s: Sequence[float]) -> list[float]:
    return from_the_first(sorted(times_s))


def _binned(path: Path, rows: Sequence[tuple[float, float]]) -> Trace:
    """Rows of the same time are one bin: a table may have one for each function."""
    counts: dict[float, float] = {}
    for time_s, count in rows:
        counts[time_s] = counts.get(time_s, 0.0) + count
    times_s = sorted(counts)
    return trace_of(path, from_the_first(times_s), [counts[time_s] for time_s in times_s])


def _bad(path: Path, line: int, what: str) -> GnomonError:
    return bad_request("bad_trace", f"{path.name}: line {line} {what}.", HINT)

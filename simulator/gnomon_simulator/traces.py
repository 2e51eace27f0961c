"""Recorded demand, read from files: traces of requests per bin of time, and the tables that others publish.

A trace is a CSV file, plain or gzipped: `t_seconds,count`, or `t_seconds` and one column a function as in the Azure traces.
`t_seconds` is the start of a bin; the bin's length is the distance between rows, whatever it is. Rows may be missing: a bin
without a row has no requests. Where in a bin its requests fall was not recorded; `arrivals` places them, and says how.

A table has a header and is separated by commas, semicolons or tabs, or has a JSON object in each line:

| the header has | a row is | it becomes |
| --- | --- | --- |
| `HashFunction` and `1`, `2`, … (Azure Functions 2019) | a function, a column a minute | a Trace |
| `end_timestamp` and `duration` (Azure Functions 2021) | a request, by its end | times, ascending |
| `timestamp` and `hash_ids` (Mooncake's LLM traces) | a request, its time in ms | times, ascending |
| a column of times and one of counts: `minute,invocations` | a bin | a Trace |
| a column of counts alone: `requests` | a second | a Trace |
| a column of times: `TIMESTAMP,ContextTokens,…` (Azure's LLM traces) | a request | times, ascending |

A column of times is called `timestamp`, `time`, `arrival_time` or the like, perhaps with its unit (`time_ms`, `minute`). Where a
column names the function of a row (`func`, `function`, `model`), one of them can be chosen.

A time stamp is seconds from some beginning, or a calendar time:

    12.5                            12.5 seconds from the beginning
    1700158546.68, 1700158546680    a moment since 1970, in s, ms, µs or ns, recognised by its size
    2023-11-16 18:15:46.6805900     a moment (ISO 8601), UTC unless it has a zone

Moments become seconds from the earliest one of the file, so that "from the second hour on" means the same in every file.
"""

from __future__ import annotations

import csv
import gzip
import io
import itertools
import json
import math
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from gnomon_core.clock import parse_time_s
from gnomon_core.errors import GnomonError, bad_request

SHOWN_NAMES = 5
HINT = "Name a CSV file of demand, plain or .gz."
MOST_BINS = 50_000_000
"""The most bins of a trace: 58 days in bins of 100 ms."""


@dataclass(frozen=True, slots=True)
class Trace:
    """Counts of one stretch of time: `counts[i]` requests in `bin_s` seconds from `start_s + i × bin_s`."""

    bin_s: float
    counts: tuple[float, ...]
    start_s: float = 0.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.bin_s) and self.bin_s > 0.0):
            raise bad_request("bad_trace", f"A bin of {self.bin_s} s is not possible.", "Use a positive length in seconds.")
        if not all(0.0 <= count < math.inf for count in self.counts):
            raise bad_request("bad_trace", "A count is negative, infinite or NaN.", "Use finite counts of at least 0.")

    @property
    def duration_s(self) -> float:
        """The length of the stretch."""
        return len(self.counts) * self.bin_s

    @property
    def requests(self) -> float:
        """The number of requests in the trace."""
        return sum(self.counts)

    def slice(self, start_s: float = 0.0, duration_s: float | None = None) -> Trace:
        """The part from `start_s` for `duration_s`, to whole bins; it begins at second 0 again.

        Raises:
            GnomonError: 400 `empty_trace` if no bin lies there.

        """
        first = round((start_s - self.start_s) / self.bin_s)
        last = len(self.counts) if duration_s is None else first + round(duration_s / self.bin_s)
        counts = self.counts[max(0, first) : max(0, last)]
        if not counts:
            raise bad_request(
                "empty_trace",
                f"The trace has no bins in the stretch from second {start_s:g}.",
                f"It has {self.duration_s:g} seconds in bins of {self.bin_s:g} s.",
            )
        return Trace(self.bin_s, counts)

    def scaled(self, factor: float) -> Trace:
        """The trace with `factor` times the requests; counts may become fractions, which `arrivals` resolves by chance."""
        return Trace(self.bin_s, tuple(count * factor for count in self.counts), self.start_s)


def read_trace(path: Path, function: str | None = None) -> Trace:
    """The trace in a file: the one column there is, the column named `function`, or the sum of all where none is named.

    Raises:
        GnomonError: 400 `bad_trace`, with the line that is wrong.

    """
    names, times, rows = _read(path)
    if function is None:
        return trace_of(path, times, [sum(row) for row in rows])
    if function not in names:
        raise bad_request(
            "unknown_trace_function",
            f"{path.name} has no column {function!r}.",
            f"It has {', '.join(names[:SHOWN_NAMES])}{' …' if len(names) > SHOWN_NAMES else ''}.",
        )
    column = names.index(function)
    return trace_of(path, times, [row[column] for row in rows])


def _read(path: Path) -> tuple[list[str], list[float], list[list[float]]]:
    times: list[float] = []
    rows: list[list[float]] = []
    with open_text(path) as lines:
        reader = csv.reader(lines)
        names = next(reader, [])
        if len(names) <= 1 or names[0] != "t_seconds":
            raise _bad(path, 1, "does not begin with t_seconds and the name of a column")
        for row in reader:
            if not row:
                continue
            try:
                times.append(float(row[0]))
                rows.append([float(text) for text in row[1:]])
            except (ValueError, IndexError):
                raise _bad(path, reader.line_num, "is not a row of numbers") from None
            if len(row) != len(names) or min(rows[-1]) < 0:
                raise _bad(path, reader.line_num, f"is not {len(names)} numbers from 0")
    return names[1:], from_the_first(times), rows


@contextmanager
def open_text(path: Path) -> Iterator[io.TextIOWrapper]:
    """The text of a file, plain or gzipped.

    Raises:
        GnomonError: 400 `bad_trace` if there is no such file, or while it is read and turns out to be no text.

    """
    if not path.is_file():
        raise bad_request("bad_trace", f"There is no trace at {path}.", HINT)
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            yield io.TextIOWrapper(file, encoding="utf-8-sig", newline="")
    except (UnicodeDecodeError, OSError, EOFError, zlib.error):
        raise bad_request("bad_trace", f"{path.name} is neither text nor gzipped text.", HINT) from None


def trace_of(path: Path, times: Sequence[float], counts: Sequence[float]) -> Trace:
    """Counts in the bins that begin at these ascending times; between them, bins may be missing.

    Raises:
        GnomonError: 400 `bad_trace` for no row, or times that do not ascend.

    """
    if not times:
        raise _bad(path, 2, "is missing: there is no row")
    bin_s = min(_steps(path, times), default=1.0)
    last = (times[-1] - times[0]) / bin_s
    if not last < MOST_BINS:
        raise bad_request(
            "bad_trace",
            f"{path.name} has {times[-1] - times[0]:g} seconds in bins of {bin_s:g}, the shortest distance between two rows.",
            f"At most {MOST_BINS:,} bins are read: where rows are single requests, leave the counts out.",
        )
    filled = [0.0] * (round(last) + 1)
    for time_s, count in zip(times, counts, strict=True):
        filled[round((time_s - times[0]) / bin_s)] += count
    return Trace(bin_s, tuple(filled), times[0])


def _steps(path: Path, times: Sequence[float]) -> Iterator[float]:
    for line, (before, after) in enumerate(itertools.pairwise(times), start=3):
        if after <= before:
            raise _bad(path, line, "does not come after the row before it")
        # Differences of decimal fractions: 0.3 − 0.2 must be the same bin as 0.1 − 0.
        yield round(after - before, 9)


def _bad(path: Path, line: int, what: str) -> Exception:
    return bad_request("bad_trace", f"{path.name}: line {line} {what}.", "A trace is CSV: t_seconds,count.")


Value = TypeVar("Value")
TABLE_HINT = "A table has a header with a column of times, such as timestamp; with one of counts beside it, a row is a bin."
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
            return Trace(MINUTE_S, table.sums([column for name, column in table.columns.items() if name.isdecimal()]))
        if {"end_timestamp", "duration"} <= table.columns.keys():
            end, took = table.columns["end_timestamp"], table.columns["duration"]
            return _ascending(table.each(lambda row: seconds(row[end]) - float(row[took])))
        named = (*_TIMES, *(name + unit for name in _TIMES for unit in _UNITS))
        time, count = table.first(named), table.first(_COUNTS)
        if time is None and count is not None:
            counts = table.columns[count]
            return Trace(1.0, tuple(table.each(lambda row: float(row[counts]))))
        if time is None:
            raise _bad_row(path, 1, "names no column of times")
        column = table.columns[time]
        unit_s = next((unit_s for unit, unit_s in _UNITS.items() if time.endswith(unit)), _WORDS.get(time))
        if "hash_ids" in table.columns:
            unit_s = _UNITS["_ms"]
        if count is None:
            return _ascending(table.each(lambda row: seconds(row[column], unit_s)))
        counted = table.columns[count]
        return _binned(path, table.each(lambda row: (seconds(row[column], unit_s), float(row[counted]))))


class _Table:
    """The rows of a file, and where its columns are: its header says so, or the names in its first JSON object."""

    def __init__(self, path: Path, lines: Iterator[str], function: str | None) -> None:
        self._path = path
        header = next(lines)
        number = 1
        while not header.strip():
            header, number = next(lines), number + 1
        if header.lstrip().startswith("{"):
            titles = list(json.loads(header))
            self._rows = _objects(path, itertools.chain([header], lines), titles, number)
        else:
            separator = max(",;\t", key=header.count)
            titles = next(csv.reader([header], delimiter=separator))
            self._rows = _separated(lines, separator, number)
        self.columns: dict[str, int] = {}
        for column, title in enumerate(titles):
            self.columns.setdefault(_plain(title), column)
        self._function = function
        self._whose = self.first(_FUNCTIONS)
        if function is not None and self._whose is None:
            raise bad_request("unknown_trace_function", f"{path.name} has no column of functions.", "Leave the function out.")

    def first(self, known: Iterable[str]) -> str | None:
        """The first of these names that a column has."""
        return next((name for name in known if name in self.columns), None)

    def each(self, read: Callable[[Sequence[str]], Value]) -> list[Value]:
        """The values read from each row of the chosen function; empty rows are skipped."""
        values: list[Value] = []
        other_functions: dict[str, None] = {}
        for number, row in self._rows:
            try:
                if not row or self._is_another(row, other_functions):
                    continue
                values.append(read(row))
            except (ValueError, IndexError):
                raise _bad_row(self._path, number, "is not a row of this table") from None
        if not values and other_functions:
            shown = ", ".join(list(other_functions)[:SHOWN_NAMES])
            ellipsis = " …" if len(other_functions) > SHOWN_NAMES else ""
            raise bad_request(
                "unknown_trace_function", f"{self._path.name} has no {self._function!r}.", f"It has {shown}{ellipsis}."
            )
        return values

    def sums(self, columns: Sequence[int]) -> tuple[float, ...]:
        """The sum of each of these columns over the rows."""
        sums = [0.0] * len(columns)
        for row in self.each(lambda row: [float(row[column]) for column in columns]):
            sums = [total + count for total, count in zip(sums, row, strict=True)]
        return tuple(sums)

    def _is_another(self, row: Sequence[str], others: dict[str, None]) -> bool:
        if self._function is None or self._whose is None or row[self.columns[self._whose]] == self._function:
            return False
        others[row[self.columns[self._whose]]] = None
        return True


def _separated(lines: Iterator[str], separator: str, header: int) -> Iterator[tuple[int, Sequence[str]]]:
    """The rows below a header in line `header`, each with the number of its line."""
    rows = csv.reader(lines, delimiter=separator)
    for row in rows:
        yield header + rows.line_num, row


def _objects(path: Path, lines: Iterable[str], names: Sequence[str], first: int) -> Iterator[tuple[int, Sequence[str]]]:
    """The values of these names in the JSON object of each line, with the number of the line."""
    for number, line in enumerate(lines, start=first):
        try:
            document = json.loads(line) if line.strip() else {}
            yield number, [str(document[name]) for name in names] if document else []
        except (ValueError, LookupError, TypeError, RecursionError):
            raise _bad_row(path, number, "is not a JSON object with the names of the first one") from None


def _plain(title: str) -> str:
    """`Arrival Time (ms)` is `arrival_time_ms`, `Minutes` is `minute`."""
    name = "".join(letter for letter in title.strip().lower().replace(" ", "_").replace("-", "_") if letter not in "()[]")
    return name[:-1] if name in ("counts", "hours", "minutes", "seconds", "timestamps") else name


def _ascending(times_s: Sequence[float]) -> list[float]:
    return from_the_first(sorted(times_s))


def _binned(path: Path, rows: Sequence[tuple[float, float]]) -> Trace:
    """Sum the rows of equal times into one bin: a table may have a row for each function."""
    counts: dict[float, float] = {}
    for time_s, count in rows:
        counts[time_s] = counts.get(time_s, 0.0) + count
    times_s = sorted(counts)
    return trace_of(path, from_the_first(times_s), [counts[time_s] for time_s in times_s])


def _bad_row(path: Path, line: int, what: str) -> GnomonError:
    return bad_request("bad_trace", f"{path.name}: line {line} {what}.", TABLE_HINT)


SINCE_1970_S = 1e8
"""Seconds from which on a stamp counts from 1970: no recording has three years, and none is from before 1973."""


_PER_SECOND = ((1e17, 1e9), (1e14, 1e6), (1e11, 1e3))
"""The least stamp since 1970 that is in parts of a second, and the parts: 1e11 seconds would be the year 5138."""


def seconds(text: str, unit_s: float | None = None) -> float:
    """The seconds that a stamp says, from its own beginning. `unit_s` is the unit of a plain number, where it is known.

    Raises:
        ValueError: it is neither a number nor a date with a time.

    """
    try:
        value = float(text)
    except ValueError:
        return parse_time_s(text)
    if unit_s is not None:
        return value * unit_s
    return next((value / parts for least, parts in _PER_SECOND if value >= least), value)


def from_the_first(times_s: Sequence[float]) -> list[float]:
    """Calendar times as seconds from the earliest one; relative times are unchanged."""
    first_s = min(times_s, default=0.0)
    return [time_s - first_s for time_s in times_s] if first_s >= SINCE_1970_S else list(times_s)

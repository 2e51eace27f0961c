"""Recorded demand: requests per bin of time.

A trace is a CSV file, plain or gzipped: `t_seconds,count`, or `t_seconds` and one column a function as in the Azure traces.
`t_seconds` is the start of a bin; the bin's length is the distance between rows, whatever it is. Rows may be missing: a bin
without a row has no requests. Moments since 1970 become seconds from the first row (`moments`). Where in a bin its requests fall
was not recorded; `arrivals` decides that, and says how.
"""

from __future__ import annotations

import csv
import gzip
import io
import itertools
import math
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from gnomon_core.errors import bad_request
from gnomon_simulator.results import from_the_first

SHOWN_NAMES = 5
HINT = "Name a CSV file of demand, plain or .gz."
MOST_BINS = 50_000_000
"""58 days in bins of 100 ms."""


@dataclass(frozen=True, slots=True)
class Trace:
    """Counts of one stretch of time: `counts[i]` requests in `bin_s` seconds from `start_s + i × bin_s`."""

    bin_s: float
    counts: tuple[float, ...]
    start_s: float = 0.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.bin_s) and self.bin_s > 0.0):
            raise bad_request("bad_trace", f"A bin of {self.bin_s} s.", "A bin has a positive length, in seconds.")
        if not all(0.0 <= count < math.inf for count in self.counts):
            raise bad_request("bad_trace", "A count is negative, infinite or NaN.", "Counts are numbers from 0.")

    @property
    def duration_s(self) -> float:
        """The length of the stretch."""
        return len(self.counts) * self.bin_s

    @property
    def requests(self) -> float:
        """How many requests it holds."""
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
                f"Nothing of the trace lies from second {start_s:g} on.",
                f"It has {self.duration_s:g} seconds in bins of {self.bin_s:g} s.",
            )
        return Trace(self.bin_s, counts)

    def scaled(self, factor: float) -> Trace:
        """The same shape with `factor` times the requests; counts may become fractions, which `arrivals` resolves by chance."""
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

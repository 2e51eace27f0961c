"""Sliding windows: bins made from cumulative counters.

The gateway counts arrivals, successes and the integrals of concurrency and busy cores since a function was deployed. Samples may
be late or missing; because the counters only grow, their differences are still exact. A sample is a point on the curve of each
counter; between two points the curve is interpolated linearly, and cut at the ends of bins.

Example with bins of 0.5 s: samples of 0 arrivals at 0.0 s and 12 at 1.5 s, two turns missed, make three bins of 4.

Bins end at sampling times (`origin_s` and whole bins after it), so that a sample includes the half second that has just ended:
the data of a policy that reacts to bursts would otherwise be up to a bin old.

Most functions are idle for minutes. Of empty windows only the length is kept, and all empty histories of a length share one tuple
of zeros: otherwise a thousand functions with 600 bins each take 50 MB. The bins of a busy function are arrays of machine numbers,
19 kB; a snapshot of them is copied in a microsecond.
"""

from __future__ import annotations

import math
import sys
from array import array
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import TypeAlias, cast

from gnomon_core.json_types import Json, JsonObject
from gnomon_core.scaling import History, LoadCounters

BIN_S = 0.5
KEEP_S = 300.0
SURPLUS = 64
"""The number of expired bins that are dropped at once, so that deleting at the front of an array is rare."""
_TOLERANCE_S = 1e-9

_Point: TypeAlias = tuple[float, float, float, float]
"""Arrivals, successes, concurrency × seconds, busy cores × seconds."""
_Bin: TypeAlias = tuple[float, float, float, float]
"""Arrivals, successes, mean concurrency, mean busy cores."""
_Columns: TypeAlias = "tuple[array[float], array[float], array[float], array[float]]"
_NOTHING: _Bin = (0.0, 0.0, 0.0, 0.0)


@dataclass(slots=True)
class _Last:
    """The last sample, and the integrals at the beginning of the open bin."""

    at_s: float
    point: _Point
    first_edge_s: float
    edges: int
    at_edge: _Point


class LoadWindows:
    """The recent load of one function. Every method takes the time; none reads a clock.

    Without an `origin_s` bins begin at the first sample.
    """

    def __init__(self, bin_s: float = BIN_S, keep_s: float = KEEP_S, origin_s: float | None = None) -> None:
        self.bin_s = bin_s
        self._origin_s = origin_s
        self._keep = round(keep_s / bin_s)
        self._length = 0
        self._columns: _Columns | None = None
        """One column per value of a bin, whose last `_length` entries are the bins; None while all bins are empty."""
        self._loaded = 0
        """The number of bins that are not empty."""
        self._last: _Last | None = None

    def keep_at_least(self, keep_s: float) -> None:
        """Keep at least this many seconds of history from now on."""
        self._keep = max(self._keep, round(keep_s / self.bin_s))

    def record(self, now_s: float, counters: LoadCounters) -> None:
        """Take a sample. A sample that is not later than the last is ignored; if counters fell, a new curve begins."""
        arrivals, successes = float(counters.arrivals), float(counters.successes)
        concurrency_s, busy_core_s = counters.concurrency_s, counters.busy_core_s
        point = (arrivals, successes, concurrency_s, busy_core_s)
        last = self._last
        if last is not None:
            before = last.point
            fell = arrivals < before[0] or successes < before[1] or concurrency_s < before[2] or busy_core_s < before[3]
            if not fell:
                if now_s > last.at_s:
                    self._close_bins(last, now_s, point)
                    last.at_s, last.point = now_s, point
                return
        self._last = _Last(now_s, point, self._edge_before_s(now_s), 0, point)

    def _edge_before_s(self, now_s: float) -> float:
        """The last bin edge at or before this time, in seconds."""
        if self._origin_s is None:
            return now_s
        return self._origin_s + math.floor((now_s - self._origin_s + _TOLERANCE_S) / self.bin_s) * self.bin_s

    def _close_bins(self, last: _Last, now_s: float, point: _Point) -> None:
        due = int((now_s - last.first_edge_s + _TOLERANCE_S) / self.bin_s)
        if due <= last.edges:
            return
        # After a pause longer than the window, only the bins that remain in it are computed.
        skipped = due - self._keep
        if skipped > last.edges:
            last.edges, last.at_edge = skipped, self._cut(last, skipped, now_s, point)
        number, begin = due - last.edges, last.at_edge
        if point == last.point == begin:
            self._append(_NOTHING, number)
        else:
            end = self._cut(last, last.edges + 1, now_s, point)
            self._append(self._bin(begin, end, 1))
            if number > 1:  # the curve is straight, so that all further bins are equal
                begin, end = end, self._cut(last, due, now_s, point)
                self._append(self._bin(begin, end, number - 1), number - 1)
            last.at_edge = end
        last.edges = due

    def _bin(self, begin: _Point, end: _Point, number: int) -> _Bin:
        """Each of `number` equal bins between two points of a straight curve."""
        a0, s0, c0, b0 = begin
        a1, s1, c1, b1 = end
        length_s = number * self.bin_s
        return ((a1 - a0) / number, (s1 - s0) / number, (c1 - c0) / length_s, (b1 - b0) / length_s)

    def _append(self, values: _Bin, number: int = 1) -> None:
        """Append so many equal bins, at most as many as are kept."""
        columns, loaded, keep = self._columns, values != _NOTHING, self._keep
        if columns is None:
            if not loaded:
                self._length = min(keep, self._length + number)
                return
            nothing = _nothing(self._length)
            columns = self._columns = array("d", nothing), array("d", nothing), array("d", nothing), array("d", nothing)
        for column, value in zip(columns, values, strict=True):
            if number == 1:
                column.append(value)
            else:
                column.extend((value,) * number)
        self._loaded += loaded * number
        expired = max(0, self._length + number - keep)
        self._length += number - expired
        if expired:
            end = len(columns[0]) - keep
            self._loaded -= _count_loaded(columns, end - expired, end)
            if not self._loaded:
                self._columns = None
            elif end > SURPLUS:
                for column in columns:
                    del column[:end]

    def _cut(self, last: _Last, edge: int, now_s: float, point: _Point) -> _Point:
        edge_s = last.first_edge_s + edge * self.bin_s
        share = min(1.0, (edge_s - last.at_s) / (now_s - last.at_s))
        a0, s0, c0, b0 = last.point
        a1, s1, c1, b1 = point
        return (a0 + (a1 - a0) * share, s0 + (s1 - s0) * share, c0 + (c1 - c0) * share, b0 + (b1 - b0) * share)

    @property
    def is_empty(self) -> bool:
        """Return whether nothing happened in all closed bins."""
        return self._columns is None

    def history(self, now_s: float) -> History:
        """The closed bins. With nothing sampled yet, an empty history that ends now."""
        last = self._last
        end_s = last.first_edge_s + last.edges * self.bin_s if last else now_s
        if self._columns is None:
            nothing = _nothing(self._length)
            return History(self.bin_s, end_s, nothing, nothing, nothing, nothing)
        arrivals, successes, concurrency, busy_cores = self._columns
        begin = len(arrivals) - self._length
        return History(self.bin_s, end_s, arrivals[begin:], successes[begin:], concurrency[begin:], busy_cores[begin:])

    def to_json(self) -> JsonObject:
        """State for a warm restart of the autoscaler; see `_Run` for its bins."""
        if self._columns is None:
            return {"bin_s": self.bin_s, "bins": [self._length] if self._length else []}
        begin = len(self._columns[0]) - self._length
        columns = [column[begin:] for column in self._columns]
        if self._loaded == self._length:
            return {"bin_s": self.bin_s, "bins": [_encode(columns)]}
        runs: list[Json] = []
        end = 0
        for loaded, bins in groupby(map(any, zip(*columns, strict=True))):
            first, end = end, end + sum(1 for _ in bins)
            runs.append(_encode([column[first:end] for column in columns]) if loaded else end - first)
        return {"bin_s": self.bin_s, "bins": runs}

    @staticmethod
    def from_json(document: JsonObject, keep_s: float = KEEP_S, origin_s: float | None = None) -> LoadWindows:
        """Restore saved windows. The time in between, without samples, is omitted."""
        windows = LoadWindows(float(cast("float", document["bin_s"])), keep_s, origin_s)
        columns: _Columns = array("d"), array("d"), array("d"), array("d")
        for parts in _read(cast("Sequence[_Run]", document["bins"]), windows.bin_s):
            for column, part in zip(columns, parts, strict=True):
                column.extend(part)
        for column in columns:
            del column[: max(0, len(column) - windows._keep)]
        windows._length = len(columns[0])
        windows._loaded = _count_loaded(columns, 0, windows._length)
        windows._columns = columns if windows._loaded else None
        return windows


_Run: TypeAlias = "int | str | list[float]"
"""A part of saved bins: a number of empty ones; the columns of loaded ones, one after the other, as doubles in Base64; or one bin
as earlier versions wrote it, its means as integrals. A new leader reads a thousand histories before it decides: Base64 takes a
tenth of the time of numbers, which is a third of a millisecond for each."""


def _encode(columns: Iterable[array[float]]) -> str:
    joined = array("d")
    for column in columns:
        joined.extend(column)
    if sys.byteorder == "big":
        joined.byteswap()
    return b64encode(joined.tobytes()).decode()


def _read(runs: Iterable[_Run], bin_s: float) -> Iterator[Iterable[array[float]]]:
    """The four columns of one part of saved bins after the other."""
    for kind, same in groupby(runs, type):
        if kind is list:
            yield _single_bins(cast("Iterable[list[float]]", same), bin_s)
        else:
            yield from map(_decode, cast("Iterable[int | str]", same))


def _decode(run: int | str) -> Iterable[array[float]]:
    """The four columns of a number of bins."""
    if isinstance(run, int):
        return (array("d", bytes(run * 8)),) * 4
    joined = array("d", b64decode(run, validate=True))
    if sys.byteorder == "big":
        joined.byteswap()
    length, rest = divmod(len(joined), 4)
    if rest or not length:
        raise ValueError(f"{len(joined)} numbers are not four columns of bins")
    return [joined[begin : begin + length] for begin in range(0, len(joined), length)]


def _single_bins(bins: Iterable[list[float]], bin_s: float) -> Iterable[array[float]]:
    """The four columns of bins that an earlier version saved one by one."""
    arrivals, successes, *integrals = zip(*bins, strict=True)
    means = [[value / bin_s for value in integral] for integral in integrals]
    return [array("d", values) for values in (arrivals, successes, *means)]


def _count_loaded(columns: _Columns, begin: int, end: int) -> int:
    """The number of these bins that are not empty."""
    parts = [column[begin:end] for column in columns]
    if 0.0 not in parts[0]:  # the usual case of a busy function
        return len(parts[0])
    return sum(map(any, zip(*parts, strict=True)))


@lru_cache(maxsize=64)
def _nothing(bins: int) -> tuple[float, ...]:
    """Zeros for this number of bins, cached: nearly all empty windows have the full length."""
    return (0.0,) * bins

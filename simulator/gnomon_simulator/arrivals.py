"""Arrival times: a sorted list of seconds from the start.

Every load generator takes such a list: the simulator walks it in virtual time, `replay` sends at those times. It
comes from a trace, from a Poisson process, from a constant rate or from a recorded run.

A trace has counts per bin, without the times within it. Requests are placed uniformly at random within it, independently,
which is what a Poisson process conditioned on its count does. A fractional count, as scaling leaves it, becomes the next whole
number with the probability of the fraction: 2.25 is 2 three times of four.

Files of demand, by content: counts per bin, or times of requests.

| the file begins with | it is | and becomes |
| --- | --- | --- |
| `t_seconds,` | a trace: CSV, as `traces` reads it | a Trace |
| `{`, with one document a line and `sent_s` | a run that `gnomon replay --record` wrote | times |
| `{`, with one document a line | a table, as `traces` reads it: a document is a row | a Trace, or times |
| `{` or `[` | JSON: `{"bin_s", "counts"}`, `{"times_s"}` or a list of time stamps | a Trace, or times |
| a number or a date, and the lines ascend | one time stamp a line, as `traces` reads it; `#` begins a comment | times |
| a number, and the lines rise and fall | the requests of a second in each line | a Trace |
| other words | a table with a header, as `traces` reads it | a Trace, or times |

Any of them may be gzipped. Time stamps keep the order of the file; a caller that needs ascending ones sorts them.
"""

from __future__ import annotations

import itertools
import json
import math
import random
from array import array
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from gnomon_core.errors import GnomonError, bad_request
from gnomon_simulator.traces import SINCE_1970_S, Trace, from_the_first, open_text, read_table, read_trace, seconds

FALLING, FALLEN = 0.25, 0.5
"""The share of falling lines, and the fall, from which bare numbers are counts: logs have a few times in another order."""
MOST_ARRIVALS = 100_000_000
"""A list of these takes 0.8 to 3 GB; a mistyped rate would take all memory."""


def from_trace(trace: Trace, rng: random.Random) -> array[float]:
    """The arrivals of a trace, from second 0; machine numbers, 8 bytes each, because a day has millions."""
    _check_count(sum(trace.counts))
    uniform = rng.random
    arrivals = array("d")
    for index, count in enumerate(trace.counts):
        integer = math.floor(count)
        if count > integer and uniform() < count - integer:
            integer += 1
        # Sorting within the bin suffices: all times of a bin are before those of the next bin.
        arrivals.extend(sorted([(index + uniform()) * trace.bin_s for _ in range(integer)]))
    return arrivals


def poisson(rate_rps: float, duration_s: float, rng: random.Random) -> list[float]:
    """A Poisson process: independent exponential times between arrivals."""
    _check(rate_rps, duration_s)
    arrivals: list[float] = []
    time_s = rng.expovariate(rate_rps)
    while time_s < duration_s:
        arrivals.append(time_s)
        time_s += rng.expovariate(rate_rps)
    return arrivals


def constant(rate_rps: float, duration_s: float) -> list[float]:
    """Arrival times every 1/rate seconds, the first at 0; multiplied, not summed, so that no error accumulates over hours."""
    _check(rate_rps, duration_s)
    return [index / rate_rps for index in range(math.ceil(rate_rps * duration_s))]


def recorded(path: Path) -> list[float]:
    """Actual send times of a recorded live run, in seconds from its start.

    Requests that the client never sent are left out.

    Raises:
        GnomonError: 400 `bad_record`, with the line that is wrong.

    """
    arrivals: list[float] = []
    with open_text(path) as lines:
        for number, line in enumerate(lines, start=1):
            try:
                document = json.loads(line)
                if "sent_s" in document and document["sent_s"] is not None:
                    arrivals.append(float(document["sent_s"]))
            except (ValueError, TypeError, OverflowError, RecursionError):
                raise bad_request("bad_record", f"{path.name}: line {number} is not a record.", "Record with replay.") from None
    if not arrivals:
        raise bad_request("bad_record", f"{path.name} has no request that was sent (sent_s).", "Record with replay.")
    return sorted(arrivals)


def selected(arrivals: Sequence[float], start_s: float = 0.0, duration_s: float | None = None) -> list[float]:
    """The arrivals from `start_s` for `duration_s`, moved so that the stretch begins at second 0."""
    end_s = math.inf if duration_s is None else start_s + duration_s
    return [time_s - start_s for time_s in arrivals if start_s <= time_s < end_s]


def _check(rate_rps: float, duration_s: float) -> None:
    if not (math.isfinite(rate_rps) and rate_rps > 0 and math.isfinite(duration_s) and duration_s >= 0):
        raise bad_request("bad_rate", f"Invalid rate {rate_rps} requests/s or duration {duration_s} s.", "Use positive numbers.")
    _check_count(rate_rps * duration_s)


def _check_count(count: float) -> None:
    if count > MOST_ARRIVALS:
        raise bad_request(
            "too_many_arrivals",
            f"{count:.3g} requests are more than the {MOST_ARRIVALS:.0e} of a run.",
            "Choose a shorter stretch or a smaller scale.",
        )


HINT = (
    "It holds t_seconds,count rows, a time stamp or the count of a second a line, JSON with counts and bin_s or times_s, "
    "or a table with a header."
)


def read_demand(path: Path, function: str | None = None) -> Trace | list[float]:
    """The demand in a file; `function` names a column of a per-function trace.

    Raises:
        GnomonError: 400 `bad_trace` or `bad_record`, with the line that is wrong; `unknown_trace_function`.

    """
    with open_text(path) as lines:
        first = next((line for line in lines if line.strip()), "").lstrip()
    if first.startswith("t_seconds"):
        return read_trace(path, function)
    names = _names_in(first)
    is_record = "sent_s" in names
    if _is_header(first) or (names and not is_record):
        return read_table(path, function)
    if function is not None:
        raise bad_request(
            "unknown_trace_function", f"{path.name} has no columns.", "Leave the name out: only tables have columns."
        )
    if is_record:
        return recorded(path)
    with open_text(path) as lines:
        return _of_json(path, lines.read()) if first[:1] in ("{", "[") else _bare_numbers(path, list(lines))


def stretch(demand: Trace | list[float], start_s: float = 0.0, duration_s: float | None = None) -> Trace | list[float]:
    """The part from `start_s` for `duration_s`, beginning at second 0."""
    if isinstance(demand, Trace):
        return demand.slice(start_s, duration_s)
    return demand if start_s == 0.0 and duration_s is None else selected(demand, start_s, duration_s)


def _is_header(line: str) -> bool:
    """True if a file's first line names columns: it begins with a word that is neither JSON, nor a comment, nor a time."""
    word = line.partition("#")[0].strip().strip('"')
    return word[:1].isalpha() and not word.lower().startswith(("nan", "inf"))


def _names_in(line: str) -> Collection[str]:
    """The names in a file's first line if it is a JSON object about a request or a bin; none for all of a file's demand."""
    try:
        document = json.loads(line)
    except (ValueError, RecursionError):
        return ()
    return document.keys() if isinstance(document, dict) and not {"counts", "times_s"} & document.keys() else ()


def _bare_numbers(path: Path, lines: list[str]) -> Trace | list[float]:
    values: list[float] = []
    for number, line in enumerate(lines, start=1):
        text = line.partition("#")[0].strip()
        if text:
            try:
                values.append(seconds(text))
            except ValueError:
                raise _bad(path, f"line {number} is neither a time stamp nor a count") from None
    return from_the_first(values) if _ascends(values) else Trace(1.0, tuple(values))


def _ascends(values: Sequence[float]) -> bool:
    """Return whether these are times: they ascend, but for some lines whose neighbours have overtaken them."""
    if max(values, default=0.0) >= SINCE_1970_S:
        return True
    falls, middle = sum(after < before for before, after in itertools.pairwise(values)), len(values) // 2
    before, since = max(values[:middle], default=0.0), min(values[middle:], default=0.0)
    return falls <= FALLING * len(values) and since >= FALLEN * before


def _of_json(path: Path, text: str) -> Trace | list[float]:
    try:
        document: Any = json.loads(text)
        if isinstance(document, dict) and "counts" in document:
            return Trace(float(document["bin_s"]), tuple(float(count) for count in document["counts"]))
        times, unit_s = (document["times_s"], 1.0) if isinstance(document, dict) else (document, None)
        return from_the_first([seconds(str(time), unit_s) for time in times])
    except json.JSONDecodeError as error:
        raise _bad(path, f"line {error.lineno} is not JSON: {error.msg}") from None
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError):
        raise _bad(path, "the document has neither counts with bin_s nor times_s") from None


def _bad(path: Path, what: str) -> GnomonError:
    return bad_request("bad_trace", f"{path.name}: {what}.", HINT)

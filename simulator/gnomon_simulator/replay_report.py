"""The result of an open-loop run: one row for each request, and the report that sums them up.

A latency counts from the moment at which the request was meant to be sent. Where the generator ran late, or waited for a
connection, that is part of what a client would have seen; the lag stands beside it, so that a reader can tell the two apart.

`Samples` keeps the rows as columns of machine numbers: 53 bytes a request, filled without allocating, and sent between processes
as they are. Times are seconds from the start of the run; NaN where an event did not happen. Written out, a row is a line of JSON:

    {"intended_s": 0.25, "sent_s": 0.2501, "answered_s": 0.26, "left_s": null, "outcome": "answered", "status": 200, "bytes": 17,
     "token": true}
"""

from __future__ import annotations

import json
import math
from array import array
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

from gnomon_simulator.results import spread_ms

FORMAT = "gnomon-replay/1"
SUCCESSES = range(200, 300)


@dataclass(frozen=True, slots=True)
class Report:
    """A run: what was to happen is in `target` and `deadline_s`, what happened in `samples`.

    `started_monotonic_s` is the run's second 0 on the machine's monotonic clock, which the gateway's decisions are stamped with;
    `started_at` the same as a date.
    """

    target: str
    deadline_s: float
    duration_s: float
    started_at: str
    started_monotonic_s: float
    samples: Samples

    def latencies_s(self, statuses: Collection[int] = SUCCESSES) -> list[float]:
        """Seconds from the intended time to the whole answer, of the requests answered with one of these statuses."""
        rows = self.samples
        return [
            answered - intended
            for intended, answered, outcome, status in zip(
                rows.intended_s, rows.answered_s, rows.outcome, rows.status, strict=True
            )
            if outcome == Outcome.ANSWERED and status in statuses
        ]

    def lags_s(self) -> list[float]:
        """Delay of each request behind its scheduled time."""
        rows = self.samples
        return [sent - intended for intended, sent in zip(rows.intended_s, rows.sent_s, strict=True) if not math.isnan(sent)]

    @property
    def succeeded(self) -> int:
        """Requests answered 2xx before the client's deadline, with the right token where it was checked."""
        rows = self.samples
        return sum(
            outcome == Outcome.ANSWERED and status in SUCCESSES and token != Token.WRONG
            for outcome, status, token in zip(rows.outcome, rows.status, rows.token, strict=True)
        )

    @property
    def goodput_rps(self) -> float:
        """Successes per second of the run's length."""
        return self.succeeded / self.duration_s if self.duration_s else 0.0

    @property
    def offered_rps(self) -> float:
        """Intended requests per second of the run's length."""
        return len(self.samples) / self.duration_s if self.duration_s else 0.0

    def summary(self) -> dict[str, Any]:
        """The figures as a JSON document."""
        rows = self.samples
        outcomes = Counter(Outcome(outcome).name.lower() for outcome in rows.outcome)
        statuses = Counter(status for status in rows.status if status)
        return {
            "target": self.target,
            "started_at": self.started_at,
            "duration_s": round(self.duration_s, 3),
            "deadline_s": self.deadline_s,
            "requests": len(rows),
            "offered_rps": round(self.offered_rps, 3),
            "succeeded": self.succeeded,
            "goodput_rps": round(self.goodput_rps, 3),
            "outcomes": {outcome.name.lower(): outcomes[outcome.name.lower()] for outcome in Outcome},
            "statuses": {str(status): count for status, count in sorted(statuses.items())},
            "wrong_tokens": sum(token == Token.WRONG for token in rows.token),
            "latency_ms": dict(spread_ms(self.latencies_s())),
            "latency_by_status_ms": {str(status): dict(spread_ms(self.latencies_s((status,)))) for status in sorted(statuses)},
            "lag_ms": dict(spread_ms(self.lags_s())),
        }

    def table(self) -> str:
        """The figures for a reader."""
        figures = self.summary()
        outcomes = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in figures["outcomes"].items() if count)
        statuses = ", ".join(f"{count} × {status}" for status, count in figures["statuses"].items())
        return "\n".join(
            (
                f"{figures['requests']} requests in {figures['duration_s']:g} s to {self.target}",
                f"  offered   {figures['offered_rps']:g}/s, answered well in time {figures['goodput_rps']:g}/s",
                f"  outcomes  {outcomes}" + (f" ({statuses})" if statuses else ""),
                *([f"  tokens    {figures['wrong_tokens']} answers were another request's"] if figures["wrong_tokens"] else []),
                f"  latency   {_spread(figures['latency_ms'])}",
                f"  own lag   {_spread(figures['lag_ms'])}",
            )
        )

    def write_record(self, path: Path) -> None:
        """The heading and one line a request, as `arrivals.recorded` and `parity` read them."""
        heading = {
            "format": FORMAT,
            "target": self.target,
            "started_at": self.started_at,
            "started_monotonic_s": self.started_monotonic_s,
            "duration_s": self.duration_s,
            "deadline_s": self.deadline_s,
        }
        with path.open("w", encoding="utf-8") as file:
            file.write(json.dumps(heading) + "\n")
            file.writelines(self.samples.lines())


def _spread(spread: Mapping[str, float | None]) -> str:
    shown = [f"{name} {value:.2f}" for name, value in spread.items() if value is not None and name != "mean"]
    return ", ".join(shown) + " ms" if shown else "none"


NEVER = math.nan


class Outcome(IntEnum):
    """Outcome of a request for its client."""

    UNSENT = 0
    """The request was not sent: no connection became free before its deadline."""
    ANSWERED = 1
    GAVE_UP = 2
    """The deadline passed; the client closed the connection."""
    FAILED = 3
    """The connection could not be made or broke before the whole answer was there."""
    ANSWERED_TWICE = 4
    """A second answer came on its connection, to which no other request had been sent since."""


class Token(IntEnum):
    """Result of comparing the response's token with the request's."""

    UNCHECKED = -1
    WRONG = 0
    RIGHT = 1


@dataclass(slots=True)
class Samples:
    """The columns. Row i belongs to the i-th intended time."""

    intended_s: array[float]
    sent_s: array[float]
    answered_s: array[float]
    left_s: array[float]
    """The times at which clients that gave up closed their connections: at the deadline, or later if the generator was late."""
    outcome: array[int]
    status: array[int]
    size_bytes: array[int]
    token: array[int]

    @staticmethod
    def unsent(intended_s: Sequence[float]) -> Samples:
        """The rows of requests of which none was sent."""
        count = len(intended_s)
        return Samples(
            intended_s=array("d", intended_s),
            sent_s=array("d", [NEVER]) * count,
            answered_s=array("d", [NEVER]) * count,
            left_s=array("d", [NEVER]) * count,
            outcome=array("b", [Outcome.UNSENT]) * count,
            status=array("h", [0]) * count,
            size_bytes=array("q", [0]) * count,
            token=array("b", [Token.UNCHECKED]) * count,
        )

    def __len__(self) -> int:
        return len(self.intended_s)

    def columns(self) -> tuple[array[Any], ...]:
        """All columns in the order of the fields."""
        return (
            self.intended_s,
            self.sent_s,
            self.answered_s,
            self.left_s,
            self.outcome,
            self.status,
            self.size_bytes,
            self.token,
        )

    def lines(self) -> Iterator[str]:
        """Each row as a line of JSON."""
        for intended, sent, answered, left, outcome, status, size, token in zip(*self.columns(), strict=True):
            row = {
                "intended_s": round(intended, 6),
                "sent_s": None if math.isnan(sent) else round(sent, 6),
                "answered_s": None if math.isnan(answered) else round(answered, 6),
                "left_s": None if math.isnan(left) else round(left, 6),
                "outcome": Outcome(outcome).name.lower(),
                "status": status,
                "bytes": size,
                "token": None if token == Token.UNCHECKED else token == Token.RIGHT,
            }
            yield json.dumps(row) + "\n"


def merged(parts: Iterable[Samples]) -> Samples:
    """The rows of several generators as those of one, by intended time."""
    rows = sorted((row for part in parts for row in zip(*part.columns(), strict=True)), key=lambda row: row[0])
    all_samples = Samples.unsent([row[0] for row in rows])
    for index, row in enumerate(rows):
        for column, value in zip(all_samples.columns(), row, strict=True):
            column[index] = value
    return all_samples


def read_samples(path: Path) -> Samples:
    """The rows that a recorded run wrote; lines that are none, such as its heading, are passed over."""
    rows = [row for row in map(json.loads, path.read_text(encoding="utf-8").splitlines()) if "intended_s" in row]
    samples = Samples.unsent([row["intended_s"] for row in rows])
    for index, row in enumerate(rows):
        samples.sent_s[index] = NEVER if row["sent_s"] is None else row["sent_s"]
        samples.answered_s[index] = NEVER if row["answered_s"] is None else row["answered_s"]
        samples.left_s[index] = NEVER if row.get("left_s") is None else row["left_s"]
        samples.outcome[index] = Outcome[row["outcome"].upper()]
        samples.status[index] = row["status"]
        samples.size_bytes[index] = row["bytes"]
        samples.token[index] = Token.UNCHECKED if row["token"] is None else int(row["token"])
    return samples

"""What became of each request that a generator was to send: one row each, kept as columns.

Columns of machine numbers cost 53 bytes a request, fill without allocating, and travel between processes as they are.
Times are seconds from the start of the run; what did not happen is NaN. Written out, a row is one line of JSON:

    {"intended_s": 0.25, "sent_s": 0.2501, "answered_s": 0.26, "left_s": null, "outcome": "answered", "status": 200, "bytes": 17,
     "token": true}
"""

from __future__ import annotations

import json
import math
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

NEVER = math.nan


class Outcome(IntEnum):
    """How a request ended for its client."""

    UNSENT = 0
    """No connection became free before its deadline."""
    ANSWERED = 1
    GAVE_UP = 2
    """The deadline passed; the client closed the connection."""
    FAILED = 3
    """The connection could not be made or broke before the whole answer was there."""
    ANSWERED_TWICE = 4
    """A second answer came on its connection, to which no other request had been sent since."""


class Token(IntEnum):
    """Whether the answer carried the request's own token."""

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
    """When a client that gave up closed its connection: at its deadline or, where the generator was late, after it."""
    outcome: array[int]
    status: array[int]
    size_bytes: array[int]
    token: array[int]

    @staticmethod
    def unsent(intended_s: Sequence[float]) -> Samples:
        """Nothing has happened yet."""
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
    whole = Samples.unsent([row[0] for row in rows])
    for index, row in enumerate(rows):
        for column, value in zip(whole.columns(), row, strict=True):
            column[index] = value
    return whole


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

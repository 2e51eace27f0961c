"""Lines that a platform keeps of what its instances write, and how they are asked for: whatever the platform's own query is."""

from __future__ import annotations

from dataclasses import dataclass

from gnomon_core.functions import FunctionKey


@dataclass(frozen=True, slots=True)
class Line:
    """A line that an instance wrote, `at` in seconds since 1970."""

    instance: str
    at: float
    text: str


@dataclass(frozen=True, slots=True)
class Wish:
    """Which lines of a function: `instance` "" is those of all instances, `tail` 0 all there are."""

    key: FunctionKey
    instance: str = ""
    since: float | None = None
    tail: int = 0

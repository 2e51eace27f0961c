"""Lines that instances write, and how they are asked for, whoever keeps them: the gateway's book or a platform."""

from __future__ import annotations

from dataclasses import dataclass

from gnomon_core.functions import FunctionKey


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of one instance, which is named as its platform names it; `at` in seconds since 1970."""

    function: FunctionKey
    instance: str
    at: float
    text: str


@dataclass(frozen=True, slots=True)
class LogQuery:
    """Which lines: `instance` "" is all of them, `tail` 0 is as many as there are."""

    function: FunctionKey
    instance: str = ""
    since: float | None = None
    tail: int = 0

    def wants(self, line: LogLine) -> bool:
        return (not self.instance or line.instance == self.instance) and (self.since is None or line.at >= self.since)

"""Logs that a platform keeps, as the gateway's log routes ask for them. The two do not know each other and are joined here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from gnomon_core.functions import FunctionKey
from gnomon_gateway.log_sources import LineSource
from gnomon_gateway.logs import LogLine, LogQuery
from gnomon_platforms.kept_lines import Line, Wish


class Follower(Protocol):
    """One reader of a platform's."""

    async def next_line(self) -> Line | None: ...

    def close(self) -> None: ...


class PlatformLogs(Protocol):
    """What a platform keeps."""

    async def lines(self, wish: Wish) -> list[Line]: ...

    def follow(self, wish: Wish) -> Follower: ...


class KeptLogs:
    """A `LogReader` that a platform answers. An instance is named as the platform names it: on Kubernetes by its pod."""

    def __init__(self, logs: PlatformLogs) -> None:
        self._logs = logs

    async def lines(self, query: LogQuery) -> Sequence[LogLine]:
        return [_line(query.function, line) for line in await self._logs.lines(_wish(query))]

    def follow(self, query: LogQuery) -> LineSource:
        return _Followed(query.function, self._logs.follow(_wish(query)))


class _Followed:
    def __init__(self, function: FunctionKey, follower: Follower) -> None:
        self._function, self._follower = function, follower

    async def next_line(self) -> LogLine | None:
        line = await self._follower.next_line()
        return None if line is None else _line(self._function, line)

    def close(self) -> None:
        self._follower.close()


def _wish(query: LogQuery) -> Wish:
    return Wish(query.function, query.instance, query.since, query.tail)


def _line(function: FunctionKey, line: Line) -> LogLine:
    return LogLine(function, line.instance, line.at, line.text)

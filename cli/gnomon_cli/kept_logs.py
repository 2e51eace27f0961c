"""Pods' logs as the gateway's log routes ask for them. The two parts know nothing of each other; they are joined here."""

from __future__ import annotations

from collections.abc import Sequence

from gnomon_core.functions import FunctionKey
from gnomon_gateway.log_sources import LineSource
from gnomon_gateway.logs import LogLine, LogQuery
from gnomon_platforms.openfaas.pod_logs import PodFollower, PodLine, PodLogs, Wish


class KeptLogs:
    """A `LogReader` that pods' logs answer. An instance is named by its pod."""

    def __init__(self, pods: PodLogs) -> None:
        self._pods = pods

    async def lines(self, query: LogQuery) -> Sequence[LogLine]:
        return [_line(query.function, line) for line in await self._pods.lines(_wish(query))]

    def follow(self, query: LogQuery) -> LineSource:
        return _Followed(query.function, self._pods.follow(_wish(query)))


class _Followed:
    def __init__(self, function: FunctionKey, follower: PodFollower) -> None:
        self._function, self._follower = function, follower

    async def next_line(self) -> LogLine | None:
        line = await self._follower.next_line()
        return None if line is None else _line(self._function, line)

    def close(self) -> None:
        self._follower.close()


def _wish(query: LogQuery) -> Wish:
    return Wish(query.function, query.instance, query.since, query.tail)


def _line(function: FunctionKey, line: PodLine) -> LogLine:
    return LogLine(function, line.instance, line.at, line.text)

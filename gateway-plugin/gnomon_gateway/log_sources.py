"""Lines of functions from two places: the gateway's own book, and wherever the platform keeps what instances write.

A platform that hands lines over as they come (a supervisor's pipe) needs no reader: they are in the book. A cluster keeps them by
itself, and is asked only when somebody reads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from gnomon_core.log_lines import LogLine, LogQuery
from gnomon_gateway.logs import LogBook

AHEAD = 100
"""Lines that are read before somebody has asked for them."""


class LineSource(Protocol):
    """Lines one after the other. Whoever has it closes it."""

    async def next_line(self) -> LogLine | None:
        """The next line; None at the end."""
        ...

    def close(self) -> None: ...


class LogReader(Protocol):
    """Where a platform keeps what instances write."""

    async def lines(self, query: LogQuery) -> Sequence[LogLine]:
        """The lines there are, oldest first."""
        ...

    def follow(self, query: LogQuery) -> LineSource:
        """The lines there are, and each new one."""
        ...


class Logs:
    """What the log routes ask: the book, and the platform's reader where it has one."""

    def __init__(self, book: LogBook, reader: LogReader | None = None) -> None:
        self._book, self._reader = book, reader

    async def lines(self, query: LogQuery) -> Sequence[LogLine]:
        """The lines there are, oldest first.

        Raises:
            GnomonError: the platform cannot be asked.

        """
        if self._reader is None:
            return self._book.lines(query)
        found = sorted([*self._book.lines(query), *await self._reader.lines(query)], key=lambda line: line.at)
        return found[-query.tail :] if query.tail > 0 else found

    def follow(self, query: LogQuery) -> LineSource:
        """The lines there are, and each new one until the function is removed or the gateway stops.

        Raises:
            GnomonError: 429 `too_many_followers`.

        """
        own = self._book.follow(query)
        if self._reader is None:
            return own
        try:
            other = self._reader.follow(query)
        except BaseException:
            own.close()
            raise
        return _Both(own, other)


class _Both:
    """Lines of two sources as they come; at the end of the first, the book's, there is no more."""

    def __init__(self, first: LineSource, second: LineSource) -> None:
        self._sources = (first, second)
        self._lines: asyncio.Queue[LogLine | None] = asyncio.Queue(AHEAD)
        self._closed = False
        loop = asyncio.get_running_loop()
        self._pumps = [loop.create_task(self._pump(source, last=source is first)) for source in self._sources]

    async def next_line(self) -> LogLine | None:
        return None if self._closed else await self._lines.get()

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        for source in self._sources:
            source.close()
        for pump in self._pumps:
            pump.cancel()
        while not self._lines.empty():
            self._lines.get_nowait()
        self._lines.put_nowait(None)

    async def _pump(self, source: LineSource, *, last: bool) -> None:
        while (line := await source.next_line()) is not None:
            await self._lines.put(line)
        if last:
            await self._lines.put(None)

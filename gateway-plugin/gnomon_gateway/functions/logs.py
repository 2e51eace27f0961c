"""Logs of functions: a bounded buffer of lines for each function, and readers that follow it live.

Writing never blocks. A full buffer drops its oldest lines; a follower that reads too slowly loses its oldest unread lines and
gets a line that says how many. Nothing is written to disk: logs end with the gateway, as a pod's logs end with the pod.

Lines come from two sources: the gateway's own buffer (`LogBook`), and the platform's log store. A platform that streams lines to
the gateway (a supervisor's pipe) needs no reader: its lines are in the buffer. A cluster stores logs itself, and is queried only
when a client reads.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from gnomon_core.clock import utc_now_s
from gnomon_core.errors import GnomonError
from gnomon_core.functions import FunctionKey
from gnomon_core.interfaces import LogLine, LogQuery

MAX_LINES = 10_000
MAX_BYTES = 1 << 20
MAX_LINE_LENGTH = 16 * 1024
MAX_FOLLOWERS = 256
FOLLOWER_LINES = 1_000
# What a line costs beside its text: the object, its timestamp and its place in the deque, about 200 bytes in CPython.
LINE_OVERHEAD_BYTES = 200


class Follower:
    """A reader of a log: the existing lines, then each new one. The owner of the follower must close it."""

    def __init__(self, query: LogQuery, history: Iterable[LogLine], leave: Callable[[Follower], None]) -> None:
        self.query = query
        self._history = deque(history)
        self._waiting: deque[LogLine] = deque()
        self._dropped = 0
        self._closed = False
        self._woken = asyncio.Event()
        self._leave = leave

    def offer(self, line: LogLine) -> None:
        """Queue a new line. If there are too many, the oldest unread one is dropped."""
        if not self.query.wants(line):
            return
        if len(self._waiting) >= FOLLOWER_LINES:
            self._waiting.popleft()
            self._dropped += 1
        self._waiting.append(line)
        self._woken.set()

    async def next_line(self) -> LogLine | None:
        """The next line; None at the end."""
        if self._history:
            return self._history.popleft()
        while not self._waiting and not self._closed:
            self._woken.clear()
            await self._woken.wait()
        if not self._waiting:
            return None
        if self._dropped:
            first, dropped, self._dropped = self._waiting[0], self._dropped, 0
            return LogLine(first.function, "gnomon", first.at, f"{dropped} lines were left out: this reader is too slow.")
        return self._waiting.popleft()

    def close(self) -> None:
        """Close the follower: no line is added any more, queued lines can still be read."""
        if not self._closed:
            self._closed = True
            self._leave(self)
            self._woken.set()


@dataclass(slots=True)
class _Book:
    lines: deque[LogLine] = field(default_factory=deque)
    size_bytes: int = 0


class LogBook:
    """Every function's lines. Used on the event loop; `now` gives seconds since 1970."""

    def __init__(self, now: Callable[[], float] = utc_now_s) -> None:
        self._now = now
        self._books: dict[FunctionKey, _Book] = {}
        self._followers: dict[FunctionKey, set[Follower]] = {}

    def append(self, function: FunctionKey, instance: str, text: str) -> None:
        """Store a line, and pass it to the followers."""
        if len(text) > MAX_LINE_LENGTH:
            text = text[:MAX_LINE_LENGTH] + "…"
        line = LogLine(function, instance, self._now(), text)
        book = self._books.setdefault(function, _Book())
        book.lines.append(line)
        book.size_bytes += len(text) + LINE_OVERHEAD_BYTES
        while len(book.lines) > MAX_LINES or book.size_bytes > MAX_BYTES:
            book.size_bytes -= len(book.lines.popleft().text) + LINE_OVERHEAD_BYTES
        for follower in self._followers.get(function, ()):
            follower.offer(line)

    def lines(self, query: LogQuery) -> list[LogLine]:
        """The lines there are, oldest first."""
        book = self._books.get(query.function)
        found = [line for line in book.lines if query.wants(line)] if book else []
        return found[-query.tail :] if query.tail > 0 else found

    def follow(self, query: LogQuery) -> Follower:
        """The lines there are and then each new one, until the function is removed or the gateway stops.

        Raises:
            GnomonError: 429 `too_many_followers`.

        """
        if sum(map(len, self._followers.values())) >= MAX_FOLLOWERS:
            raise GnomonError(
                429,
                "too_many_followers",
                f"{MAX_FOLLOWERS} readers follow logs already.",
                "End another reader.",
                retry_after_s=10,
            )
        follower = Follower(query, self.lines(query), self._leave)
        self._followers.setdefault(query.function, set()).add(follower)
        return follower

    def forget(self, function: FunctionKey) -> None:
        """Drop a removed function's lines and end those who follow them."""
        self._books.pop(function, None)
        for follower in tuple(self._followers.get(function, ())):
            follower.close()

    def close(self) -> None:
        """End every follower, so that the server can stop."""
        for function in tuple(self._followers):
            for follower in tuple(self._followers.get(function, ())):
                follower.close()

    def _leave(self, follower: Follower) -> None:
        followers = self._followers.get(follower.query.function, set())
        followers.discard(follower)
        if not followers:
            self._followers.pop(follower.query.function, None)


AHEAD = 100
"""The number of lines that are read ahead."""


class LineSource(Protocol):
    """A source of log lines, one after the other. The owner must close it."""

    async def next_line(self) -> LogLine | None:
        """The next line; None at the end."""
        ...

    def close(self) -> None: ...


class LogReader(Protocol):
    """The reader of a platform that keeps the instances' logs itself."""

    async def lines(self, query: LogQuery) -> Sequence[LogLine]:
        """The lines there are, oldest first."""
        ...

    def follow(self, query: LogQuery) -> LineSource:
        """The lines there are, and each new one."""
        ...


class Logs:
    """The logs as the log routes read them: the gateway's buffer, and the platform's reader if it has one."""

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
        buffered = self._book.follow(query)
        if self._reader is None:
            return buffered
        try:
            platform_lines = self._reader.follow(query)
        except BaseException:
            buffered.close()
            raise
        return _Both(buffered, platform_lines)


class _Both:
    """The lines of two sources, merged as they come; ends with the first source, the gateway's buffer."""

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

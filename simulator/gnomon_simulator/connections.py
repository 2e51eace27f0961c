"""A client's HTTP/1.1 connections: as little as a load generator needs, because its own time is measured too.

One request at a time on a connection, answers parsed by httptools, connections kept and reused last in, first out. The pool is
bounded; a request without a connection waits in order. A connection that idled long is closed, not used, so that a server which
drops idle connections does not make requests fail by a race.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Any, cast

import httptools

IDLE_LIMIT_S = 1.0


class Connection(asyncio.Protocol):
    """An HTTP connection to the target, with the exchange in progress."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._parser: Any = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport
        self.request: int | None = None
        """Index of the request in progress."""
        self.answered: int | None = None
        """Index of the last request that was answered."""
        self.idle_since_s = 0.0
        self._values: list[bytes] = []
        self._body = bytearray()
        self.size_bytes = 0

    def send(self, request: int, message: bytes) -> None:
        """Begin an exchange."""
        self.request = request
        self.size_bytes = 0
        if self._pool.keep_answers:
            self._values.clear()
            self._body.clear()
        self._transport.write(message)

    def abort(self) -> None:
        """The client leaves: nothing of the answer is wanted any more."""
        self.request = None
        self._transport.abort()

    def close(self) -> None:
        """Close an idle connection."""
        self._transport.close()

    @property
    def answer(self) -> bytes:
        """The answer's body and the values of its headers, where the pool keeps answers."""
        return b"\n".join((self._body, *self._values))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._transport.abort()

    def connection_lost(self, _reason: Exception | None) -> None:
        self._pool.lost(self)

    def on_header(self, _name: bytes, value: bytes) -> None:
        """Called by the parser."""
        if self._pool.keep_answers:
            self._values.append(value)

    def on_body(self, body: bytes) -> None:
        """Called by the parser."""
        self.size_bytes += len(body)
        if self._pool.keep_answers:
            self._body += body

    def on_message_complete(self) -> None:
        """Called by the parser."""
        self._pool.complete(self, self._parser.get_status_code(), keep=self._parser.should_keep_alive())


class Pool:
    """At most `limit` connections to one address.

    The pool calls `send(request, connection)` when a request has a connection; the owner returns False if the client no longer
    waits. It calls `answered(request, status, connection)` or `failed(request)`, once, unless the request was
    given up by aborting its connection; and `answered_twice(request)` if a second answer follows.
    """

    def __init__(
        self,
        address: tuple[str, int],
        limit: int,
        *,
        keep_answers: bool,
        send: Callable[[int, Connection], bool],
        answered: Callable[[int, int, Connection], None],
        answered_twice: Callable[[int], None],
        failed: Callable[[int], None],
    ) -> None:
        self._address = address
        self._limit = limit
        self.keep_answers = keep_answers
        self._send = send
        self._answered = answered
        self._answered_twice = answered_twice
        self._failed = failed
        self._open: set[Connection] = set()
        self._idle: list[Connection] = []
        self._waiting: deque[int] = deque()
        self._opening: set[asyncio.Task[None]] = set()
        self._closed = False
        self._emptied = asyncio.Event()

    async def open_first(self, count: int) -> None:
        """Open connections before the run begins, so that its first requests do not pay for them."""
        for _ in range(min(count, self._limit)):
            self._begin_opening()
        await asyncio.gather(*self._opening)

    def offer(self, request: int) -> None:
        """Send the request on a free connection, or as soon as there is one."""
        while self._idle:
            connection = self._idle.pop()
            if time.monotonic() - connection.idle_since_s > IDLE_LIMIT_S:
                connection.close()
                continue
            self._send(request, connection)
            return
        self._waiting.append(request)
        if len(self._open) + len(self._opening) < self._limit and len(self._opening) < len(self._waiting):
            self._begin_opening()

    def complete(self, connection: Connection, status: int, *, keep: bool) -> None:
        """Report a whole answer, and reuse the connection or close it."""
        request, connection.request = connection.request, None
        if request is None:
            if connection.answered is not None:
                self._answered_twice(connection.answered)
            if connection in self._idle:
                self._idle.remove(connection)
            connection.close()
            return
        connection.answered = request
        self._answered(request, status, connection)
        if keep and not self._closed:
            self._release(connection)
        else:
            connection.close()

    def lost(self, connection: Connection) -> None:
        """Handle the end of a connection, on whichever side."""
        self._open.discard(connection)
        if self._closed and not self._open:
            self._emptied.set()
        if connection in self._idle:
            self._idle.remove(connection)
        if connection.request is not None:
            self._failed(connection.request)
        if self._waiting and not self._closed and len(self._open) + len(self._opening) < self._limit:
            self._begin_opening()

    async def close(self) -> None:
        """Close everything."""
        self._closed = True
        for opening in self._opening:
            opening.cancel()
        await asyncio.gather(*self._opening, return_exceptions=True)
        for connection in self._open:
            connection.abort()
        if self._open:
            await self._emptied.wait()

    def _release(self, connection: Connection) -> None:
        while self._waiting:
            if self._send(self._waiting.popleft(), connection):
                return
        connection.idle_since_s = time.monotonic()
        self._idle.append(connection)

    def _begin_opening(self) -> None:
        task = asyncio.get_running_loop().create_task(self._connect())
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            _, connection = await loop.create_connection(lambda: Connection(self), *self._address)
        except OSError:
            if self._waiting:
                self._failed(self._waiting.popleft())
            if len(self._waiting) >= len(self._opening) and not self._closed:
                self._begin_opening()
            return
        self._open.add(connection)
        self._release(connection)

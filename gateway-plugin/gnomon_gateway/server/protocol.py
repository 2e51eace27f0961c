"""The HTTP/1.1 protocol of a connection: uvicorn's, with a quick way for hot routes and deadlines for slow clients.

uvicorn parses with httptools and runs ASGI. Here, requests of hot routes become an `Exchange` instead; everything else goes
uvicorn's way unchanged. uvicorn sets a timer per request and has no deadline for receiving one; here a connection notes what it
waits for and since when, and the server's sweep (sweep.py) looks at all of them twice a second.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import IntEnum
from typing import Any, cast

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from gnomon_core.errors import GnomonError
from gnomon_gateway.server.exchange import STATUS_LINES, Exchange, HotRoutes
from gnomon_gateway.server.limits import Limits


class Phase(IntEnum):
    """What a connection waits for."""

    IDLE = 0
    HEAD = 1
    BODY = 2
    ANSWER = 3
    CLOSING = 4


_IDLE, _HEAD, _BODY, _ANSWER, _CLOSING = Phase


class Shared:
    """What all connections of a server share. `now_s` is the loop's time at the last sweep."""

    def __init__(self, routes: HotRoutes, prefixes: tuple[bytes, ...], limits: Limits) -> None:
        self.routes = routes
        self.prefixes = prefixes
        self.limits = limits
        self.now_s = 0.0
        self._headers: list[tuple[bytes, bytes]] | None = None
        self._line = b""

    def date_line(self, state: ServerState) -> bytes:
        """The header lines of every answer; uvicorn makes a new list each second."""
        if self._headers is not state.default_headers:
            self._headers = state.default_headers
            self._line = b"".join([b"%b: %b\r\n" % header for header in self._headers])
        return self._line


class GatewayProtocol(HttpToolsProtocol):
    """One connection."""

    cycle: Any
    """The newest request: uvicorn's own, an `Exchange`, or None."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        shared: Shared,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.shared = shared
        self.phase = _HEAD
        self.since_s = shared.now_s
        self.received_bytes = 0
        self.client_address = b""
        self._active: Exchange | None = None
        self._head_bytes = 0
        self._deaf = False
        self._turning = False

    @property
    def date_line(self) -> bytes:
        return self.shared.date_line(self.server_state)

    # The connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.client_address = self.client[0].encode() if self.client else b""

    def connection_lost(self, exc: Exception | None) -> None:
        active, self._active = self._active, None
        self.pipeline.clear()
        super().connection_lost(exc)
        if active is not None:
            active.lost()

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            return
        if self.phase == _IDLE:
            self.phase, self.since_s = _HEAD, self.shared.now_s
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass  # an offer to change the protocol, which is answered in this one
        except httptools.HttpParserError:
            if not self._deaf:
                self.refuse(_malformed())

    def shutdown(self) -> None:
        """Finish what is under way, then close."""
        if self._active is not None:
            self._active.keep_alive = False
        elif self.cycle is None or self.cycle.response_complete:
            self.transport.close()
        else:
            self.cycle.keep_alive = False

    def refuse(self, error: GnomonError) -> None:
        """Answer what is not, or not yet, a request, and close."""
        if self.transport.is_closing():
            return
        if self._active is None and not self.pipeline and self._can_answer():
            body = error.body()
            head = b"".join([b"%s: %s\r\n" % (name.encode(), value.encode()) for name, value in error.headers().items()])
            self.transport.write(
                b"".join(
                    (
                        STATUS_LINES[error.status],
                        self.date_line,
                        head,
                        b"connection: close\r\ncontent-length: %d\r\n\r\n" % len(body),
                        body,
                    )
                )
            )
            self.close_after_answer(unread=True)
        elif self._active is not None and self._active.more_body and not self._active.streaming:
            self._active.fail(error, close=True)
        else:
            # A request before the broken one is being answered.
            self._deaf = True
            (self._active or self.cycle).keep_alive = False

    def _can_answer(self) -> bool:
        """Whether no answer has begun to the newest request, nor will: there is none, it is over, or its body is still coming."""
        cycle = self.cycle
        return cycle is None or cycle.response_complete or (cycle.more_body and not cycle.response_started)

    def close_after_answer(self, *, unread: bool) -> None:
        """Close once the answer is out.

        Where the client is still sending, closing at once would reset the connection and could destroy the answer on its way: our
        side is closed for writing, nothing more is read, and the sweep ends the connection a second later.
        """
        self._deaf = True
        self.phase, self.since_s = _CLOSING, self.shared.now_s
        if unread and self.transport.can_write_eof():
            self.flow.pause_reading()
            self.transport.write_eof()
        else:
            self.transport.close()

    # The parser's callbacks

    def on_message_begin(self) -> None:
        self.url = b""
        self.headers = []
        self.expect_100_continue = False
        self._head_bytes = 0
        self.received_bytes = 0

    def on_url(self, url: bytes) -> None:
        self.url += url
        self._bound_head(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True
        self.headers.append((name, value))
        self._bound_head(len(name) + len(value))

    def on_headers_complete(self) -> None:
        self.phase, self.since_s = _BODY, self.shared.now_s
        if self._deaf:
            return
        url = self.url
        if not url.startswith(self.shared.prefixes):
            self._begin_asgi()
            return
        parser = self.parser
        path, _, query = url.partition(b"?")
        version = parser.get_http_version()
        exchange = Exchange(
            self,
            parser.get_method(),
            path,
            query,
            self.headers,
            http_version=version,
            keep_alive=version != "1.0" and parser.should_keep_alive() and not parser.should_upgrade(),
            expects_continue=self.expect_100_continue,
        )
        previous = self.cycle
        self.cycle = exchange
        if previous is None or previous.response_complete:
            self._turn(exchange)
        else:
            self.flow.pause_reading()
            self.pipeline.appendleft((cast("Any", exchange), self.app))

    def on_body(self, body: bytes) -> None:
        self.received_bytes += len(body)
        cycle = self.cycle
        if type(cycle) is Exchange:
            cycle.on_body(body)
        elif not self._deaf:
            super().on_body(body)

    def on_message_complete(self) -> None:
        cycle = self.cycle
        self.phase = _IDLE if cycle.response_complete else _ANSWER
        if type(cycle) is Exchange:
            cycle.on_complete()
        elif not self._deaf:
            super().on_message_complete()

    def on_response_complete(self) -> None:
        """An answer is whole: it is the next request's turn."""
        self._active = None
        if self._turning or self.transport.is_closing():
            return
        if not self.pipeline:
            self.flow.resume_reading()
            if self.phase == _ANSWER:
                self.phase, self.since_s = _IDLE, self.shared.now_s
            return
        self._turning = True
        try:
            # A loop and not a recursion: a client may pipeline a thousand requests that are all answered at once.
            while self.pipeline and not self.transport.is_closing():
                cycle, app = self.pipeline.pop()
                self._start_asgi_task(cycle, app)
                if not cycle.response_complete:
                    return
        finally:
            self._turning = False
        self.on_response_complete()

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        if type(cycle) is Exchange:
            self._turn(cycle)
        else:
            super()._start_asgi_task(cycle, app)

    # Ours

    def _turn(self, exchange: Exchange) -> None:
        self._active = exchange
        exchange.begin(self.shared.routes)

    def _begin_asgi(self) -> None:
        """Go uvicorn's way: it makes the scope when a message begins, here it is made when the message turns out to need one."""
        url, headers, expects = self.url, self.headers, self.expect_100_continue
        super().on_message_begin()
        self.url, self.expect_100_continue = url, expects
        self.headers.extend(headers)
        super().on_headers_complete()

    def _bound_head(self, count: int) -> None:
        self._head_bytes += count
        limits = self.shared.limits
        if (self._head_bytes > limits.head_bytes or len(self.headers) > limits.head_lines) and not self._deaf:
            self.refuse(_head_too_large(limits))


def protocol_factory(shared: Shared) -> Callable[..., GatewayProtocol]:
    """What uvicorn calls for each connection."""

    def make(**arguments: Any) -> GatewayProtocol:
        return GatewayProtocol(**arguments, shared=shared)

    return make


def _malformed() -> GnomonError:
    return GnomonError(400, "malformed_request", "This is not an HTTP/1.1 request.", "Send one.")


def _head_too_large(limits: Limits) -> GnomonError:
    return GnomonError(
        431,
        "head_too_large",
        f"The request line and headers are longer than {limits.head_bytes} bytes or {limits.head_lines} lines.",
        "Send data in the body.",
    )

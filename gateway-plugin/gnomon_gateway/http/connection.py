"""The HTTP/1.1 protocol of a connection: uvicorn's, with a fast path for hot routes and timeouts for slow clients.

    transport ─▶ PortionReader ─▶ GatewayProtocol ─▶ Exchange (hot routes)
                 8 KB a read       httptools       └▶ uvicorn's cycle (ASGI)

uvicorn parses with httptools and runs ASGI. Here a request of a hot route becomes an `Exchange` instead; every other request is
served by uvicorn. A connection has at most two current requests: `receiving`, whose body is incomplete, and `_active`, which is
being answered. Usually they are the same; they differ if a client pipelines, or is answered before it has sent the whole body.

Fairness: a connection parses one portion of a head, or about 512 parser events, in a turn of the event loop; then the other
connections have their turn. Nothing is read from a client that does not read its responses.

Request smuggling: the head must say more than the parser asks for, so that no proxy in front of the gateway reads the request
differently. One Host, a known version, and a body that ends after its length or its last chunk (RFC 9112, 2.3, 3.2 and 6.1).

Graceful close: closing a socket with unread data resets the connection, and the reset may destroy the answer on its way. The
connection is shut down for writing instead and closed a few seconds later. When the server stops, requests that clients have sent
are still read and answered: otherwise clients could not know whether they were executed.

Timeouts: a connection records its phase and the phase's start, and `TimeoutCheck` checks all connections twice a second, in
slices. uvicorn sets a timer for each request, and none for receiving one.

Write buffers: a client that reads slowly leaves its answer in the gateway's memory; fifty such clients held 500 MB. Above a bound
on all connections together the slowest reader is disconnected, then the next slowest.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from enum import IntEnum
from time import monotonic
from types import FunctionType
from typing import Any, cast

import httptools
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.utils import get_local_addr

from gnomon_core.errors import GnomonError
from gnomon_gateway.http.acceptor import Peer, has_disconnected, has_unread_data
from gnomon_gateway.http.exchange import SMALL_BYTES, Exchange, HotRoutes
from gnomon_gateway.http.headers import last_response

PORTION_BYTES = 8 << 10
"""The size of one read, unless more remains of a body with a stated length."""
BODY_PORTION_BYTES = 256 << 10
MAX_EVENTS_PER_TURN = 512
"""The most parser events of a connection in one turn of the event loop; the other connections are served then."""
REQUEST_EVENTS = 8
"""The cost of parsing a request, in parser events of a chunk."""
PORTION_EVENTS = 32
"""The cost of any portion, in parser events of a chunk: even one without events, such as empty lines."""


class ReadBuffer:
    """The read buffer that all connections of a server share: a read is parsed before the next one begins."""

    def __init__(self) -> None:
        self.body_portion = memoryview(bytearray(BODY_PORTION_BYTES))
        self.portion = self.body_portion[:PORTION_BYTES]


class Flow(FlowControl):
    """uvicorn's flow control, which also pauses reading while the client reads no response, or until the loop's next turn."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(transport)
        self._loop = loop
        self._is_reading = True
        self._turn_ended = False

    def pause_reading(self) -> None:
        self.read_paused = True
        self._update()

    def resume_reading(self) -> None:
        if self.read_paused:
            self.read_paused = False
            self._update()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._update()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._update()

    def end_turn(self) -> None:
        """Read no more in this turn of the event loop."""
        if not self._turn_ended:
            self._turn_ended = True
            # Callbacks of `call_soon` run after those of the sockets that are ready now, so every other connection is served
            # before.
            self._loop.call_soon(self._next_turn)
            self._update()

    def _next_turn(self) -> None:
        self._turn_ended = False
        self._update()

    def _update(self) -> None:
        reads = not (self.read_paused or self.write_paused or self._turn_ended)
        if reads == self._is_reading or self._transport.is_closing():
            return
        self._is_reading = reads
        if reads:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()


class PortionReader(asyncio.BufferedProtocol):
    """The protocol that a transport calls for a connection. Reads small portions into the server's buffer.

    uvicorn's class is an `asyncio.Protocol`, which gets up to 256 KB from each read of uvloop: each read of an endless head
    allocates, copies and parses that much at once.
    """

    def __init__(self, connection: GatewayProtocol, buffer: ReadBuffer) -> None:
        self._connection = connection
        self._buffer = buffer
        self._view = buffer.portion
        self._turn_start_events = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._connection.connection_made(cast("asyncio.Transport", transport))

    def connection_lost(self, exc: Exception | None) -> None:
        self._connection.connection_lost(exc)

    def eof_received(self) -> None:
        self._connection.eof_received()

    def pause_writing(self) -> None:
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        self._connection.resume_writing()

    def get_buffer(self, sizehint: int) -> memoryview:
        del sizehint
        # Bounded by what remains of the body: the portion cannot reach into a pipelined request, whose head must be read in small
        # parts.
        self._view = self._buffer.portion
        if self._connection.receiving is not None:
            left_bytes = self._connection.unread_bytes()
            if PORTION_BYTES < left_bytes < float("inf"):
                self._view = self._buffer.body_portion[: int(left_bytes)]
        return self._view

    def buffer_updated(self, nbytes: int) -> None:
        connection, view = self._connection, self._view
        # A large portion holds only bytes of the current body: a portion that may contain the next head is small.
        connection.feed(view[:nbytes] if nbytes > PORTION_BYTES else bytes(view[:nbytes]))
        connection.events += PORTION_EVENTS
        # A client that keeps the socket's buffer full, or is in the middle of a head, must let the other connections take their
        # turn.
        if nbytes < len(view):  # the socket's buffer is empty
            self._turn_start_events = connection.events
        elif connection.is_in_head or connection.events - self._turn_start_events > MAX_EVENTS_PER_TURN:
            self._turn_start_events = connection.events
            connection.flow.end_turn()


def new_parser(protocol: HttpToolsProtocol) -> httptools.HttpRequestParser:
    """A parser that calls this protocol back. As in uvicorn, more may follow a request that ends the connection."""
    parser = httptools.HttpRequestParser(protocol)
    parser.set_dangerous_leniencies(lenient_data_after_close=True)
    return parser


@dataclass(frozen=True, slots=True)
class Limits:
    """Time and size limits on clients' requests, and on reading responses.

    A body has `body_s` plus a second for each `body_bytes_per_s` of it that has arrived, so that a large upload over a slow line
    passes and a trickle does not; a request that is still coming when the server stops has `last_s`. All bodies above 64 KiB that
    are being received hold at most `max_receive_bytes` together, all answers that are not taken yet `max_write_buffer_bytes`.

    A client has `idle_s` to take an answer, and a second more for each `answer_bytes_per_s` that it takes: at most `idle_s` from
    when it stops. Progress shows when the kernel's buffer has room again, up to 1.7 MB later: at this rate 26 s, less than
    any answer has.

    A client that goes on sending after its last answer is closed after `linger_s` (nginx: lingering_timeout), and nothing is read
    from it meanwhile. If it were closed sooner it would connect again sooner, and each connection of an endless head fills 4 MB
    of the kernel's buffers, for which everybody's packets wait.
    """

    head_s: float = 10.0
    body_s: float = 30.0
    body_bytes_per_s: float = 1 << 20
    last_s: float = 2.0
    idle_s: float = 75.0
    answer_bytes_per_s: float = 64 << 10
    linger_s: float = 5.0
    check_s: float = 0.5
    head_bytes: int = 64 << 10
    head_lines: int = 128
    max_receive_bytes: int = 512 << 20
    max_write_buffer_bytes: int = 256 << 20


GRACE_S = 1.0
"""Age from which a reader's speed is measured. If all are newer, the newest is disconnected: the others have begun to read."""
_LOG = logging.getLogger(__name__)


class WriteBuffers:
    """The answers that clients have not taken yet: `held_bytes` over all connections, at most `max_bytes`."""

    def __init__(self, max_bytes: int) -> None:
        self.held_bytes = 0
        self._max_bytes = max_bytes
        self._readers: dict[GatewayProtocol, tuple[float, int]] = {}

    def hold(self, connection: GatewayProtocol, body_bytes: int = 0) -> None:
        """Count what a connection has written and its client has not taken. Call it again as the buffer grows.

        The peak counts, and at least `body_bytes`: the memory of an answer is freed as a whole, when its end is taken.
        """
        now_s = connection.loop.time()
        since_s, held_bytes = self._readers.get(connection, (now_s, 0))
        # The peak, not the current size: the transport frees the memory of a write only when all of it is sent.
        holds_bytes = max(body_bytes, connection.transport.get_write_buffer_size())
        if holds_bytes > held_bytes:
            self._readers[connection] = since_s, holds_bytes
            self.held_bytes += holds_bytes - held_bytes
            if self.held_bytes > self._max_bytes:
                self._disconnect_slowest(connection.loop, now_s)

    def release(self, connection: GatewayProtocol) -> None:
        """Stop counting a connection: its client has caught up, or it has ended."""
        _, held_bytes = self._readers.pop(connection, (0.0, 0))
        self.held_bytes -= held_bytes

    def _disconnect_slowest(self, loop: asyncio.AbstractEventLoop, now_s: float) -> None:
        for connection in sorted(self._readers, key=lambda reader: self._speed(reader, now_s)):
            if self.held_bytes <= self._max_bytes:
                return
            _LOG.info(
                "disconnecting the slowest of %d slow readers: write buffers hold %d bytes, the limit is %d",
                len(self._readers),
                self.held_bytes,
                self._max_bytes,
            )
            self.release(connection)
            # Not here: its transport may be in the middle of a write.
            loop.call_soon(connection.transport.abort)

    def _speed(self, connection: GatewayProtocol, now_s: float) -> tuple[bool, float]:
        """Sort key: the fewest bytes a second first; after them the readers that are too new to be measured, the newest first."""
        since_s, held_bytes = self._readers[connection]
        age_s = now_s - since_s
        if age_s < GRACE_S:
            return True, age_s
        return False, (held_bytes - connection.transport.get_write_buffer_size()) / age_s


class Phase(IntEnum):
    """The phase of a connection, named by the event that it waits for."""

    IDLE = 0
    HEAD = 1
    BODY = 2
    ANSWER = 3
    CLOSING = 4


class ServerContext:
    """Settings and counters that all connections of a server share.

    `now_s` is the loop's time at the last timeout check, `held_bytes` the memory of large bodies that are being received,
    `stopping_s` when the server began to stop. `closing` says that each answer ends its connection.
    """

    def __init__(self, routes: HotRoutes, prefixes: tuple[bytes, ...], limits: Limits) -> None:
        self.routes = routes
        self.prefixes = prefixes
        self.limits = limits
        self.now_s = 0.0
        self.held_bytes = 0
        self.write_buffers = WriteBuffers(limits.max_write_buffer_bytes)
        self.stopping_s = float("inf")
        self.closing = False
        self.date_line = b""
        """The header lines of every answer, updated each second."""

    def set_default_headers(self, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Set the headers of every answer: uvicorn's, which has the date."""
        self.date_line = b"".join([b"%b: %b\r\n" % header for header in headers])


_VERSIONS = ("1.1", "1.0")
_CHECKED_HEADERS = frozenset({b"host", b"transfer-encoding", b"expect"})


def check_head(method: bytes, version: str, headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Check a request's head; returns whether the client waits for `100 Continue`.

    Raises:
        GnomonError: 400, 405 or 505: the head is malformed, or another server could read it differently.

    """
    if version not in _VERSIONS:
        raise GnomonError(505, "version_not_supported", f"This server does not speak HTTP/{version}.", "Use HTTP/1.1.")
    hosts, encoding, waits = 0, b"", False
    for name, value in headers:
        if name not in _CHECKED_HEADERS:
            continue
        if name == b"host":
            hosts += 1
        elif name == b"transfer-encoding":
            encoding += value.strip().lower()
        elif value.lower() == b"100-continue":
            waits = True
    # Two Host headers or none: a proxy and this server might route the request to different sites (RFC 9112, section 3.2).
    if hosts > 1 or (not hosts and version == "1.1"):
        raise GnomonError(400, "malformed_request", f"The request has {hosts} Host headers.", "Send one.")
    # Any other transfer coding leaves the body's end ambiguous, which permits request smuggling (RFC 9112, section 6.1).
    if encoding not in (b"", b"chunked"):
        raise GnomonError(400, "unknown_encoding", "The Transfer-Encoding is not just chunked.", "Send chunks, or a length.")
    if method == b"CONNECT":
        raise GnomonError(405, "method_not_allowed", "The gateway is not a proxy.", "Send the path only.")
    # A client of HTTP/1.0 would take that status for the answer.
    return waits and version != "1.0"


def body_bytes(headers: Iterable[tuple[bytes, bytes]]) -> float:
    """The body's length in bytes by its head: infinity for chunked encoding, 0 without a body."""
    for name, value in headers:
        if name == b"content-length":
            return int(value)
        if name == b"transfer-encoding":
            return math.inf
    return 0


def is_request_line(received: bytes, method: bytes, target: bytes, version: str, *, anywhere: bool) -> bool:
    """Return whether the request line was exactly this: one space between its parts and none after them (RFC 9112, section 3).

    The parser takes any number of spaces; another server in front of us may read such a line differently. `received` begins with
    the line, perhaps behind empty lines; `anywhere` says that another request ends in it first.
    """
    line = b"%b %b HTTP/%b\r\n" % (method, target, version.encode())
    return received.lstrip(b"\r\n").startswith(line) or (anywhere and line in received)


def in_origin_form(target: bytes, headers: list[tuple[bytes, bytes]]) -> bytes:
    """The path and query of a request's target.

    A target in absolute form, `http://host:8080/path`, contains the host too, which replaces the `Host` header (RFC 9112, section
    3.2.2).
    """
    if target.startswith((b"/", b"*")):
        return target
    scheme, _, after_scheme = target.partition(b"://")
    if scheme.lower() not in (b"http", b"https"):
        return target
    end = next((place for place, byte in enumerate(after_scheme) if byte in b"/?"), len(after_scheme))
    host = after_scheme[:end].rpartition(b"@")[2]
    headers[:] = [(name, host if name == b"host" else value) for name, value in headers]
    return after_scheme[end:] if after_scheme[end : end + 1] == b"/" else b"/" + after_scheme[end:]


def without_upgrade(method: bytes, url: bytes, version: str, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """The head without its `Upgrade` header."""
    lines = b"".join([b"%b: %b\r\n" % header for header in headers if header[0] != b"upgrade"])
    return b"%b %b HTTP/%b\r\n%b\r\n" % (method, url, version.encode(), lines)


def malformed() -> GnomonError:
    """400: the parser could not read the request."""
    return GnomonError(400, "malformed_request", "The request is not valid HTTP/1.1.", "Send a valid HTTP/1.1 request.")


def too_large(limits: Limits) -> GnomonError:
    """431: the head is larger than the limits allow."""
    return GnomonError(
        431,
        "head_too_large",
        f"The request line and headers are longer than {limits.head_bytes} bytes or {limits.head_lines} lines.",
        "Send data in the body.",
    )


class GracefulTransport:
    """The transport to which uvicorn's cycle writes its answer. `close` closes gracefully.

    Once the connection is shut down for writing, writes are dropped: an application that reads on, while the client waits for
    `100 Continue`, would write that status after the answer.
    """

    __slots__ = ("_connection", "close")

    def __init__(self, connection: GatewayProtocol, close: Callable[[], None]) -> None:
        self._connection = connection
        self.close = close

    def write(self, data: bytes) -> None:
        if not self.is_closing():
            self._connection.transport.write(data)

    def is_closing(self) -> bool:
        return self._connection.phase == Phase.CLOSING or self._connection.transport.is_closing()


def announcing_close(app: Any, cycle: Any, closes: Callable[[], bool]) -> Any:
    """An application whose answer has `Connection: close` if the connection ends after it.

    `closes` is called when the answer begins; `cycle` is uvicorn's cycle of the request.
    """

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        async def send_announcing(message: Any) -> None:
            if message["type"] == "http.response.start" and closes():
                cycle.keep_alive = False
            await send(message)

        await app(scope, receive, send_announcing)

    return answer


def expects_request(connection: GatewayProtocol) -> bool:
    """Return whether the connection has an unread request, or is so new that its first request may still arrive."""
    context = connection.context
    is_new = connection.phase == Phase.HEAD and context.now_s - connection.since_s < context.limits.last_s
    return is_new or connection.has_unread_data()


def notify_disconnect(cycle: Any) -> None:
    """Notify a request, an `Exchange` or a cycle of uvicorn, that its client has disconnected."""
    if type(cycle) is Exchange:
        cycle.lost()
    else:
        cycle.disconnected = True
        cycle.message_event.set()


_IDLE, _HEAD, _BODY, _ANSWER, _CLOSING = Phase


class GatewayProtocol(HttpToolsProtocol):
    """The HTTP/1.1 protocol of a client's connection.

    A server opens connections of the subclass that `connection_class` makes for it. `events` counts the parser's callbacks,
    weighted by their cost.
    """

    cycle: Any
    """The newest request: uvicorn's own, an `Exchange`, or None."""
    flow: Flow
    scheme = "http"
    # Callbacks that are not needed. httptools reads each attribute, and the lookup by `__getattr__` would fail slowly.
    on_status = on_reset = on_chunk_header = on_chunk_complete = None

    def __init__(self, context: ServerContext, peer: Peer) -> None:
        # uvicorn's constructor is not called: `connection_class` has what it would set. More than 30 attributes would make each
        # access slower, because CPython then stores them in a dictionary of the object's own.
        self._peer = peer
        self.descriptor = peer.descriptor
        self.pipeline = deque()
        self.cycle = None
        self.parser = new_parser(self)
        self.events = 0
        self.context = context
        self.phase = _HEAD
        self.arrived_s = peer.arrived_s
        # The timeout of the head includes the wait in the kernel's accept queue.
        self.since_s = min(context.now_s, peer.arrived_s or context.now_s)
        self.received_bytes = self.buffered_bytes = 0
        self.client_address = peer.host.encode()
        self._active: Any = None
        self.receiving: Any = None
        self._head_bytes = 0
        self._unreported_bytes = 0
        self._portion = b""
        self._head_so_far = bytearray()
        self.is_in_head = self._follows_request = False
        self._max_head_bytes, self._max_head_lines = context.limits.head_bytes, context.limits.head_lines
        self._stopped_parsing = False
        self._starting_pipelined = False

    @property
    def client(self) -> tuple[str, int]:  # type: ignore[override]
        """The client's host and port, for uvicorn."""
        return self._peer.host, self._peer.port

    # The connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.connections.add(self)
        self.transport = transport
        self.flow = Flow(transport, self.loop)

    def connection_lost(self, exc: Exception | None) -> None:
        newest, active, self._active = self.cycle, self._active, None
        waiting = [cycle for cycle, _ in self.pipeline]
        self.pipeline.clear()
        self.context.write_buffers.release(self)
        del exc
        self.connections.discard(self)
        self.flow.resume_writing()
        self.parser = None  # type: ignore[assignment]
        for cycle in (newest, active, *waiting):
            if cycle is not None:
                notify_disconnect(cycle)
        self.cycle = self.receiving = None

    def has_disconnected(self) -> bool:
        """Return whether the client has closed the connection, as the kernel knows it."""
        return self.transport.is_closing() or has_disconnected(self.descriptor)

    def has_unread_data(self) -> bool:
        """Return whether the client has sent data that was not read."""
        return not self.transport.is_closing() and has_unread_data(self.descriptor)

    def feed(self, data: bytes | memoryview) -> None:
        """Parse received data."""
        if self._stopped_parsing:
            return
        if self.phase == _IDLE:
            self.phase, self.since_s = _HEAD, self.context.now_s
        self._portion = cast("bytes", data)  # a memoryview holds only a part of a body, in which no head ends
        # The parser buffers a header's pieces without a callback until its end, and never reports a chunk's extensions.
        self._unreported_bytes += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            if not self._stopped_parsing:
                self._ignore_upgrade(bytes(data[upgrade.args[0] :]))
        except httptools.HttpParserError:
            self.refuse(malformed())
        if self._unreported_bytes > self._max_head_bytes:
            self.refuse(too_large(self.context.limits))
        self._portion = b""
        if self.is_in_head and not self._stopped_parsing:
            # `is_request_line` needs the bytes as they were received, and the head may come in several portions.
            self._head_so_far += data
            return
        self._follows_request = False
        if self._head_so_far:
            self._head_so_far = bytearray()

    def pause_writing(self) -> None:
        super().pause_writing()
        self.context.write_buffers.hold(self)

    def resume_writing(self) -> None:
        self.context.write_buffers.release(self)
        super().resume_writing()

    @property
    def is_answering(self) -> bool:
        return self._active is not None

    def answer_and_close(self) -> None:
        """Close after the current response; do nothing if there is none."""
        if self._active is not None:
            self._active.keep_alive = False

    def shutdown(self) -> None:
        """Answer the requests in flight, and those that the client has sent or is about to send; then close."""
        self.answer_and_close()
        if self._active is None and not expects_request(self):
            self.transport.close()

    def refuse(self, error: GnomonError) -> None:
        """Answer the request that is being received with an error, unless it has been answered, and parse nothing more."""
        if self._stopped_parsing or self.transport.is_closing():
            return
        active, receiving = self._active, self.receiving
        if active is None:
            self._end(error if receiving is None else None)
        elif active is not receiving:
            # An earlier request is being answered: pipelined requests after it are dropped, because the connection ends with it.
            self._stopped_parsing = True
            if receiving is not None and self.pipeline:
                notify_disconnect(self.pipeline.popleft()[0])
        elif type(active) is Exchange and not active.streaming:
            active.fail(error, close=True)
        else:
            # A response that has begun cannot become an error: closing the connection tells the client that it is incomplete.
            has_begun = type(active) is Exchange or active.response_started
            self._active = None
            notify_disconnect(active)
            self._end(None if has_begun else error)

    def _end(self, error: GnomonError | None) -> None:
        """Send the error, if any, and close gracefully."""
        if error is not None:
            self.transport.write(last_response(error, self.context.date_line))
        self.close_after_answer(unread=True)

    def close_after_answer(self, *, unread: bool) -> None:
        """Close once the answer is out.

        While the client is still sending, or has sent further requests, closing would reset the connection and could destroy the
        answer on its way. The connection is shut down for writing, nothing more is read, and `TimeoutCheck` closes it later.
        """
        self._stopped_parsing = True
        self.phase, self.since_s = _CLOSING, self.context.now_s
        unread = unread or bool(self.pipeline) or self.has_unread_data()
        if unread and self.transport.can_write_eof():
            self.flow.pause_reading()
            self.transport.write_eof()
        else:
            self.transport.close()

    def _close_after_cycle(self) -> None:
        self.close_after_answer(unread=self.unread_bytes() > 0)

    # The parser's callbacks

    def on_message_begin(self) -> None:
        self.url = b""
        self.headers = []
        self.expect_100_continue = False
        self.receiving = None
        self._head_bytes = 0
        self.is_in_head = True
        self.received_bytes = 0

    def on_url(self, url: bytes) -> None:
        self.url += url
        self._head_bytes += len(url)
        if self._head_bytes > self._max_head_bytes:
            self.refuse(too_large(self.context.limits))

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if self.receiving is None:  # else it is a trailer: dropped, because the head was checked without it
            self.headers.append((name, value))
        self._unreported_bytes = 0
        self._head_bytes += len(name) + len(value)
        if self._head_bytes > self._max_head_bytes or len(self.headers) > self._max_head_lines:
            self.refuse(too_large(self.context.limits))

    def on_headers_complete(self) -> None:
        self._unreported_bytes, self.is_in_head = 0, False
        if self._stopped_parsing:
            return
        parser = self.parser
        method = parser.get_method()
        received = b"".join((self._head_so_far, self._portion)) if self._head_so_far else self._portion
        # Nearly every head is the first of its portion and begins with this line. Else the parser's version decides, whose text
        # takes long to make.
        exact = not self._follows_request and received.startswith(b"%b %b HTTP/1.1\r\n" % (method, self.url))
        version = "1.1" if exact else parser.get_http_version()
        try:
            waits = check_head(method, version, self.headers)
        except GnomonError as violation:
            self.refuse(violation)
            return
        if not exact and not is_request_line(received, method, self.url, version, anywhere=self._follows_request):
            self.refuse(malformed())
            return
        if parser.should_upgrade():
            return  # the parser stops here; `_ignore_upgrade` continues with a new parser
        self.events += REQUEST_EVENTS
        self.phase, self.since_s = _BODY, self.context.now_s
        # The wait before the connection was accepted counts for its first request, on any route.
        arrived_s, self.arrived_s = self.arrived_s or monotonic(), 0.0
        # Before the route is chosen: a target in absolute form must be routed by its path.
        url = self.url = in_origin_form(self.url, self.headers)
        if not url.startswith(self.context.prefixes):
            self._begin_asgi(waits=waits)
            return
        path, _, query = url.partition(b"?")
        exchange = Exchange(self, method, path, query, self.headers, version, arrived_s)
        exchange.keep_alive = parser.should_keep_alive() and not self.context.closing
        if version == "1.0" and body_bytes(self.headers) == math.inf:
            exchange.keep_alive = False  # HTTP/1.0 has no chunks: whoever passed the request on may see another end of it
        exchange.expects_continue = waits
        previous = self.cycle
        self.cycle = self.receiving = exchange
        if previous is None or previous.response_complete:
            self._start_exchange(exchange)
        else:
            self.flow.pause_reading()
            # Answers must have the order of their requests (RFC 9112, section 9.3.2): the exchange starts after the previous
            # answer.
            self.pipeline.appendleft((cast("Any", exchange), self.app))

    def on_body(self, body: bytes) -> None:
        if self._stopped_parsing:
            return
        self.events += 1
        self._unreported_bytes = 0
        self.received_bytes += len(body)
        cycle = self.cycle
        if type(cycle) is Exchange:
            cycle.on_body(body)
        else:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._unreported_bytes, self._follows_request = 0, True
        # A message that was refused in its head has no request that could be completed.
        if self._stopped_parsing or self.receiving is None:
            return
        cycle, self.receiving = self.cycle, None
        self.phase = _IDLE if cycle.response_complete else _ANSWER
        if type(cycle) is Exchange:
            cycle.on_complete()
        else:
            super().on_message_complete()

    def on_response_complete(self) -> None:
        """Start the next request after a complete answer."""
        answered, self._active = self._active, None
        # A request that is answered at once calls this method within the loop below, which starts the next one itself.
        if self._starting_pipelined or self.phase == _CLOSING or self.transport.is_closing():
            return
        if self._leaves_body_unread(answered) or (self._stopped_parsing and not self.pipeline):
            self.close_after_answer(unread=True)
            return
        if not self.pipeline:
            if self.flow.read_paused:
                self.flow.resume_reading()
            if self.phase == _ANSWER:
                self.phase, self.since_s = _IDLE, self.context.now_s
            return
        self._starting_pipelined = True
        try:
            # A loop, not recursion: a client may pipeline a thousand requests that are all answered at once.
            while self.pipeline and self.phase != _CLOSING and not self.transport.is_closing():
                cycle, app = self.pipeline.pop()
                self._start_asgi_task(cycle, app)
                if not cycle.response_complete:
                    if not self.pipeline:
                        self.flow.resume_reading()
                    return
        finally:
            self._starting_pipelined = False
        self.on_response_complete()

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        if type(cycle) is Exchange:
            self._start_exchange(cycle)
        else:
            self._active = cycle
            super()._start_asgi_task(
                cycle, announcing_close(app, cycle, lambda: self._leaves_body_unread(cycle) or self.context.closing)
            )

    # Helpers

    def unread_bytes(self) -> float:
        """The number of bytes that the current body still lacks; infinity if unknown."""
        return 0 if self.receiving is None else body_bytes(self.headers) - self.received_bytes

    def _leaves_body_unread(self, answered: Any) -> bool:
        return answered is self.receiving and self.unread_bytes() > SMALL_BYTES

    def _start_exchange(self, exchange: Exchange) -> None:
        self._active = exchange
        exchange.begin(self.context.routes)

    def _begin_asgi(self, *, waits: bool) -> None:
        """Start an ASGI request. uvicorn makes the scope when a message begins; hot routes need none, so it is made only here."""
        url, headers = self.url, self.headers
        self.server = get_local_addr(self.transport)
        super().on_message_begin()
        self.url, self.expect_100_continue = url, waits
        self.headers.extend(headers)
        super().on_headers_complete()
        self.receiving = self.cycle
        self.cycle.transport = GracefulTransport(self, self._close_after_cycle)

    def _ignore_upgrade(self, unparsed: bytes) -> None:
        """Continue in HTTP/1.1 if a client offers an upgrade, as Java's client does with every request.

        The parser stops at an `Upgrade` header and would lose the body: a new parser gets the request without the header.
        """
        head = without_upgrade(self.parser.get_method(), self.url, self.parser.get_http_version(), self.headers)
        self.parser = new_parser(self)
        self.feed(head + unparsed)


def connection_class(common: HttpToolsProtocol) -> type[GatewayProtocol]:
    """The class of a server's connections, with the attributes of `common`, a protocol of uvicorn without a connection.

    On the class, because setting them on each connection took as long as parsing a request, and cost memory for ten thousand idle
    ones. Not by `__getattr__`, because CPython optimises no attribute access of a class that has one.
    """
    own = ("client", "parser", "scheme")
    shared = {
        # A function would be bound like a method.
        name: staticmethod(value) if isinstance(value, FunctionType) else value
        for name, value in vars(common).items()
        if name not in own
    }
    return type(GatewayProtocol.__name__, (GatewayProtocol,), shared)


def open_connection(kind: type[GatewayProtocol], context: ServerContext, buffer: ReadBuffer, peer: Peer) -> PortionReader:
    """The protocol of a new connection of this kind."""
    return PortionReader(kind(context, peer), buffer)


_DISCONNECTED_LINGER_S = 1.0
"""The linger time of a client that has disconnected, instead of `linger_s`: the answer may arrive before the reset."""
_SLICES = 20
"""The number of turns of the event loop in which all connections are checked."""
_SLICE_SIZE = 128
"""The most connections that are checked in a turn, which takes 0.15 ms: a pass over 10,000 needs more turns, and takes 2 s."""
_SLICE_S = 0.001
"""The longest slice in seconds; checking a connection takes a microsecond, closing one twenty or more."""
WRITE_BUFFER_S = 30.0
"""The timeout, in place of `idle_s`, of a response after which the connection ends."""


class TimeoutCheck:
    """The periodic check of all connections' timeouts, from `start` to `stop`."""

    def __init__(self, context: ServerContext, connections: Collection[Any]) -> None:
        self._context = context
        self._connections = connections
        self._unchecked: list[Any] = []
        self._size = 0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._context.now_s = loop.time()
        self._timer = loop.call_later(self._context.limits.check_s / _SLICES, self._check_slice)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check_slice(self) -> None:
        self.start()
        if not self._unchecked:
            self._unchecked = list(self._connections)
            self._size = min(_SLICE_SIZE, -(-len(self._unchecked) // _SLICES))
        # Bounded by time too: closing many connections at once would delay the answers of all others.
        end_s = time.monotonic() + _SLICE_S
        for _ in range(min(self._size, len(self._unchecked))):
            connection = self._unchecked.pop()
            # The list is a copy: a connection may have ended since.
            if connection in self._connections:
                check_timeouts(connection, self._context.now_s)
            if time.monotonic() > end_s:
                return


def check_timeouts(connection: GatewayProtocol, now_s: float) -> None:
    """Close the connection if it has been in its phase for too long."""
    limits = connection.context.limits
    transport = connection.transport
    phase = connection.phase
    if phase in (Phase.IDLE, Phase.CLOSING):
        _credit_progress(connection, now_s)
    waited_s = now_s - connection.since_s
    # The application closed the connection; from now on the time for delivering the rest of the answer counts.
    if transport.is_closing() and phase != Phase.CLOSING:
        connection.phase, connection.since_s = Phase.CLOSING, now_s
    elif phase == Phase.CLOSING:
        if waited_s > _closing_allowed_s(connection):
            transport.abort()
    elif phase == Phase.IDLE and waited_s > limits.idle_s:
        # `close` would wait for the buffer, which this client does not read.
        if transport.get_write_buffer_size():
            transport.abort()
        else:
            transport.close()
    elif phase == Phase.HEAD and waited_s > (allowed_s := _shutdown_bounded_s(limits.head_s, connection)):
        connection.refuse(_too_slow("head", allowed_s))
    # While reading is paused by the application, the client cannot send, and the time is not its fault.
    elif phase == Phase.BODY and not connection.flow.read_paused:
        allowed_s = limits.body_s + connection.received_bytes / limits.body_bytes_per_s
        if waited_s > (allowed_s := _shutdown_bounded_s(allowed_s, connection)):
            connection.refuse(_too_slow("body", allowed_s))


def _shutdown_bounded_s(allowed_s: float, connection: GatewayProtocol) -> float:
    """The time limit of receiving in seconds: `allowed_s`, but at most `last_s` after the server began to stop."""
    context = connection.context
    return min(allowed_s, max(0.0, context.stopping_s - connection.since_s) + context.limits.last_s)


def _closing_allowed_s(connection: GatewayProtocol) -> float:
    """The seconds for which a connection may stay in the phase `CLOSING`."""
    if connection.transport.get_write_buffer_size():
        return WRITE_BUFFER_S
    return _DISCONNECTED_LINGER_S if connection.has_disconnected() else connection.context.limits.linger_s


def _credit_progress(connection: GatewayProtocol, now_s: float) -> None:
    """Extend the client's time by what it has taken of its answer since the last check."""
    buffered_bytes = connection.transport.get_write_buffer_size()
    taken_bytes, connection.buffered_bytes = connection.buffered_bytes - buffered_bytes, buffered_bytes
    if taken_bytes > 0:
        earned_s = taken_bytes / connection.context.limits.answer_bytes_per_s
        connection.since_s = min(now_s, connection.since_s + earned_s)


def _too_slow(part: str, allowed_s: float) -> GnomonError:
    return GnomonError(
        408,
        "request_too_slow",
        f"The {part} of the request did not arrive within {allowed_s:.0f} s.",
        "Send it faster, or in smaller pieces.",
    )

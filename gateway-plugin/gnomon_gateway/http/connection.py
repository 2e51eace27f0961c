"""The HTTP/1.1 protocol of a connection: uvicorn's, with a quick way for hot routes and deadlines for slow clients.

uvicorn parses with httptools and runs ASGI. Here, requests of hot routes become an `Exchange` instead; everything else goes
uvicorn's way. uvicorn sets a timer per request and has no deadline for receiving one; here a connection notes what it waits for
and since when, and the server's sweep (sweep.py) looks at all of them twice a second.

Two requests matter at any moment: `_receiving`, whose body has not come to its end, and `_active`, whose turn it is to be
answered. Usually they are one. They are not when a client pipelines, or was answered before it had sent everything.

What a connection has received goes to the parser in portions, so that no client keeps the event loop to itself.

One read brings up to 256 KB, and uvloop reads 32 times in a row: room for 200,000 pipelined requests, or a million chunks of one
byte. Parsing and answering them at once kept everybody else waiting for 4 s, as measured. Here a portion of 8 KB is worked off,
at most 200 requests or 2 ms of work; then it is the other connections' turn. A body of a stated length passes at once.

What waits counts as not read: while it does, nothing more is. The same holds while the client does not take its answers, which
would otherwise pile up here.

What all connections of a server know, and what each of them can be waiting for.

What the head of a request must say beyond what the parser asks of it, so that nobody in front of us reads it differently.

One host, a version that we speak, and a body that ends in one of two ways: after its length, or after its last chunk (RFC 9112,
sections 2.3, 3.2 and 6.1). A client that takes us for a proxy says the host with the path, and then that is it. The parser has
refused two lengths, and a length with chunks, by then.

How connections end so that no client is left without the answer, and nobody works for one that has gone.

A cycle of uvicorn's that is not to keep its connection closes the transport with the last of the answer. Where part of the
request has not been read by then, the kernel resets the connection instead of ending it, and the reset may overtake the answer.

When the server ends, the same happens to whoever has connected, perhaps sent a request too, and was not heard: in the kernel's
queue before the listener, or on a connection of ours. He could not know whether it was executed.

How long and how large what a client sends may be.

Ends connections that take too long: silent ones, slow senders, and readers who never take their answer.

One pass over all connections every `sweep_s` costs less than a timer for each request, and half a second matters to none of
these. A pass is made in slices, so that ten thousand connections keep nobody waiting.

What clients have not taken of their answers yet, bounded over all connections.

A client that reads slowly, or not at all, has the time that sweep.py gives it. Until then the gateway holds its answer, and fifty
such clients held 500 MB. Above the bound the connection of the slowest reader is closed, then of the next slowest.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from enum import IntEnum
from time import monotonic
from typing import Any, cast

import httptools
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.utils import get_local_addr
from uvicorn.server import ServerState

from gnomon_core.errors import GnomonError
from gnomon_gateway.http.acceptor import Peer, has_hung_up, has_sent
from gnomon_gateway.http.exchange import SMALL_BYTES, STATUS_LINES, Exchange, HotRoutes, error_lines

PORTION_BYTES = 8 << 10
"""Read at a time, unless the rest of a body of a stated length is longer."""
BODY_PORTION_BYTES = 256 << 10
MOST_EVENTS = 512
"""Parser events of a connection in one turn of the event loop, after which the other connections have theirs."""
REQUEST_EVENTS = 8
"""A request is as much work as so many chunks."""
PORTION_EVENTS = 32
"""A portion without a single event, such as empty lines, is work as well."""


class ReadBuffer:
    """The memory that all connections of a server read into: a read is parsed before the next one begins."""

    def __init__(self) -> None:
        self.body_portion = memoryview(bytearray(BODY_PORTION_BYTES))
        self.portion = self.body_portion[:PORTION_BYTES]


class Flow(FlowControl):
    """uvicorn's flow control; also stops reading while the client takes no answer, and until the next turn of the event loop."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(transport)
        self._loop = loop
        self._is_reading = True
        self._had_its_turn = False

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
        if not self._had_its_turn:
            self._had_its_turn = True
            self._loop.call_soon(self._next_turn)
            self._update()

    def _next_turn(self) -> None:
        self._had_its_turn = False
        self._update()

    def _update(self) -> None:
        reads = not (self.read_paused or self.write_paused or self._had_its_turn)
        if reads == self._is_reading or self._transport.is_closing():
            return
        self._is_reading = reads
        if reads:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()


class PortionReader(asyncio.BufferedProtocol):
    """What a transport calls for a connection. Reads into the server's buffer, little at a time.

    `asyncio.Protocol`, which uvicorn's class is, gets up to 256 KB from each read of uvloop. Twenty clients with endless heads
    stalled the event loop for 4 ms with it: each read allocated, copied and parsed as much at once.
    """

    def __init__(self, connection: GatewayProtocol, buffer: ReadBuffer) -> None:
        self._connection = connection
        self._buffer = buffer
        self._view = buffer.portion
        self._begin_events = 0

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
        left_bytes = self._connection.unread_bytes()
        if PORTION_BYTES < left_bytes < float("inf"):
            self._view = self._buffer.body_portion[: int(left_bytes)]
        else:
            self._view = self._buffer.portion
        return self._view

    def buffer_updated(self, nbytes: int) -> None:
        connection, view = self._connection, self._view
        # The body's rest is never more than the body: where a head may be among it, the portion is small.
        connection.feed(view[:nbytes] if nbytes > PORTION_BYTES else bytes(view[:nbytes]))
        connection.events += PORTION_EVENTS
        if nbytes < len(view):  # nothing more has come
            self._begin_events = connection.events
        elif connection.is_in_head or connection.events - self._begin_events > MOST_EVENTS:
            self._begin_events = connection.events
            connection.flow.end_turn()


def new_parser(protocol: HttpToolsProtocol) -> httptools.HttpRequestParser:
    """A parser that calls this protocol back. As in uvicorn, more may follow a request that ends the connection."""
    parser = httptools.HttpRequestParser(protocol)
    parser.set_dangerous_leniencies(lenient_data_after_close=True)
    return parser


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on receiving, and on being received.

    A body has `body_s` plus a second for each `body_bytes_per_s` of it that has arrived, so that a large upload over a slow line
    passes and a trickle does not; a request that is still coming when the server stops has `last_s`. All bodies above 64 KiB that
    are being received hold at most `max_held_bytes` together, all answers that are being taken `max_unsent_bytes`.

    Whoever takes a long answer has `idle_s`, and a second more for each `answer_bytes_per_s` of it that he takes: never more than
    `idle_s` from when he stops. What is taken is seen when the kernel's buffer has room again, up to 1.7 MB later: at
    this rate 26 s, less than any answer has.
    """

    head_s: float = 10.0
    body_s: float = 30.0
    body_bytes_per_s: float = 1 << 20
    last_s: float = 2.0
    idle_s: float = 75.0
    answer_bytes_per_s: float = 64 << 10
    sweep_s: float = 0.5
    head_bytes: int = 64 << 10
    head_lines: int = 128
    max_held_bytes: int = 512 << 20
    max_unsent_bytes: int = 256 << 20


GRACE_S = 1.0
"""A reader is not called slow before. Where all are new, the newest has to go: the others have begun to read."""
_LOG = logging.getLogger(__name__)


class Unsent:
    """The readers that are behind, and what is held for them together: `held_bytes`, at most `most_bytes`."""

    def __init__(self, most_bytes: int) -> None:
        self.held_bytes = 0
        self._most_bytes = most_bytes
        self._readers: dict[GatewayProtocol, tuple[float, int]] = {}

    def hold(self, connection: GatewayProtocol, body_bytes: int = 0) -> None:
        """More has been written to a connection than its client has taken. May be told again as it grows.

        What counts is the most that was ever held for it, and at least `body_bytes`: memory of an answer is given back as a
        whole, when its end is taken.
        """
        now_s = connection.loop.time()
        since_s, held_bytes = self._readers.get(connection, (now_s, 0))
        holds_bytes = max(body_bytes, connection.transport.get_write_buffer_size())
        if holds_bytes > held_bytes:
            self._readers[connection] = since_s, holds_bytes
            self.held_bytes += holds_bytes - held_bytes
            if self.held_bytes > self._most_bytes:
                self._shed(connection.loop, now_s)

    def release(self, connection: GatewayProtocol) -> None:
        """The client has caught up, or its connection has ended."""
        _, held_bytes = self._readers.pop(connection, (0.0, 0))
        self.held_bytes -= held_bytes

    def _shed(self, loop: asyncio.AbstractEventLoop, now_s: float) -> None:
        for connection in sorted(self._readers, key=lambda one: self._speed(one, now_s)):
            if self.held_bytes <= self._most_bytes:
                return
            _LOG.info("closing the slowest of %d readers: %d bytes of answers are unsent", len(self._readers), self.held_bytes)
            self.release(connection)
            # Not here: its transport may be in the middle of a write.
            loop.call_soon(connection.transport.abort)

    def _speed(self, connection: GatewayProtocol, now_s: float) -> tuple[bool, float]:
        """The slowest first, by bytes a second; behind those that are old enough to be judged the new ones, the newest first."""
        since_s, held_bytes = self._readers[connection]
        age_s = now_s - since_s
        if age_s < GRACE_S:
            return True, age_s
        return False, (held_bytes - connection.transport.get_write_buffer_size()) / age_s


class Phase(IntEnum):
    """What a connection waits for."""

    IDLE = 0
    HEAD = 1
    BODY = 2
    ANSWER = 3
    CLOSING = 4


class Shared:
    """What all connections of a server share.

    `now_s` is the loop's time at the last sweep, `held_bytes` what the large bodies hold that have not come to their end,
    `stopping_s` when the server began to stop. `closing` is whether each answer ends its connection.
    """

    def __init__(self, routes: HotRoutes, prefixes: tuple[bytes, ...], limits: Limits) -> None:
        self.routes = routes
        self.prefixes = prefixes
        self.limits = limits
        self.now_s = 0.0
        self.held_bytes = 0
        self.unsent = Unsent(limits.max_unsent_bytes)
        self.stopping_s = float("inf")
        self.closing = False
        self._headers: list[tuple[bytes, bytes]] | None = None
        self._line = b""

    def date_line(self, state: ServerState) -> bytes:
        """The header lines of every answer; uvicorn makes a new list each second."""
        if self._headers is not state.default_headers:
            self._headers = state.default_headers
            self._line = b"".join([b"%b: %b\r\n" % header for header in self._headers])
        return self._line


CHECKED = frozenset({b"host", b"transfer-encoding", b"expect"})
"""The names that `Head.note` wants to see."""
_VERSIONS = ("1.1", "1.0")


class Head:
    """What has been seen of one request's head."""

    __slots__ = ("_encoding", "_expects_continue", "_hosts")

    def __init__(self) -> None:
        self._hosts = 0
        self._encoding = b""
        self._expects_continue = False

    def note(self, name: bytes, value: bytes) -> None:
        """A header of one of the checked names."""
        if name == b"host":
            self._hosts += 1
        elif name == b"transfer-encoding":
            self._encoding += value.strip().lower()
        elif value.lower() == b"100-continue":
            self._expects_continue = True

    def expects_continue(self, version: str) -> bool:
        """Whether the client waits for word before it sends the body. One of HTTP/1.0 would take that for the answer."""
        return self._expects_continue and version != "1.0"

    def fault(self, method: bytes, version: str) -> GnomonError | None:
        """Why the request is refused as a whole; None if it is not."""
        if version not in _VERSIONS:
            return GnomonError(505, "version_not_supported", f"This server does not speak HTTP/{version}.", "Use HTTP/1.1.")
        if self._hosts > 1 or (not self._hosts and version == "1.1"):
            return GnomonError(400, "malformed_request", f"The request has {self._hosts} Host headers.", "Send one.")
        if self._encoding not in (b"", b"chunked"):
            return GnomonError(400, "unknown_encoding", "The Transfer-Encoding is not just chunked.", "Send chunks, or a length.")
        if method == b"CONNECT":
            return GnomonError(405, "method_not_allowed", "This is no proxy.", "Ask for a path.")
        return None


def body_bytes(headers: Iterable[tuple[bytes, bytes]]) -> float:
    """How long the body is by what the head states: endless where it comes in chunks, 0 where there is none."""
    for name, value in headers:
        if name == b"content-length":
            return int(value)
        if name == b"transfer-encoding":
            return float("inf")
    return 0


def is_request_line(received: bytes, method: bytes, target: bytes, version: str, *, anywhere: bool) -> bool:
    """Whether a request's first line was just this: one space between its parts and none behind them (RFC 9112, section 3).

    The parser takes any number of spaces; another server in front of us may read such a line differently. `received` begins with
    the line, perhaps behind empty lines; `anywhere` says that another request ends in it first.
    """
    line = b"%b %b HTTP/%b\r\n" % (method, target, version.encode())
    return received.startswith(line) or received.lstrip(b"\r\n").startswith(line) or (anywhere and line in received)


def in_origin_form(target: bytes, headers: list[tuple[bytes, bytes]]) -> bytes:
    """The path and query of a request's target.

    One in absolute form, `http://host:8080/path`, has the host as well, which takes the place of what `Host` says (RFC 9112,
    section 3.2.2).
    """
    if target.startswith((b"/", b"*")):
        return target
    scheme, _, rest = target.partition(b"://")
    if scheme.lower() not in (b"http", b"https"):
        return target
    end = next((place for place, byte in enumerate(rest) if byte in b"/?"), len(rest))
    host = rest[:end].rpartition(b"@")[2]
    headers[:] = [(name, host if name == b"host" else value) for name, value in headers]
    return rest[end:] if rest[end : end + 1] == b"/" else b"/" + rest[end:]


def without_offer(method: bytes, url: bytes, version: str, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """The head as it would have been without the offer of another protocol."""
    lines = b"".join([b"%b: %b\r\n" % header for header in headers if header[0] != b"upgrade"])
    return b"%b %b HTTP/%b\r\n%b\r\n" % (method, url, version.encode(), lines)


def malformed() -> GnomonError:
    """400: what the parser stumbled over."""
    return GnomonError(400, "malformed_request", "This is not an HTTP/1.1 request.", "Send one.")


def too_large(limits: Limits) -> GnomonError:
    """431: more than is read of a head."""
    return GnomonError(
        431,
        "head_too_large",
        f"The request line and headers are longer than {limits.head_bytes} bytes or {limits.head_lines} lines.",
        "Send data in the body.",
    )


class PoliteTransport:
    """What a cycle writes its answer to. `close` is what it calls to end the connection.

    Once our side of the connection is closed, nothing is written: an application that asks for the rest of a body whose client
    waits for `100 Continue` would write that behind the answer.
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


def announcing(app: Any, cycle: Any, closes: Callable[[], bool]) -> Any:
    """An application whose answer says that the connection ends, where it does: the client is to send its next request elsewhere.

    `closes` is asked when the answer begins, `cycle` is uvicorn's of the request.
    """

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        async def tell(message: Any) -> None:
            if message["type"] == "http.response.start" and closes():
                cycle.keep_alive = False
            await send(message)

        await app(scope, receive, tell)

    return answer


def expects(connection: GatewayProtocol) -> bool:
    """Whether a request has been sent on a connection and not been read, or may be about to be sent: on one that is new."""
    shared = connection.shared
    is_new = connection.phase == Phase.HEAD and shared.now_s - connection.since_s < shared.limits.last_s
    return is_new or connection.has_sent()


def leave(cycle: Any) -> None:
    """Tell whoever works on a request, an exchange or one of uvicorn's cycles, that its client has gone."""
    if type(cycle) is Exchange:
        cycle.lost()
    else:
        cycle.disconnected = True
        cycle.message_event.set()


_IDLE, _HEAD, _BODY, _ANSWER, _CLOSING = Phase


class GatewayProtocol(HttpToolsProtocol):
    """One connection.

    `common` is a protocol of uvicorn's that serves no connection: what is the same for all of them, such as the configuration, is
    looked up there. Setting it on each connection took as long as parsing a request, and ten thousand idle ones would hold it.
    `events` counts the parser's callbacks, weighted by the work they are.
    """

    cycle: Any
    """The newest request: uvicorn's own, an `Exchange`, or None."""
    flow: Flow
    scheme = "http"
    # What the parser could tell and need not. It asks for each, and `__getattr__` would look for them in vain.
    on_status = on_reset = on_chunk_header = on_chunk_complete = None

    def __init__(
        self,
        common: HttpToolsProtocol,
        shared: Shared,
        peer: Peer,
    ) -> None:
        # Not uvicorn's constructor, which sets twenty attributes more.
        self._common = common
        self._descriptor = peer.descriptor
        self.connections, self.server_state, self.loop = common.connections, common.server_state, common.loop
        self.client = peer.host, peer.port
        self.pipeline = deque()
        self.cycle = None
        self.parser = new_parser(self)
        self.events = 0
        self.shared = shared
        self.phase = _HEAD
        self.arrived_s = peer.arrived_s
        self.since_s = min(shared.now_s, peer.arrived_s or shared.now_s)
        self.received_bytes = self.unsent_bytes = 0
        self.client_address = peer.host.encode()
        self._active: Any = None
        self._receiving: Any = None
        self._head = Head()
        self._head_bytes = 0
        self._silent_bytes = 0
        self._portion: bytes | memoryview = b""
        self._earlier = bytearray()
        self.is_in_head = self._behind_another = False
        self._most_head_bytes, self._most_head_lines = shared.limits.head_bytes, shared.limits.head_lines
        self._deaf = False
        self._turning = False

    @property
    def date_line(self) -> bytes:
        return self.shared.date_line(self.server_state)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_common"], name)

    # The connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.connections.add(self)
        self.transport = transport
        self.flow = Flow(transport, self.loop)

    def connection_lost(self, exc: Exception | None) -> None:
        newest, active, self._active = self.cycle, self._active, None
        waiting = [cycle for cycle, _ in self.pipeline]
        self.pipeline.clear()
        self.shared.unsent.release(self)
        del exc
        self.connections.discard(self)
        self.flow.resume_writing()
        self.parser = None  # type: ignore[assignment]
        for cycle in (newest, active, *waiting):
            if cycle is not None:
                leave(cycle)
        self.cycle = self._receiving = None

    def has_hung_up(self) -> bool:
        """Whether the client has closed the connection, as the kernel knows it."""
        return self.transport.is_closing() or has_hung_up(self._descriptor)

    def has_sent(self) -> bool:
        """Whether the client has sent something that was not read."""
        return not self.transport.is_closing() and has_sent(self._descriptor)

    def feed(self, data: bytes | memoryview) -> None:
        """Parse what was received."""
        if self._deaf:
            return
        if self.phase == _IDLE:
            self.phase, self.since_s = _HEAD, self.shared.now_s
        self._portion = data
        # The parser joins the pieces of a header in its own memory and says nothing before its end, nor of a chunk's extensions.
        self._silent_bytes += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as offer:
            if not self._deaf:
                self._decline(bytes(data[offer.args[0] :]))
        except httptools.HttpParserError:
            self.refuse(malformed())
        if self._silent_bytes > self._most_head_bytes:
            self.refuse(too_large(self.shared.limits))
        self._portion = b""
        if self.is_in_head and not self._deaf:
            self._earlier += data
            return
        self._behind_another = False
        if self._earlier:
            self._earlier = bytearray()

    def pause_writing(self) -> None:
        super().pause_writing()
        self.shared.unsent.hold(self)

    def resume_writing(self) -> None:
        self.shared.unsent.release(self)
        super().resume_writing()

    @property
    def is_answering(self) -> bool:
        return self._active is not None

    def answer_and_close(self) -> None:
        """Close behind the answer that is under way; go on where there is none."""
        if self._active is not None:
            self._active.keep_alive = False

    def shutdown(self) -> None:
        """Answer what is under way, and what the client has sent or is about to send; then close."""
        self.answer_and_close()
        if self._active is None and not expects(self):
            self.transport.close()

    def refuse(self, error: GnomonError) -> None:
        """Answer what is being received with an error, unless it has been answered, and hear nothing more on this connection."""
        if self._deaf or self.transport.is_closing():
            return
        active, receiving = self._active, self._receiving
        if active is None:
            self._end(error if receiving is None else None)
        elif active is not receiving:
            # An earlier request is being answered. What was received behind it does not come to its turn.
            self._deaf = True
            if receiving is not None and self.pipeline:
                leave(self.pipeline.popleft()[0])
        elif type(active) is Exchange and not active.streaming:
            active.fail(error, close=True)
        else:
            has_begun = type(active) is Exchange or active.response_started
            self._active = None
            leave(active)
            self._end(None if has_begun else error)

    def _end(self, error: GnomonError | None) -> None:
        """The connection's last words."""
        if error is not None:
            body = error.body()
            length = b"connection: close\r\ncontent-length: %d\r\n\r\n" % len(body)
            self.transport.write(b"".join((STATUS_LINES[error.status], self.date_line, error_lines(error), length, body)))
        self.close_after_answer(unread=True)

    def close_after_answer(self, *, unread: bool) -> None:
        """Close once the answer is out.

        Where the client is still sending, or has sent further requests, closing at once would reset the connection and could
        destroy the answer on its way: our side is closed for writing, nothing more is read, and the sweep ends it a second later.
        """
        self._deaf = True
        self.phase, self.since_s = _CLOSING, self.shared.now_s
        unread = unread or bool(self.pipeline) or self.has_sent()
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
        self._receiving = None
        self._head = Head()
        self._head_bytes = 0
        self.is_in_head = True
        self.received_bytes = 0

    def on_url(self, url: bytes) -> None:
        self.url += url
        self._head_bytes += len(url)
        if self._head_bytes > self._most_head_bytes:
            self.refuse(too_large(self.shared.limits))

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if self._receiving is None:  # a trailer is no header: whoever looked at the head has not seen it
            if name in CHECKED:
                self._head.note(name, value)
            self.headers.append((name, value))
        self._silent_bytes = 0
        self._head_bytes += len(name) + len(value)
        if self._head_bytes > self._most_head_bytes or len(self.headers) > self._most_head_lines:
            self.refuse(too_large(self.shared.limits))

    def on_headers_complete(self) -> None:
        self._silent_bytes, self.is_in_head = 0, False
        if self._deaf:
            return
        parser = self.parser
        method, version = parser.get_method(), parser.get_http_version()
        if (fault := self._head.fault(method, version)) is not None:
            self.refuse(fault)
            return
        received = b"".join((self._earlier, self._portion))
        if not is_request_line(received, method, self.url, version, anywhere=self._behind_another):
            self.refuse(malformed())
            return
        if parser.should_upgrade():
            return  # the parser goes no further; `_decline` does
        self.events += REQUEST_EVENTS
        self.phase, self.since_s = _BODY, self.shared.now_s
        # The wait before the connection was accepted is its first request's, whatever route that has.
        arrived_s, self.arrived_s = self.arrived_s or monotonic(), 0.0
        url = self.url = in_origin_form(self.url, self.headers)
        if not url.startswith(self.shared.prefixes):
            self._begin_asgi()
            return
        path, _, query = url.partition(b"?")
        exchange = Exchange(
            self,
            method,
            path,
            query,
            self.headers,
            http_version=version,
            keep_alive=version != "1.0" and parser.should_keep_alive() and not self.shared.closing,
            expects_continue=self._head.expects_continue(version),
            arrived_s=arrived_s,
        )
        previous = self.cycle
        self.cycle = self._receiving = exchange
        if previous is None or previous.response_complete:
            self._turn(exchange)
        else:
            self.flow.pause_reading()
            self.pipeline.appendleft((cast("Any", exchange), self.app))

    def on_body(self, body: bytes) -> None:
        if self._deaf:
            return
        self.events += 1
        self._silent_bytes = 0
        self.received_bytes += len(body)
        cycle = self.cycle
        if type(cycle) is Exchange:
            cycle.on_body(body)
        else:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._silent_bytes, self._behind_another = 0, True
        if self._deaf or self._receiving is None:
            return
        cycle, self._receiving = self.cycle, None
        self.phase = _IDLE if cycle.response_complete else _ANSWER
        if type(cycle) is Exchange:
            cycle.on_complete()
        else:
            super().on_message_complete()

    def on_response_complete(self) -> None:
        """An answer is whole: it is the next request's turn."""
        answered, self._active = self._active, None
        if self._turning or self.phase == _CLOSING or self.transport.is_closing():
            return
        if self._leaves_unread(answered) or (self._deaf and not self.pipeline):
            self.close_after_answer(unread=True)
            return
        if not self.pipeline:
            self.flow.resume_reading()
            if self.phase == _ANSWER:
                self.phase, self.since_s = _IDLE, self.shared.now_s
            return
        self._turning = True
        try:
            # A loop and not a recursion: a client may pipeline a thousand requests that are all answered at once.
            while self.pipeline and self.phase != _CLOSING and not self.transport.is_closing():
                cycle, app = self.pipeline.pop()
                self._start_asgi_task(cycle, app)
                if not cycle.response_complete:
                    if not self.pipeline:
                        self.flow.resume_reading()
                    return
        finally:
            self._turning = False
        self.on_response_complete()

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        if type(cycle) is Exchange:
            self._turn(cycle)
        else:
            self._active = cycle
            super()._start_asgi_task(cycle, announcing(app, cycle, lambda: self._leaves_unread(cycle) or self.shared.closing))

    # Ours

    def unread_bytes(self) -> float:
        """How much of the body that is being received may still come."""
        return 0 if self._receiving is None else body_bytes(self.headers) - self.received_bytes

    def _leaves_unread(self, answered: Any) -> bool:
        return answered is self._receiving and self.unread_bytes() > SMALL_BYTES

    def _turn(self, exchange: Exchange) -> None:
        self._active = exchange
        exchange.begin(self.shared.routes)

    def _begin_asgi(self) -> None:
        """Go uvicorn's way: it makes the scope when a message begins, here it is made when the message turns out to need one."""
        url, headers = self.url, self.headers
        self.server = get_local_addr(self.transport)
        super().on_message_begin()
        self.url, self.expect_100_continue = url, self._head.expects_continue(self.parser.get_http_version())
        self.headers.extend(headers)
        super().on_headers_complete()
        self._receiving = self.cycle
        self.cycle.transport = PoliteTransport(self, self._close_after_cycle)

    def _decline(self, rest: bytes) -> None:
        """Go on in HTTP/1.1 where a client offers another protocol, as Java's does with every request.

        The parser stops at such an offer and would lose the body: another one takes the request, without the offer.
        """
        head = without_offer(self.parser.get_method(), self.url, self.parser.get_http_version(), self.headers)
        self.parser = new_parser(self)
        self.feed(head + rest)


_LINGER_S = 1.0
_SLICES = 20
"""A pass over all connections is made in so many turns."""
_SLICE_SIZE = 128
"""Connections that are looked at in a turn at most, which takes 0.15 ms: a pass over 10,000 has more turns, and takes 2 s."""
_SLICE_S = 0.001
"""How long a slice may take; looking at a connection takes a microsecond, closing one twenty or more."""
UNSENT_S = 30.0
"""Instead of `idle_s` for an answer behind which the connection ends."""


class Sweep:
    """Looks at the connections from `start` to `stop`."""

    def __init__(self, shared: Shared, connections: Collection[Any]) -> None:
        self._shared = shared
        self._connections = connections
        self._left: list[Any] = []
        self._size = 0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._shared.now_s = loop.time()
        self._timer = loop.call_later(self._shared.limits.sweep_s / _SLICES, self._look)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self.start()
        if not self._left:
            self._left = list(self._connections)
            self._size = min(_SLICE_SIZE, -(-len(self._left) // _SLICES))
        end_s = time.monotonic() + _SLICE_S
        for _ in range(min(self._size, len(self._left))):
            connection = self._left.pop()
            if connection in self._connections:
                judge(connection, self._shared.now_s)
            if time.monotonic() > end_s:
                return


def judge(connection: GatewayProtocol, now_s: float) -> None:
    """Close the connection if it has been in its phase for too long."""
    limits = connection.shared.limits
    transport = connection.transport
    phase = connection.phase
    if phase in (Phase.IDLE, Phase.CLOSING):
        _credit(connection, now_s)
    waited_s = now_s - connection.since_s
    if transport.is_closing() and phase != Phase.CLOSING:
        connection.phase, connection.since_s = Phase.CLOSING, now_s
    elif phase == Phase.CLOSING:
        unsent = transport.get_write_buffer_size()
        if waited_s > (UNSENT_S if unsent else _LINGER_S):
            transport.abort()
    elif phase == Phase.IDLE and waited_s > limits.idle_s:
        if transport.get_write_buffer_size():
            transport.abort()
        else:
            transport.close()
    elif phase == Phase.HEAD and waited_s > (allowed_s := _in_time(limits.head_s, connection)):
        connection.refuse(_slow("head", allowed_s))
    elif phase == Phase.BODY and not connection.flow.read_paused:
        allowed_s = limits.body_s + connection.received_bytes / limits.body_bytes_per_s
        if waited_s > (allowed_s := _in_time(allowed_s, connection)):
            connection.refuse(_slow("body", allowed_s))


def _in_time(allowed_s: float, connection: GatewayProtocol) -> float:
    """How long receiving may take where it may usually take so long: little once the server stops."""
    shared = connection.shared
    return min(allowed_s, max(0.0, shared.stopping_s - connection.since_s) + shared.limits.last_s)


def _credit(connection: GatewayProtocol, now_s: float) -> None:
    """What the client has taken of its answer since the last look makes up for some of the time that it has had."""
    unsent_bytes = connection.transport.get_write_buffer_size()
    taken_bytes, connection.unsent_bytes = connection.unsent_bytes - unsent_bytes, unsent_bytes
    if taken_bytes > 0:
        earned_s = taken_bytes / connection.shared.limits.answer_bytes_per_s
        connection.since_s = min(now_s, connection.since_s + earned_s)


def _slow(part: str, allowed_s: float) -> GnomonError:
    return GnomonError(
        408,
        "request_too_slow",
        f"The {part} of the request did not arrive within {allowed_s:.0f} s.",
        "Send it faster, or in smaller pieces.",
    )

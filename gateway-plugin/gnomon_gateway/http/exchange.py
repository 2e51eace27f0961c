"""A request and its response on a connection, for the routes that must be quick.

ASGI creates a task, a scope and three messages for each request. An exchange uses callbacks instead: `HotRoutes.begin` after the
headers, the owner's `received` after the body, its `left` if the client disconnects before the response. The response is one
write. Measured, this costs a third of ASGI per request. Pipelined requests are answered in order.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from gnomon_core.errors import GnomonError
from gnomon_gateway.http.headers import STATUS_LINES, error_lines

if TYPE_CHECKING:
    from gnomon_gateway.http.connection import GatewayProtocol


def too_large(limit_bytes: int) -> GnomonError:
    """413: the body is larger than the limit."""
    return GnomonError(
        413,
        "body_too_large",
        f"The body is larger than {limit_bytes} bytes.",
        "Send less, or a reference to where the data is; the operator's `gnomon serve --max-body` bounds it.",
    )


def too_many_bodies(limit_bytes: int) -> GnomonError:
    """503: other large bodies are being received."""
    return GnomonError(
        503,
        "too_many_bodies",
        f"The large bodies that are being received hold more than {limit_bytes} bytes together.",
        "Retry later.",
        retry_after_s=1.0,
    )


def internal_error() -> GnomonError:
    """500: an internal error. The traceback is only in the log."""
    return GnomonError(
        500, "internal_error", "Internal error of the gateway while serving this request.", "The gateway's log has the traceback."
    )


SMALL_BYTES = 1 << 16
"""Up to this size head and body are joined into one write; above, copying costs more than a second write. Also, up to this size
the rest of an unwanted body is read and discarded; above, the connection is closed."""
_MOST_STREAM_BUFFER_BYTES = 16 << 20
"""A client that is this far behind in reading a stream is disconnected."""
_BODILESS = frozenset({204, 304})
_LOG = logging.getLogger(__name__)

Moved = Callable[["Exchange", "bytes | memoryview"], None]
"""The handler of a request, with its body, that another replica must answer because the queue moved there."""


class _NoEvent:
    """A replacement of the event by which uvicorn's protocol wakes the task of an ASGI request. An exchange has no task."""

    def set(self) -> None: ...


class Exchange:
    """A request and the methods to respond to it.

    `path` and `query` are as they were sent, undecoded; header names are lower-case. `max_body_bytes` bounds the received body.
    `client` is the client's address, as the replica states it that forwarded the request; `descriptor` is its connection's.
    `arrived_s`, on the monotonic clock, counts the time in the kernel's queue before a connection was accepted.
    With several gateway replicas, `moved` takes requests whose function moved to another one; the body is kept for that.
    """

    __slots__ = (
        "_bodiless",
        "_body",
        "_held_bytes",
        "_owner",
        "_protocol",
        "arrived_s",
        "body_bytes",
        "client",
        "descriptor",
        "disconnected",
        "expects_continue",
        "headers",
        "http_version",
        "keep_alive",
        "max_body_bytes",
        "method",
        "more_body",
        "moved",
        "path",
        "query",
        "response_complete",
        "streaming",
    )

    message_event = _NoEvent()
    # uvicorn's protocol uses these attributes: message_event, keep_alive, disconnected, response_complete, more_body.

    # By position: keywords double the time in which CPython makes an object.
    def __init__(  # noqa: PLR0917
        self,
        protocol: GatewayProtocol,
        method: bytes,
        path: bytes,
        query: bytes,
        headers: Sequence[tuple[bytes, bytes]],
        http_version: str,
        arrived_s: float,
    ) -> None:
        self._protocol = protocol
        self.descriptor = protocol.descriptor
        self.method = method
        self.path = path
        self.query = query
        self.headers = headers
        self.http_version = http_version
        self.client = protocol.client_address
        self.keep_alive = True
        self.expects_continue = False
        self.arrived_s = arrived_s
        self.max_body_bytes = 0
        self.body_bytes = 0
        self.more_body = True
        self.disconnected = False
        self.response_complete = False
        self.streaming = False
        self._bodiless = False
        self.moved: Moved | None = None
        self._owner: Owner | None = None
        self._body: bytes | bytearray | memoryview = b""
        self._held_bytes = 0

    # The request

    def accept(self, owner: Owner, max_body_bytes: int) -> None:
        """Receive the body and give it to this owner."""
        self._owner = owner
        self.max_body_bytes = max_body_bytes

    def begin(self, routes: HotRoutes) -> None:
        """Start the request: all requests before it have been answered."""
        try:
            routes.begin(self)
        except Exception:  # noqa: BLE001 - no caller could answer
            self.respond_internal_error()
        if self.response_complete:
            return
        if self.body_bytes > self.max_body_bytes:
            self.fail(too_large(self.max_body_bytes), close=True)
        elif not self.more_body:
            self._deliver()
        # Only now: a client that asks must not send a body that the route has refused already.
        elif self.expects_continue:
            self._protocol.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def restart(self, routes: HotRoutes, body: bytes | memoryview) -> None:
        """Start again with these routes. The whole body was received already, by another owner."""
        self._owner, self._body = None, body
        self.begin(routes)

    def hand_over(self) -> bool:
        """Pass the request and its body to `moved`, unless a response has begun; returns whether it was passed."""
        moved, self.moved = self.moved, None
        # A request whose answer has begun, or whose body is incomplete, cannot be sent to another replica.
        if moved is None or self.response_complete or self.streaming or self.more_body:
            return False
        body, self._body, self._owner = self._body, b"", None
        moved(self, body if isinstance(body, bytes) else memoryview(body))
        return True

    def on_body(self, data: bytes) -> None:
        """Add a part of the body."""
        if self.response_complete:
            return
        # Most bodies arrive in one portion, which is kept without a copy.
        if not self.body_bytes:
            self._body = data
        else:
            if not isinstance(self._body, bytearray):
                self._body = bytearray(self._body)
            self._body += data
        self.body_bytes += len(data)
        if self.body_bytes > SMALL_BYTES:
            self._count_body()
        if self._owner is not None and self.body_bytes > self.max_body_bytes:
            self.fail(too_large(self.max_body_bytes), close=True)

    def on_complete(self) -> None:
        """Deliver the complete body to the owner."""
        self.more_body = False
        if self._owner is not None and not self.response_complete:
            self._deliver()

    def lost(self) -> None:
        """Handle the end of the connection. May be called more than once."""
        self.disconnected = True
        self._release_body()
        if self._owner is not None and not self.response_complete:
            self.response_complete = True
            self._owner.left()
        self._owner = None

    def _deliver(self) -> None:
        assert self._owner is not None
        body = self._body
        # Kept for another replica, to which the queue may move while the request waits.
        if self.moved is None:
            self._body = b""
        if self._held_bytes:
            self._uncount_body()
        try:
            self._owner.received(body if isinstance(body, bytes) else memoryview(body))
        except Exception:  # noqa: BLE001 - no caller could answer
            self.respond_internal_error()

    def _count_body(self) -> None:
        """Count a large body. Without a bound on all of them a few clients could take all memory."""
        context = self._protocol.context
        context.held_bytes += self.body_bytes - self._held_bytes
        self._held_bytes = self.body_bytes
        if context.held_bytes > context.limits.max_receive_bytes:
            self._protocol.refuse(too_many_bodies(context.limits.max_receive_bytes))

    def _release_body(self) -> None:
        self._body = b""
        if self._held_bytes:
            self._uncount_body()

    def _uncount_body(self) -> None:
        self._protocol.context.held_bytes -= self._held_bytes
        self._held_bytes = 0

    # The answer

    def respond(self, status: int, lines: bytes, body: bytes | memoryview) -> None:
        """Send a whole response. `lines` are header lines, each ending in CRLF; framing and date are added."""
        if self.response_complete or self.disconnected:
            return
        protocol = self._protocol
        # Reading a long rest only to discard it costs more than a new connection.
        if self.more_body and protocol.unread_bytes() > SMALL_BYTES:
            self.keep_alive = False
        connection = self._connection_line()
        if status in _BODILESS:
            head = b"".join((STATUS_LINES[status], protocol.context.date_line, lines, connection, b"\r\n"))
            body = b""
        else:
            head = b"".join(
                (STATUS_LINES[status], protocol.context.date_line, lines, connection, b"content-length: %d\r\n\r\n" % len(body))
            )
            if self.method == b"HEAD":
                body = b""
        if len(body) <= SMALL_BYTES:
            protocol.transport.write(head + body)
        else:
            protocol.transport.write(head)
            protocol.transport.write(body)
            if protocol.flow.write_paused:
                protocol.context.write_buffers.hold(protocol, len(body))
        self._finish()

    def _connection_line(self) -> bytes:
        """The header line that says whether the connection stays open, where that is not the version's default."""
        if not self.keep_alive:
            return b"connection: close\r\n"
        return b"" if self.http_version == "1.1" else b"connection: keep-alive\r\n"

    def fail(self, error: GnomonError, lines: bytes = b"", *, close: bool = False) -> None:
        """Respond with an error of the gateway. `close` ends the connection instead of reading the rest of the request."""
        if close:
            self.keep_alive = False
        self.respond(error.status, error_lines(error) + lines, error.body())

    def respond_internal_error(self) -> None:
        """Log the exception that is being handled, and answer 500."""
        _LOG.exception("Internal error while serving %s %s", self.method.decode("latin-1"), self.path.decode("latin-1"))
        if self.streaming:
            self.abort()
        else:
            self.fail(internal_error(), close=True)

    def start(self, status: int, lines: bytes) -> None:
        """Begin a streamed answer."""
        if self.response_complete or self.disconnected:
            return
        self.streaming = True
        self._bodiless = status in _BODILESS or self.method == b"HEAD"
        # HTTP/1.0 has no chunks: the end of the connection marks the end of the body.
        chunked = self.http_version == "1.1"
        if not chunked:
            self.keep_alive = False
        framing = b"transfer-encoding: chunked\r\n" if chunked and not self._bodiless else b""
        connection = self._connection_line()
        self._protocol.transport.write(
            b"".join((STATUS_LINES[status], self._protocol.context.date_line, lines, framing, connection, b"\r\n"))
        )

    def write(self, data: bytes | memoryview) -> None:
        """Send the next part of a streamed answer."""
        if self.response_complete or self.disconnected or not data or self._bodiless:
            return
        transport = self._protocol.transport
        if self.http_version == "1.1":
            transport.write(b"%x\r\n%b\r\n" % (len(data), bytes(data)))
        else:
            transport.write(bytes(data))
        buffered_bytes = transport.get_write_buffer_size()
        # A stream has no end that bounds its buffer, so a client that does not read is disconnected.
        if buffered_bytes > _MOST_STREAM_BUFFER_BYTES:
            transport.abort()
        elif buffered_bytes > SMALL_BYTES:
            self._protocol.context.write_buffers.hold(self._protocol)

    def end(self) -> None:
        """End a streamed answer."""
        if self.response_complete or self.disconnected:
            return
        if self.http_version == "1.1" and not self._bodiless:
            self._protocol.transport.write(b"0\r\n\r\n")
        self._finish()

    def abort(self) -> None:
        """Break the answer off by closing the connection, so that the client cannot take it for complete."""
        if not self.response_complete:
            self.response_complete = True
            self._owner = None
            self._release_body()
            self._protocol.transport.abort()

    def _finish(self) -> None:
        self.response_complete = True
        self._owner = None
        self._release_body()
        if not self.keep_alive:
            self._protocol.close_after_answer(unread=self.more_body)
        self._protocol.on_response_complete()


class Owner(Protocol):
    """The code that answers an exchange's request."""

    def received(self, body: bytes | memoryview) -> None:
        """Handle the request, whose body is complete."""
        ...

    def left(self) -> None:
        """Handle a client that disconnected before the answer."""
        ...


class HotRoutes(Protocol):
    """The application's routes that are served without ASGI."""

    def begin(self, exchange: Exchange) -> None:
        """Answer at once or `accept` the body, once the headers are complete."""
        ...

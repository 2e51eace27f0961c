"""HTTP/1.1 between replicas: pooled connections, one request at a time on each, and the secret that authenticates them.

An answer with a length is passed on as a whole, so that an incomplete one can still become an error; a chunked answer is passed
on as it arrives. The sender must know two facts for certain: that no connection existed, so that nothing was received, and that
an answer is incomplete. A connection that closes while idle is removed from the pool; the connection of a request whose client
has disconnected is closed, which cancels the request in HTTP/1.1.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import select
import time
from pathlib import Path
from typing import Protocol, cast
from urllib.parse import urlsplit

import httptools

from gnomon_core.errors import GnomonError
from gnomon_gateway.http.headers import HOP_BY_HOP

OWNERSHIP_PATH = b"/gnomon/ownership"
"""The path by which replicas exchange the map of owners, on their internal listeners."""
CONNECT_TIMEOUT_S = 1.0
IDLE_S = 30.0
"""The idle time of pooled connections. The other side closes them after 75 s: no request is sent on a closing connection."""
MOST_IDLE = 64
_NOT_PASSED_ON = HOP_BY_HOP | {b"content-length", b"date"}


class Receiver(Protocol):
    """The receiver of a response. Exactly one of `whole`, `end` and `lost` is the last call."""

    def whole(self, status: int, lines: bytes, body: bytes) -> None:
        """A whole answer. `lines` are its header lines, each ending in CRLF, without framing."""
        ...

    def start(self, status: int, lines: bytes) -> None:
        """The head of an answer whose length is not known."""
        ...

    def part(self, data: bytes) -> None: ...

    def end(self) -> None: ...

    def lost(self) -> None:
        """Handle a connection that ended before the response was complete."""
        ...


class PeerConnection(asyncio.Protocol):
    """A connection to another replica, for one request at a time."""

    def __init__(self, peers: Peers, address: str) -> None:
        self.address = address
        self.idle_since_s = 0.0
        self._peers = peers
        self._transport: asyncio.Transport | None = None
        self._receiver: Receiver | None = None
        self._bodiless = False
        self._lines: list[bytes] = []
        self._length: int | None = None
        self._parts: list[bytes] = []
        self._keep = False

    @property
    def usable(self) -> bool:
        """Return whether a request can be sent on this connection.

        The socket is polled (1 µs), because the event loop may not have reported yet that the other side closed it: a request
        sent on such a connection is lost, without evidence that it was not received.
        """
        transport = self._transport
        return transport is not None and not transport.is_closing() and self._receiver is None and not self._disconnects.poll(0)

    def send(self, head: bytes, body: bytes | memoryview, receiver: Receiver, *, bodiless: bool = False) -> None:
        """Send a request. `head` ends in an empty line. `bodiless`: the answer has none, whatever length it states (HEAD)."""
        assert self._transport is not None
        self._receiver, self._bodiless = receiver, bodiless
        self._parser = httptools.HttpResponseParser(self)
        self._lines, self._length, self._parts = [], None, []
        self._transport.writelines([head, body] if body else [head])

    def drop(self) -> None:
        """Abort the request: its response is not wanted any more."""
        self._receiver = None
        if self._transport is not None:
            self._transport.abort()

    # asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._disconnects = select.poll()
        self._disconnects.register(transport.get_extra_info("socket").fileno(), select.POLLIN | select.POLLRDHUP)

    def data_received(self, data: bytes) -> None:
        if self._receiver is None:
            self.drop()
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._break()

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._peers.forget(self)
        receiver, self._receiver = self._receiver, None
        if receiver is not None:
            receiver.lost()

    # The parser

    def on_header(self, name: bytes, value: bytes) -> None:
        lowered = name.lower()
        if lowered == b"content-length":
            self._length = int(value)
        if lowered not in _NOT_PASSED_ON:
            self._lines.append(name + b": " + value + b"\r\n")

    def on_headers_complete(self) -> None:
        self._keep = self._parser.should_keep_alive()
        if self._bodiless:
            # The parser waits for a body of the stated length, but the response to HEAD has none.
            self._ended()
        elif self._length is None and self._receiver is not None and self._parser.get_status_code() not in (204, 304):
            self._receiver.start(self._parser.get_status_code(), b"".join(self._lines))

    def on_body(self, data: bytes) -> None:
        if self._receiver is None:
            return
        if self._length is None:
            self._receiver.part(data)
        else:
            self._parts.append(data)

    def on_message_complete(self) -> None:
        self._ended()

    def _ended(self) -> None:
        receiver, self._receiver = self._receiver, None
        if receiver is None:
            return
        status = self._parser.get_status_code()
        streamed = self._length is None and not self._bodiless and status not in (204, 304)
        if self._keep:
            self._peers.keep(self)
        else:
            self.drop()
        if streamed:
            receiver.end()
        else:
            body = bytes(self._length or 0) if self._bodiless else b"".join(self._parts)
            receiver.whole(status, b"".join(self._lines), body)

    def _break(self) -> None:
        receiver = self._receiver
        self.drop()
        if receiver is not None:
            receiver.lost()


class Peers:
    """The connections to other replicas."""

    def __init__(self, secret: PeerSecret) -> None:
        self.secret = secret
        self._idle: dict[str, list[PeerConnection]] = {}

    def idle(self, address: str) -> PeerConnection | None:
        """A connection to this address that can be used at once."""
        while kept := self._idle.get(address):
            # Last in, first out, so that surplus connections reach their idle time and are closed.
            connection = kept[-1]
            self.forget(connection)
            if connection.usable and time.monotonic() - connection.idle_since_s < IDLE_S:
                return connection
            connection.drop()
        return None

    async def open(self, address: str) -> PeerConnection:
        """A new connection.

        Raises:
            OSError, TimeoutError: no connection; nothing was sent.

        """
        parts = urlsplit(address)
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            _, connection = await loop.create_connection(
                lambda: PeerConnection(self, address), parts.hostname or "", parts.port or 80
            )
        return connection

    async def call(self, address: str, path: str, body: bytes, timeout_s: float) -> tuple[int, bytes]:
        """POST a small body; returns the response's status and body.

        Raises:
            OSError, TimeoutError.

        """
        async with asyncio.timeout(timeout_s):
            connection = self.idle(address) or await self.open(address)
            waiting = _Waiting()
            head = b"POST %b HTTP/1.1\r\nHost: gnomon\r\n%bcontent-length: %d\r\n\r\n"
            connection.send(head % (path.encode(), self.secret.line, len(body)), body, waiting)
            try:
                return await waiting.answered
            finally:
                if not waiting.answered.done() or waiting.answered.cancelled():
                    connection.drop()

    def keep(self, connection: PeerConnection) -> None:
        """Return a connection to the pool; close it if the pool is full."""
        kept = self._idle.setdefault(connection.address, [])
        connection.idle_since_s = time.monotonic()
        if len(kept) < MOST_IDLE:
            kept.append(connection)
        else:
            connection.drop()

    def forget(self, connection: PeerConnection) -> None:
        """Remove a closed connection from the pool."""
        kept = self._idle.get(connection.address)
        if kept is not None and connection in kept:
            kept.remove(connection)
            if not kept:
                # Replicas that are gone have left addresses that none will use again.
                del self._idle[connection.address]

    def close(self) -> None:
        """Close all idle connections."""
        kept, self._idle = self._idle, {}
        for connections in kept.values():
            for connection in connections:
                connection.drop()


class _Waiting:
    """The receiver of a call."""

    def __init__(self) -> None:
        self.answered: asyncio.Future[tuple[int, bytes]] = asyncio.get_running_loop().create_future()
        self._status = 0
        self._parts: list[bytes] = []

    def whole(self, status: int, lines: bytes, body: bytes) -> None:
        del lines
        if not self.answered.done():
            self.answered.set_result((status, body))

    def start(self, status: int, lines: bytes) -> None:
        del lines
        self._status = status

    def part(self, data: bytes) -> None:
        self._parts.append(data)

    def end(self) -> None:
        self.whole(self._status, b"", b"".join(self._parts))

    def lost(self) -> None:
        if not self.answered.done():
            self.answered.set_exception(ConnectionResetError("the replica has closed the connection"))


HEADER = b"x-gnomon-peer"
"""Every header that replicas send each other begins with this name."""
SHORTEST_SECRET = 16


class PeerSecret:
    """The shared secret of the replicas. No field that a traceback or a dump shows is named after it."""

    def __init__(self, text: str) -> None:
        if len(text) < SHORTEST_SECRET or not text.isascii() or not text.isprintable():
            raise GnomonError(
                500,
                "peer_secret_unfit",
                f"The secret of the gateway's replicas is not at least {SHORTEST_SECRET} printable ASCII characters.",
                "Write another, as by: head -c 24 /dev/urandom | base64",
            )
        self.line = HEADER + b": " + text.encode() + b"\r\n"
        self._digest = hashlib.sha256(text.encode()).digest()

    def allows(self, shown: bytes | None) -> bool:
        """Return whether `shown` is the secret, compared in constant time."""
        return hmac.compare_digest(hashlib.sha256(shown or b"").digest(), self._digest)


def read_peer_secret(path: Path) -> PeerSecret:
    """Read the secret from a file, without the white space around it.

    Raises:
        GnomonError: 500 `peer_secret_missing` or `peer_secret_unfit`.

    """
    try:
        text = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise GnomonError(
            500,
            "peer_secret_missing",
            f"Gateway replicas share the secret in {path}, which cannot be read: {error}.",
            "Write the secret to this file.",
        ) from None
    return PeerSecret(text)

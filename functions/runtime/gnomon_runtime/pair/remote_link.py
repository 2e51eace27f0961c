"""The data path of a pair on two nodes: the same as `Link`, over a TCP stream.

**The Body's end** (`RemoteLink`). A hand-over is written at once as far as the kernel's socket buffer takes it. The rest, and
the answer, are transferred while the Body computes its own rows: a thread of this process sends and receives, and sleeps in
between. The thread hardly delays the Body, as it spends its time in system calls, which release the GIL. It queues the messages
that arrive, and makes the link's descriptor readable.

    Body     ▓▓▓▓┤ write, send ├▓▓▓▓▓▓ own rows ▓▓▓▓▓▓┤ join
    thread             … the rest ┤          ├ receive ┤
    Shadow                  ├▓▓▓▓ its rows ▓▓▓▓┤ send

A stream has an order: while a hand-over that was given up is still on its way, there cannot be another, which is then a miss. The
connection is made once, beside the batches; one that breaks ends the pair, and a new "pair" order makes another.

A Shadow's time is measured here, from the hand-over until its answer has arrived: the Shadow itself knows only its compute time.
Example: 15 ms are predicted; 10 of work and 20 of network each way take 50. The first answer is late after 30; its time is
learned, and the next timeout is 51.

**The messages** go over the HTTP port of the Shadow's instance, upgraded.

    Body ──GET /gnomon/pair, Authorization: Bearer …, Connection: Upgrade, Upgrade: gnomon-pair/1──▶ Shadow
    Body ◀──101 Switching Protocols── Shadow                                from here on messages, in both directions
    Body ──message (gnomon_runtime.pair.headers), then the tensors of its rows──▶ Shadow
    Body ◀──message, tensors── Shadow

The messages are those of a pair on one node. There the rows say where a tensor lies in a buffer that both sides have mapped;
here each side has a buffer of its own, and after the message come its first bytes, up to the end of the last tensor. So nothing
but the beginning of a message has to be parsed, `decode` believes none of the numbers, and a tensor is received where it is
computed on.

There is no resynchronisation: an invalid message ends the connection, and with it the pair.

**The Shadow's end** (`StreamLink`). A Shadow only serves its Body's hand-overs, so it needs no thread for transfers: a message is
received completely once it has begun, and an answer is sent completely, unless the Body stalls.

    Body     ─ hand-over 6 ─ hand-over 7 ─▶      6 was given up: 7 has been received over its tensors
    Shadow                         ◀─ answer 7 ─

**Connecting** (`connect`). A URL and a token become a connection that carries a pair's messages.

    {"do": "pair", …, "url": "http://10.0.3.7:8080", "token": "…"}  ─▶  connect, ask for the upgrade, read 101  ─▶  a stream

Every step has a time limit, and runs in the link's thread beside the Body's batches.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

from torch import Tensor

from gnomon_core import packets
from gnomon_core.addresses import host_and_port
from gnomon_core.coordination import PAIR_PATH, PAIR_PROTOCOL
from gnomon_runtime.pair.headers import HEADER, MAX_BYTES, Message, NonsenseError, decode, encode, message_bytes, tensor_bytes
from gnomon_runtime.pair.link import MAX_PENDING, DataPath, Link, Outcome, OwnBuffer, SharedBuffer

SWITCHING = f"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: {PAIR_PROTOCOL}\r\n\r\n".encode()
STALL_S = 10.0
"""Seconds in which a peer may neither take nor send a byte within a message. A node that has lost its power sends no more."""
_IDLE_S, _EVERY_S, _TIMES = 5, 2, 3
"""TCP keep-alive: idle seconds before the first probe, seconds between probes, and the number of probes."""


class Incoming:
    """A parser of arriving messages, with a persistent buffer for their tensors."""

    def __init__(self, buffer: SharedBuffer) -> None:
        self.buffer = buffer
        self._head = memoryview(bytearray(MAX_BYTES))
        self._message: Message | None = None
        self._place = self._head[: HEADER.size]
        self._filled = 0

    @property
    def is_partial(self) -> bool:
        """True if a message has arrived in part."""
        return self._message is not None or self._filled > 0

    def take(self, connection: socket.socket) -> Message | None:
        """The next message, when all of it has arrived; None when the socket, which must not block, has no more.

        Raises:
            PeerGoneError: the connection has ended.
            NonsenseError: the bytes are not a valid message.

        """
        while (message := self._whole()) is None:
            try:
                count = connection.recv_into(self._place[self._filled :])
            except BlockingIOError:
                return None
            except OSError as error:
                raise packets.PeerGoneError(f"the connection has broken: {error.strerror}") from error
            if not count:
                raise packets.PeerGoneError
            self._filled += count
        return message

    def _whole(self) -> Message | None:
        """The message if it is complete; else None, with the next part to receive set up."""
        while self._filled == len(self._place):
            if self._message is not None:
                message = self._message
                self._message, self._place, self._filled = None, self._head[: HEADER.size], 0
                return message
            length = message_bytes(self._head[: HEADER.size])
            if len(self._place) < length:
                self._place = self._head[:length]
                continue
            self._message = decode(bytes(self._place), self.buffer.size_bytes)
            self._place, self._filled = self.buffer.view(tensor_bytes(self._message)), 0
        return None


class Outgoing:
    """A message that is being sent, and the tensors that follow it, without copying them together."""

    def __init__(self, message: Message, buffer: SharedBuffer) -> None:
        self._parts: list[memoryview] = [memoryview(encode(message)), buffer.view(tensor_bytes(message))]

    def push(self, connection: socket.socket) -> bool:
        """Send until the non-blocking socket would block. Returns whether everything was sent.

        Raises:
            PeerGoneError: the connection has ended.

        """
        while self._parts:
            try:
                sent = connection.sendmsg(self._parts)
            except BlockingIOError:
                return False
            except OSError as error:
                raise packets.PeerGoneError(f"the connection has broken: {error.strerror}") from error
            self._parts = _after(self._parts, sent)
        return True


def prepare(connection: socket.socket) -> None:
    """Configure a TCP connection for hand-overs: no Nagle delay, and keep-alive probes that detect a dead peer."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _IDLE_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _EVERY_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _TIMES)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(1e3 * STALL_S))
    connection.setblocking(False)  # noqa: FBT003 - the signature is socket's


def _after(parts: Sequence[memoryview], sent: int) -> list[memoryview]:
    """The unsent rest of these buffers, after `sent` bytes."""
    unsent: list[memoryview] = []
    for part in parts:
        gone = min(sent, len(part))
        sent -= gone
        if gone < len(part):
            unsent.append(part[gone:])
    return unsent


CONNECT_S = 3.0
MAX_ANSWER_BYTES = 8192
_PORT = 80
_END = b"\r\n\r\n"


def connect(url: str, token: str) -> socket.socket:
    """Connect to the Shadow at this URL. Returns the upgraded, non-blocking connection.

    Raises:
        ValueError: the URL or the token is not valid.
        PeerGoneError: the peer is unreachable, or refuses the upgrade.

    """
    host, port = address(url)
    if not token.isascii() or not token.isprintable():
        raise ValueError("a token that no header can hold")
    until_s = time.monotonic() + CONNECT_S
    try:
        connection = socket.create_connection((host, port), CONNECT_S)
    except OSError as error:
        raise packets.PeerGoneError(f"{host_and_port(host, port)} cannot be reached: {error}") from error
    try:
        connection.sendall(_request(urlsplit(url).netloc, token))
        _switched(connection, until_s)
        prepare(connection)
    except OSError as error:
        connection.close()
        if isinstance(error, packets.PeerGoneError):
            raise
        raise packets.PeerGoneError(f"{host_and_port(host, port)} does not answer: {error}") from error
    return connection


def address(url: str) -> tuple[str, int]:
    """Host and port of http://HOST[:PORT].

    Raises:
        ValueError: the URL has another form.

    """
    parts = urlsplit(url)
    if parts.scheme != "http" or not parts.hostname or parts.path not in ("", "/") or parts.query or parts.username:
        raise ValueError("the Shadow's url is not http://HOST:PORT")
    return parts.hostname, parts.port or _PORT


def _request(host: str, token: str) -> bytes:
    lines = (
        f"GET {PAIR_PATH} HTTP/1.1",
        f"Host: {host}",
        f"Authorization: Bearer {token}",
        "Connection: Upgrade",
        f"Upgrade: {PAIR_PROTOCOL}",
    )
    return "\r\n".join((*lines, "", "")).encode("ascii")


def _switched(connection: socket.socket, until_s: float) -> None:
    """Read the answer, up to its last line and no further."""
    answer = b""
    while not answer.endswith(_END):
        left_s = until_s - time.monotonic()
        if left_s <= 0 or len(answer) > MAX_ANSWER_BYTES:
            raise packets.PeerGoneError("the Shadow does not answer the upgrade")
        connection.settimeout(left_s)
        # Byte by byte, so as not to read beyond the response's end: the bytes after it belong to messages.
        byte = connection.recv(1)
        if not byte:
            raise packets.PeerGoneError("the Shadow closed the connection during the upgrade")
        answer += byte
    status = answer.split(b"\r\n", 1)[0].split(b" ", 2)
    if len(status) < 2 or status[1] != b"101":  # noqa: PLR2004 - version and status
        raise packets.PeerGoneError(f"the Shadow refuses: {answer.split(_END[:2], 1)[0].decode('latin-1')[:100]}")


def data_path(message: Mapping[str, Any], descriptors: list[int]) -> DataPath:
    """The data path of a "pair" order: buffers for a Shadow on this node, a URL and a token for one on another.

    Raises:
        ValueError, OSError: the order has no data path.

    """
    if "url" in message:
        return RemoteLink(str(message["url"]), str(message["token"]))
    return Link(descriptors, body=True)


class RemoteLink(DataPath):
    """The data path to the Shadow at a URL. It is not `ready` before the Shadow has agreed.

    Raises:
        ValueError: the URL is not valid.
        OSError: the process has reached its limit of descriptors or threads.

    """

    elsewhere = True

    def __init__(self, url: str, token: str) -> None:
        address(url)
        super().__init__(OwnBuffer(1), OwnBuffer(1))
        self._incoming = Incoming(self.back)
        self._sending: Outgoing | None = None
        self._arrived: deque[tuple[float, Message | Exception]] = deque()
        """Messages with their times of arrival."""
        self._handed_over_s: dict[int, float] = {}
        """The time of each hand-over, by its number."""
        self._connection: socket.socket | None = None
        self._over = self._ended = False
        self._lock = threading.Lock()
        """Guards `_over` and `_ended`: they say whether the main thread or the link's thread closes the descriptors."""
        self._arrival_event, self._wake = (os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC) for _ in range(2))
        self._poll = select.poll()
        self._poll.register(self._arrival_event, select.POLLIN)
        self._thread = threading.Thread(target=self._serve, args=(url, token), name="hand-over", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:
            self._close_descriptors()
            raise OSError(f"no thread for the connection to the Shadow: {error}") from error

    @property
    def ready(self) -> bool:
        return self._connection is not None and not self._over

    def fileno(self) -> int:
        return self._arrival_event

    def send_hint(self) -> None:
        """Do nothing: compared with the network, 0.2 ms are little."""

    def hand_over(self, begin: int, end: int, values: Sequence[Tensor], first_row: int) -> Outcome | None:
        if self._sending is not None:
            with contextlib.suppress(NonsenseError):
                self.late += self.pending()
            # The previous hand-over is still being sent from the buffer that this one would overwrite.
            self.sequence += 1
            return Outcome.FULL
        trouble = super().hand_over(begin, end, values, first_row)
        self._handed_over_s[self.sequence] = time.monotonic()
        while len(self._handed_over_s) > MAX_PENDING:
            del self._handed_over_s[next(iter(self._handed_over_s))]
        return trouble

    def send(self, message: Message) -> bool:
        connection = self._connection
        if connection is None or self._over:
            raise packets.PeerGoneError
        outgoing = Outgoing(message, self.to)
        if not outgoing.push(connection):
            # The thread sends the rest. It may be asleep in poll without POLLOUT: the eventfd wakes it.
            with self._lock:
                self._sending = outgoing
                if not self._ended:
                    os.eventfd_write(self._wake, 1)
        return True

    def close(self) -> None:
        """Close the connection, at once or as soon as it has been made."""
        with self._lock:
            self._over = True
            if self._ended:
                self._close_descriptors()
            else:
                os.eventfd_write(self._wake, 1)
        self.to.close()
        self.back.close()

    def _readable(self, wait_s: float) -> bool:
        return bool(self._arrived) or bool(self._poll.poll(1e3 * wait_s))

    def _receive(self) -> Message | None:
        if not self._arrived:
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._arrival_event)
        if not self._arrived:
            return None
        arrived_s, arrived = self._arrived[0]
        if isinstance(arrived, Exception):
            # The error stays in the queue, so that later calls raise it again.
            raise arrived
        self._arrived.popleft()
        handed_over_s = self._handed_over_s.pop(arrived.sequence, None)
        return arrived if handed_over_s is None else replace(arrived, compute_s=max(0.0, arrived_s - handed_over_s))

    # The thread

    def _serve(self, url: str, token: str) -> None:
        try:
            with connect(url, token) as connection:
                self._connection = connection
                self._queue(None)
                self._transfer(connection)
        except (NonsenseError, packets.PeerGoneError) as error:
            self._queue(error)
        except Exception as error:  # noqa: BLE001 - whatever it is, the Body must hear that nothing will come any more
            self._queue(packets.PeerGoneError(f"{type(error).__name__}: {error}"))
        finally:
            with self._lock:
                self._ended = True
                if self._over:
                    self._close_descriptors()

    def _transfer(self, connection: socket.socket) -> None:
        """Send and receive until the link is closed or the connection ends."""
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        while not self._over:
            # `register` replaces the events of a known descriptor. With nothing to send, POLLOUT would make this loop spin.
            poll.register(connection, select.POLLIN | (select.POLLOUT if self._sending is not None else 0))
            ready = dict(poll.poll())
            if self._wake in ready:
                os.eventfd_read(self._wake)
            events = ready.get(connection.fileno(), 0)
            if events & select.POLLOUT and self._sending is not None and self._sending.push(connection):
                self._sending = None
            if events & ~select.POLLOUT:
                while (message := self._incoming.take(connection)) is not None:
                    if len(self._arrived) >= MAX_PENDING:
                        raise NonsenseError("unexpected messages")
                    self._queue(message)

    def _queue(self, arrived: Message | Exception | None) -> None:
        if arrived is not None:
            self._arrived.append((time.monotonic(), arrived))
        with self._lock:
            if not self._over:
                os.eventfd_write(self._arrival_event, 1)

    def _close_descriptors(self) -> None:
        for descriptor in (self._arrival_event, self._wake):
            os.close(descriptor)


class StreamLink(DataPath):
    """The data path to the Body at the other end of a connection. `sizes` are those of the buffers, there and back."""

    def __init__(self, connection: socket.socket, sizes: tuple[int, int]) -> None:
        super().__init__(OwnBuffer(sizes[0]), OwnBuffer(sizes[1]))
        self._connection = connection
        self._incoming = Incoming(self.to)
        self._poll = select.poll()

    def accept_upgrade(self) -> None:
        """Accept the upgrade that the Body has requested.

        Raises:
            OSError: the Body has gone, or does not read.

        """
        self._connection.settimeout(STALL_S)
        self._connection.sendall(SWITCHING)
        prepare(self._connection)

    def fileno(self) -> int:
        return self._connection.fileno()

    def send_hint(self) -> None:
        """Do nothing: compared with the network, 0.2 ms are little."""

    def wait_readable(self, wait_s: float) -> bool:
        """Wait up to so many seconds. Returns whether bytes have arrived or the Body has disconnected."""
        return self._await(select.POLLIN, wait_s)

    def send(self, message: Message) -> bool:
        outgoing = Outgoing(message, self.back)
        while not outgoing.push(self._connection):
            if not self._await(select.POLLOUT, STALL_S):
                raise packets.PeerGoneError("the Body does not read")
        return True

    def close(self) -> None:
        self._connection.close()
        self.to.close()
        self.back.close()

    def _readable(self, wait_s: float) -> bool:
        return self.wait_readable(wait_s)

    def _receive(self) -> Message | None:
        while (message := self._incoming.take(self._connection)) is None and self._incoming.is_partial:
            # The new message overwrites the tensors of the one before it, which must not be computed any more.
            if not self._await(select.POLLIN, STALL_S):
                raise packets.PeerGoneError("the Body stalls in the middle of a message")
        return message

    def _await(self, event: int, wait_s: float) -> bool:
        self._poll.register(self._connection, event)
        return bool(self._poll.poll(1e3 * max(0.0, wait_s)))

"""A pair's messages over TCP, for a Shadow on another node than its Body: on the HTTP port of the Shadow's instance, upgraded.

    Body ──GET /gnomon/pair, Authorization: Bearer …, Connection: Upgrade, Upgrade: gnomon-pair/1──▶ Shadow
    Body ◀──101 Switching Protocols── Shadow                                from here on messages, in both directions
    Body ──message (gnomon_runtime.pair.headers), then the tensors of its rows──▶ Shadow
    Body ◀──message, tensors── Shadow

The messages are those of a pair on one node. There the rows say where a tensor lies in a buffer that both sides have mapped;
here each side has a buffer of its own, and after the message come its first bytes, up to the end of the last tensor. So nothing
but the beginning of a message has to be parsed, `decode` believes none of the numbers, and a tensor is received where it is
computed on.

A stream is neither repaired nor searched for the next message: nonsense ends the connection, and with it the pair.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence

from gnomon_core import packets
from gnomon_core.coordination import PAIR_PROTOCOL
from gnomon_runtime.pair.buffers import SharedBuffer
from gnomon_runtime.pair.headers import HEADER, MAX_BYTES, Message, decode, encode, message_bytes, tensor_bytes

SWITCHING = f"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: {PAIR_PROTOCOL}\r\n\r\n".encode()
STALL_S = 10.0
"""For so long a peer may neither take nor give a byte in the middle of a message. A node that has lost its power says no more."""
_IDLE_S, _EVERY_S, _TIMES = 5, 2, 3
"""When nothing is sent for so long, TCP asks whether the other side is still there, so often."""


class Incoming:
    """Messages as they arrive, their tensors in a buffer that is kept."""

    def __init__(self, buffer: SharedBuffer) -> None:
        self.buffer = buffer
        self._head = memoryview(bytearray(MAX_BYTES))
        self._message: Message | None = None
        self._place = self._head[: HEADER.size]
        self._filled = 0

    @property
    def begun(self) -> bool:
        """Whether a message has come in part."""
        return self._message is not None or self._filled > 0

    def take(self, connection: socket.socket) -> Message | None:
        """The next message, when all of it has arrived; None when the socket, which must not block, has no more.

        Raises:
            PeerGoneError: there will be no more.
            NonsenseError: what came is no message.

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
        """The message, if it is complete. Finds out what to receive next where it is not."""
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
    """One message on its way, and the tensors that follow it: nothing is copied together."""

    def __init__(self, message: Message, buffer: SharedBuffer) -> None:
        self._parts: list[memoryview] = [memoryview(encode(message)), buffer.view(tensor_bytes(message))]

    def push(self, connection: socket.socket) -> bool:
        """Send what the socket, which must not block, takes now. Whether that was all.

        Raises:
            PeerGoneError: nobody reads any more.

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
    """Make a TCP connection fit for hand-overs: no waiting for more to send, and a peer that has silently gone is noticed."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _IDLE_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _EVERY_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _TIMES)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(1e3 * STALL_S))
    connection.setblocking(False)  # noqa: FBT003 - the signature is socket's


def _after(parts: Sequence[memoryview], sent: int) -> list[memoryview]:
    """What is left of these when `sent` bytes of them have gone."""
    left: list[memoryview] = []
    for part in parts:
        gone = min(sent, len(part))
        sent -= gone
        if gone < len(part):
            left.append(part[gone:])
    return left

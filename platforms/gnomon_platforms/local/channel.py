"""The batch channel to an instance on this node: frames over a Unix socket, on the event loop, without a task per batch.

A batch leaves with one gathering write, straight from the requests' own buffers; what the socket does not take waits in an outbox
until it does. The result calls `done` from the loop's reader. When the instance dies, the end of the stream is the first news of
it, and the batch in flight gets its `done(None)` there and then.

How the stream ends tells whether the instance had received the batch. A Unix socket whose peer closed it with data unread reports
ECONNRESET, a plain end of file otherwise; what is unread is the last that was sent. So a reset right after a batch means that its
frame was not read to the end, and an instance executes whole frames only.

As many batches are in flight as the instance's HELLO says that it executes at once; each result and each part of a stream bears
its batch's id.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from gnomon_core.launch import MOST_CONCURRENCY
from gnomon_core.wire import Frame, FrameReader, Kind, WireError, encode_parts
from gnomon_platforms.channel import Batch, Channel, State

READ_BYTES = 256 * 1024
BUFFER_BYTES = 4 * 2**20
"""Socket buffer size: a batch of 6 photographs as FP32 tensors fits, and is handed over without a context switch."""
MAX_PARTS = 1000
"""Buffers in one gathering write: the kernel takes at most 1024 (UIO_MAXIOV)."""
_SO_SNDBUFFORCE = 32
"""Socket option of asm-generic/socket.h, absent from Python: the size may exceed net.core.wmem_max. Needs CAP_NET_ADMIN."""


class _ReadBuffer(threading.local):
    """A read buffer for all channels of a thread's event loop: data is copied out before the next read.

    A new one of this size for each read would be mapped and unmapped by the allocator, 40 µs a time.
    """

    def __init__(self) -> None:
        self.view = memoryview(bytearray(READ_BYTES))


_READ_BUFFER = _ReadBuffer()


def channel_pair() -> tuple[socket.socket, socket.socket]:
    """The platform's end, which does not block, and the instance's, which does."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    for end in (ours, theirs):
        try:
            end.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, BUFFER_BYTES)
        except PermissionError:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
    ours.setblocking(False)  # noqa: FBT003 - the signature is socket's
    return ours, theirs


class UnixChannel(Channel):
    """The channel of one instance. `on_hello` gets what the instance serves, `on_lost` why the channel has ended; each once."""

    def __init__(
        self,
        connection: socket.socket,
        on_hello: Callable[[dict[str, Any]], None],
        on_lost: Callable[[str], None],
    ) -> None:
        super().__init__(on_lost, state=State.CONNECTING)
        self._socket = connection
        self._fd = connection.fileno()
        self._on_hello = on_hello
        self._reader = FrameReader()
        self._outbox: deque[bytes | memoryview] = deque()
        self._probes: dict[int, asyncio.Future[bool]] = {}
        self._last_probe = 0
        self._last_sent: int | None = None
        """The id of the batch, if that was the last frame."""
        self._undelivered = False
        self._loop.add_reader(self._fd, self._readable)

    async def probe(self, timeout_s: float) -> bool:
        """True if the instance answers a canary in time."""
        if self.closed:
            return False
        self._last_probe += 1
        number = self._last_probe
        answered = self._probes[number] = self._loop.create_future()
        self._send(Frame(Kind.PROBE, number))
        try:
            return await asyncio.wait_for(answered, timeout_s)
        except TimeoutError:
            return False
        finally:
            self._probes.pop(number, None)

    def resize(self, cores: int, cpus: tuple[int, ...]) -> None:
        """Let the instance use these CPUs from its next batch on."""
        head = f'{{"cores": {cores}, "cpus": {list(cpus)}}}'
        self._send(Frame(Kind.RESIZE, head=head.encode()))

    def stop(self) -> None:
        """Ask the instance to finish its batches and exit."""
        self._send(Frame(Kind.STOP))

    def close(self) -> None:
        """Read the last data of an ended instance, and close the socket. A batch in flight is lost; the owner is notified."""
        while self._readable():
            pass
        self._lose("closed")

    def _transmit(self, batch: Batch, frame: Frame) -> None:
        del batch
        self._send(frame)

    def _cancel(self, batch: Batch) -> None:
        self._send(Frame(Kind.CANCEL, batch.id))

    def _send(self, frame: Frame) -> None:
        if self.closed:
            return
        self._last_sent = frame.batch_id if frame.kind is Kind.BATCH else None
        parts = encode_parts(frame)
        # Behind unsent data, or more buffers than one sendmsg takes: join them into one and queue that.
        if self._outbox or len(parts) > MAX_PARTS:
            self._outbox.append(b"".join(parts))
            self._flush()
            return
        left = self._write(parts)
        if left:
            self._outbox.extend(left)
            self._loop.add_writer(self._fd, self._flush)

    def _write(self, parts: list[bytes | memoryview]) -> list[bytes | memoryview]:
        """Write what the socket takes and return the rest."""
        try:
            sent = self._socket.sendmsg(parts)
        except (BlockingIOError, InterruptedError):
            return parts
        except OSError:
            # The reader gets the same error and reports it.
            self._undelivered = True
            return []
        for index, part in enumerate(parts):
            if sent < len(part):
                return [memoryview(part)[sent:], *parts[index + 1 :]]
            sent -= len(part)
        return []

    def _flush(self) -> None:
        left = self._write([self._outbox.popleft() for _ in range(min(len(self._outbox), MAX_PARTS))])
        self._outbox.extendleft(reversed(left))
        if self._outbox:
            self._loop.add_writer(self._fd, self._flush)
        else:
            self._loop.remove_writer(self._fd)

    def _readable(self) -> bool:
        """Read received data. Returns whether there may be more."""
        if self.closed:
            return False
        buffer = _READ_BUFFER.view
        try:
            count = self._socket.recv_into(buffer)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError as error:
            self._undelivered |= isinstance(error, ConnectionResetError)
            self._lose(str(error))
            return False
        if not count:
            self._lose("the instance has closed its channel")
            return False
        try:
            for frame in self._reader.feed(bytes(buffer[:count])):
                self._receive(frame)
        except WireError as error:
            self._lose(f"the instance sent an invalid frame: {error}")
        return True

    def _receive(self, frame: Frame) -> None:
        kind = frame.kind
        if kind is Kind.PROBE_OK:
            answered = self._probes.get(frame.batch_id)
            if answered is not None and not answered.done():
                answered.set_result(True)
        elif kind is Kind.HELLO:
            self._greeted(frame)
        else:
            batch = self._in_flight.get(frame.batch_id)
            if batch is None:
                raise WireError(f"a {kind.name} frame that answers no batch")
            if batch.take(frame):
                self._finish(batch, batch.result)

    def _greeted(self, frame: Frame) -> None:
        head = frame.head_json()
        concurrency = head.get("concurrency", 1)
        if type(concurrency) is not int or not 1 <= concurrency <= MOST_CONCURRENCY:
            raise WireError("a HELLO with an invalid concurrency")
        self.concurrency = concurrency
        self._connected()
        on_hello, self._on_hello = self._on_hello, _ignore
        on_hello(head)

    def _release(self) -> None:
        # Only a batch that the instance has not received in full can be repeated elsewhere without executing twice.
        if self._last_sent is not None and (self._undelivered or self._outbox):
            self.unread.add(self._last_sent)
        self._loop.remove_reader(self._fd)
        self._loop.remove_writer(self._fd)
        self._outbox.clear()
        with contextlib.suppress(OSError):
            self._socket.close()
        for answered in self._probes.values():
            if not answered.done():
                answered.set_result(False)
        for batch in list(self._in_flight.values()):
            self._finish(batch, None)
        # Its owner would be kept by it, as by `on_lost`.
        self._on_hello = _ignore


def _ignore(_: object) -> None:
    """Ignore a HELLO after the first."""

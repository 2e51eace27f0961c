"""The life of an instance: say hello, then answer batch after batch until the channel ends.

One thread, blocking reads, one write a result: between a batch's arrival and the function's code there are two system calls. The
receive buffer is used again for the next frame unless the function has kept a view of it.

A batch that was cancelled before it was read, because this process did not get to it in time, is not run.

A batch from an older epoch than one already seen comes from a gateway that no longer owns the function's queue: its members get
409, in a result that bears the newest epoch, by which the gateway knows that none of it was run.

Bytes that are not a frame end the connection, and with it the instance.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from gnomon_core.results import same_for_all, stale_result
from gnomon_core.wire import HEADER, Frame, Kind, Member, WireError, decode, encode_parts, frame_bytes
from gnomon_runtime.application import Application, Beside

FIRST_BUFFER_BYTES = 256 * 1024
MAX_PARTS = 1000
"""Below the kernel's bound of 1024 buffers for one gathering write."""


class ChannelClosedError(ConnectionError):
    """The owner has closed the channel."""


class FrameSocket:
    """Frames over a blocking stream socket."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._buffer = bytearray(FIRST_BUFFER_BYTES)
        self._start = 0
        self._end = 0

    def receive(self) -> Frame:
        """The next frame. Its bodies are views into the buffer.

        Raises:
            ChannelClosedError: there will be no other.
            WireError: the bytes are not a frame.

        """
        self._begin()
        self._fill(HEADER.size)
        length = frame_bytes(memoryview(self._buffer)[self._start : self._start + HEADER.size])
        self._fill(length)
        frame = decode(memoryview(self._buffer)[self._start : self._start + length])
        self._start += length
        return frame

    def send(self, frame: Frame) -> None:
        parts = encode_parts(frame)
        if len(parts) > MAX_PARTS:
            parts = [b"".join(parts)]
        left = sum(len(part) for part in parts)
        try:
            while left:
                sent = self._socket.sendmsg(parts)
                left -= sent
                if left:
                    parts = _after(parts, sent)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise ChannelClosedError from error

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def holds_more(self) -> bool:
        """Whether a frame, or its beginning, came together with the last one. Asked for every batch: no system call."""
        return self._end > self._start

    def waiting(self) -> bool:
        """Whether a frame, or its beginning, has arrived."""
        return self.holds_more or bool(select.select([self._socket], [], [], 0)[0])

    def _begin(self) -> None:
        """Move what is left over to the front of a buffer that nobody else looks at."""
        rest = bytes(memoryview(self._buffer)[self._start : self._end])
        try:
            # A bytearray with a view on it cannot grow: this is how a view that the function has kept shows.
            self._buffer.append(0)
            self._buffer.pop()
        except BufferError:
            self._buffer = bytearray(len(self._buffer))
        self._start, self._end = 0, len(rest)
        self._buffer[: self._end] = rest

    def _fill(self, length: int) -> None:
        if length > len(self._buffer):
            self._buffer.extend(bytes(length - len(self._buffer)))
        with memoryview(self._buffer) as view:
            while self._end < length:
                try:
                    count = self._socket.recv_into(view[self._end :])
                except ConnectionResetError:
                    count = 0
                if count == 0:
                    raise ChannelClosedError
                self._end += count


def _after(parts: list[bytes | memoryview], sent: int) -> list[bytes | memoryview]:
    """What remains of these buffers when `sent` bytes of them have gone."""
    for index, part in enumerate(parts):
        if sent < len(part):
            return [memoryview(part)[sent:], *parts[index + 1 :]]
        sent -= len(part)
    return []


class Instance:
    """The loop. `stopping` is set by STOP and by SIGTERM."""

    def __init__(
        self, channel: FrameSocket, application: Application, cpus: tuple[int, ...] = (), beside: Beside | None = None
    ) -> None:
        self._channel = channel
        self._application = application
        self._cpus = cpus
        self._beside = beside
        self._epoch = 0
        self._busy = False
        self._stopping = False

    def serve(self) -> None:
        """Answer until told to stop or the channel ends.

        Raises:
            WireError: the owner sent what is not a frame.

        """
        signal.signal(signal.SIGTERM, self._terminate)
        head = {**self._application.hello(), "pid": os.getpid()}
        self._channel.send(Frame(Kind.HELLO, head=json.dumps(head).encode()))
        try:
            while not self._stopping:
                if self._beside is not None:
                    self._beside.attend(self._channel)
                frame = self._channel.receive()
                self._busy = True
                self._answer(frame)
                del frame
                self._busy = False
        except ChannelClosedError:
            return

    def _terminate(self, _number: int, _frame: FrameType | None) -> None:
        self._stopping = True
        if not self._busy:
            raise ChannelClosedError

    def _answer(self, frame: Frame) -> None:
        if frame.kind is Kind.BATCH:
            self._run(frame)
        elif frame.kind is Kind.PROBE:
            self._channel.send(Frame(Kind.PROBE_OK, frame.batch_id))
        elif frame.kind is Kind.RESIZE:
            self._resize(frame)
        elif frame.kind is Kind.STOP:
            self._stopping = True
        # A CANCEL that arrives here is for a batch that has been answered already; `_run` sees those that overtake.

    def _run(self, frame: Frame) -> None:
        if frame.epoch < self._epoch:
            self._channel.send(stale_result(frame, self._epoch))
            return
        self._epoch = frame.epoch
        if self._channel.holds_more and self._interrupted(frame.batch_id):
            # Nobody waits for this result: the gateway drops it, and knows that the instance is free.
            self._channel.send(same_for_all(frame, Member(499, 1, b"", b"")))
            return
        answer = self._application.run(frame)
        if isinstance(answer, Frame):
            self._channel.send(answer)
        else:
            self._stream(frame.batch_id, answer)

    def _stream(self, batch_id: int, frames: Iterator[Frame]) -> None:
        last = None
        for frame in frames:
            self._channel.send(frame)
            last = frame.kind
            if last is Kind.STREAM_END:
                return
            if self._channel.waiting() and self._interrupted(batch_id):
                break
        close = getattr(frames, "close", None)
        if close is not None:
            close()
        if last is not Kind.STREAM_END:
            self._channel.send(Frame(Kind.STREAM_END, batch_id))

    def _interrupted(self, batch_id: int) -> bool:
        frame = self._channel.receive()
        if frame.kind is Kind.CANCEL:
            return frame.batch_id == batch_id
        if frame.kind is Kind.BATCH:
            raise WireError("a batch while another one is in flight")
        self._answer(frame)
        return False

    def _resize(self, frame: Frame) -> None:
        order = frame.head_json()
        self._cpus = tuple(int(cpu) for cpu in order.get("cpus", ()))
        pin(self._cpus)
        self._application.resize(int(order["cores"]))


def pin(cpus: tuple[int, ...]) -> None:
    """Let every thread of this process run on these CPUs only. Nothing happens without any."""
    if not cpus:
        return
    for task in list(Path("/proc/self/task").iterdir()):
        try:
            os.sched_setaffinity(int(task.name), cpus)
        except ProcessLookupError:
            continue


def run(application: Application, connection: socket.socket, cpus: tuple[int, ...], beside: Beside | None = None) -> int:
    """Serve and return the exit status."""
    try:
        Instance(FrameSocket(connection), application, cpus, beside).serve()
    except WireError as error:
        sys.stderr.write(f"The channel is broken: {error}.\n")
        return 1
    return 0

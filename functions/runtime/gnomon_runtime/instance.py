"""The main loop of an instance: send HELLO, then answer batch after batch until the channel ends.

One thread, blocking reads, one write a result: between a batch's arrival and the function's code there are two system calls. The
receive buffer is reused for the next frame unless the function has kept a view of it.

A batch for which the gateway has borrowed cores says how many (`Frame.cores`): the application uses so many threads for it. The
process may run on every CPU of its node, and the threads that a batch does not use sleep.

A batch that was cancelled before it was read, because this process did not get to it in time, is not run.

A batch from an older epoch than one already seen comes from a gateway that no longer owns the function's queue: its members get
409, in a result that bears the newest epoch, by which the gateway knows that none of it was run.

Bytes that are not a frame end the connection, and with it the instance.

An application that executes several batches at once says so in its HELLO (`concurrency`); then as many threads take turns:

    read a frame ─▶ let another thread read ─▶ execute ─▶ send the result ─▶ wait for the turn to read

The thread that reads a batch executes it, so that no batch is handed from thread to thread. There is one thread more than
batches: one thread can always read, so that a probe, a cancellation or STOP is received while all others execute.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from gnomon_core.wire import HEADER, Frame, Kind, Member, WireError, decode, encode_parts, frame_bytes, same_for_all, stale_result
from gnomon_runtime.application import Application, IdleWork

FIRST_BUFFER_BYTES = 256 * 1024
MAX_PARTS = 1000
"""The most buffers in one gathering write: below the kernel's bound of 1024."""


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
        """Receive the next frame. Its bodies are views into the buffer.

        Raises:
            ChannelClosedError: the channel has ended.
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
        unsent_bytes = sum(len(part) for part in parts)
        try:
            while unsent_bytes:
                sent = self._socket.sendmsg(parts)
                unsent_bytes -= sent
                if unsent_bytes:
                    parts = _after(parts, sent)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise ChannelClosedError from error

    def end_input(self) -> None:
        """Shut down the receiving side: frames sent until now can still be read and answered."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RD)

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def closed(self) -> bool:
        """True if the descriptor is closed."""
        try:
            os.fstat(self._socket.fileno())
        except OSError:
            return True
        return False

    @property
    def holds_more(self) -> bool:
        """True if a frame, or its beginning, arrived together with the last one. No system call: this is read for every batch."""
        return self._end > self._start

    def waiting(self) -> bool:
        """True if a frame, or its beginning, has arrived."""
        return self.holds_more or bool(select.select([self._socket], [], [], 0)[0])

    def _begin(self) -> None:
        """Move unread bytes to the front of a buffer to which no view exists."""
        unread = bytes(memoryview(self._buffer)[self._start : self._end])
        try:
            # A bytearray with an exported view cannot be resized: this detects a view that the function has kept.
            self._buffer.append(0)
            self._buffer.pop()
        except BufferError:
            self._buffer = bytearray(len(self._buffer))
        self._start, self._end = 0, len(unread)
        self._buffer[: self._end] = unread

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
    """The unsent rest of these buffers, after `sent` bytes."""
    for index, part in enumerate(parts):
        if sent < len(part):
            return [memoryview(part)[sent:], *parts[index + 1 :]]
        sent -= len(part)
    return []


class Instance:
    """The loop. `stopping` is set by STOP and by SIGTERM."""

    def __init__(self, channel: FrameSocket, application: Application, idle_work: IdleWork | None = None) -> None:
        self._channel = channel
        self._application = application
        self._idle_work = idle_work
        self._epoch = 0
        self._cores = 0
        """The cores of the last batch that named a number; 0 after a resize."""
        self._busy = False
        self._stopping = False

    def serve(self) -> None:
        """Answer batches until STOP, SIGTERM or the end of the channel.

        Raises:
            WireError: the owner sent what is not a frame.

        """
        signal.signal(signal.SIGTERM, self._terminate)
        self._channel.send(_hello(self._application.hello()))
        try:
            while not self._stopping:
                if self._idle_work is not None:
                    self._idle_work.attend(self._channel)
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
            _resize(self._application, frame)
            self._cores = 0
        elif frame.kind is Kind.STOP:
            self._stopping = True
        # A CANCEL here is for a batch already answered; `_run` handles one that arrives before its batch has run.

    def _run(self, frame: Frame) -> None:
        if frame.epoch < self._epoch:
            self._channel.send(stale_result(frame, self._epoch))
            return
        self._epoch = frame.epoch
        if self._channel.holds_more and self._interrupted(frame.batch_id):
            # The gateway has cancelled this batch: it discards the result, but learns from it that the instance is idle.
            self._channel.send(same_for_all(frame, Member(499, 1, b"", b"")))
            return
        if frame.cores not in (0, self._cores):
            self._application.resize(frame.cores)
            self._cores = frame.cores
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


class ConcurrentInstance:
    """The loop of an application that executes `concurrency` batches at once. Threads are started on demand."""

    def __init__(self, channel: FrameSocket, application: Application, concurrency: int) -> None:
        self._channel = channel
        self._application = application
        self._concurrency = concurrency
        self._free = threading.Semaphore(concurrency)
        # A frame takes several reads, and may take several writes: two threads in one of them would mix frames.
        self._read_lock = threading.Lock()
        self._send_lock = threading.Lock()
        # `+=` on an attribute is not atomic. The sets below need no lock: add and discard are single operations under the GIL.
        self._count_lock = threading.Lock()
        self._executing = 0
        self._threads: list[threading.Thread] = []
        self._running: set[int] = set()
        self._cancelled: set[int] = set()
        self._epoch = 0
        self._ended = False
        self._failure: BaseException | None = None

    def serve(self) -> None:
        """Answer batches until STOP, SIGTERM or the end of the channel, and then those received before.

        Raises:
            WireError: the owner sent what is not a frame.

        """
        signal.signal(signal.SIGTERM, lambda *_: self._channel.end_input())
        self._channel.send(_hello(self._application.hello()))
        self._take_turns()
        # Only a reading thread starts others, and no thread reads any more: the list is final.
        for thread in self._threads:
            thread.join()
        if self._failure is not None:
            raise self._failure

    def _take_turns(self) -> None:
        while (batch := self._next()) is not None:
            try:
                self._execute(batch)
            except ChannelClosedError:
                self._ended = True
            except BaseException as error:  # noqa: BLE001 - an application raises nothing: this one is broken, and so is its instance
                self._fail(error)
            finally:
                self._running.discard(batch.batch_id)
                self._cancelled.discard(batch.batch_id)
                with self._count_lock:
                    self._executing -= 1
                self._free.release()

    def _fail(self, error: BaseException) -> None:
        self._ended, self._failure = True, error
        if self._channel.closed:
            # The application has closed the channel's descriptor; the thread blocked in its read could never be woken.
            os._exit(1)
        self._channel.end_input()

    def _next(self) -> Frame | None:
        """Wait for this thread's turn to read. Returns the next batch to execute; None once the channel has ended."""
        with self._read_lock:
            while not self._ended:
                try:
                    frame = self._channel.receive()
                    if frame.kind is Kind.BATCH:
                        if frame.epoch >= self._epoch:
                            return self._begin(frame)
                        self._send(stale_result(frame, self._epoch))
                    else:
                        self._handle(frame)
                except ChannelClosedError:
                    self._ended = True
                except WireError as error:
                    self._fail(error)
        return None

    def _begin(self, frame: Frame) -> Frame:
        """Register this batch for execution, and ensure that another thread reads the channel."""
        self._epoch = frame.epoch
        # Copy the batch: the next reader reuses the buffer.
        frame.members = [member._replace(body=bytes(member.body)) for member in frame.members]
        # A sender that respects HELLO's concurrency never waits here; the limit holds for others too.
        self._free.acquire()
        self._running.add(frame.batch_id)
        with self._count_lock:
            self._executing += 1
            another = self._executing > len(self._threads)
        if another:
            thread = threading.Thread(target=self._take_turns, name=f"handler-{len(self._threads) + 1}", daemon=True)
            self._threads.append(thread)
            thread.start()
        return frame

    def _handle(self, frame: Frame) -> None:
        if frame.kind is Kind.PROBE:
            self._send(Frame(Kind.PROBE_OK, frame.batch_id))
        elif frame.kind is Kind.RESIZE:
            _resize(self._application, frame)
        elif frame.kind is Kind.STOP:
            self._ended = True
        elif frame.kind is Kind.CANCEL and frame.batch_id in self._running:
            self._cancelled.add(frame.batch_id)

    def _execute(self, batch: Frame) -> None:
        answer = self._application.run(batch)
        if isinstance(answer, Frame):
            self._send(answer)
        else:
            self._stream(batch.batch_id, answer)

    def _stream(self, batch_id: int, frames: Iterator[Frame]) -> None:
        ended = False
        try:
            for frame in frames:
                self._send(frame)
                ended = frame.kind is Kind.STREAM_END
                if ended or batch_id in self._cancelled:
                    break
        finally:
            close = getattr(frames, "close", None)
            if close is not None:
                close()
        if not ended:
            self._send(Frame(Kind.STREAM_END, batch_id))

    def _send(self, frame: Frame) -> None:
        with self._send_lock:
            self._channel.send(frame)


def _hello(served: Mapping[str, Any]) -> Frame:
    return Frame(Kind.HELLO, head=json.dumps({**served, "pid": os.getpid()}).encode())


def _resize(application: Application, frame: Frame) -> None:
    order = frame.head_json()
    pin(tuple(int(cpu) for cpu in order.get("cpus", ())))
    application.resize(int(order["cores"]))


def pin(cpus: tuple[int, ...]) -> None:
    """Pin every thread of this process to these CPUs. Without any CPU the affinity stays."""
    if not cpus:
        return
    for task in list(Path("/proc/self/task").iterdir()):
        try:
            os.sched_setaffinity(int(task.name), cpus)
        except ProcessLookupError:
            continue


def run(application: Application, connection: socket.socket, idle_work: IdleWork | None = None) -> int:
    """Serve and return the exit status."""
    channel, concurrency = FrameSocket(connection), int(application.hello().get("concurrency", 1))
    instance = Instance(channel, application, idle_work)
    try:
        (ConcurrentInstance(channel, application, concurrency) if concurrency > 1 else instance).serve()
    except WireError as error:
        sys.stderr.write(f"The channel is broken: {error}.\n")
        return 1
    return 0

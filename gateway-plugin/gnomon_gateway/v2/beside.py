"""Reading large requests beside the event loop: a thread that hands them to the reader's process and waits for what it says.

The process begins with the first large request and ends with ours, by the end of its socket. One that has ended, whoever ended
it, is replaced once for a request; a request that ends two of them is refused. What waits is bounded, for it is large.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import socket
import subprocess
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor

from gnomon_core.errors import GnomonError
from gnomon_core.signature import ModelSignature
from gnomon_gateway.server.refusals import too_many_bodies
from gnomon_gateway.v2 import reader
from gnomon_gateway.v2.infer import Infer

LARGE_BYTES = 64 << 10
"""A document of this size is read in 0.35 ms, about what handing it over and back costs."""
MOST_WAITING_BYTES = 256 << 20
_TRIES = 2


class Reader:
    """The reader's process, and the thread that talks to it."""

    def __init__(self, most_waiting_bytes: int = MOST_WAITING_BYTES) -> None:
        self._most_waiting_bytes = most_waiting_bytes
        self._waiting_bytes = 0
        self._counting = threading.Lock()
        self._thread = ThreadPoolExecutor(1, "reader")
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: socket.socket | None = None

    def read(
        self, signature: ModelSignature, body: bytes | memoryview, header_length: bytes | None, max_batch: int
    ) -> Future[Infer]:
        """Begin to read a request; what comes of it is as with `read_request`.

        Raises:
            GnomonError: 503 `too_many_bodies`: others wait already.

        """
        size = len(body)
        with self._counting:
            if self._waiting_bytes and self._waiting_bytes + size > self._most_waiting_bytes:
                raise too_many_bodies(self._most_waiting_bytes)
            self._waiting_bytes += size
        reading = self._thread.submit(self._read, reader.question(signature, header_length, max_batch), body)
        reading.add_done_callback(lambda _: self._discount(size))
        return reading

    def close(self) -> None:
        """End the process, after what it reads."""
        self._thread.shutdown(cancel_futures=True)
        self._end()

    @property
    def pid(self) -> int | None:
        """The process, once there is one."""
        return None if self._process is None else self._process.pid

    def _discount(self, size: int) -> None:
        with self._counting:
            self._waiting_bytes -= size

    def _read(self, question: dict[str, object], body: bytes | memoryview) -> Infer:
        for _ in range(_TRIES):
            try:
                connection = self._connection or self._begin()
                reader.send(connection, question, body)
                return reader.answered(*reader.receive(connection))
            except (EOFError, OSError):
                self._end()
        raise GnomonError(
            503, "reader_lost", "The process that reads large JSON requests has ended twice.", "Send binary tensors.", 1.0
        )

    def _begin(self) -> socket.socket:
        self._connection, theirs = socket.socketpair()
        with theirs:
            os.set_inheritable(theirs.fileno(), True)  # noqa: FBT003 - the signature is os's
            command = [sys.executable, "-I", "-m", reader.__name__, str(theirs.fileno())]
            self._process = subprocess.Popen(
                command, pass_fds=(theirs.fileno(),), stdin=subprocess.DEVNULL, start_new_session=True
            )
        return self._connection

    def _end(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(OSError):
                self._connection.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._connection = self._process = None


READER = Reader()
"""One for all functions: a large request in JSON is the exception, binary tensors are read where they are."""
atexit.register(READER.close)

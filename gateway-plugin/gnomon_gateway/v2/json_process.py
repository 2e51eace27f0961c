"""The parser process for large JSON requests, and the thread that talks to it.

Decoding holds the GIL from the first number to the last: a photograph as JSON is 1.5 MB and takes 15 to 40 ms, a batch of them
half a second, in any thread. Therefore a process parses large requests, one after the other, from a socket:

    in     HEAD_BYTES BODY_BYTES head body      head: the model's signature, the document's length, the largest batch
    out    HEAD_BYTES BODY_BYTES head tensors   head: the request without its numbers, or an error

HEAD_BYTES and BODY_BYTES are unsigned 64-bit integers, big-endian.

The process starts with the first large request and ends when the gateway closes the socket or ends. A process that has died is
replaced once for a request; a request that kills two processes is refused. The waiting requests are bounded, as they are large.
Why this is no `ProcessPoolExecutor`: docs/decisions/0060.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import socket
import struct
import subprocess
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict
from typing import Any, TypeAlias

from gnomon_core.errors import GnomonError
from gnomon_core.signature import ModelSignature, TensorSpec
from gnomon_gateway.http.exchange import too_many_bodies
from gnomon_gateway.v2.messages import Infer, read_request

_SIZES = struct.Struct(">QQ")
"""HEAD_BYTES and BODY_BYTES."""
Data: TypeAlias = bytes | bytearray | memoryview


def send(connection: socket.socket, head: dict[str, Any], body: Data) -> None:
    """Write one message. Raises OSError if the other side has closed the socket."""
    text, data = json.dumps(head).encode(), memoryview(body)
    connection.sendall(_SIZES.pack(len(text), data.nbytes) + text)
    connection.sendall(data)


def receive(connection: socket.socket) -> tuple[dict[str, Any], bytearray]:
    """Read one message.

    Raises:
        EOFError, OSError: the other side has closed the socket or died.

    """
    head_bytes, body_bytes = _SIZES.unpack(_take(connection, _SIZES.size))
    return json.loads(_take(connection, head_bytes)), _take(connection, body_bytes)


def _take(connection: socket.socket, count: int) -> bytearray:
    data = bytearray(count)
    view, at = memoryview(data), 0
    while at < count:
        received = connection.recv_into(view[at:])
        if not received:
            raise EOFError
        at += received
    return data


def request_head(signature: ModelSignature, header_length: bytes | None, max_batch: int) -> dict[str, Any]:
    """The head of a message to the parser process. JSON holds no bytes: `header_length` travels as text, valid or not."""
    return {
        "inputs": [spec.to_json() for spec in signature.inputs],
        "outputs": [spec.to_json() for spec in signature.outputs],
        "header_length": None if header_length is None else header_length.decode("latin-1"),
        "max_batch": max_batch,
        "padding": signature.details.get("padding"),
    }


def to_infer(head: dict[str, Any], tensors: bytearray) -> Infer:
    """The infer request that the parser process has parsed.

    Raises:
        GnomonError: the request is invalid, for the stated reason.

    """
    if "error" in head:
        raise GnomonError(**head["error"])
    return Infer(head["id"], head["samples"], memoryview(tensors), head["outputs"], head["parameters"], head["length"])


def _parse(request: dict[str, Any], body: bytearray) -> tuple[dict[str, Any], Data]:
    inputs, outputs = (tuple(TensorSpec.from_json(spec) for spec in request[kind]) for kind in ("inputs", "outputs"))
    header_length = None if request["header_length"] is None else request["header_length"].encode("latin-1")
    try:
        signature = ModelSignature("", "", inputs, outputs, details={"padding": request["padding"]})
        infer = read_request(signature, memoryview(body), header_length, request["max_batch"])
    except GnomonError as error:
        return {"error": asdict(error)}, b""
    head = {
        "id": infer.id,
        "samples": infer.samples,
        "outputs": infer.outputs,
        "parameters": infer.parameters,
        "length": infer.length,
    }
    return head, infer.body


def main(descriptor: int) -> None:
    """Run the parser process: serve the socket with this descriptor until the gateway closes it."""
    with socket.socket(fileno=descriptor) as connection:
        try:
            while True:
                send(connection, *_parse(*receive(connection)))
        except (EOFError, OSError):
            return


LARGE_BYTES = 64 << 10
"""A document of this size is parsed in 0.35 ms, about the cost of passing it to the process and back."""
MOST_WAITING_BYTES = 256 << 20
"""The most bytes of bodies that wait for the process, the one that it parses included."""
_TRIES = 2


class ParserProcess:
    """The parser process, and the thread that talks to it."""

    def __init__(self, most_waiting_bytes: int = MOST_WAITING_BYTES) -> None:
        self._most_waiting_bytes = most_waiting_bytes
        self._waiting_bytes = 0
        self._waiting_lock = threading.Lock()
        """Guards `_waiting_bytes`: the event loop adds, the thread subtracts."""
        self._thread = ThreadPoolExecutor(1, "reader")
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: socket.socket | None = None

    def read(
        self, signature: ModelSignature, body: bytes | memoryview, header_length: bytes | None, max_batch: int
    ) -> Future[Infer]:
        """Begin to parse a request; returns a future with the result or error of `read_request`.

        Raises:
            GnomonError: 503 `too_many_bodies`: too many requests wait already.

        """
        size = len(body)
        with self._waiting_lock:
            if self._waiting_bytes and self._waiting_bytes + size > self._most_waiting_bytes:
                raise too_many_bodies(self._most_waiting_bytes)
            self._waiting_bytes += size
        parsed = self._thread.submit(self._exchange, request_head(signature, header_length, max_batch), body)
        parsed.add_done_callback(lambda _: self._subtract(size))
        return parsed

    def close(self) -> None:
        """End the process after its current request."""
        self._thread.shutdown(cancel_futures=True)
        self._end()

    @property
    def pid(self) -> int | None:
        """The process's id; None before it starts."""
        return None if self._process is None else self._process.pid

    def _subtract(self, size: int) -> None:
        with self._waiting_lock:
            self._waiting_bytes -= size

    def _exchange(self, request: dict[str, object], body: bytes | memoryview) -> Infer:
        for _ in range(_TRIES):
            try:
                connection = self._connection or self._start()
                send(connection, request, body)
                return to_infer(*receive(connection))
            except (EOFError, OSError):
                self._end()
        raise GnomonError(
            503, "reader_lost", "The process that reads large JSON requests has ended twice.", "Send binary tensors.", 1.0
        )

    def _start(self) -> socket.socket:
        self._connection, child_end = socket.socketpair()
        with child_end:
            command = [sys.executable, "-I", "-m", __name__, str(child_end.fileno())]
            # A session of its own: Ctrl-C in the gateway's terminal must not end the process before the gateway has drained.
            self._process = subprocess.Popen(
                command, pass_fds=(child_end.fileno(),), stdin=subprocess.DEVNULL, start_new_session=True
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


PARSER = ParserProcess()
"""The parser process of all functions: large requests in JSON are the exception, binary tensors are read in place."""
atexit.register(PARSER.close)


if __name__ == "__main__":
    main(int(sys.argv[1]))

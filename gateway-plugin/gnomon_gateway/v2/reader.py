"""Where large JSON tensors are read: a process beside the gateway's, because a thread would not do.

Decoding holds Python's lock from its first number to its last: a photograph as JSON is 1.5 MB and takes 15 to 40 ms, a batch of
them half a second, in whichever thread. This process reads one request after the other from its socket, and ends with it.

    in     HEAD_BYTES BODY_BYTES head body      head: what the model takes, how long the document is, the largest batch
    out    HEAD_BYTES BODY_BYTES head tensors   head: the request without its numbers, or the error that it deserves
"""

from __future__ import annotations

import json
import socket
import struct
import sys
from dataclasses import asdict
from typing import Any, TypeAlias

from gnomon_core.errors import GnomonError
from gnomon_core.signature import ModelSignature, TensorSpec
from gnomon_gateway.v2.infer import Infer, read_request

_SIZES = struct.Struct(">QQ")
Data: TypeAlias = bytes | bytearray | memoryview


def send(connection: socket.socket, head: dict[str, Any], body: Data) -> None:
    """Write one message. Raises OSError when nobody reads."""
    text, data = json.dumps(head).encode(), memoryview(body)
    connection.sendall(_SIZES.pack(len(text), data.nbytes) + text)
    connection.sendall(data)


def receive(connection: socket.socket) -> tuple[dict[str, Any], bytearray]:
    """Read one message.

    Raises:
        EOFError: the other side has gone.
        OSError: so it has.

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


def question(signature: ModelSignature, header_length: bytes | None, max_batch: int) -> dict[str, Any]:
    """The head of a message to the reader."""
    return {
        "inputs": [spec.to_json() for spec in signature.inputs],
        "outputs": [spec.to_json() for spec in signature.outputs],
        "header_length": None if header_length is None else header_length.decode("latin-1"),
        "max_batch": max_batch,
    }


def answered(head: dict[str, Any], tensors: bytearray) -> Infer:
    """What the reader has read.

    Raises:
        GnomonError: what is wrong with the request.

    """
    if "error" in head:
        raise GnomonError(**head["error"])
    return Infer(head["id"], head["samples"], memoryview(tensors), head["outputs"])


def _read(asked: dict[str, Any], body: bytearray) -> tuple[dict[str, Any], Data]:
    inputs, outputs = (tuple(TensorSpec.from_json(spec) for spec in asked[kind]) for kind in ("inputs", "outputs"))
    length = None if asked["header_length"] is None else asked["header_length"].encode("latin-1")
    try:
        infer = read_request(ModelSignature("", "", inputs, outputs), memoryview(body), length, asked["max_batch"])
    except GnomonError as error:
        return {"error": asdict(error)}, b""
    return {"id": infer.id, "samples": infer.samples, "outputs": infer.outputs}, infer.body


def main(descriptor: int) -> None:
    """Read for the gateway at the other end of this descriptor, until it closes it."""
    with socket.socket(fileno=descriptor) as connection:
        try:
            while True:
                send(connection, *_read(*receive(connection)))
        except (EOFError, OSError):
            return


if __name__ == "__main__":
    main(int(sys.argv[1]))

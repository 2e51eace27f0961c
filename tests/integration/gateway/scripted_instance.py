"""A real instance whose function does what the path says. Run with the channel's descriptor and a file for its diary.

Every execution appends its body to the diary, so that a test can say what never ran. `/held` executes and `/stream/held` stops
behind its first part until the test releases them, so that nothing depends on how long it takes until then. A batch of tensors
is doubled.
"""

import json
import os
import socket
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from gnomon_core.wire import Frame, Kind, Member
from gnomon_runtime import instance

DIARY = Path(sys.argv[2])
RELEASED = DIARY.with_name("released")
TEXT = b"Content-Type: text/plain"
SHORT = (b"/stream", b"/stream/held", b"/stream/nothing", b"/stream/unchanged")


def pieces(batch: Frame, path: bytes) -> Iterator[Frame]:
    code = 304 if path == b"/stream/unchanged" else 204 if path == b"/stream/nothing" else 200
    yield Frame(
        Kind.STREAM_START, batch.batch_id, batch.epoch, members=(Member(code, 1, b"Content-Type: text/event-stream", b""),)
    )
    for number in range(3 if path in SHORT else 10_000):
        yield Frame(Kind.STREAM_DATA, batch.batch_id, batch.epoch, members=(Member(0, 0, b"", b"data: %d\n\n" % number),))
        time.sleep(0.005)
        while path == b"/stream/held" and not RELEASED.exists():
            time.sleep(0.001)
        if path == b"/stream/crash" and number == 1:
            os._exit(3)
        if path == b"/stream/break" and number == 1:
            yield Frame(Kind.STREAM_END, batch.batch_id, batch.epoch, members=(Member(500, 1, b"", b"broken"),))
            return
    yield Frame(Kind.STREAM_END, batch.batch_id, batch.epoch)


def member(meta: bytes, body: bytes, batch_size: int) -> Member:
    method, path, query, *headers = meta.split(b"\n")
    with DIARY.open("ab") as diary:
        diary.write(body[:100] + b"\n")
    if path.startswith(b"/sleep/"):
        time.sleep(float(path.removeprefix(b"/sleep/")) / 1000)
    while path == b"/held" and not RELEASED.exists():
        time.sleep(0.001)
    if path == b"/crash":
        os._exit(3)
    if path == b"/redirect":
        return Member(302, 1, b"Location: /elsewhere", b"")
    if path == b"/nothing":
        return Member(204, 1, b"", b"")
    if path == b"/split":
        return Member(200, 1, b"X-A: 1\r\nSet-Cookie: stolen=1", b"")
    if path == b"/large":
        return Member(200, 1, TEXT, b"x" * 3_000_000)
    if path == b"/seen":
        seen = {"method": method.decode(), "query": query.decode(), "headers": [line.decode("latin-1") for line in headers]}
        return Member(200, 1, b"Content-Type: application/json", json.dumps(seen | {"batch": batch_size}).encode())
    return Member(200, 1, TEXT, body)


class Scripted:
    def hello(self) -> dict[str, str]:
        return {"kind": "scripted"}

    def resize(self, cores: int) -> None: ...

    def run(self, batch: Frame) -> Frame | Iterator[Frame]:
        if batch.head_json().get("kind") == "tensors":
            return Frame(
                Kind.RESULT, batch.batch_id, batch.epoch, members=[doubled(bytes(m.body), m.size) for m in batch.members]
            )
        path = batch.members[0].meta.split(b"\n")[1]
        if path.startswith(b"/stream"):
            return pieces(batch, path)
        members = [member(m.meta, bytes(m.body), len(batch.members)) for m in batch.members]
        return Frame(Kind.RESULT, batch.batch_id, batch.epoch, members=members)


def doubled(body: bytes, size: int) -> Member:
    values = struct.unpack(f"<{len(body) // 4}f", body)
    if -1.0 in values:
        os._exit(3)
    if -2.0 in values:
        return Member(422, 1, b"Content-Type: application/json", b'{"error": {"code": "no", "message": "No.", "hint": "Never."}}')
    return Member(200, size, b"", struct.pack(f"<{len(values)}f", *[2 * value for value in values]))


sys.exit(instance.run(Scripted(), socket.socket(fileno=int(sys.argv[1]))))

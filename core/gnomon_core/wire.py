r"""The framing of the batch channel: one message for a batch, one for its results.

    header | head (JSON, may be empty) | table: one row a member | metas | bodies

The same format is used on a Unix socket on a node, as `POST /gnomon/batch` between pods and as an Invoke payload. Numbers are
little-endian; tensors are raw bytes, neither JSON numbers nor base64. Every length is checked against a bound before it is used,
because the other side may run a user's code.

A member of an *events* batch is one HTTP request: its meta is `method\npath\nquery\nName: value\n…`, its body the body.
A member of a *tensors* batch is `size` samples: the head names each input's datatype and shape per sample, the body is their raw
bytes one input after the other. In results, a row's `code` is the member's own HTTP status: one bad member never fails another;
its meta is the headers, `Name: value\nName: value`. Paths and queries stay percent-encoded as they were sent, and text is
Latin-1, so that no byte is lost and no decoded line break splits a line.

`error_result` and its variants make the results of batches that no function has computed: in an instance, in a function on
Lambda, or in between.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, NamedTuple

from gnomon_core.errors import INTERNAL_HEADER, GnomonError, bad_request

MAGIC = b"GNM1"
HEADER = struct.Struct("<4sBBHIIIQQd")
"""44 bytes: magic, kind, reserved, members, epoch, bytes of the head, cores, batch id, bytes after the head, budget in s."""
ROW = struct.Struct("<HHII")
"""The fixed part of a member: code, size in samples, bytes of its meta, bytes of its body."""
MAX_HEAD_BYTES = 1 << 20
MAX_MEMBERS = 4096
MAX_FRAME_BYTES = 1 << 30


class Kind(IntEnum):
    """The type of a frame. Odd numbers go to the instance, even numbers come from it."""

    BATCH = 1
    RESULT = 2
    CANCEL = 3
    HELLO = 4
    """The instance is ready; the head describes the function that it serves."""
    PROBE = 5
    PROBE_OK = 6
    STOP = 7
    """Finish the batches in execution and exit."""
    STREAM_START = 8
    """The first part of a streamed answer: status and headers, as a RESULT's only member without a body."""
    RESIZE = 9
    STREAM_DATA = 10
    STREAM_END = 12
    """The last part of a streamed answer. With a member, whose code is not 2xx, the answer broke off."""


class WireError(ValueError):
    """The bytes are not a valid frame, or exceed a bound. The connection cannot be used any longer."""


class Member(NamedTuple):
    """A member of a batch or of its results.

    `code` is the HTTP status in results and 0 in batches; `size` its number of samples.
    """

    code: int
    size: int
    meta: bytes
    body: bytes | memoryview


@dataclass(slots=True)
class Frame:
    """A message. `budget_s` is the time from sending until the earliest deadline of the batch, in seconds.

    `cores` is how many cores a batch may use, if its instance borrows cores for each batch; 0 for all that the instance has.
    """

    kind: Kind
    batch_id: int = 0
    epoch: int = 0
    budget_s: float = 0.0
    head: bytes = b""
    members: Sequence[Member] = field(default_factory=tuple)
    cores: int = 0

    def head_json(self) -> dict[str, Any]:
        """The head as an object; empty without one."""
        if not self.head:
            return {}
        try:
            document = json.loads(self.head)
        except ValueError as error:
            raise WireError("the head is not JSON") from error
        if not isinstance(document, dict):
            raise WireError("the head is not an object")
        return document


NOT_TAKEN = Frame(Kind.RESULT)
"""The end of a batch that a draining channel does not take: its instance got nothing of it, and answers what is in flight."""


def read_batch(data: bytes | memoryview) -> Frame:
    """The batch in the body of a request.

    Raises:
        GnomonError: 400 `bad_frame`.

    """
    try:
        frame = decode(data)
    except WireError as error:
        raise bad_request("bad_frame", f"The body is no frame: {error}.", "Send one BATCH frame.") from error
    if frame.kind is not Kind.BATCH or not frame.members:
        raise bad_request("bad_frame", f"The body is a {frame.kind.name} frame of {len(frame.members)}.", "Send one BATCH frame.")
    return frame


def encode(frame: Frame) -> bytes:
    """The bytes of a frame."""
    return b"".join(encode_parts(frame))


def encode_parts(frame: Frame) -> list[bytes | memoryview]:
    """The bytes of a frame as separate buffers, for a gathering write (`writev`) that copies no body."""
    members = frame.members
    table = bytearray(ROW.size * len(members))
    metas: list[bytes | memoryview] = []
    bodies: list[bytes | memoryview] = []
    payload_bytes = len(table)
    offset = 0
    for code, size, meta, body in members:
        ROW.pack_into(table, offset, code, size, len(meta), len(body))
        offset += ROW.size
        payload_bytes += len(meta) + len(body)
        metas.append(meta)
        bodies.append(body)
    header = HEADER.pack(
        MAGIC,
        frame.kind,
        0,
        len(members),
        frame.epoch,
        len(frame.head),
        frame.cores,
        frame.batch_id,
        payload_bytes,
        frame.budget_s,
    )
    # The small parts are joined: one gathering write takes at most 1024 buffers (IOV_MAX in sysconf(3)).
    return [header + frame.head + table, *metas, *bodies]


def frame_bytes(header: bytes | memoryview) -> int:
    """The length of the whole frame that begins with these HEADER.size bytes.

    Raises:
        WireError: the header is not ours or claims more than the bounds allow.

    """
    magic, _, _, count, _, head_bytes, _, _, payload_bytes, _ = HEADER.unpack(header)
    if magic != MAGIC:
        raise WireError("not a frame")
    if head_bytes > MAX_HEAD_BYTES or count > MAX_MEMBERS or payload_bytes > MAX_FRAME_BYTES:
        raise WireError("a frame beyond the bounds")
    return HEADER.size + int(head_bytes) + int(payload_bytes)


def decode(data: bytes | memoryview) -> Frame:
    """The frame that these bytes hold, exactly.

    Bodies are views of `data`, nothing is copied.

    Raises:
        WireError: the bytes are anything else than one frame.

    """
    view = memoryview(data)
    if len(view) < HEADER.size or frame_bytes(view[: HEADER.size]) != len(view):
        raise WireError("the length is not the frame's")
    _, kind, _, count, epoch, head_bytes, cores, batch_id, _, budget_s = HEADER.unpack_from(view)
    try:
        frame_kind = _KINDS[kind]
    except KeyError:
        raise WireError(f"unknown kind {kind}") from None
    table = HEADER.size + head_bytes
    meta_at = table + count * ROW.size
    if meta_at > len(view):
        raise WireError("the table does not fit")
    rows = list(ROW.iter_unpack(view[table:meta_at])) if count else []
    body_at = meta_at + sum(row[2] for row in rows)
    members: list[Member] = []
    for code, size, meta_bytes, body_bytes in rows:
        members.append(Member(code, size, bytes(view[meta_at : meta_at + meta_bytes]), view[body_at : body_at + body_bytes]))
        meta_at += meta_bytes
        body_at += body_bytes
    if body_at != len(view):
        raise WireError("the members do not fill the frame")
    return Frame(frame_kind, batch_id, epoch, budget_s, bytes(view[HEADER.size : table]), members, cores)


_KINDS = {int(kind): kind for kind in Kind}


class FrameReader:
    """Cuts a stream of bytes into frames, in whatever pieces they arrive."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._need = HEADER.size
        self._sized = False

    def feed(self, data: bytes) -> Iterable[Frame]:
        """The frames that are complete with these bytes.

        Raises:
            WireError: the stream is broken for good.

        """
        # The usual case, one frame in one read: its bodies stay views of `data`, without a copy into the buffer.
        if not self._buffer and len(data) >= HEADER.size and frame_bytes(data[: HEADER.size]) == len(data):
            return (decode(data),)
        self._buffer += data
        frames: list[Frame] = []
        while len(self._buffer) >= self._need:
            if not self._sized:
                self._need, self._sized = frame_bytes(bytes(self._buffer[: HEADER.size])), True
                continue
            # A copy, because the next line shrinks the buffer: a bytearray with views of it cannot change its size.
            frames.append(decode(bytes(self._buffer[: self._need])))
            del self._buffer[: self._need]
            self._need, self._sized = HEADER.size, False
        return frames


class Refusal(Member):
    """An answer of the platform in the function's place: the gateway marks it like its own errors.

    It is never sent. Members read from the wire are plain: no instance may answer for the platform.
    """

    __slots__ = ()


def error_member(error: GnomonError) -> Refusal:
    """An error as a member's answer, with its headers but for the gateway's own, which is added where the answer leaves."""
    lines = [f"{name}: {value}" for name, value in error.headers().items() if name != INTERNAL_HEADER]
    return Refusal(error.status, 1, "\n".join(lines).encode("latin-1"), error.body())


def same_for_all(batch: Frame, member: Member, head: bytes = b"") -> Frame:
    """A result with this answer for every member of the batch."""
    return Frame(Kind.RESULT, batch.batch_id, batch.epoch, head=head, members=[member] * len(batch.members))


def error_result(batch: Frame, error: GnomonError, head: bytes = b"") -> Frame:
    """The result of a batch of which every member gets this error."""
    return same_for_all(batch, error_member(error), head)


def stale_result(batch: Frame, newest: int) -> Frame:
    """409 `stale_epoch` for each member: none was run, as the gateway knows by the newest epoch, which the result bears."""
    text = f"This batch is from epoch {batch.epoch}; the function's queue has moved on to {newest}."
    result = error_result(batch, GnomonError(409, "stale_epoch", text, "Try again."))
    result.epoch = newest
    return result

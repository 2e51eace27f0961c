r"""The messages on a pair's data socket: a fixed header, and a fixed row for each tensor in the shared buffer.

    Body   ──COMPUTE 7, operations 5–90, 4 samples, rows──▶ Shadow         tensors in the buffer `to`
    Body   ◀──DONE 7 … rows── Shadow                                       tensors in the buffer `from`
    either ──SOON──▶ the other                                             a wake-up hint: one of these two follows

The socket preserves message boundaries (SOCK_SEQPACKET). A sequence number matches an answer to its hand-over: a late answer
matches none. A run is named by its operations, so that both sides mean the same one while its blocks are being changed.

The other side may be broken or hostile. A message is copied out of the socket before it is parsed, and `decode` validates every
number: a row that it returns lies inside the buffer and is as long as its shape says.

A row's tensor lies dense in memory, its axes from the slowest to the fastest in `order`; the first axis counts the samples.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from gnomon_core.shared_memory import ALIGNMENT_BYTES
from gnomon_core.signature import DATATYPE_BYTES

MAGIC = b"GNP1"
HEADER = struct.Struct("<4sBBHQIIIIQ")
ROW = struct.Struct("<QQBB6x8I8B")
MAX_TENSORS = 64
MAX_AXES = 8
MAX_SAMPLES = 1 << 16
MAX_STRIDE = 1 << 62
"""The largest stride. The axes of a tensor without elements may claim any length, and torch still computes their strides."""
COUNT_AT = 5
"""The byte of a header that counts the tensors."""
MAX_BYTES = HEADER.size + MAX_TENSORS * ROW.size
DATATYPES = tuple(DATATYPE_BYTES)


class Kind(IntEnum):
    """The kind of a message. COMPUTE goes to the Shadow, SOON goes either way, the others come from the Shadow."""

    COMPUTE = 1
    DONE = 2
    FAILED = 3
    """The Shadow's operations raised; the Body computes the samples itself and learns why."""
    REFUSED = 4
    """The Shadow does not hold these operations."""
    SOON = 5
    """A wake-up hint without content: another message follows within a moment, for which the receiver can be awake."""


class NonsenseError(ValueError):
    """The bytes are not a message, or its numbers are out of range."""


@dataclass(frozen=True, slots=True)
class Row:
    """A tensor in the buffer."""

    offset: int
    length: int
    datatype: str
    shape: tuple[int, ...]
    order: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Message:
    """A header with its rows.

    `compute_s` is the Shadow's time from reading the message to answering it. For a Shadow on another node the Body replaces it
    by the round trip, network included (`remote_link`).
    """

    kind: Kind
    sequence: int
    begin: int
    end: int
    samples: int
    rows: tuple[Row, ...] = ()
    compute_s: float = 0.0


def encode(message: Message) -> bytes:
    """The bytes of a message.

    Raises:
        ValueError: more tensors or axes than a message holds.

    """
    if len(message.rows) > MAX_TENSORS:
        raise ValueError(f"{len(message.rows)} tensors; a message holds {MAX_TENSORS}")
    header = HEADER.pack(
        MAGIC,
        message.kind,
        len(message.rows),
        0,
        message.sequence,
        message.begin,
        message.end,
        message.samples,
        0,
        round(1e9 * message.compute_s),
    )
    return header + b"".join(map(_encode_row, message.rows))


def _encode_row(row: Row) -> bytes:
    axes = len(row.shape)
    if not 1 <= axes <= MAX_AXES:
        raise ValueError(f"a tensor of {axes} axes; a message holds 1 to {MAX_AXES}")
    spare = (0,) * (MAX_AXES - axes)
    return ROW.pack(row.offset, row.length, DATATYPES.index(row.datatype), axes, *row.shape, *spare, *row.order, *spare)


def decode(data: bytes, buffer_bytes: int) -> Message:
    """The message in these bytes, all of whose rows lie in a buffer of this size.

    Raises:
        NonsenseError: the bytes are not a valid message.

    """
    if len(data) < HEADER.size:
        raise NonsenseError("a message without a header")
    magic, kind, count, zero, sequence, begin, end, samples, more_zero, compute_ns = HEADER.unpack_from(data)
    if magic != MAGIC or zero or more_zero or len(data) != HEADER.size + count * ROW.size or count > MAX_TENSORS:
        raise NonsenseError("not a message")
    if not Kind.COMPUTE <= kind <= Kind.SOON or begin >= end or not 1 <= samples <= MAX_SAMPLES:
        raise NonsenseError("a message with an invalid kind, run or number of samples")
    rows = tuple(_decode_row(fields, samples, buffer_bytes) for fields in ROW.iter_unpack(data[HEADER.size :]))
    return Message(Kind(kind), sequence, begin, end, samples, rows, compute_ns / 1e9)


def message_bytes(header: bytes | bytearray | memoryview) -> int:
    """The length in bytes of the message with this header of `HEADER.size` bytes: a stream has no message boundaries.

    Raises:
        NonsenseError: the header is not valid.

    """
    count = header[COUNT_AT]
    if header[: len(MAGIC)] != MAGIC or count > MAX_TENSORS:
        raise NonsenseError("not a message")
    return HEADER.size + count * ROW.size


def tensor_bytes(message: Message) -> int:
    """The bytes of the buffer, from its beginning, that a message's tensors take: they follow the message on a stream."""
    return max((row.offset + row.length for row in message.rows), default=0)


def _decode_row(fields: Sequence[int], samples: int, buffer_bytes: int) -> Row:
    offset, length, datatype, axes = fields[:4]
    if datatype >= len(DATATYPES) or not 1 <= axes <= MAX_AXES:
        raise NonsenseError("a tensor of no type or shape")
    shape, order = tuple(fields[4 : 4 + axes]), tuple(fields[4 + MAX_AXES : 4 + MAX_AXES + axes])
    if sorted(order) != list(range(axes)) or shape[0] != samples:
        raise NonsenseError("a tensor whose first axis is not its samples")
    # Python's integers do not overflow, so a huge product cannot pass the check.
    if length != math.prod(shape) * DATATYPE_BYTES[DATATYPES[datatype]]:
        raise NonsenseError("a tensor that is not as long as its shape says")
    if math.prod(extent or 1 for extent in shape) > MAX_STRIDE:
        raise NonsenseError("a tensor with an invalid layout")
    if offset % ALIGNMENT_BYTES or offset + length > buffer_bytes:
        raise NonsenseError("a tensor outside the buffer")
    return Row(offset, length, DATATYPES[datatype], shape, order)

"""Messages of a pair that are made up or damaged, and its decoder on them: what it lets through must lie in the buffer."""

from __future__ import annotations

import mmap
import os
import random
from collections import Counter

from benchmarks.pace import step
from gnomon_core import shared_memory
from gnomon_core.signature import DATATYPE_BYTES
from gnomon_runtime.pair.buffers import SharedBuffer
from gnomon_runtime.pair.headers import DATATYPES, Kind, Message, NonsenseError, Row, decode, encode


def made_up(chance: random.Random, size_bytes: int) -> Message:
    """A message that could be, with tensors that mostly end at the buffer's end."""
    samples = chance.randint(1, 8)
    rows: list[Row] = []
    for _ in range(chance.randint(0, 4)):
        shape = (samples, *(chance.randint(0, 9) for _ in range(chance.randint(0, 4))))
        datatype = chance.choice(DATATYPES)
        length = DATATYPE_BYTES[datatype]
        for extent in shape:
            length *= extent
        last = max(0, size_bytes - length) // shared_memory.ALIGNMENT_BYTES * shared_memory.ALIGNMENT_BYTES
        order = list(range(len(shape)))
        chance.shuffle(order)
        rows.append(Row(chance.choice((0, last, last)), length, datatype, shape, tuple(order)))
    begin = chance.randint(0, 200)
    return Message(chance.choice(list(Kind)), chance.getrandbits(32), begin, begin + chance.randint(1, 50), samples, tuple(rows))


def damaged(chance: random.Random, data: bytes) -> bytes:
    """Bytes changed, cut off, added, or made the largest that they can be."""
    changed = bytearray(data)
    for _ in range(chance.randint(0, 6)):
        at = chance.randrange(len(changed))
        width = chance.choice((1, 1, 4, 8))
        changed[at : at + width] = chance.choice((b"\xff", b"\x00", b"\x80", chance.randbytes(1))) * len(changed[at : at + width])
    way = chance.random()
    if way < 0.1:
        return bytes(changed[: chance.randint(1, len(changed))])
    return bytes(changed) + chance.randbytes(chance.randint(1, 90)) if way > 0.95 else bytes(changed)


def fuzz_messages(chance: random.Random, count: int, cases: Counter[str]) -> None:
    """Decode, and read every tensor that is let through; each view must lie in the buffer.

    Raises:
        RuntimeError: one does not.

    """
    size_bytes = 4 * mmap.PAGESIZE
    descriptor = shared_memory.make("fuzz", size_bytes)
    buffer = SharedBuffer(descriptor, writable=False)
    [first] = buffer.read([Row(0, 4, "FP32", (1,), (0,))])
    begin = first.data_ptr()
    for _ in range(count):
        data = damaged(chance, encode(made_up(chance, size_bytes)))
        try:
            message = decode(data, buffer.size_bytes)
        except NonsenseError:
            cases["messages, refused"] += 1
            continue
        cases["messages, read"] += 1
        for row, tensor in zip(message.rows, buffer.read(message.rows), strict=True):
            tensor.clone()
            # Whole numbers and truth values are copies.
            a_view = tensor.is_floating_point() and tensor.numel() > 0
            if a_view and not begin <= tensor.data_ptr() <= begin + size_bytes - row.length:
                raise RuntimeError(f"a tensor outside the buffer: {row}")
    step(f"messages: {count}")
    os.close(descriptor)

"""Hostile messages to a coordinator's sockets, and to both ends of a pair: no crash, no read outside a buffer, no hang.

    python -m tests.fuzz.pair [--quick]

coordinator  a real process. Instances of every kind connect and say what no instance should: wrong types, lengths, ids and
             epochs, torn and oversized messages, descriptors that nobody asked for. After every round it must answer a ping, and
             at the end hold no more descriptors than at first. Shadows that keep to the form of the protocol claim to hold blocks
             that nobody told them to hold, or that their model does not have.
messages     the decoder of a pair's headers, on messages that are damaged or made up. What it lets through is read, and must lie
             in the buffer.
pair         a real Shadow gets such messages from its Body: it refuses, or leaves and can be joined again. A real Body gets such
             answers from its Shadow: its own answer stays right.

The same seed gives the same cases. A hang ends in a time-out, a crash in a closed socket; either ends the run.

Messages of a pair that are made up or damaged, and its decoder on them: what it lets through must lie in the buffer.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import random
import time
from collections import Counter
from dataclasses import replace

import torch

from benchmarks.programs import Pace, start, step
from benchmarks.report import write
from benchmarks.shadow.instances import Body, body_of, check, let_go, nursery, two_cpus
from benchmarks.shadow.models import StoredModel, first_share, samples_of, stored
from gnomon_core import packets, shared_memory
from gnomon_core.signature import DATATYPE_BYTES
from gnomon_runtime.pair.headers import DATATYPES, Kind, Message, NonsenseError, Row, decode, encode
from gnomon_runtime.pair.link import Link, SharedBuffer
from tests.fuzz.coordinator import fuzz_blocks, fuzz_coordinator
from tests.fuzz.hostile import figures_of
from tests.pair_harness import Buffers, Child, Nursery, Task, load, tell_body


def made_up(rng: random.Random, size_bytes: int) -> Message:
    """A message that could be, with tensors that mostly end at the buffer's end."""
    samples = rng.randint(1, 8)
    rows: list[Row] = []
    for _ in range(rng.randint(0, 4)):
        shape = (samples, *(rng.randint(0, 9) for _ in range(rng.randint(0, 4))))
        datatype = rng.choice(DATATYPES)
        length = DATATYPE_BYTES[datatype]
        for extent in shape:
            length *= extent
        last = max(0, size_bytes - length) // shared_memory.ALIGNMENT_BYTES * shared_memory.ALIGNMENT_BYTES
        order = list(range(len(shape)))
        rng.shuffle(order)
        rows.append(Row(rng.choice((0, last, last)), length, datatype, shape, tuple(order)))
    begin = rng.randint(0, 200)
    return Message(rng.choice(list(Kind)), rng.getrandbits(32), begin, begin + rng.randint(1, 50), samples, tuple(rows))


def damaged(rng: random.Random, data: bytes) -> bytes:
    """Bytes changed, cut off, added, or made the largest that they can be."""
    changed = bytearray(data)
    for _ in range(rng.randint(0, 6)):
        at = rng.randrange(len(changed))
        width = rng.choice((1, 1, 4, 8))
        changed[at : at + width] = rng.choice((b"\xff", b"\x00", b"\x80", rng.randbytes(1))) * len(changed[at : at + width])
    way = rng.random()
    if way < 0.1:
        return bytes(changed[: rng.randint(1, len(changed))])
    return bytes(changed) + rng.randbytes(rng.randint(1, 90)) if way > 0.95 else bytes(changed)


def fuzz_messages(rng: random.Random, count: int, cases: Counter[str]) -> None:
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
        data = damaged(rng, encode(made_up(rng, size_bytes)))
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


SEED = 8
GOAL = 100_000
MODEL = "efficientnet-lite0"
PER_HELLO = 100
"""Messages to a Shadow between two times that it must say it is there."""


def main(pace: Pace) -> None:
    scale = 100 if pace.quick else 1
    rng = random.Random(SEED)
    cases: Counter[str] = Counter()
    torch.set_num_threads(1)
    fuzz_coordinator(rng, 60_000 // scale, cases)
    fuzz_blocks(rng, 4_000 // scale, cases)
    fuzz_messages(rng, 100_000 // scale, cases)
    fuzz_pair(rng, (3_000 // scale, 1_000 // scale), cases)
    figures = figures_of(cases, GOAL / scale, "crashes, hangs and reads outside a buffer")
    write("shadow_fuzz", figures, repeats=1, packages=("gnomon", "torch"), folder=pace.results)


def fuzz_pair(rng: random.Random, counts: tuple[int, int], cases: Counter[str]) -> None:
    """A hostile Body for a real Shadow, and a hostile Shadow for a real Body."""
    model = stored(MODEL)
    task = Task(model, first_share(model.layers, 0.3), (0, 1))
    cpus = two_cpus()
    with nursery(cpus) as place:
        _hostile_body(rng, place, task, counts[0], cases)
        body = body_of(place, model, (cpus.body,))
        _hostile_shadow(rng, body, task, counts[1], cases)
        let_go(body.child)


def _hostile_body(rng: random.Random, place: Nursery, task: Task, count: int, cases: Counter[str]) -> None:
    shadow = place.empty()
    said = load(shadow, task)
    if said["say"] != "registered":
        raise RuntimeError(f"no Shadow: {said['reason']}")
    sizes = shared_memory.buffer_sizes(task.model.layers, 2)
    [run] = task.model.layers.runs(task.blocks)
    link = _joined_by_us(shadow, sizes)
    for number in range(count):
        message = made_up(rng, sizes[0])
        if rng.random() < 0.5:
            message = replace(message, kind=Kind.COMPUTE, begin=run.begin, end=run.end)
        try:
            link._socket.send(damaged(rng, encode(message)))
        except (BrokenPipeError, ConnectionResetError):
            link.close()
            link = _joined_by_us(shadow, sizes)
        except BlockingIOError:
            time.sleep(0.01)
        cases["pair, to a Shadow"] += 1
        if number % PER_HELLO == 0:
            shadow.order("hello")
            shadow.say("registered")
            shadow.skipped.clear()
            with contextlib.suppress(packets.PeerGoneError):
                link.pending()
    step(f"a Shadow: {count} messages")
    link.close()
    let_go(shadow)


def _joined_by_us(shadow: Child, sizes: tuple[int, int]) -> Link:
    buffers = Buffers.make(*sizes)
    shadow.order("join", buffers.shadow, {"shadow": shadow.id, "body": "f-1", "blocks": [], "split": []})
    shadow.say("paired")
    link = Link([os.dup(descriptor) for descriptor in buffers.body], body=True)
    buffers.close()
    return link


def _hostile_shadow(rng: random.Random, body: Body, task: Task, count: int, cases: Counter[str]) -> None:
    model = task.model
    assert isinstance(model, StoredModel)
    x = samples_of(model, 2)
    expected = body.ask(x).rows
    sizes = shared_memory.buffer_sizes(model.layers, 2)
    while cases["pair, to a Body"] < count:
        buffers = Buffers.make(*sizes)
        link = Link([os.dup(descriptor) for descriptor in buffers.shadow], body=False)
        tell_body(body.child, "s-1", task, buffers)
        buffers.close()
        for _ in range(3):
            for _ in range(rng.randint(1, 8)):
                # Answers to hand-overs that come, have come, or never were.
                answer = replace(made_up(rng, sizes[1]), kind=Kind.DONE, sequence=rng.randint(1, 4))
                with contextlib.suppress(BlockingIOError, BrokenPipeError, ConnectionResetError):
                    link._socket.send(damaged(rng, encode(answer)))
                cases["pair, to a Body"] += 1
            check(body.ask(x), expected)
        link.close()
        body.child.say("unpaired")
        body.child.skipped.clear()
    step(f"a Body: {count} answers")


if __name__ == "__main__":
    start(main, __doc__)

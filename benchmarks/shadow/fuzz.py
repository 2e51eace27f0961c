"""Hostile messages to a coordinator's sockets, and to both ends of a pair: no crash, no read outside a buffer, no hang.

    python -m benchmarks.shadow.fuzz [--quick]

coordinator  a real process. Instances of every kind connect and say what no instance should: wrong types, lengths, ids and
             epochs, torn and oversized messages, descriptors that nobody asked for. After every round it must answer a ping, and
             at the end hold no more descriptors than at first.
messages     the decoder of a pair's headers, on messages that are damaged or made up. What it lets through is read, and must lie
             in the buffer.
pair         a real Shadow gets such messages from its Body: it refuses, or leaves and can be joined again. A real Body gets such
             answers from its Shadow: its own answer stays right.

The same seed gives the same cases. A hang ends in a time-out, a crash in a closed socket; either ends the run.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import random
import socket
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace

import torch

from benchmarks.pace import Pace, asked, step
from benchmarks.programs import ended_well
from benchmarks.report import Figure, write
from benchmarks.shadow.hostile import PATIENCE_S, descriptors_of, hostile
from benchmarks.shadow.instances import Body, body_of, check, let_go, nursery, two_cpus
from benchmarks.shadow.models import StoredModel, first_share, samples_of, stored
from benchmarks.shadow.samples import counted
from gnomon_core import packets, shared_memory
from gnomon_core.signature import DATATYPE_BYTES
from gnomon_runtime.pair.buffers import SharedBuffer
from gnomon_runtime.pair.headers import DATATYPES, Kind, Message, NonsenseError, Row, decode, encode
from gnomon_runtime.pair.link import Link
from gnomon_runtime.pair.testing import Buffers, Child, Nursery, Task, load, tell_body

SEED = 8
GOAL = 100_000
MODEL = "efficientnet-lite0"
KINDS = ("body", "empty", "shadow")
PER_ROUND = 100
SAYS = ("empty", "registered", "body", "paired", "changed", "unpaired", "failed", "stale", "load", "", "hello")
FIELDS = ("shadow", "body", "pairs", "blocks", "split", "resident_bytes", "load_ms", "paired", "reason", "epoch", "say", "pid")


def main(pace: Pace) -> None:
    scale = 100 if pace.quick else 1
    chance = random.Random(SEED)
    cases: Counter[str] = Counter()
    torch.set_num_threads(1)
    fuzz_coordinator(chance, 60_000 // scale, cases)
    fuzz_messages(chance, 100_000 // scale, cases)
    fuzz_pair(chance, (3_000 // scale, 1_000 // scale), cases)
    detail = "; ".join(f"{name}: {count}" for name, count in sorted(cases.items()))
    figures: list[Figure] = [
        counted("hostile cases", sum(cases.values()), "", at_least=GOAL / scale, detail=detail),
        counted("crashes, hangs and reads outside a buffer", 0, "", at_most=0, detail="any of them would have ended the run"),
    ]
    write("shadow_fuzz", figures, repeats=1, packages=("gnomon", "torch"), folder=pace.results)


# The coordinator


def fuzz_coordinator(chance: random.Random, count: int, cases: Counter[str]) -> None:
    """Hostile instances, one message or a few each, since one that breaks the protocol is not heard again."""
    ours, theirs = packets.socket_pair()
    mine, platforms = packets.socket_pair()
    for end in (ours, mine):
        end.settimeout(PATIENCE_S)
    with theirs, platforms:
        numbers = (theirs.fileno(), platforms.fileno())
        command = [sys.executable, "-I", "-m", "gnomon_coordinator", *map(str, numbers)]
        process = subprocess.Popen(command, pass_fds=numbers, stderr=subprocess.DEVNULL)
    packets.send(ours, {"event": "epoch", "epoch": 1})
    packets.send(ours, {"event": "adopted"})
    packets.receive(mine)
    before = descriptors_of(process.pid)
    done = 0
    try:
        while done < count:
            done += _round(chance, ours, mine, done, cases)
            _drain(ours)
            if done % 10_000 < PER_ROUND:
                step(f"coordinator: {done} messages")
        if process.poll() is not None:
            raise RuntimeError(f"the coordinator has ended with status {process.returncode}")
        _await_descriptors(process.pid, before)
    finally:
        ours.close()
        mine.close()
        process.wait(PATIENCE_S)


def _round(chance: random.Random, supervisor: socket.socket, platform: socket.socket, number: int, cases: Counter[str]) -> int:
    """Some instances that come, say what they should not, and go; then a ping."""
    said = 0
    instances: list[tuple[str, socket.socket]] = []
    while said < PER_ROUND:
        kept, theirs = packets.socket_pair()
        name = f"i{number}-{len(instances)}"
        with kept:
            packets.send(supervisor, {"event": "instance", "id": name, "kind": chance.choice(KINDS), "pid": 1}, [kept.fileno()])
        instances.append((name, theirs))
        theirs.setblocking(False)  # noqa: FBT003 - the signature is socket's
        for _ in range(chance.randint(1, 4)):
            with contextlib.suppress(BlockingIOError, BrokenPipeError, ConnectionResetError, packets.PeerGoneError):
                cases[f"coordinator, {_say_something(chance, theirs)}"] += 1
            said += 1
    _ping(platform, number)
    for name, theirs in instances:
        theirs.close()
        packets.send(supervisor, {"event": "gone", "id": name})
    _ping(platform, number + 1)
    return said


def _say_something(chance: random.Random, connection: socket.socket) -> str:
    """One hostile message; what kind of."""
    message = {"epoch": 1} | hostile(chance, "say", SAYS, FIELDS)
    data = json.dumps(message).encode()
    way = chance.choice(("wrong fields", "wrong fields", "torn", "noise", "too long", "descriptors"))
    if way == "torn":
        data = data[: chance.randint(1, len(data))]
    elif way == "noise":
        data = chance.randbytes(chance.randint(1, 300))
    elif way == "too long":
        data += b" " * (packets.MAX_PACKET_BYTES + chance.randint(-100, 100))
    elif way == "descriptors":
        nothing = [os.open(os.devnull, os.O_RDONLY) for _ in range(chance.randint(1, 12))]
        try:
            socket.send_fds(connection, [data[: packets.MAX_PACKET_BYTES]], nothing)
        finally:
            for descriptor in nothing:
                os.close(descriptor)
        return way
    connection.send(data)
    return way


def _ping(platform: socket.socket, number: int) -> None:
    packets.send(platform, {"do": "ping", "number": number})
    while packets.receive(platform)[0] != {"event": "pong", "number": number}:
        continue


def _drain(connection: socket.socket) -> None:
    """Take what the coordinator wants of its supervisor."""
    connection.settimeout(0)
    with contextlib.suppress(BlockingIOError):
        while True:
            for descriptor in packets.receive(connection)[1]:
                os.close(descriptor)
    connection.settimeout(PATIENCE_S)


def _await_descriptors(pid: int, most: int) -> None:
    """Return when a process has no more open than so many: the last of the news may still be on its way.

    Raises:
        RuntimeError: it keeps more.

    """
    end_s = time.monotonic() + PATIENCE_S
    while (there := descriptors_of(pid)) > most:
        if time.monotonic() > end_s:
            raise RuntimeError(f"{most} descriptors before, {there} after")
        time.sleep(0.01)


# Messages


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


# A pair


def fuzz_pair(chance: random.Random, counts: tuple[int, int], cases: Counter[str]) -> None:
    """A hostile Body for a real Shadow, and a hostile Shadow for a real Body."""
    model = stored(MODEL)
    task = Task(model, first_share(model.layers, 0.3), (0, 1))
    cpus = two_cpus()
    with nursery(cpus) as place:
        _hostile_body(chance, place, task, counts[0], cases)
        body = body_of(place, model, (cpus.body,))
        _hostile_shadow(chance, body, task, counts[1], cases)
        let_go(body.child)


def _hostile_body(chance: random.Random, place: Nursery, task: Task, count: int, cases: Counter[str]) -> None:
    shadow = place.empty()
    said = load(shadow, task)
    if said["say"] != "registered":
        raise RuntimeError(f"no Shadow: {said['reason']}")
    sizes = shared_memory.hand_over_bytes(task.model.layers, 2)
    [run] = task.model.layers.runs(task.blocks)
    link = _joined_by_us(shadow, sizes)
    for number in range(count):
        message = made_up(chance, sizes[0])
        if chance.random() < 0.5:
            message = replace(message, kind=Kind.COMPUTE, begin=run.begin, end=run.end)
        try:
            link._socket.send(damaged(chance, encode(message)))  # noqa: SLF001 - bytes that no side of ours would send
        except (BrokenPipeError, ConnectionResetError):
            link.close()
            link = _joined_by_us(shadow, sizes)
        except BlockingIOError:
            time.sleep(0.01)
        cases["pair, to a Shadow"] += 1
        if number % PER_ROUND == 0:
            shadow.order("hello")
            shadow.say("registered")
            shadow.heard.clear()
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


def _hostile_shadow(chance: random.Random, body: Body, task: Task, count: int, cases: Counter[str]) -> None:
    model = task.model
    assert isinstance(model, StoredModel)
    x = samples_of(model, 2)
    expected = body.ask(x).rows
    sizes = shared_memory.hand_over_bytes(model.layers, 2)
    while cases["pair, to a Body"] < count:
        buffers = Buffers.make(*sizes)
        link = Link([os.dup(descriptor) for descriptor in buffers.shadow], body=False)
        tell_body(body.child, "s-1", task, buffers)
        buffers.close()
        for _ in range(3):
            for _ in range(chance.randint(1, 8)):
                # Answers to hand-overs that come, have come, or never were.
                answer = replace(made_up(chance, sizes[1]), kind=Kind.DONE, sequence=chance.randint(1, 4))
                with contextlib.suppress(BlockingIOError, BrokenPipeError, ConnectionResetError):
                    link._socket.send(damaged(chance, encode(answer)))  # noqa: SLF001 - as above
                cases["pair, to a Body"] += 1
            check(body.ask(x), expected)
        link.close()
        body.child.say("unpaired")
        body.child.heard.clear()
    step(f"a Body: {count} answers")


if __name__ == "__main__":
    ended_well(lambda: main(asked(__doc__ or "")))

"""Hostile instances of a real coordinator: it answers a ping after every round, and keeps no descriptor that is not its own."""

from __future__ import annotations

import contextlib
import json
import os
import random
import socket
from collections import Counter

from benchmarks.pace import step
from benchmarks.shadow.fuzzed_coordinator import Coordinator
from benchmarks.shadow.hostile import hostile, keeps_no_more
from gnomon_core import packets

KINDS = ("body", "empty", "shadow")
PER_ROUND = 100
SAYS = ("empty", "registered", "body", "paired", "changed", "unpaired", "failed", "stale", "load", "", "hello")
FIELDS = ("shadow", "body", "pairs", "blocks", "split", "resident_bytes", "load_ms", "paired", "reason", "epoch", "say", "pid")


def fuzz_coordinator(chance: random.Random, count: int, cases: Counter[str]) -> None:
    """Hostile instances, one message or a few each, since one that breaks the protocol is not heard again."""
    coordinator = Coordinator()
    done = 0
    while done < count:
        done += _round(chance, coordinator, done, cases)
        coordinator.drain()
        if done % 10_000 < PER_ROUND:
            step(f"coordinator: {done} messages")
    keeps_no_more(coordinator.process.pid, coordinator.before)
    coordinator.end()


def _round(chance: random.Random, coordinator: Coordinator, number: int, cases: Counter[str]) -> int:
    """Some instances that come, say what they should not, and go; then a ping."""
    said = 0
    instances: list[tuple[str, socket.socket]] = []
    while said < PER_ROUND:
        kept, theirs = packets.socket_pair()
        name = f"i{number}-{len(instances)}"
        with kept:
            comes = {"event": "instance", "id": name, "kind": chance.choice(KINDS), "pid": 1}
            packets.send(coordinator.supervisor, comes, [kept.fileno()])
        instances.append((name, theirs))
        theirs.setblocking(False)  # noqa: FBT003 - the signature is socket's
        for _ in range(chance.randint(1, 4)):
            with contextlib.suppress(BlockingIOError, BrokenPipeError, ConnectionResetError, packets.PeerGoneError):
                cases[f"coordinator, {_say_something(chance, theirs)}"] += 1
            said += 1
    coordinator.ping()
    for name, theirs in instances:
        theirs.close()
        packets.send(coordinator.supervisor, {"event": "gone", "id": name})
    coordinator.ping()
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

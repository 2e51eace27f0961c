"""Hostile instances of a real coordinator: it answers a ping after every round, and keeps no descriptor that is not its own."""

from __future__ import annotations

import contextlib
import json
import os
import random
import socket
import subprocess
import sys
import time
from collections import Counter

from benchmarks.pace import step
from benchmarks.shadow.hostile import PATIENCE_S, descriptors_of, hostile
from gnomon_core import packets

KINDS = ("body", "empty", "shadow")
PER_ROUND = 100
SAYS = ("empty", "registered", "body", "paired", "changed", "unpaired", "failed", "stale", "load", "", "hello")
FIELDS = ("shadow", "body", "pairs", "blocks", "split", "resident_bytes", "load_ms", "paired", "reason", "epoch", "say", "pid")


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

"""Hostile instances of a real coordinator: it answers a ping after every round, and keeps no descriptor that is not its own.

Shadows of an honest Body that say they hold anything: when they are found, while they change, before they become Bodies.

Most messages that the coordinator gets from `fuzz_coordinator` end an instance at once. These are right in form and come in turn,
so that what they claim goes far: it is compared, sent on, and reckoned with.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import select
import socket
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.programs import step
from gnomon_core import packets
from gnomon_core.blocks import Block, Layers
from tests.fuzz.hostile import Coordinator, hostile, keeps_no_more

KINDS = ("body", "empty", "shadow")
PER_ROUND = 100
SAYS = ("empty", "registered", "body", "paired", "changed", "unpaired", "failed", "stale", "load", "", "hello")
FIELDS = ("shadow", "body", "pairs", "blocks", "split", "resident_bytes", "load_ms", "paired", "reason", "epoch", "say", "pid")


def fuzz_coordinator(rng: random.Random, count: int, cases: Counter[str]) -> None:
    """Hostile instances, one message or a few each, since one that breaks the protocol is not heard again."""
    coordinator = Coordinator()
    done = 0
    while done < count:
        done += _round(rng, coordinator, done, cases)
        coordinator.drain()
        if done % 10_000 < PER_ROUND:
            step(f"coordinator: {done} messages")
    keeps_no_more(coordinator.process.pid, coordinator.before)
    coordinator.end()


def _round(rng: random.Random, coordinator: Coordinator, number: int, cases: Counter[str]) -> int:
    """Instances come, say what they should not, and go; then a ping."""
    said = 0
    instances: list[tuple[str, socket.socket]] = []
    while said < PER_ROUND:
        kept, theirs = packets.socket_pair()
        name = f"i{number}-{len(instances)}"
        with kept:
            comes = {"event": "instance", "id": name, "kind": rng.choice(KINDS), "pid": 1}
            packets.send(coordinator.supervisor, comes, [kept.fileno()])
        instances.append((name, theirs))
        theirs.setblocking(False)  # noqa: FBT003 - the signature is socket's
        for _ in range(rng.randint(1, 4)):
            with contextlib.suppress(BlockingIOError, BrokenPipeError, ConnectionResetError, packets.PeerGoneError):
                cases[f"coordinator, {_say_something(rng, theirs)}"] += 1
            said += 1
    coordinator.ping()
    for name, theirs in instances:
        theirs.close()
        packets.send(coordinator.supervisor, {"event": "gone", "id": name})
    coordinator.ping()
    return said


def _say_something(rng: random.Random, connection: socket.socket) -> str:
    """Send a hostile message; returns its kind."""
    message = {"epoch": 1} | hostile(rng, "say", SAYS, FIELDS)
    data = json.dumps(message).encode()
    way = rng.choice(("wrong fields", "wrong fields", "torn", "noise", "too long", "descriptors"))
    if way == "torn":
        data = data[: rng.randint(1, len(data))]
    elif way == "noise":
        data = rng.randbytes(rng.randint(1, 300))
    elif way == "too long":
        data += b" " * (packets.MAX_PACKET_BYTES + rng.randint(-100, 100))
    elif way == "descriptors":
        nothing = [os.open(os.devnull, os.O_RDONLY) for _ in range(rng.randint(1, 12))]
        try:
            socket.send_fds(connection, [data[: packets.MAX_PACKET_BYTES]], nothing)
        finally:
            for descriptor in nothing:
                os.close(descriptor)
        return way
    connection.send(data)
    return way


BLOCKS = 6
MOMENT_S = 0.002
MOST = 4096
"""Higher numbers are refused as such."""
WISHES = ("change", "change", "change", "change", "change", "change", "promote", "create")
PER_PAIR = 8
Message = dict[str, Any]


def fuzz_blocks(rng: random.Random, count: int, cases: Counter[str]) -> None:
    """So many claims at least. After each wish the coordinator answers a ping, and in the end it keeps no descriptor."""
    coordinator = Coordinator()
    with tempfile.TemporaryDirectory(prefix="gnomon-fuzz-") as folder:
        layers = _layers_file(Path(folder))
        done = pairs = 0
        while done < count:
            pairs += 1
            pair = Pair(rng, coordinator, layers, f"{pairs}")
            done += pair.live(cases)
    keeps_no_more(coordinator.process.pid, coordinator.before)
    coordinator.end()
    step(f"coordinator: {done} claims of {pairs} Shadows")


class Pair:
    """A Body that keeps to the protocol, and a Shadow that claims to hold what it likes. A coordinator finds both."""

    def __init__(self, rng: random.Random, coordinator: Coordinator, layers: Path, name: str) -> None:
        self._rng = rng
        self._coordinator = coordinator
        self._names = {"body": f"b{name}", "shadow": f"s{name}"}
        self._layers = layers
        self._claims = 0
        self._body, self._shadow = (self._come(kind) for kind in ("body", "shadow"))

    def _come(self, kind: str) -> socket.socket:
        kept, ours = packets.socket_pair()
        ours.setblocking(False)  # noqa: FBT003 - the signature is socket's
        with kept:
            comes = {"event": "instance", "id": self._names[kind], "kind": kind, "pid": 1}
            packets.send(self._coordinator.supervisor, comes, [kept.fileno()])
        return ours

    def live(self, cases: Counter[str]) -> int:
        """Wish for the Shadow, let it change and rise; returns how much it has claimed."""
        self._say(self._body, "body", pairs=[])
        about = {"resident_bytes": 1, "load_ms": 1.0, "paired": self._rng.random() < 0.5}
        self._claim("registered", (1, 2), **self._names, **about)
        self._wish("create")
        for _ in range(PER_PAIR):
            self._settle()
            self._wish(self._rng.choice(WISHES))
        self._settle()
        for kind, ours in (("body", self._body), ("shadow", self._shadow)):
            ours.close()
            packets.send(self._coordinator.supervisor, {"event": "gone", "id": self._names[kind]})
        self._coordinator.ping()
        self._coordinator.drain()
        cases["coordinator, blocks"] += self._claims
        return self._claims

    def _wish(self, do: str) -> None:
        task = {"blocks": self._some_blocks(), "split": [0, 1], "cores": 1, "cpus": [0], "expected_ms": []}
        message: Message = {"do": do, "shadow": self._names["shadow"]}
        if do == "create":
            paths = {"program": "/p", "weights": "/w", "layers": str(self._layers)}
            message |= {"body": self._names["body"], "weight_mode": "shared", "max_batch": 4, "join": [], "zygote": "torch"}
            message |= {**task, **paths}
        elif do == "change":
            message |= task
        fds = [os.open(os.devnull, os.O_RDWR) for _ in range(2 if do == "promote" else 0)]
        packets.send(self._coordinator.platform, message, fds)
        for fd in fds:
            os.close(fd)

    def _settle(self) -> None:
        """Answer all that both are told, until they are told nothing more for a moment."""
        self._coordinator.ping()
        while select.select([self._body, self._shadow], [], [], MOMENT_S)[0]:
            if not self._answer_for_the_body() + self._answer_for_the_shadow():
                # One that is not heard any more has lost its other end.
                return

    def _answer_for_the_body(self) -> int:
        messages = _received(self._body)
        for message in messages:
            do, shadow = message["do"], message.get("shadow")
            if do == "change":
                self._say(self._body, "changed", shadow=shadow, blocks=message["blocks"])
            elif do in ("pair", "unpair"):
                self._say(self._body, f"{do}ed", shadow=shadow)
        return len(messages)

    def _answer_for_the_shadow(self) -> int:
        messages = _received(self._shadow)
        for message in messages:
            if message["do"] == "change":
                self._claim("changed", message["blocks"])
            elif message["do"] == "join":
                self._say(self._shadow, "paired", shadow=self._names["shadow"])
        return len(messages)

    def _claim(self, say: str, ordered: Sequence[int], **fields: Any) -> None:
        """Report the ordered blocks as held, or send an invalid message."""
        nonsense: tuple[Sequence[int], ...] = (
            (),
            (*ordered, BLOCKS),
            (*ordered, MOST - 1),
            (MOST - 1,),
            ordered[:1],
            range(BLOCKS),
            range(MOST),
            self._some_blocks(),
        )
        blocks = ordered if self._rng.random() < 0.85 else self._rng.choice(nonsense)
        self._say(self._shadow, say, blocks=list(blocks), **fields)
        self._claims += 1

    def _say(self, ours: socket.socket, say: str, **fields: Any) -> None:
        # As above.
        with contextlib.suppress(packets.PeerGoneError):
            packets.send(ours, {"say": say, "epoch": 1, **fields})

    def _some_blocks(self) -> list[int]:
        return sorted(self._rng.sample(range(BLOCKS), self._rng.randint(1, 3)))


def _received(ours: socket.socket) -> list[Message]:
    """The messages that have come, with their descriptors closed."""
    found: list[Message] = []
    with contextlib.suppress(BlockingIOError, packets.PeerGoneError):
        while True:
            message, descriptors = packets.receive(ours)
            for descriptor in descriptors:
                os.close(descriptor)
            found.append(message)
    return found


def _layers_file(folder: Path) -> Path:
    blocks = tuple(Block(f"b{n}", n, n + 1, (f"v{n}",), (f"v{n + 1}",), (), 1, 1, splittable=True) for n in range(BLOCKS))
    layers = Layers("0" * 64, (f"v{BLOCKS}",), blocks, {f"v{n}": 10 for n in range(BLOCKS + 1)})
    path = folder / "layers.json"
    path.write_text(json.dumps(layers.to_json()), encoding="utf-8")
    return path

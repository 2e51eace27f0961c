"""Instances that send anything: `python -m tests.integration.coordinator.hostile CASES [SEED]`.

A real coordinator looks after an honest pair while hostile Bodies, containers and Shadows send it noise: bytes, torn and changed
messages, wrong types, lengths, names and epochs, messages out of turn, too much, too many descriptors, and sudden ends. What must
hold after any of it: it answers in time, the honest pair is as it was, and it has no more open than it should.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gnomon_core import packets
from tests.integration.coordinator.node import Coordinator, Instance, LaunchFds, close, eventually, layers_file, shadow_request

CHECK_EVERY = 20
"""Rounds."""
HOSTILE = 12
SLACK = 4
"""Descriptors that may be open for a moment: containers that the coordinator has just been handed."""
VALID: tuple[dict[str, Any], ...] = (
    {"say": "empty", "pid": 1},
    {"say": "registered", "shadow": "s1", "body": "b1", "blocks": [1, 2], "resident_bytes": 1, "load_ms": 1.0, "paired": True},
    {"say": "body", "pairs": [{"shadow": "s1", "blocks": [1, 2], "split": [0, 1]}]},
    {"say": "body", "pairs": []},
    {"say": "paired", "shadow": "s1"},
    {"say": "changed", "blocks": [1, 2]},
    {"say": "unpaired", "shadow": "s1", "reason": "x"},
    {"say": "failed", "shadow": "s1", "reason": "x"},
    {"say": "stale", "epoch": 1 << 40},
)
ODD: tuple[Any, ...] = (
    None, True, -1, 0, 1, 1 << 31, 1 << 63, 1 << 200, -0.0, 1.5, 1e308, float("nan"), float("inf"), "", "s1", "b1", "../etc",
    "\0", "\ud800", "x" * 5000, [], [[]], {}, {"a": {}}, [1, 2, 3], [2, 1], [-1], [1 << 70], ["1"], [None], list(range(3000)),
)  # fmt: skip


@dataclass
class Outcome:
    """The result of a run. `worst_s` is the longest that the coordinator took to answer."""

    cases: int
    worst_s: float
    descriptors: int


class Attack:
    """The honest pair, the hostile instances, and one round of acts after the other."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.rng = random.Random(seed)
        self.coordinator = Coordinator(1)
        self.layers = layers_file(folder)
        self.launch_fds = LaunchFds()
        self.names = 0
        self.worst_s = 0.0
        self.body, self.shadow, self.data = self._honest_pair()
        self.hostile: list[Instance] = [self._another() for _ in range(HOSTILE)]
        self.coordinator.ping()
        self.normal = self.coordinator.descriptors()

    def _honest_pair(self) -> tuple[Instance, Instance, list[int]]:
        body, shadow = Instance("honest-body"), Instance("honest-pool")
        coordinator = self.coordinator
        coordinator.hand_over(body, "body")
        body.hear("hello")
        body.say("body", pairs=[])
        coordinator.fill_pool(shadow)
        coordinator.platform.send(shadow_request(self.layers, "honest-shadow", "honest-body"), self.launch_fds.descriptors)
        close(shadow.hear("load")[1])
        about = {"shadow": "honest-shadow", "body": "honest-body", "blocks": [1, 2], "resident_bytes": 1, "load_ms": 1.0}
        shadow.say("registered", **about, paired=False)
        data = shadow.hear("join")[1] + body.hear("pair")[1]
        body.say("paired", shadow="honest-shadow")
        coordinator.platform.expect("event", "paired")
        # No pool any more: whatever becomes of the hostile containers, it asks for no others.
        coordinator.platform.send({"do": "pool", "size": 0, "zygote": "torch"})
        return body, shadow, data

    def _another(self) -> Instance:
        self.names += 1
        instance = Instance(f"hostile-{self.names}")
        instance.epoch = 1
        self.coordinator.hand_over(instance, self.rng.choice(["body", "empty", "shadow"]))
        return instance

    def round(self) -> None:
        """A hostile act of each instance, all of which are still heard. What they sent has been read when this returns."""
        for instance in self.hostile:
            self._act(instance)
        for _ in range(2):
            self.coordinator.ping()
        table = self.coordinator.table()
        for index, instance in enumerate(self.hostile):
            accepted = table.get(instance.name, ["", None, [], "ending"])[3] not in ("barred", "ending")
            if not accepted or self.rng.random() < 0.3:
                self._replace(index)

    def _act(self, instance: Instance) -> None:
        act: Callable[[Instance], None] = self.rng.choice(
            [
                self._noise,
                self._torn,
                self._changed,
                self._changed,
                self._out_of_turn,
                self._descriptors,
                self._oversize,
                self._flood,
            ]
        )
        # One that is not heard any more has a full socket after a while.
        with contextlib.suppress(BlockingIOError, packets.PeerGoneError, BrokenPipeError):
            act(instance)

    def _replace(self, index: int) -> None:
        instance = self.hostile[index]
        # Some say goodbye by closing their socket, some by dying, in either order.
        first, second = self.rng.sample([lambda: self.coordinator.gone(instance.name), instance.socket.close], 2)
        first()
        second()
        instance.close()
        self.hostile[index] = self._another()

    def _noise(self, instance: Instance) -> None:
        instance.socket.send(self.rng.randbytes(self.rng.choice([0, 1, 2, 16, 300, 5000])))

    def _torn(self, instance: Instance) -> None:
        data = self._message()
        cut = self.rng.randrange(len(data) + 1)
        instance.socket.send(data[:cut] if self.rng.random() < 0.5 else data[cut:])

    def _message(self, **changes: Any) -> bytes:
        message = {"epoch": self.rng.choice([0, 1, 1, 1, 2]), **self.rng.choice(VALID), **changes}
        return json.dumps(message).encode()

    def _changed(self, instance: Instance) -> None:
        message: dict[str, Any] = {"epoch": 1, **self.rng.choice(VALID)}
        for _ in range(self.rng.randint(1, 3)):
            message[self.rng.choice([*message, "epoch", "say", "shadow", "body", "blocks"])] = self.rng.choice(ODD)
        if self.rng.random() < 0.2:
            message = {"say": message}
        data = bytearray(json.dumps(message).encode()[: packets.MAX_PACKET_BYTES])
        if self.rng.random() < 0.3:
            for _ in range(self.rng.randint(1, 8)):
                data[self.rng.randrange(len(data))] = self.rng.randrange(256)
        instance.socket.send(data)

    def _out_of_turn(self, instance: Instance) -> None:
        """Right in itself, wrong here: about others, about what never was."""
        name = self.rng.choice([instance.name, "honest-shadow", "honest-body", "nobody"])
        other = self.rng.choice([instance.name, "honest-shadow", "honest-body", "nobody"])
        message = dict(self.rng.choice(VALID))
        pairs = [{"shadow": name, "blocks": [1, 2], "split": [0, 1]}]
        for field, value in (("shadow", name), ("body", other), ("pairs", pairs)):
            if field in message:
                message[field] = value
        instance.send({"epoch": 1, **message})

    def _descriptors(self, instance: Instance) -> None:
        count = self.rng.choice([1, 2, 3, 8, 9, 64, 253])
        socket.send_fds(instance.socket, [self._message()], [self.launch_fds.descriptors[0]] * count)

    def _oversize(self, instance: Instance) -> None:
        size = self.rng.choice([60_000, packets.MAX_PACKET_BYTES, packets.MAX_PACKET_BYTES + 1, 100_000])
        filler = self.rng.choice([b"[", b"{", b'{"say":', b"9", b" ", b'"'])
        instance.socket.send((filler * size)[:size])

    def _flood(self, instance: Instance) -> None:
        data = self._message()
        for _ in range(self.rng.choice([10, 10, 10, 300])):
            instance.socket.send(data)

    def check(self) -> None:
        """Whether all is well."""
        began_s = time.monotonic()
        self.coordinator.ping(patience_s=5.0)
        self.worst_s = max(self.worst_s, time.monotonic() - began_s)
        table = self.coordinator.table()
        assert table["honest-body"] == ["body", ["honest-shadow"], [1, 2], "paired"], table["honest-body"]
        assert table["honest-shadow"] == ["shadow", ["honest-body"], [1, 2], "paired"], table["honest-shadow"]
        assert len(table) <= 2 + HOSTILE
        self._honest_hear_nothing()
        self.coordinator.supervisor.take()
        for message, descriptors in self.coordinator.supervisor.waiting:
            assert not descriptors
            assert not str(message.get("id")).startswith("honest"), message
        self.coordinator.supervisor.waiting.clear()
        eventually(lambda: self.coordinator.descriptors() <= self.normal + SLACK, 5.0)

    def _honest_hear_nothing(self) -> None:
        for instance in (self.body, self.shadow):
            instance.take()
            assert instance.waiting == [], instance.waiting

    def end(self) -> None:
        close(self.data)
        for instance in (*self.hostile, self.body, self.shadow):
            instance.close()
        self.launch_fds.close()
        assert self.coordinator.stop() == 0


def attack(cases: int, seed: int = 1) -> Outcome:
    """So many hostile acts. Fails where one of them has done harm."""
    with tempfile.TemporaryDirectory() as folder:
        attack = Attack(Path(folder), seed)
        try:
            rounds = -(-cases // HOSTILE)
            for number in range(1, rounds + 1):
                attack.round()
                if number % CHECK_EVERY == 0 or number == rounds:
                    attack.check()
            return Outcome(rounds * HOSTILE, attack.worst_s, attack.coordinator.descriptors() - attack.normal)
        finally:
            attack.end()


if __name__ == "__main__":
    began_s = time.monotonic()
    outcome = attack(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1)
    os.write(1, f"{outcome} in {time.monotonic() - began_s:.0f} s\n".encode())

"""A real coordinator process, with a test in the place of everybody else: the supervisor, the platform and the instances."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gnomon_core import packets
from gnomon_core.blocks import Block, Layers

PATIENCE_S = 10.0
Message = tuple[dict[str, Any], list[int]]


def layers_file(folder: Path) -> Path:
    """Six blocks that each hand 10 bytes on."""
    blocks = tuple(Block(f"b{n}", n, n + 1, (f"v{n}",), (f"v{n + 1}",), (), 1, 1, True) for n in range(6))  # noqa: FBT003
    layers = Layers("0" * 64, ("v6",), blocks, {f"v{n}": 10 for n in range(7)})
    path = folder / "layers.json"
    path.write_text(json.dumps(layers.to_json()))
    return path


class End:
    """An end of a socket, with what has come and was not asked for yet."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)  # noqa: FBT003 - the signature is socket's
        self.socket = connection
        self.waiting: list[Message] = []

    def send(self, message: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
        packets.send(self.socket, message, descriptors)

    def take(self) -> None:
        """Take what has come."""
        with contextlib.suppress(BlockingIOError):
            while True:
                self.waiting.append(packets.receive(self.socket))

    def expect(self, name: str, value: str, patience_s: float = PATIENCE_S) -> Message:
        """The first message with this in it, in place of all before it."""
        deadline_s = time.monotonic() + patience_s
        while True:
            self.take()
            for index, (message, _) in enumerate(self.waiting):
                if message.get(name) == value:
                    found = self.waiting[index]
                    for _, descriptors in self.waiting[:index]:
                        close(descriptors)
                    del self.waiting[: index + 1]
                    return found
            left_s = deadline_s - time.monotonic()
            assert left_s > 0, f"{name} {value!r} did not come; there were {[message for message, _ in self.waiting]}"
            select.select([self.socket], [], [], left_s)

    def close(self) -> None:
        for _, descriptors in self.waiting:
            close(descriptors)
        self.socket.close()


def close(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


class Instance(End):
    """A scripted instance: the test says what it says."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.kept, mine = packets.socket_pair()
        self.epoch = 0
        super().__init__(mine)

    def hear(self, what: str, patience_s: float = PATIENCE_S) -> Message:
        message, descriptors = self.expect("do", what, patience_s)
        self.epoch = max(self.epoch, message["epoch"])
        return message, descriptors

    def say(self, what: str, **fields: Any) -> None:
        self.send({"say": what, "epoch": self.epoch, **fields})

    def close(self) -> None:
        super().close()
        self.kept.close()


class Coordinator:
    """A coordinator's process, and the other ends of its two sockets."""

    def __init__(
        self, epoch: int, instances: Sequence[tuple[Instance, str]] = (), platform: End | None = None, *, complete: bool = True
    ) -> None:
        """`complete` says that these are all the instances that there are."""
        ours, theirs = packets.socket_pair()
        self.supervisor = End(ours)
        mine, platforms = packets.socket_pair()
        self.platform = platform or End(mine)
        self.epoch = epoch
        with theirs, platforms:
            numbers = (theirs.fileno(), platforms.fileno())
            command = [sys.executable, "-I", "-m", "gnomon_coordinator", *map(str, numbers)]
            self.process = subprocess.Popen(command, pass_fds=numbers)
        self.supervisor.send({"event": "epoch", "epoch": epoch})
        for instance, kind in instances:
            self.hand_over(instance, kind)
        if complete:
            self.supervisor.send({"event": "adopted"})
            self.platform.expect("event", "ready")

    def hand_over(self, instance: Instance, kind: str) -> None:
        """Hand an instance over, as a supervisor does once it is forked."""
        self.supervisor.send({"event": "instance", "id": instance.name, "kind": kind, "pid": 1}, [instance.kept.fileno()])

    def fill_pool(self, container: Instance) -> None:
        """Have it ask for a container, and hand it this one, which is ready."""
        self.platform.send({"do": "pool", "size": 1, "zygote": "torch"})
        fork, descriptors = self.supervisor.expect("do", "fork")
        close(descriptors)
        container.name = fork["id"]
        self.hand_over(container, "empty")
        container.hear("hello")
        container.say("empty", pid=1)
        eventually(lambda: bool(self.table()[container.name][3] == "ready"))

    def gone(self, name: str) -> None:
        self.supervisor.send({"event": "gone", "id": name})

    def ping(self, patience_s: float = PATIENCE_S) -> None:
        """Return when it has done all that it was told so far."""
        self.platform.send({"do": "ping", "number": 7})
        self.platform.expect("event", "pong", patience_s)

    def table(self) -> dict[str, list[Any]]:
        """The coordinator's registration table by id: type, partners, blocks, status."""
        self.platform.send({"do": "table"})
        message, _ = self.platform.expect("event", "table")
        return {row[0]: row[1:] for row in message["rows"]}

    def descriptors(self) -> int:
        """How many it has open."""
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))

    def signal(self, number: int) -> None:
        os.kill(self.process.pid, number)

    def stop(self) -> int:
        """End it as a supervisor does, by closing its end."""
        self.supervisor.close()
        self.platform.close()
        try:
            return self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGKILL)
            return self.process.wait()


def shadow_request(
    layers: Path, shadow: str = "s1", body: str = "b1", blocks: Sequence[int] = (1, 2), **fields: Any
) -> dict[str, Any]:
    """A platform's request for a Shadow."""
    about = {"cores": 1, "cpus": [0], "split": [0, 1], "max_batch": 4, "expected_ms": [], "join": [], "weight_mode": "shared"}
    about["zygote"] = "torch"
    paths = {"program": "/p", "weights": "/w", "layers": str(layers)}
    return {"do": "create", "shadow": shadow, "body": body, "blocks": list(blocks), **about, **paths, **fields}


class LaunchFds:
    """An order and a log, as a platform makes them."""

    def __init__(self) -> None:
        self.log, writes = os.pipe()
        self.descriptors = [packets.sealed_file("order", b"{}"), writes]

    def close(self) -> None:
        close([self.log, *self.descriptors])


def eventually(holds: Callable[[], bool], patience_s: float = PATIENCE_S) -> None:
    deadline_s = time.monotonic() + patience_s
    while not holds():
        assert time.monotonic() < deadline_s, "it never did"
        time.sleep(0.01)

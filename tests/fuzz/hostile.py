"""Generators of hostile messages with arbitrary fields, reproducible by seed.

A real coordinator between a supervisor and a platform that are both ours, and so may say anything.

What is reported of a run of fuzzing, whichever sockets it was at.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.report import Figure
from benchmarks.shadow.models import counted
from gnomon_core import packets
from gnomon_core.packets import MAX_PACKET_BYTES

PATIENCE_S = 20.0
VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 1, 2**31, 2**63, 2**70, 1e400, -0.5, "", "x", "pool-1-1", "a" * 5000, "\0", [], [[]], [0, 0], [-1], [2, 1],
    [True], ["0"], list(range(5000)), {}, {"a": 1}, [10**30],
)  # fmt: skip


def hostile(rng: random.Random, verb: str, verbs: Sequence[str], fields: Sequence[str]) -> dict[str, Any]:
    """A message that does, says or tells one of `verbs`, with some of `fields`: small enough for a packet."""
    message: dict[str, Any] = {verb: rng.choice(verbs)}
    message |= {field: rng.choice(VALUES) for field in rng.sample(fields, rng.randint(0, min(6, len(fields))))}
    while len(json.dumps(message)) > MAX_PACKET_BYTES:
        message.popitem()
    return message


def descriptors_of(pid: int) -> int:
    """Number of open file descriptors of a process."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def keeps_no_more(pid: int, most: int) -> None:
    """Return when a process has no more open than so many: the last of the news may still be on its way.

    Raises:
        RuntimeError: it keeps more.

    """
    end_s = time.monotonic() + PATIENCE_S
    while (there := descriptors_of(pid)) > most:
        if time.monotonic() > end_s:
            raise RuntimeError(f"at most {most} descriptors were expected, and {there} are there")
        time.sleep(0.01)


class Coordinator:
    """A real coordinator between a supervisor and a platform that are both ours."""

    def __init__(self) -> None:
        self.supervisor, theirs = packets.socket_pair()
        self.platform, platforms = packets.socket_pair()
        for end in (self.supervisor, self.platform):
            end.settimeout(PATIENCE_S)
        with theirs, platforms:
            numbers = (theirs.fileno(), platforms.fileno())
            command = [sys.executable, "-I", "-m", "gnomon_coordinator", *map(str, numbers)]
            self.process = subprocess.Popen(command, pass_fds=numbers, stderr=subprocess.DEVNULL)
        packets.send(self.supervisor, {"event": "epoch", "epoch": 1})
        packets.send(self.supervisor, {"event": "adopted"})
        packets.receive(self.platform)
        self.before = descriptors_of(self.process.pid)
        self._pings = 0

    def ping(self) -> None:
        """Return when it answers."""
        self._pings += 1
        packets.send(self.platform, {"do": "ping", "number": self._pings})
        while packets.receive(self.platform)[0] != {"event": "pong", "number": self._pings}:
            continue

    def drain(self) -> None:
        """Take what it wants of its supervisor, so that it is not the one who does not listen."""
        self.supervisor.setblocking(False)  # noqa: FBT003 - the signature is socket's
        with contextlib.suppress(BlockingIOError):
            while True:
                for descriptor in packets.receive(self.supervisor)[1]:
                    os.close(descriptor)
        self.supervisor.settimeout(PATIENCE_S)

    def end(self) -> None:
        """End the supervisor's side.

        Raises:
            RuntimeError: it had ended before, or does so with another status than 0.

        """
        self.supervisor.close()
        self.platform.close()
        status = self.process.wait(PATIENCE_S)
        if status:
            raise RuntimeError(f"the coordinator has ended with status {status}")


def figures_of(cases: Mapping[str, int], goal: float, trouble: str) -> list[Figure]:
    """How many cases there were, of at least so many, and that none of them was trouble: it would have ended the run."""
    detail = "; ".join(f"{name}: {count}" for name, count in sorted(cases.items()))
    return [
        counted("hostile cases", sum(cases.values()), "", at_least=goal, detail=detail),
        counted(trouble, 0, "", at_most=0, detail="any of them would have ended the run"),
    ]

"""A real coordinator between a supervisor and a platform that are both ours, and so may say anything."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys

from benchmarks.shadow.hostile import PATIENCE_S, descriptors_of
from gnomon_core import packets


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
        """Its supervisor goes.

        Raises:
            RuntimeError: it had ended before, or does so with another status than 0.

        """
        self.supervisor.close()
        self.platform.close()
        status = self.process.wait(PATIENCE_S)
        if status:
            raise RuntimeError(f"the coordinator has ended with status {status}")

"""A Body in a pod and the coordinator of its node: it finds the socket in the pod's volume, and comes again when that has gone.

    no volume                 it works without Shadows, and says so once
    the volume's socket ▶ connect: that connection is the Body's coordination socket (`gnomon_core.coordination`)
    the other end closes ▶ the Body goes on as it is ▶ connect again, as often as it takes

Two Bodies in one pod, say workers of a server, would take each other's place at the socket for ever. So a connection that hardly
lasted is not made again at once.

Who this pod is follows from its volume, so nothing is said here about that. A batch waits for none of it.
"""

from __future__ import annotations

import os
import select
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from gnomon_runtime.application import Beside
from gnomon_runtime.turns import Turns

SOCKET = "/run/gnomon/coordination.sock"
VARIABLE = "GNOMON_COORDINATION"
RETRY_S, LONGEST_RETRY_S = 0.25, 4.0
LASTING_S = 2.0
"""A connection that lasted so long ended with its coordinator."""
Collaborate = Callable[[socket.socket], Beside]


def socket_from(environment: Mapping[str, str]) -> Path | None:
    """Where the coordinator of this node listens for this pod; None in one that has no volume for it."""
    path = Path(environment.get(VARIABLE) or SOCKET)
    return path if path.parent.is_dir() else None


class Coordinated:
    """Keeps a Body in touch with its node's coordinator, whoever that is, from a thread that only waits."""

    def __init__(self, path: Path, turns: Turns, collaborate: Collaborate) -> None:
        """`collaborate` takes orders from a connection, in the thread of `turns`."""
        self._path = path
        self._turns = turns
        self._collaborate = collaborate
        threading.Thread(target=self._visit, name="coordinated", daemon=True).start()

    def _visit(self) -> None:
        pause_s = RETRY_S
        waits = threading.Event()
        while True:
            if self._stay() >= LASTING_S:
                pause_s = RETRY_S
                continue
            waits.wait(pause_s)
            pause_s = min(LONGEST_RETRY_S, 2 * pause_s)

    def _stay(self) -> float:
        """Seconds for which there was a coordinator to work with."""
        connection = _connected(self._path)
        if connection is None:
            return 0.0
        began_s = time.monotonic()
        with connection.dup() as watched:
            self._turns.submit(self._meet, connection).result()
            say("This Body works with the coordinator of its node.")
            poll = select.poll()
            # Its end and nothing else: what comes is read between batches.
            poll.register(watched, 0)
            poll.poll()
        say("The node's coordinator has gone. This Body goes on, and comes again when there is one.")
        return time.monotonic() - began_s

    def _meet(self, connection: socket.socket) -> None:
        self._turns.attend_with(self._collaborate(connection))


def say(text: str) -> None:
    """A line of the function's log."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def _connected(path: Path) -> socket.socket | None:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            # By its folder's descriptor: an address has room for 107 bytes only.
            connection.connect(f"/proc/self/fd/{folder}/{path.name}")
        finally:
            os.close(folder)
    except OSError:
        connection.close()
        return None
    return connection

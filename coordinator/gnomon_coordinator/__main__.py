"""`python -m gnomon_coordinator SUPERVISOR PLATFORM`: the coordinator's process, with two inherited sockets."""

from __future__ import annotations

import ctypes
import signal
import socket
import sys

from gnomon_coordinator.links import Link
from gnomon_coordinator.server import Server

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_NAME = 1, 4, 15
MAX_WAITING = 100_000
"""The most messages in the outbox to the supervisor or the platform, which are trusted and never stop reading for long."""


def main(arguments: list[str]) -> int:
    """Run until the supervisor closes its end."""
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    # Instances may run as the same user, and must not be able to trace this process.
    libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    libc.prctl(_PR_SET_NAME, b"gnomon coord", 0, 0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    supervisor, platform = (socket.socket(fileno=int(text)) for text in arguments)
    for connection in (supervisor, platform):
        connection.set_inheritable(False)
    links = [Link(connection, max_waiting=MAX_WAITING, rate_limited=False) for connection in (supervisor, platform)]
    Server(links[0], links[1]).serve()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

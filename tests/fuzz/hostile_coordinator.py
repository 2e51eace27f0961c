"""Stands where a coordinator would, and asks its supervisor for anything: `hostile_coordinator.py SEED COUNT SECONDS`.

The supervisor starts it and appends two descriptors, its own socket's and the platform's. Its last word is no message; after that
the supervisor ends it.
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
import sys
import time

from gnomon_core import packets
from tests.fuzz.hostile import hostile

ASKS = ("fork", "assign", "kill", "", "create", "zygote")


def main(seed: int, count: int, seconds: float, supervisor: socket.socket) -> None:
    rng = random.Random(f"{seed} {os.getpid()}")
    end_s = time.monotonic() + seconds
    for _ in range(count):
        message = hostile(rng, "do", ASKS, ("id", "zygote", "as", "join", "do"))
        nothing = [os.open(os.devnull, os.O_RDONLY) for _ in range(rng.randint(0, 4))]
        packets.send(supervisor, message, nothing)
        for descriptor in nothing:
            os.close(descriptor)
    time.sleep(max(0.0, end_s - time.monotonic()))
    supervisor.send(rng.choice((b"{", b"[]", b"\xff\xfe", b"[" * 60_000)))
    time.sleep(60.0)


if __name__ == "__main__":
    with contextlib.suppress(packets.PeerGoneError):
        main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), socket.socket(fileno=int(sys.argv[4])))

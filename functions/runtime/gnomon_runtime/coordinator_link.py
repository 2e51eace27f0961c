"""The connection of a Body in a pod to the coordinator of its node, over the socket in the pod's volume; it reconnects.

    no volume                 the Body works without Shadows, and logs so once
    the volume's socket ▶ connect: that connection is the Body's coordination socket (`gnomon_core.coordination`)
    the other end closes ▶ the Body keeps its pairs ▶ reconnect, with back-off

Two Bodies in one pod, such as workers of a server, would replace each other at the socket for ever. So after a short connection
the next one waits for a back-off.

The volume identifies the pod, so the Body sends no identity. Batches never wait for the connection.
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

from gnomon_runtime.application import IdleWork
from gnomon_runtime.compute_thread import ComputeThread

SOCKET = "/run/gnomon/coordination.sock"
VARIABLE = "GNOMON_COORDINATION"
RETRY_S, LONGEST_RETRY_S = 0.25, 4.0
STABLE_S = 2.0
"""A connection that lasted this long, in seconds, ended because its coordinator ended: reconnect without back-off."""
TakeOrders = Callable[[socket.socket], IdleWork]


def socket_from(environment: Mapping[str, str]) -> Path | None:
    """The path of the node coordinator's socket for this pod; None if the pod has no volume for it."""
    path = Path(environment.get(VARIABLE) or SOCKET)
    return path if path.parent.is_dir() else None


class CoordinatorLink:
    """Keeps a Body connected to its node's coordinator, from a thread that mostly sleeps."""

    def __init__(self, path: Path, compute_thread: ComputeThread, take_orders: TakeOrders) -> None:
        """`take_orders` takes orders from a connection, in the thread of `compute_thread`."""
        self._path = path
        self._compute_thread = compute_thread
        self._take_orders = take_orders
        threading.Thread(target=self._keep_connected, name="coordinated", daemon=True).start()

    def _keep_connected(self) -> None:
        pause_s = RETRY_S
        waits = threading.Event()
        while True:
            if self._connect() >= STABLE_S:
                pause_s = RETRY_S
                continue
            waits.wait(pause_s)
            pause_s = min(LONGEST_RETRY_S, 2 * pause_s)

    def _connect(self) -> float:
        """Connect and wait until the coordinator closes; returns the seconds for which it was connected."""
        connection = _connected(self._path)
        if connection is None:
            return 0.0
        started_s = time.monotonic()
        with connection.dup() as watched:
            self._compute_thread.submit(self._listen_on, connection).result()
            log("This Body works with the coordinator of its node.")
            poll = select.poll()
            # Poll for its end only: messages are read between batches.
            poll.register(watched, 0)
            poll.poll()
        log("The node's coordinator has disconnected. This Body keeps serving, and reconnects when there is one.")
        return time.monotonic() - started_s

    def _listen_on(self, connection: socket.socket) -> None:
        self._compute_thread.set_idle_work(self._take_orders(connection))


def log(text: str) -> None:
    """Write a line to the function's log."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def _connected(path: Path) -> socket.socket | None:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            # Through the folder's descriptor, because a Unix socket address is limited to 107 bytes.
            connection.connect(f"/proc/self/fd/{folder}/{path.name}")
        finally:
            os.close(folder)
    except OSError:
        connection.close()
        return None
    return connection

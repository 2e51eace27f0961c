"""A pod's socket listens in the pod's volume: a connection over it comes from that pod, whatever the peer says.

Only that pod has the folder mounted, and on the node the path to it is closed to everybody but root. So no peer needs to
authenticate. The connection is the coordination socket of the pod's Body itself (`gnomon_core.coordination`): SOCK_SEQPACKET,
over which descriptors travel. A pod has one: the newest replaces the one before, because a restarted container may connect
before the end of its predecessor has been seen.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass

ACCEPT_RETRY_S = 1.0
"""Pause after accept failed for lack of descriptors. The listening socket stays readable, and would otherwise keep us busy."""


class Acceptor:
    """Passes each connection of a listening socket to `accepted`, which closes it. Neither blocks. `port` is its TCP port.

    `pause_s` is how long it accepts nothing after a connection: peers that need to connect once cannot keep it busy.
    """

    def __init__(self, listener: socket.socket, accepted: Callable[[socket.socket], None], pause_s: float = 0.0) -> None:
        listener.setblocking(False)  # noqa: FBT003 - the signature is socket's
        self._listener, self._accepted, self._pause_s = listener, accepted, pause_s
        self._loop = asyncio.get_running_loop()
        self._listen()

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    def close(self) -> None:
        """Accept no more. Accepted connections stay open. May be called again."""
        if self._listener.fileno() >= 0:
            self._loop.remove_reader(self._listener.fileno())
            self._listener.close()

    def _listen(self) -> None:
        if self._listener.fileno() >= 0:
            self._loop.add_reader(self._listener.fileno(), self._accept)

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, ConnectionError):
            return  # the peer has disconnected
        except OSError:
            self._pause(ACCEPT_RETRY_S)
            return
        if self._pause_s:
            self._pause(self._pause_s)
        connection.setblocking(False)  # noqa: FBT003 - the signature is socket's
        self._accepted(connection)

    def _pause(self, seconds: float) -> None:
        self._loop.remove_reader(self._listener.fileno())
        self._loop.call_later(seconds, self._listen)


SOCKET = "coordination.sock"
_FOR_ALL = 0o666
"""Mode of the socket: a function's container runs as any user; access to the folder decides who can connect."""
_WAITING = 4
LISTEN_RETRY_S = 0.1
"""Pause in seconds after a connection: a Body connects once, and another process of its pod at most ten times a second."""


@dataclass(frozen=True, slots=True)
class Pod:
    """The pod of a socket, as the kubelet names it. `function` is the function that the pod's volume names."""

    uid: str
    namespace: str
    name: str
    function: str = ""

    @property
    def instance(self) -> str:
        """The name of its Body among the instances of the node."""
        return f"{self.name[:200]}.{self.uid}"


Accepted = Callable[[Pod, socket.socket], None]
"""Gets each connection, and closes the socket."""


class PodSocket:
    """The listening socket of one pod. Runs on an event loop."""

    def __init__(self, pod: Pod, folder: int, accepted: Accepted) -> None:
        self.pod = pod
        self._acceptor = Acceptor(_listen_in(folder), lambda connection: accepted(pod, connection), LISTEN_RETRY_S)

    def close(self) -> None:
        """Accept no more. Accepted connections stay open. May be called again."""
        self._acceptor.close()


def _listen_in(folder: int) -> socket.socket:
    """Listen in this folder. Its descriptor is in the path: a pod's own path is longer than an address may be."""
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(SOCKET, dir_fd=folder)
        # A later chmod would follow a link that has replaced the socket by then.
        mask = os.umask(0o777 & ~_FOR_ALL)
        try:
            listening.bind(f"/proc/self/fd/{folder}/{SOCKET}")
        finally:
            os.umask(mask)
        listening.listen(_WAITING)
    except OSError:
        listening.close()
        raise
    return listening

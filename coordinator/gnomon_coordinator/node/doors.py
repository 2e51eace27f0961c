"""A door is a listening socket in a pod's volume: whoever comes through it is that pod, whatever it says.

Only that pod has the folder mounted, and on the node the way to it is closed to everybody but root. So nobody is asked who they
are. What comes through is the coordination socket of the pod's Body itself (`gnomon_core.coordination`): a connection of
SOCK_SEQPACKET, over which descriptors travel. A pod has one: the newest takes the place of the one before, because a container
that was restarted may be back before the end of its predecessor has been seen.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass

from gnomon_coordinator.node.listening import Listening

SOCKET = "coordination.sock"
_FOR_ALL = 0o666
"""A function's container runs as any user; the folder's way in decides who gets here."""
_WAITING = 4
REST_S = 0.1
"""A Body comes once. Whatever else runs in its pod may come ten times a second, and cost the node's other pods nothing."""


@dataclass(frozen=True, slots=True)
class Pod:
    """Who is at the other end, as the kubelet has said. `function` is what the pod's own volume says that it is a part of."""

    uid: str
    namespace: str
    name: str
    function: str = ""

    @property
    def instance(self) -> str:
        """Its name among the instances of the node."""
        return f"{self.name[:200]}.{self.uid}"


Came = Callable[[Pod, socket.socket], None]
"""Gets each connection; the socket is its to close."""


class Door:
    """One pod's. Lives on an event loop."""

    def __init__(self, pod: Pod, folder: int, came: Came) -> None:
        self.pod = pod
        self._listening = Listening(_listening(folder), lambda connection: came(pod, connection), REST_S)

    def close(self) -> None:
        """Let nobody in any more. What has come stays. May be called again."""
        self._listening.close()


def _listening(folder: int) -> socket.socket:
    """Listen in this folder. Its descriptor is in the path: a pod's own path is longer than an address may be."""
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(SOCKET, dir_fd=folder)
        # To change the mode afterwards would be to follow whatever is there by then.
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

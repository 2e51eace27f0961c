"""Connections as they come, on an event loop: through a pod's door, and at the port for Bodies of other nodes.

A listening socket stays readable while somebody waits at it. A process that has no descriptor left for whoever that is would be
told of him over and over, and do nothing else. It looks again after a rest, in which others may have ended. Where whoever comes
needs to come once, it may rest after each: then nobody keeps it busy by coming again and again.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

REST_S = 1.0


class Listening:
    """Gives each connection of a listening socket to `came`, whose it is then. Neither blocks. `port` is TCP's number of it.

    `rest_s` is how long it lets nobody in after somebody has come.
    """

    def __init__(self, listener: socket.socket, came: Callable[[socket.socket], None], rest_s: float = 0.0) -> None:
        listener.setblocking(False)  # noqa: FBT003 - the signature is socket's
        self._listener, self._came, self._rest_s = listener, came, rest_s
        self._loop = asyncio.get_running_loop()
        self._listen()

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    def close(self) -> None:
        """Let nobody in any more. What has come stays. May be called again."""
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
            return  # whoever it was has gone again
        except OSError:
            self._rest(REST_S)
            return
        if self._rest_s:
            self._rest(self._rest_s)
        connection.setblocking(False)  # noqa: FBT003 - the signature is socket's
        self._came(connection)

    def _rest(self, seconds: float) -> None:
        self._loop.remove_reader(self._listener.fileno())
        self._loop.call_later(seconds, self._listen)

"""Who has closed a socket that somebody else reads: told once, whatever lies in it unread."""

from __future__ import annotations

import asyncio
import select
import socket
from collections.abc import Callable


class HangUps:
    """Sockets that are watched for their end only. Lives on an event loop."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._watched: dict[int, Callable[[], None]] = {}
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._epoll.fileno(), self._look)

    def watch(self, connection: socket.socket, act: Callable[[], None]) -> None:
        """Call `act` when the other side closes its end."""
        self._watched[connection.fileno()] = act
        # Without EPOLLIN: what comes is for whoever reads.
        self._epoll.register(connection, select.EPOLLRDHUP | select.EPOLLONESHOT)

    def forget(self, connection: socket.socket) -> None:
        """Watch it no more. Nothing happens to one that is not watched."""
        if self._watched.pop(connection.fileno(), None) is not None:
            self._epoll.unregister(connection)

    def close(self) -> None:
        """Watch nothing any more."""
        self._loop.remove_reader(self._epoll.fileno())
        self._epoll.close()
        self._watched.clear()

    def _look(self) -> None:
        for descriptor, _ in self._epoll.poll(0):
            act = self._watched.get(descriptor)
            if act is not None:
                act()

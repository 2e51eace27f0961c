"""Accepts connections: as many in one turn of the event loop as the loop can serve, and none whose client has gone.

uvloop accepts one connection per turn, so that a queue of dead connections, or a burst of new ones, made everybody wait for as
many turns. Here a connection whose client has closed it costs one system call each to accept, to look at and to close: its
request is not parsed, let alone executed.

What waited in the kernel before it was accepted counts: the kernel says how long ago the last bytes came (`tcpi_last_data_recv`).
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from gnomon_gateway.server.hung_up import sent_and_hung_up

MOST_OPENED = 32
"""Connections that are opened in a turn of the loop. Each costs about 0.1 ms with its request, for which the open ones wait."""
MOST_ACCEPTED = 512
"""Connections that are looked at in a turn of the loop, dead ones included."""
_RETRY_S = 0.1
"""After no connection could be accepted for want of file descriptors or memory."""
_LAST_DATA_OFFSET, _INFO_BYTES = 52, 56
"""Where `tcpi_last_data_recv` stands in `struct tcp_info` (linux/tcp.h): 8 single bytes, then the twelfth 32-bit number."""
_TCP_INFO = getattr(socket, "TCP_INFO", None)
_LOG = logging.getLogger(__name__)


class Peer(NamedTuple):
    """Who has connected.

    `arrived_s` is when the last bytes came that were there before the connection was accepted, on the monotonic clock; 0 if there
    were none.
    """

    host: str
    port: int
    descriptor: int
    arrived_s: float


class Acceptor:
    """Accepts from a listening socket from `start` to `stop`; `opened` makes each connection's protocol."""

    def __init__(self, listener: socket.socket, opened: Callable[[Peer], asyncio.Protocol]) -> None:
        self._listener = listener
        self._opened = opened
        self._loop = asyncio.get_running_loop()
        self._opening: set[asyncio.Task[Any]] = set()
        self._retry: asyncio.TimerHandle | None = None
        self._stopped = False
        self._family = int(listener.family)
        listener.settimeout(0.0)

    def start(self) -> None:
        """Accept from now on."""
        self._retry = None
        self._loop.add_reader(self._listener.fileno(), self._accept_some)

    async def stop(self) -> None:
        """Accept who has connected by now, and refuse everybody else. Returns when they are open."""
        self._stopped = True
        if self._retry is not None:
            self._retry.cancel()
        self._loop.remove_reader(self._listener.fileno())
        while self._accept():
            pass
        self._listener.close()
        if self._opening:
            await asyncio.wait(self._opening)

    def _accept_some(self) -> None:
        for _ in range(MOST_ACCEPTED):
            if not self._accept() or len(self._opening) >= MOST_OPENED:
                return

    def _accept(self) -> bool:
        """Accept one connection; whether there may be another."""
        try:
            descriptor, address = self._listener._accept()  # type: ignore[attr-defined]  # noqa: SLF001 - see below
        except (BlockingIOError, InterruptedError):
            return False
        except ConnectionError:  # it was reset while it waited
            return True
        except OSError as error:
            _LOG.warning("cannot accept connections: %s", error)
            if not self._stopped:
                # The listener stays readable: asked again at once, the loop would do nothing else.
                self._loop.remove_reader(self._listener.fileno())
                self._retry = self._loop.call_later(_RETRY_S, self.start)
            return False
        sent, hung_up = sent_and_hung_up(descriptor)
        if hung_up:
            os.close(descriptor)
            return True
        # Not a `socket.socket`: that makes an enumeration of its family and its type at every look, which took as long as the
        # rest of accepting.
        connection: Any = socket.SocketType(self._family, socket.SOCK_STREAM, 0, descriptor)
        arrived_s = time.monotonic() - _waited_s(connection) if sent else 0.0
        peer = Peer(address[0], address[1], descriptor, arrived_s)
        opening = self._loop.create_task(self._loop.connect_accepted_socket(partial(self._opened, peer), connection))
        self._opening.add(opening)
        opening.add_done_callback(self._is_open)
        return True

    def _is_open(self, opening: asyncio.Task[Any]) -> None:
        self._opening.discard(opening)
        if not opening.cancelled() and (error := opening.exception()) is not None:
            _LOG.debug("a connection has ended before it was open: %s", error)


def _waited_s(connection: socket.socket) -> float:
    """How long ago the last bytes of this connection were received."""
    if _TCP_INFO is None:
        return 0.0
    info = connection.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, _INFO_BYTES)
    return int.from_bytes(info[_LAST_DATA_OFFSET:_INFO_BYTES], sys.byteorder) / 1e3

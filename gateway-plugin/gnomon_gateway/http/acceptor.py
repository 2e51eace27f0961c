"""The acceptor: takes all connections from the kernel's queue, and opens as many per turn of the event loop as it can serve.

uvloop accepts one connection per turn, so that a queue of dead connections, or a burst of new ones, delayed every client by as
many turns. Here a connection whose client has disconnected costs three system calls (accept, poll, close): its request is neither
parsed nor executed.

    kernel's queue ─▶ accepted, not read ─▶ open: parsed and served
                        │ client has disconnected: closed        too old: 503

If more clients connect than the loop can serve, all would be served too late in their order of arrival. So once the oldest
connection has waited for long, the newest is opened first (LIFO under overload); most other clients leave, the rest are refused.

The wait in the kernel's queue counts: `tcpi_last_data_recv` says how long ago the last bytes came.

Disconnects are read from the kernel by poll: on a busy machine the event loop reports a disconnect only after the result that
makes an instance idle, so the request of a disconnected client would be in the next batch.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import select
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

from gnomon_core.errors import GnomonError
from gnomon_gateway.http.headers import last_response

_DISCONNECTED = getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR | select.POLLNVAL
"""Linux has POLLRDHUP; elsewhere only a connection that is closed in both directions is reported."""
_POLLED_EVENTS = getattr(select, "POLLRDHUP", 0) | select.POLLIN
_poll = select.poll()


def has_disconnected(descriptor: int) -> bool:
    """Return whether the peer of this socket has disconnected. Takes about a microsecond; nothing is read."""
    return sent_and_disconnected(descriptor)[1]


def has_unread_data(descriptor: int) -> bool:
    """Return whether this socket has unread data, or its end."""
    return sent_and_disconnected(descriptor)[0]


def sent_and_disconnected(descriptor: int) -> tuple[bool, bool]:
    """`has_unread_data` and `has_disconnected` by one system call."""
    events = next((events for _, events in _polled((descriptor,), _POLLED_EVENTS)), 0)
    return bool(events & select.POLLIN), bool(events & _DISCONNECTED)


class Connected(Protocol):
    """The client of a connection with this file descriptor."""

    descriptor: int


_Client = TypeVar("_Client", bound=Connected)


def find_disconnected(clients: Iterable[_Client]) -> list[_Client]:
    """The clients among these that have disconnected, by one system call for all of them."""
    by_descriptor = {client.descriptor: client for client in clients}
    return [by_descriptor[descriptor] for descriptor, _ in _polled(by_descriptor, _DISCONNECTED)]


def _polled(descriptors: Collection[int], events: int) -> list[tuple[int, int]]:
    """The descriptors that have one of these events, or an error, each with its events. Does not wait."""
    for descriptor in descriptors:
        _poll.register(descriptor, events)
    try:
        return _poll.poll(0)
    finally:
        for descriptor in descriptors:
            _poll.unregister(descriptor)


MAX_OPENED_PER_TURN = 8
"""The most connections that are opened in a turn of the loop. Each costs about 0.1 ms with its request, which delays instances'
results: with 32, an instance whose batches take 20 ms was idle for a tenth of the time under overload."""
MAX_ACCEPTED_PER_TURN = 512
"""The most connections that are accepted in a turn of the loop, dead ones included."""
LIFO_AFTER_S = 0.05
"""Once the oldest connection has waited for this long, the newest is opened first."""
REFUSE_AFTER_S = 5.0
MAX_WAITING = 4096
"""After `REFUSE_AFTER_S`, or beyond this number, the oldest connections are refused: each holds a file descriptor."""
_READ_BYTES = 64 << 10
_RETRY_S = 0.1
"""Pause after accept failed for want of file descriptors or memory."""
_LAST_DATA_OFFSET, _INFO_BYTES = 52, 56
"""The offset of `tcpi_last_data_recv` in `struct tcp_info` (linux/tcp.h): 8 single bytes, then the twelfth 32-bit number."""
_TCP_INFO = getattr(socket, "TCP_INFO", None)
_LOG = logging.getLogger(__name__)


class Peer(NamedTuple):
    """The client of a connection.

    `arrived_s` is when the last bytes came that were there before the connection was accepted, on the monotonic clock; 0 if there
    were none.
    """

    host: str
    port: int
    descriptor: int
    arrived_s: float


class AcceptedSocket(socket.socket):
    """A socket whose family and type are plain numbers: `socket.socket` constructs an enumeration at each access, which is slow.

    It must be a `socket.socket` all the same: uvloop detaches these when their transport closes. It closes any other object a
    second time, although libuv has closed the file descriptor already, which may be another thread's file by then.
    """

    __slots__ = ()
    family = socket.SocketType.family  # type: ignore[assignment]
    type = socket.SocketType.type  # type: ignore[assignment]


class Acceptor:
    """The acceptor of a listening socket, from `start` to `stop`; `opened` makes each connection's protocol."""

    def __init__(self, listener: socket.socket, opened: Callable[[Peer], asyncio.BaseProtocol]) -> None:
        self._listener = listener
        self._opened = opened
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[_Waiting] = deque()
        self._opening: set[asyncio.Task[Any]] = set()
        self._next: asyncio.Handle | None = None
        self._retry: asyncio.TimerHandle | None = None
        self._stopped = self._failing = False
        self._family = int(listener.family)
        listener.settimeout(0.0)

    def start(self) -> None:
        """Accept from now on."""
        self._retry = None
        self._loop.add_reader(self._listener.fileno(), self._readable)

    async def stop(self) -> None:
        """Accept the connections in the kernel's queue, then close the listener. Returns when all are open."""
        self._stopped = True
        for scheduled in (self._retry, self._next):
            if scheduled is not None:
                scheduled.cancel()
        self._loop.remove_reader(self._listener.fileno())
        while self._accept():
            pass
        self._listener.close()
        while self._waiting:
            self._open(self._waiting.popleft())
        if self._opening:
            await asyncio.wait(self._opening)

    def _readable(self) -> None:
        begun_s = time.monotonic()
        for _ in range(MAX_ACCEPTED_PER_TURN):
            if not self._accept():
                break
        # Otherwise connections of an earlier turn wait already, and `_open_some` is scheduled.
        if self._next is None:
            self._open_some(begun_s)

    def _accept(self) -> bool:
        """Accept one connection; returns whether there may be another."""
        try:
            descriptor, address = self._listener._accept()  # type: ignore[attr-defined]  # noqa: SLF001 - see AcceptedSocket
        except (BlockingIOError, InterruptedError):
            return False
        except ConnectionError:  # the client reset it while it waited in the queue
            return True
        except OSError as error:
            if not self._failing:  # once, however long it lasts: a flood would fill the disk with lines
                _LOG.warning("cannot accept connections, retrying every %g s: %s", _RETRY_S, error)
            self._failing = True
            if not self._stopped:
                # The listener stays readable: without a pause the event loop would spin on it.
                self._loop.remove_reader(self._listener.fileno())
                self._retry = self._loop.call_later(_RETRY_S, self.start)
            return False
        self._failing = False
        sent, disconnected = sent_and_disconnected(descriptor)
        # Closed before a socket object or a protocol exists: in a flood of dead connections this is the only cost.
        if disconnected:
            os.close(descriptor)
            return True
        connection = AcceptedSocket(self._family, socket.SOCK_STREAM, 0, descriptor)
        now_s = time.monotonic()
        arrived_s = now_s - _waited_s(connection) if sent else 0.0
        peer = Peer(address[0], address[1], descriptor, arrived_s)
        self._waiting.append(_Waiting(connection, peer, arrived_s or now_s, now_s))
        return True

    def _open_some(self, since_s: float = math.inf) -> None:
        """Open as many connections as this turn of the loop can serve; close dead and refuse old ones."""
        self._next = None
        waiting, now_s = self._waiting, time.monotonic()
        # The oldest first: they decide whether the queue counts as overloaded below.
        while waiting and waiting[0].has_disconnected(since_s):
            waiting.popleft().connection.close()
        while waiting and (now_s - waiting[0].since_s > REFUSE_AFTER_S or len(waiting) > MAX_WAITING):
            _refuse(waiting.popleft().connection)
        while waiting and len(self._opening) < MAX_OPENED_PER_TURN:
            accepted = waiting.pop() if now_s - waiting[0].since_s > LIFO_AFTER_S else waiting.popleft()
            if accepted.has_disconnected(since_s):
                accepted.connection.close()
            else:
                self._open(accepted)
        if waiting:
            self._next = self._loop.call_soon(self._open_some)

    def _open(self, waiting: _Waiting) -> None:
        opened = partial(self._opened, waiting.peer)
        opening = self._loop.create_task(self._loop.connect_accepted_socket(opened, waiting.connection))
        self._opening.add(opening)
        opening.add_done_callback(self._is_open)

    def _is_open(self, opening: asyncio.Task[Any]) -> None:
        self._opening.discard(opening)
        if not opening.cancelled() and (error := opening.exception()) is not None:
            _LOG.debug("a connection ended before it was open: %s", error)


class _Waiting(NamedTuple):
    """A connection that was accepted and is not open. `since_s` is when its request came, or it was accepted without one."""

    connection: AcceptedSocket
    peer: Peer
    since_s: float
    accepted_s: float

    def has_disconnected(self, since_s: float) -> bool:
        """Return whether the client has disconnected. A connection that was accepted after `since_s` has just been checked."""
        return self.accepted_s < since_s and has_disconnected(self.peer.descriptor)


def _refuse(connection: AcceptedSocket) -> None:
    """Answer 503 without parsing the request."""
    error = GnomonError(503, "overloaded", "More requests arrive than the gateway can read.", "Retry later.", retry_after_s=1.0)
    try:
        connection.setblocking(False)  # noqa: FBT003 - the signature is socket's
        connection.recv(_READ_BYTES)  # what is unread would make the end a reset, which may overtake the answer
        connection.send(last_response(error))
    except OSError:
        _LOG.debug("the client of a refused connection has disconnected")
    connection.close()


def _waited_s(connection: socket.socket) -> float:
    """Seconds since the last bytes of this connection were received."""
    if _TCP_INFO is None:
        return 0.0
    info = connection.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, _INFO_BYTES)
    return int.from_bytes(info[_LAST_DATA_OFFSET:_INFO_BYTES], sys.byteorder) / 1e3

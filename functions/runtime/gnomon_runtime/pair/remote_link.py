"""A Body's end of the way to a Shadow on another node: the same as `Link`, over a TCP stream.

A hand-over is given to the kernel at once as far as its buffers take it. The rest of it, and the answer, move beside the Body's
own rows: a thread of this process sends and receives, and sleeps in between. It has no Python to run that would hold up the
Body, as it only calls the kernel, which lets go of the interpreter. What has arrived it puts in a list, and makes the link's
descriptor readable.

    Body     ▓▓▓▓┤ write, send ├▓▓▓▓▓▓ own rows ▓▓▓▓▓▓┤ join
    thread             … the rest ┤          ├ receive ┤
    Shadow                  ├▓▓▓▓ its rows ▓▓▓▓┤ send

A stream has an order: while a hand-over that was given up is still on its way, there cannot be another, which is then a miss. The
connection is made once, beside the batches; one that breaks ends the pair, and whoever wants another says `pair` again.

How long a Shadow takes is counted here, from the hand-over until its answer has come: it says only how long it computed. Example:
15 ms are foretold, and 10 of work and a wire of 20 each way take 50. The first answer is late after 30; what it took is learned,
and the next is given 51.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from gnomon_core import packets
from gnomon_runtime.pair.approach import address, approach
from gnomon_runtime.pair.buffers import OwnBuffer
from gnomon_runtime.pair.headers import Message, NonsenseError
from gnomon_runtime.pair.link import MAX_PENDING, DataPath, Link, Outcome
from gnomon_runtime.pair.stream import Incoming, Outgoing


def way_to(message: Mapping[str, Any], descriptors: list[int]) -> DataPath:
    """The way that an order to pair names: descriptors for a Shadow of this node, a URL and a token for one of another.

    Raises:
        ValueError, OSError: it names none.

    """
    if "url" in message:
        return RemoteLink(str(message["url"]), str(message["token"]))
    return Link(descriptors, body=True)


class RemoteLink(DataPath):
    """The data path to the Shadow at a URL. It is not `ready` before the Shadow has agreed.

    Raises:
        ValueError: the URL is none.
        OSError: the process may have no more descriptors or threads.

    """

    elsewhere = True

    def __init__(self, url: str, token: str) -> None:
        address(url)
        super().__init__(OwnBuffer(1), OwnBuffer(1))
        self._incoming = Incoming(self.back)
        self._sending: Outgoing | None = None
        self._arrived: deque[tuple[float, Message | Exception]] = deque()
        """With the time at which it had."""
        self._told_s: dict[int, float] = {}
        """By the number of a hand-over, when it had been made."""
        self._connection: socket.socket | None = None
        self._over = self._ended = False
        self._lock = threading.Lock()
        """Around what main and thread must see alike: whether the link is over, and who closes the descriptors."""
        self._news, self._wake = (os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC) for _ in range(2))
        self._poll = select.poll()
        self._poll.register(self._news, select.POLLIN)
        self._thread = threading.Thread(target=self._serve, args=(url, token), name="hand-over", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:
            self._close_descriptors()
            raise OSError(f"no thread for the way to the Shadow: {error}") from error

    @property
    def ready(self) -> bool:
        return self._connection is not None and not self._over

    def fileno(self) -> int:
        return self._news

    def foretell(self) -> None:
        """Nothing: on the way to another node 0.2 ms are little."""

    def hand_over(self, begin: int, end: int, values: Sequence[Tensor], first_row: int) -> Outcome | None:
        if self._sending is not None:
            with contextlib.suppress(NonsenseError):
                self.late += self.pending()
            # The last one still leaves the buffer that this one would be written to.
            self.sequence += 1
            return Outcome.FULL
        trouble = super().hand_over(begin, end, values, first_row)
        self._told_s[self.sequence] = time.monotonic()
        while len(self._told_s) > MAX_PENDING:
            del self._told_s[next(iter(self._told_s))]
        return trouble

    def send(self, message: Message) -> bool:
        connection = self._connection
        if connection is None or self._over:
            raise packets.PeerGoneError
        outgoing = Outgoing(message, self.to)
        if not outgoing.push(connection):
            with self._lock:
                self._sending = outgoing
                if not self._ended:
                    os.eventfd_write(self._wake, 1)
        return True

    def close(self) -> None:
        """The connection ends at once, or as soon as it has been made."""
        with self._lock:
            self._over = True
            if self._ended:
                self._close_descriptors()
            else:
                os.eventfd_write(self._wake, 1)
        self.to.close()
        self.back.close()

    def _readable(self, wait_s: float) -> bool:
        return bool(self._arrived) or bool(self._poll.poll(1e3 * wait_s))

    def _receive(self) -> Message | None:
        if not self._arrived:
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._news)
        if not self._arrived:
            return None
        arrived_s, arrived = self._arrived[0]
        if isinstance(arrived, Exception):
            # It stays the last there is: whoever asks again hears the same.
            raise arrived
        self._arrived.popleft()
        told_s = self._told_s.pop(arrived.sequence, None)
        return arrived if told_s is None else replace(arrived, compute_s=max(0.0, arrived_s - told_s))

    # The thread

    def _serve(self, url: str, token: str) -> None:
        try:
            with approach(url, token) as connection:
                self._connection = connection
                self._tell(None)
                self._carry(connection)
        except (NonsenseError, packets.PeerGoneError) as error:
            self._tell(error)
        except Exception as error:  # noqa: BLE001 - whatever it is, the Body must hear that nothing will come any more
            self._tell(packets.PeerGoneError(f"{type(error).__name__}: {error}"))
        finally:
            with self._lock:
                self._ended = True
                if self._over:
                    self._close_descriptors()

    def _carry(self, connection: socket.socket) -> None:
        """Send and receive until the link is closed or the connection ends."""
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        while not self._over:
            poll.register(connection, select.POLLIN | (select.POLLOUT if self._sending is not None else 0))
            ready = dict(poll.poll())
            if self._wake in ready:
                os.eventfd_read(self._wake)
            events = ready.get(connection.fileno(), 0)
            if events & select.POLLOUT and self._sending is not None and self._sending.push(connection):
                self._sending = None
            if events & ~select.POLLOUT:
                while (message := self._incoming.take(connection)) is not None:
                    if len(self._arrived) >= MAX_PENDING:
                        raise NonsenseError("messages that nobody asked for")
                    self._tell(message)

    def _tell(self, arrived: Message | Exception | None) -> None:
        if arrived is not None:
            self._arrived.append((time.monotonic(), arrived))
        with self._lock:
            if not self._over:
                os.eventfd_write(self._news, 1)

    def _close_descriptors(self) -> None:
        for descriptor in (self._news, self._wake):
            os.close(descriptor)

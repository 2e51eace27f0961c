"""The coordinator's sockets to instances, the supervisor and the platform. No link ever blocks, or grows without bound.

A message that the peer does not read yet waits in the link's outbox, with duplicated descriptors. A full outbox means that the
peer is not reading: the link is broken. The rate of an instance's messages is limited as well, because a flood would take CPU
time from the Bodies.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gnomon_core import packets

MAX_WAITING = 64
"""The most messages in an instance's outbox. An instance reads between batches; each change of its pair takes a handful."""
BURST = 200
PER_SECOND = 50.0
"""The most messages of an instance per second, by a token bucket."""


class LinkBrokenError(ConnectionError):
    """The peer does not read, or breaks the protocol."""


class LinkEndedError(LinkBrokenError):
    """The peer has closed its socket, mostly because its process has ended."""


class Link:
    """A non-blocking socket with an outbox of `max_waiting` messages. `rate_limited` is for instances, which are untrusted."""

    def __init__(self, connection: socket.socket, *, max_waiting: int = MAX_WAITING, rate_limited: bool = True) -> None:
        connection.setblocking(False)  # noqa: FBT003 - the signature is socket's
        self.socket = connection
        self._outbox: deque[tuple[dict[str, Any], list[int]]] = deque()
        self._max_waiting = max_waiting
        self._rate_limited = rate_limited
        self._tokens = float(BURST)
        self._refilled_s = 0.0

    @property
    def wants_to_write(self) -> bool:
        return bool(self._outbox)

    def send(self, message: Mapping[str, Any], descriptors: Sequence[int] = ()) -> None:
        """Send now, or as soon as the peer reads. The descriptors are copied.

        Raises:
            LinkBrokenError: the peer has gone, or the outbox is full.

        """
        if len(self._outbox) >= self._max_waiting:
            raise LinkBrokenError("the outbox is full: the peer does not read")
        # Copies, because a message may wait in the outbox for longer than the caller keeps its descriptors open.
        self._outbox.append((dict(message), [os.dup(descriptor) for descriptor in descriptors]))
        self.flush()

    def flush(self) -> None:
        """Send from the outbox until the socket would block.

        Raises:
            LinkBrokenError: the peer has gone.

        """
        while self._outbox:
            message, descriptors = self._outbox[0]
            try:
                packets.send(self.socket, message, descriptors)
            except BlockingIOError:
                return
            except packets.PeerGoneError:
                raise LinkEndedError("the peer has closed its socket") from None
            except (OSError, ValueError) as error:
                raise LinkBrokenError(f"sending failed: {error}") from error
            self._outbox.popleft()
            _close(descriptors)

    def receive(self, now_s: float) -> tuple[dict[str, Any], list[int]] | None:
        """The next message and its descriptors, which the caller closes; None if none is waiting.

        Raises:
            LinkBrokenError: the peer has gone, sent no valid message, or sends too many.

        """
        try:
            message, descriptors = packets.receive(self.socket)
        except BlockingIOError:
            return None
        except packets.PeerGoneError:
            raise LinkEndedError("the peer has closed its socket") from None
        except (packets.PacketError, OSError) as error:
            raise LinkBrokenError(str(error)) from None
        if self._rate_limited and not self._within_rate(now_s):
            # Breaking the link is the only bound: a message that stays in the socket would wake the loop again at once.
            _close(descriptors)
            raise LinkBrokenError("rate limit exceeded")
        return message, descriptors

    def _within_rate(self, now_s: float) -> bool:
        self._tokens = min(float(BURST), self._tokens + (now_s - self._refilled_s) * PER_SECOND)
        self._refilled_s = now_s
        self._tokens -= 1
        return self._tokens >= 0

    def close(self) -> None:
        """Release everything. May be called again."""
        for _, descriptors in self._outbox:
            _close(descriptors)
        self._outbox.clear()
        self.socket.close()


class LinkSelector:
    """A selector over links: readable ones, and writable ones while their outbox is not empty."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._events: dict[Link, int] = {}

    def ready(self, timeout_s: float | None) -> set[Link]:
        """The links that can be read or written; an empty set after the timeout."""
        return {key.data for key, _ in self._selector.select(timeout_s)}

    def watch(self, link: Link) -> None:
        """Wait for this link to be readable, and writable while its outbox is not empty."""
        # A socket is writable nearly always: watched with an empty outbox, it would wake the loop at every turn.
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if link.wants_to_write else 0)
        known = self._events.get(link)
        if known is None:
            self._selector.register(link.socket, events, link)
        elif known != events:
            self._selector.modify(link.socket, events, link)
        self._events[link] = events

    def flush(self, link: Link, broken: Callable[[LinkBrokenError], None]) -> None:
        """Send from the outbox until the socket would block; `broken` is called if the link is broken."""
        if link.wants_to_write:
            try:
                link.flush()
            except LinkBrokenError as error:
                broken(error)
                return
            self.watch(link)

    def drop(self, link: Link) -> None:
        """Close a link and forget it."""
        if self._events.pop(link, None) is not None:
            self._selector.unregister(link.socket)
        link.close()

    def close(self) -> None:
        for link in list(self._events):
            self.drop(link)
        self._selector.close()


def _close(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        with contextlib.suppress(OSError):
            os.close(descriptor)

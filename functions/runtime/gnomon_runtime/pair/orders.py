"""An instance's end of its coordination socket: orders in, answers out (`gnomon_core.coordination`).

Nothing here waits: an instance looks between batches and while it is idle. An order from an older epoch than one already seen
comes from a coordinator that has been replaced; it is answered and forgotten. An answer that the socket has no room for is
dropped: a coordinator that does not read is gone or will ask again.
"""

from __future__ import annotations

import contextlib
import os
import socket
from typing import Any, TypeAlias

from gnomon_core import packets

Order: TypeAlias = tuple[dict[str, Any], list[int]]
"""A message and its descriptors, which belong to whoever takes it."""


class Coordination:
    """The socket, and the newest epoch that was seen on it."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)  # noqa: FBT003 - the signature is socket's
        self._socket = connection
        self.epoch = 0

    def fileno(self) -> int:
        return self._socket.fileno()

    def take(self) -> Order | None:
        """The next order that is to be obeyed; None when there is none at the moment.

        Raises:
            PeerGoneError: there will be no other.

        """
        while True:
            try:
                message, descriptors = packets.receive(self._socket)
            except packets.PacketError:
                continue
            except BlockingIOError:
                return None
            epoch = message.get("epoch")
            if type(epoch) is int and epoch >= self.epoch:
                self.epoch = epoch
                return message, descriptors
            close(descriptors)
            self.say("stale")

    def say(self, what: str, **details: Any) -> None:
        """Tell the coordinator."""
        with contextlib.suppress(BlockingIOError, packets.PeerGoneError):
            packets.send(self._socket, {"say": what, "epoch": self.epoch, **details})

    def close(self) -> None:
        self._socket.close()


def close(descriptors: list[int]) -> None:
    """Close them and forget them."""
    while descriptors:
        os.close(descriptors.pop())


def three_of(descriptors: list[int]) -> tuple[int, int, int]:
    """The three that come with a pair. Raises ValueError for any other number."""
    if len(descriptors) != 3:  # noqa: PLR2004 - data, to, from
        raise ValueError(f"{len(descriptors)} descriptors; data, to and from are three")
    data, there, back = descriptors
    return data, there, back

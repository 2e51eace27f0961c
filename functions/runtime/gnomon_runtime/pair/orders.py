"""An instance's end of its coordination socket: receives orders and sends answers (`gnomon_core.coordination`).

Nothing here blocks: an instance polls the socket between batches and while it is idle. An order from an older epoch than one
already seen comes from a replaced coordinator: it is answered with "stale" and discarded. An answer for which the socket buffer
is full is dropped: a coordinator that does not read has ended or will ask again.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from gnomon_core import packets
from gnomon_core.errors import GnomonError

Order: TypeAlias = tuple[dict[str, Any], list[int]]
"""A message and its descriptors, which the receiver must close."""

Handler: TypeAlias = Callable[[dict[str, Any], list[int]], None]
REFUSALS = (ValueError, KeyError, TypeError, OSError, GnomonError)
"""Exceptions of an order that cannot be executed."""


class Coordination:
    """The coordination socket, and the newest epoch received on it."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)  # noqa: FBT003 - the signature is socket's
        self._socket = connection
        self.epoch = 0

    def fileno(self) -> int:
        return self._socket.fileno()

    def take(self) -> Order | None:
        """The next order of the current epoch; None if none is waiting.

        Raises:
            PeerGoneError: the coordinator has closed the socket.

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

    def say(self, answer: str, **details: Any) -> None:
        """Send an answer to the coordinator; dropped if the socket buffer is full."""
        with contextlib.suppress(BlockingIOError, packets.PeerGoneError):
            packets.send(self._socket, {"say": answer, "epoch": self.epoch, **details})

    def close(self) -> None:
        self._socket.close()


class OrderHandler:
    """An instance's handlers of orders: `handlers` by the order's name. Unknown orders are ignored.

    `refused` is called after an order has failed and the failure has been reported.
    """

    def __init__(
        self, coordination: Coordination, handlers: Mapping[str, Handler], refused: Callable[[], None] | None = None
    ) -> None:
        self._coordination = coordination
        self._handlers = handlers
        self._refused = refused
        self._gone = False

    @property
    def gone(self) -> bool:
        """True if the coordinator has closed its end."""
        return self._gone

    def fileno(self) -> int:
        return self._coordination.fileno()

    def next(self) -> bool:
        """Handle the next order. False if none is waiting."""
        try:
            order = self._coordination.take()
        except packets.PeerGoneError:
            self._gone = True
            return False
        if order is not None:
            self._handle(*order)
        return order is not None

    def say(self, answer: str, **details: Any) -> None:
        """Send an answer to the coordinator; dropped once it has closed its end."""
        if not self._gone:
            self._coordination.say(answer, **details)

    def close(self) -> None:
        self._coordination.close()

    def _handle(self, message: dict[str, Any], descriptors: list[int]) -> None:
        handler = self._handlers.get(str(message.get("do")))
        try:
            if handler is not None:
                handler(message, descriptors)
        except REFUSALS as error:
            self.say("failed", shadow=str(message.get("shadow", "")), reason=f"{type(error).__name__}: {error}")
            if self._refused is not None:
                self._refused()
        finally:
            close(descriptors)


def close(descriptors: list[int]) -> None:
    """Close the descriptors and empty the list."""
    while descriptors:
        os.close(descriptors.pop())


def three_of(descriptors: list[int]) -> tuple[int, int, int]:
    """The three descriptors of a pair: data socket, buffer to the Shadow, buffer back. Raises ValueError for another number."""
    if len(descriptors) != 3:  # noqa: PLR2004 - data, to, from
        raise ValueError(f"{len(descriptors)} descriptors; data, to and from are three")
    data, to_shadow, from_shadow = descriptors
    return data, to_shadow, from_shadow

"""An asyncio end of a packet socket (`gnomon_core.packets`): sends without waiting, receives without blocking.

Separate from `packets`, which instances import, because an instance's process does not load asyncio.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from gnomon_core import packets

_LOG = logging.getLogger(__name__)


class PacketLink:
    """Messages of `gnomon_core.packets` both ways. `on_gone` is called once if the other side closes first."""

    def __init__(
        self, connection: socket.socket, on_message: Callable[[dict[str, Any]], None], on_gone: Callable[[], None]
    ) -> None:
        connection.setblocking(False)  # noqa: FBT003 - the signature is socket's
        self._socket = connection
        self._on_message = on_message
        self._on_gone = on_gone
        self._loop = asyncio.get_running_loop()
        self._outbox: deque[tuple[dict[str, Any], tuple[int, ...]]] = deque()
        self._open = True
        self._loop.add_reader(connection.fileno(), self._readable)

    def send(self, message: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
        """Send a message. Takes ownership of the descriptors, which are closed once they are sent."""
        self._outbox.append((message, tuple(descriptors)))
        self._flush()

    def close(self) -> None:
        """Release the socket, and the descriptors that were still to be sent. May be called again."""
        if self._open:
            self._open = False
            self._loop.remove_reader(self._socket.fileno())
            self._loop.remove_writer(self._socket.fileno())
            self._socket.close()
            self._flush()

    def _flush(self) -> None:
        while self._outbox:
            message, descriptors = self._outbox[0]
            try:
                if self._open:
                    packets.send(self._socket, message, descriptors)
            except BlockingIOError:
                self._loop.add_writer(self._socket.fileno(), self._flush)
                return
            except packets.PeerGoneError:
                # The reader gets the same error and reports it.
                pass
            self._outbox.popleft()
            for descriptor in descriptors:
                os.close(descriptor)
        if self._open:
            self._loop.remove_writer(self._socket.fileno())

    def _readable(self) -> None:
        while self._open:
            try:
                message, descriptors = packets.receive(self._socket)
            except BlockingIOError:
                return
            except packets.PeerGoneError:
                self.close()
                self._on_gone()
                return
            except packets.PacketError as error:
                _LOG.error("an invalid message is dropped: %s", error)
                continue
            for descriptor in descriptors:
                os.close(descriptor)
            try:
                self._on_message(message)
            except (KeyError, TypeError, ValueError, OverflowError) as error:
                # OverflowError: JSON's 1e999 is read as infinity, which `int` refuses.
                _LOG.error("a message cannot be read: %s: %s", type(error).__name__, error)

"""What clients have not taken of their answers yet, bounded over all connections.

A client that reads slowly, or not at all, has the time that sweep.py gives it. Until then the gateway holds its answer, and fifty
such clients held 500 MB. Above the bound the connection of the slowest reader is closed, then of the next slowest.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gnomon_gateway.server.protocol import GatewayProtocol

GRACE_S = 1.0
"""A reader is not called slow before. Where all are new, the newest has to go: the others have begun to read."""
_LOG = logging.getLogger(__name__)


class Unsent:
    """The readers that are behind, and what is held for them together: `held_bytes`, at most `most_bytes`."""

    def __init__(self, most_bytes: int) -> None:
        self.held_bytes = 0
        self._most_bytes = most_bytes
        self._readers: dict[GatewayProtocol, tuple[float, int]] = {}

    def hold(self, connection: GatewayProtocol, body_bytes: int = 0) -> None:
        """More has been written to a connection than its client has taken. May be told again as it grows.

        What counts is the most that was ever held for it, and at least `body_bytes`: memory of an answer is given back as a
        whole, when its end is taken.
        """
        now_s = connection.loop.time()
        since_s, held_bytes = self._readers.get(connection, (now_s, 0))
        holds_bytes = max(body_bytes, connection.transport.get_write_buffer_size())
        if holds_bytes > held_bytes:
            self._readers[connection] = since_s, holds_bytes
            self.held_bytes += holds_bytes - held_bytes
            if self.held_bytes > self._most_bytes:
                self._shed(connection.loop, now_s)

    def release(self, connection: GatewayProtocol) -> None:
        """The client has caught up, or its connection has ended."""
        _, held_bytes = self._readers.pop(connection, (0.0, 0))
        self.held_bytes -= held_bytes

    def _shed(self, loop: asyncio.AbstractEventLoop, now_s: float) -> None:
        for connection in sorted(self._readers, key=lambda one: self._speed(one, now_s)):
            if self.held_bytes <= self._most_bytes:
                return
            _LOG.info("closing the slowest of %d readers: %d bytes of answers are unsent", len(self._readers), self.held_bytes)
            self.release(connection)
            # Not here: its transport may be in the middle of a write.
            loop.call_soon(connection.transport.abort)

    def _speed(self, connection: GatewayProtocol, now_s: float) -> tuple[bool, float]:
        """The slowest first, by bytes a second; behind those that are old enough to be judged the new ones, the newest first."""
        since_s, held_bytes = self._readers[connection]
        age_s = now_s - since_s
        if age_s < GRACE_S:
            return True, age_s
        return False, (held_bytes - connection.transport.get_write_buffer_size()) / age_s

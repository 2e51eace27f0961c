"""Ends connections that take too long: silent ones, slow senders, and readers who never take their answer.

One pass over all connections every `sweep_s` costs less than a timer for each request, and half a second matters to none of
these. A pass is made in slices, so that ten thousand connections keep nobody waiting.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection
from typing import Any

from gnomon_core.errors import GnomonError
from gnomon_gateway.server.protocol import GatewayProtocol
from gnomon_gateway.server.shared import Phase, Shared

_LINGER_S = 1.0
_SLICES = 20
"""A pass over all connections is made in so many turns."""
_SLICE_S = 0.002
"""How long a slice may take; looking at a connection takes a microsecond, closing one twenty or more."""
_BETWEEN_CLOCKS = 32
UNSENT_S = 30.0
"""Instead of `idle_s` for an answer behind which the connection ends."""


class Sweep:
    """Looks at the connections from `start` to `stop`."""

    def __init__(self, shared: Shared, connections: Collection[Any]) -> None:
        self._shared = shared
        self._connections = connections
        self._left: list[Any] = []
        self._size = 0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._shared.now_s = loop.time()
        self._timer = loop.call_later(self._shared.limits.sweep_s / _SLICES, self._look)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self.start()
        if not self._left:
            self._left = [one for one in self._connections if isinstance(one, GatewayProtocol)]
            self._size = -(-len(self._left) // _SLICES)
        end_s = time.monotonic() + _SLICE_S
        for number in range(1, min(self._size, len(self._left)) + 1):
            connection = self._left.pop()
            if connection in self._connections:
                judge(connection, self._shared.now_s)
            if not number % _BETWEEN_CLOCKS and time.monotonic() > end_s:
                return


def judge(connection: GatewayProtocol, now_s: float) -> None:
    """Close the connection if it has been in its phase for too long."""
    limits = connection.shared.limits
    transport = connection.transport
    phase = connection.phase
    if phase in (Phase.IDLE, Phase.CLOSING):
        _credit(connection, now_s)
    waited_s = now_s - connection.since_s
    if transport.is_closing() and phase != Phase.CLOSING:
        connection.phase, connection.since_s = Phase.CLOSING, now_s
    elif phase == Phase.CLOSING:
        unsent = transport.get_write_buffer_size()
        if waited_s > (UNSENT_S if unsent else _LINGER_S):
            transport.abort()
    elif phase == Phase.IDLE and waited_s > limits.idle_s:
        if transport.get_write_buffer_size():
            transport.abort()
        else:
            transport.close()
    elif phase == Phase.HEAD and waited_s > (allowed_s := _in_time(limits.head_s, connection)):
        connection.refuse(_slow("head", allowed_s))
    elif phase == Phase.BODY and not connection.flow.read_paused:
        allowed_s = limits.body_s + connection.received_bytes / limits.body_bytes_per_s
        if waited_s > (allowed_s := _in_time(allowed_s, connection)):
            connection.refuse(_slow("body", allowed_s))


def _in_time(allowed_s: float, connection: GatewayProtocol) -> float:
    """How long receiving may take where it may usually take so long: little once the server stops."""
    shared = connection.shared
    return min(allowed_s, max(0.0, shared.stopping_s - connection.since_s) + shared.limits.last_s)


def _credit(connection: GatewayProtocol, now_s: float) -> None:
    """What the client has taken of its answer since the last look makes up for some of the time that it has had."""
    unsent_bytes = connection.transport.get_write_buffer_size()
    taken_bytes, connection.unsent_bytes = connection.unsent_bytes - unsent_bytes, unsent_bytes
    if taken_bytes > 0:
        earned_s = taken_bytes / connection.shared.limits.answer_bytes_per_s
        connection.since_s = min(now_s, connection.since_s + earned_s)


def _slow(part: str, allowed_s: float) -> GnomonError:
    return GnomonError(
        408,
        "request_too_slow",
        f"The {part} of the request did not arrive within {allowed_s:.0f} s.",
        "Send it faster, or in smaller pieces.",
    )

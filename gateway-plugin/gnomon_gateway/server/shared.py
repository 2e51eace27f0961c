"""What all connections of a server know, and what each of them can be waiting for."""

from __future__ import annotations

from enum import IntEnum

from uvicorn.server import ServerState

from gnomon_gateway.server.hot_routes import HotRoutes
from gnomon_gateway.server.limits import Limits
from gnomon_gateway.server.unsent import Unsent


class Phase(IntEnum):
    """What a connection waits for."""

    IDLE = 0
    HEAD = 1
    BODY = 2
    ANSWER = 3
    CLOSING = 4


class Shared:
    """What all connections of a server share.

    `now_s` is the loop's time at the last sweep, `held_bytes` what the large bodies hold that have not come to their end,
    `stopping_s` when the server began to stop. `closing` is whether each answer ends its connection.
    """

    def __init__(self, routes: HotRoutes, prefixes: tuple[bytes, ...], limits: Limits) -> None:
        self.routes = routes
        self.prefixes = prefixes
        self.limits = limits
        self.now_s = 0.0
        self.held_bytes = 0
        self.unsent = Unsent(limits.max_unsent_bytes)
        self.stopping_s = float("inf")
        self.closing = False
        self._headers: list[tuple[bytes, bytes]] | None = None
        self._line = b""

    def date_line(self, state: ServerState) -> bytes:
        """The header lines of every answer; uvicorn makes a new list each second."""
        if self._headers is not state.default_headers:
            self._headers = state.default_headers
            self._line = b"".join([b"%b: %b\r\n" % header for header in self._headers])
        return self._line

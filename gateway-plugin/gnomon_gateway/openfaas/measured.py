"""Counts the requests of the control routes, by route, method and status."""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gnomon_gateway.histogram import Histogram
from gnomon_gateway.routes import find

_TURNED_AWAY = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
BOUNDS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class ControlCounters:
    """Durations by (method, route, status).

    Strangers choose paths and methods: what is no route of ours, or was turned away before its handler, shares one label.
    """

    def __init__(self) -> None:
        self.durations: dict[tuple[str, str, int], Histogram] = {}

    def observe(self, method: str, path: str, status: int, duration_s: float) -> None:
        pattern = next((route.path for route in find(path) if method in route.methods), None)
        key = (method, pattern, status) if pattern and status not in _TURNED_AWAY else ("other", "unknown", status)
        self.durations.setdefault(key, Histogram(BOUNDS_S)).observe(duration_s)


class Measured:
    """Passes requests on and counts their answers."""

    def __init__(self, application: ASGIApp, counters: ControlCounters, now_s: Callable[[], float]) -> None:
        self._application = application
        self._counters = counters
        self._now_s = now_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        begin_s = self._now_s()
        status = 0

        async def watch(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        await self._application(scope, receive, watch)
        self._counters.observe(scope["method"], scope["path"], status, self._now_s() - begin_s)

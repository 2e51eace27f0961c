"""Who answers at a Revision's public Service: an activator says so, and nothing else counts."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from gnomon_platforms.knative.autoscaler import status as probe

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def service(answer: Handler, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    """Whoever stands behind the address of a Service."""
    application = web.Application()
    application.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    monkeypatch.setitem(probe.PORTS, "http1", runner.addresses[0][1])
    yield
    await runner.cleanup()


@pytest.mark.parametrize(
    ("body", "status", "found"), [("activator", 200, True), ("queue", 200, False), ("activator", 503, False)]
)
async def test_only_an_activator_that_says_so_counts(
    body: str, status: int, *, found: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, str]] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append({"path": request.path, **{name: request.headers.get(name, "") for name in probe.HEADERS}})
        return web.Response(text=body, status=status)

    async with service(answer, monkeypatch):
        assert await probe.proxied("127.0.0.1", "http1") is found
    assert asked == [{"path": "/healthz", "K-Network-Probe": "activator", "User-Agent": "Knative-Autoscaling-Probe"}]
    assert not await probe.proxied("127.0.0.1", "http1")


async def test_a_connection_that_was_made_too_early_does_not_answer_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node's rules lead a new connection to where the Service is now, and leave an old one with whom it has reached."""
    made: list[object] = []

    async def answer(request: web.Request) -> web.Response:
        if request.transport not in made:
            made.append(request.transport)
        # The first to come has reached the pod, whose queue-proxy knows no such probe, and keeps the connection.
        return web.Response(status=400) if request.transport is made[0] else web.Response(text="activator")

    async with service(answer, monkeypatch):
        assert [await probe.proxied("127.0.0.1", "http1") for _ in range(3)] == [False, True, True]

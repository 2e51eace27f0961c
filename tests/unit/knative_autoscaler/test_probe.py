"""Who answers at a Revision's public Service: an activator says so, and nothing else counts."""

from __future__ import annotations

import aiohttp
import pytest
from aiohttp import web

from gnomon_platforms.knative.scaling import probe


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

    application = web.Application()
    application.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    monkeypatch.setitem(probe.PORTS, "http1", port)
    async with aiohttp.ClientSession() as session:
        assert await probe.proxied(session, "127.0.0.1", "http1") is found
    assert asked == [{"path": "/healthz", "K-Network-Probe": "activator", "User-Agent": "Knative-Autoscaling-Probe"}]
    await runner.cleanup()
    async with aiohttp.ClientSession() as session:
        assert not await probe.proxied(session, "127.0.0.1", "http1")

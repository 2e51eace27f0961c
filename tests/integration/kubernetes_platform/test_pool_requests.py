"""The CPU request of a node's pool follows its Shadows' cores, even when a single write fails."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from gnomon_core.clock import WallClock
from gnomon_platforms.kubernetes.writes import Writer
from gnomon_platforms.nodes import coordinators
from gnomon_platforms.nodes.coordinators import NodeCoordinators, NodeOptions
from gnomon_platforms.nodes.node_shadow import ShadowContext
from tests.integration.kubernetes_platform.scripted import Answer, Script, listed, pod, refusal, serving
from tests.waiting import until

LABELS = {"app.kubernetes.io/name": "gnomon", "app.kubernetes.io/component": "coordinator"}


def coordinator(cpu: str, version: str = "1") -> dict[str, Any]:
    """The DaemonSet's pod on the node, whose pool asks for so much."""
    containers = [{"name": "pool", "resources": {"requests": {"cpu": cpu}}}]
    status = {"podIP": "127.0.0.1", "conditions": [{"type": "Ready", "status": "True"}]}
    return {**pod("coordinator-x", version, **LABELS), "spec": {"nodeName": "node-a", "containers": containers}, "status": status}


class Node:
    """A coordinator that says how many cores its Shadows have."""

    def __init__(self) -> None:
        self.cores, self.version = 0, 1
        self._news = asyncio.Event()

    def says(self, cores: int) -> None:
        self.cores, self.version = cores, self.version + 1
        self._news.set()

    async def tell(self, request: web.Request) -> web.Response:
        if request.query["version"] == str(self.version):
            self._news.clear()
            await self._news.wait()
        pool = {"ready": True, "claimed_cores": self.cores}
        return web.json_response({"incarnation": "i", "version": self.version, "pool": pool, "bodies": [], "shadows": []})


@asynccontextmanager
async def followed(script: Script) -> AsyncIterator[tuple[Node, NodeCoordinators]]:
    """A node, and who follows it with writes to this API server."""
    node, app = Node(), web.Application()
    app.router.add_get("/v1/state", node.tell)
    capacity = SimpleNamespace(pool_ready=lambda *_, **__: None)
    models = SimpleNamespace(on_nodes=True)
    context = cast("ShadowContext", SimpleNamespace(capacity=capacity, models=models, epoch=lambda: 1, adopting_s=lambda: 0.0))
    async with TestServer(app) as server, aiohttp.ClientSession() as session:
        with serving(script) as api:
            writer = Writer(api, WallClock(), random.Random(1))
            made = NodeCoordinators(api, writer, NodeOptions("token", "fn", server.port or 0))
            await made.start(context, session)
            yield node, made
            await made.stop()
            writer.close()


def asked_for(script: Script) -> list[str]:
    """The CPU request in each write."""
    return [write.body["spec"]["containers"][0]["resources"]["requests"]["cpu"] for write in script.writes()]


async def test_a_write_that_was_refused_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinators, "BACKOFF_S", 0.01)
    writes = [refusal(403, "Forbidden"), refusal(403, "Forbidden"), Answer(coordinator("2100m", "2"))]
    script = Script([listed("1", coordinator("100m")), Answer(coordinator("100m"))], writes=writes)
    async with followed(script) as (node, nodes):
        node.says(2)
        await until(lambda: asked_for(script) == ["2100m"] * 3, "the scheduler counts on cores that Shadows have", 20.0)
        await until(lambda: not nodes.requests.tasks)
    assert len(script.writes()) == 3


async def test_the_next_number_does_not_wait_for_the_last_to_be_tried_again() -> None:
    writes = [refusal(403, "Forbidden"), Answer(coordinator("1100m", "2"))]
    script = Script([listed("1", coordinator("100m")), Answer(coordinator("100m"))], writes=writes)
    async with followed(script) as (node, nodes):
        node.says(2)
        await until(lambda: asked_for(script) == ["2100m"])
        node.says(1)
        await until(lambda: asked_for(script)[-1] == "1100m")
        await until(lambda: not nodes.requests.tasks)


async def test_a_number_that_comes_in_the_moment_in_which_the_last_is_done_is_written_too() -> None:
    script = Script([listed("1", coordinator("100m")), Answer(coordinator("100m"))], writes=[Answer(coordinator("2100m", "2"))])
    async with followed(script) as (_, nodes):
        # Nothing is to be written for none: who follows is done in the turn of the loop in which it began.
        await until(lambda: not nodes.requests.tasks)
        nodes.requests.set_cores("node-a", 0)
        loop = asyncio.get_running_loop()
        loop.call_soon(nodes.requests.set_cores, "node-a", 2)
        await until(lambda: asked_for(script) == ["2100m"], "the scheduler counts on cores that Shadows have")


async def test_stale_pod_does_not_undo_a_newer_write() -> None:
    """The watch has told nothing yet when the last Shadow ends."""
    lists = [listed("1", coordinator("100m")), Answer(coordinator("100m")), Answer(coordinator("2100m", "2"))]
    script = Script(lists, writes=[Answer(coordinator("2100m", "2")), Answer(coordinator("100m", "3"))])
    async with followed(script) as (node, nodes):
        node.says(2)
        await until(lambda: asked_for(script) == ["2100m"] and not nodes.requests.tasks)
        node.says(0)
        await until(lambda: asked_for(script) == ["2100m", "100m"], "nobody could use them any more", 20.0)

"""The resize endpoint of a pod's process: it records the thread counts that a cluster's platform sends."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from gnomon_core.wire import decode
from gnomon_platforms.kubernetes.channel import RESIZE_PATH
from gnomon_platforms.openfaas import workloads


class PodProcess:
    """Records in `threads` each thread count that it was sent."""

    def __init__(self) -> None:
        self.threads: list[int] = []

    async def resize(self, request: web.Request) -> web.Response:
        self.threads.append(json.loads(decode(await request.read()).head)["cores"])
        return web.Response(status=204)


@asynccontextmanager
async def pod_process(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[PodProcess]:
    """Serve one `PodProcess` as the process of every pod at 127.0.0.1, for the length of the block."""
    process, app = PodProcess(), web.Application()
    app.router.add_post(RESIZE_PATH, process.resize)
    async with TestServer(app) as server:
        monkeypatch.setattr(workloads, "PORT", server.port)
        yield process

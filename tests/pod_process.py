"""The process of a pod, as the platform of a cluster tells it how many threads to use."""

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


class Process:
    """Which threads it was told to use."""

    def __init__(self) -> None:
        self.told: list[int] = []

    async def resize(self, request: web.Request) -> web.Response:
        self.told.append(json.loads(decode(await request.read()).head)["cores"])
        return web.Response(status=204)


@asynccontextmanager
async def pod_process(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Process]:
    """That of every pod at 127.0.0.1, where workloads find it for as long."""
    made, app = Process(), web.Application()
    app.router.add_post(RESIZE_PATH, made.resize)
    async with TestServer(app) as server:
        monkeypatch.setattr(workloads, "PORT", server.port)
        yield made

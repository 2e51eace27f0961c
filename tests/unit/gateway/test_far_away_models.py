"""A model, or an image, that is far away and answers slowly: whoever deploys by it waits, and nobody else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from threading import Event

import pytest

from gnomon_core.functions import FunctionSpec, read_deployment
from gnomon_core.profiles import ModelProfile
from gnomon_core.signature import ModelSignature
from gnomon_gateway.dispatch.latency import LearnedLatency
from gnomon_gateway.functions.manager import Manager
from gnomon_gateway.functions.profiles import LatencyModels
from gnomon_gateway.logs import LogBook
from gnomon_gateway.store import SqliteStore
from tests.unit.gateway.shadow_stage import Scaling, Scripted

PATIENCE_S = 5.0
"""Only a loop that stands still does not answer within it."""


def deployment(cores: int = 1) -> FunctionSpec:
    return read_deployment({"service": "fn", "image": "i", "annotations": {"gnomon/model": "m@1", "gnomon/cores": str(cores)}})


class Slow(Scripted):
    """Whatever is asked of it is known when the event loop has done something else."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._loop, self.asked, self.stood_still = loop, list[str](), list[str]()

    def _ask(self, what: str) -> None:
        self.asked.append(what)
        turned = Event()
        self._loop.call_soon_threadsafe(turned.set)
        if not turned.wait(PATIENCE_S):
            self.stood_still.append(what)

    def check(self, spec: FunctionSpec) -> None:
        del spec
        self._ask("check")

    def revision(self, spec: FunctionSpec) -> str:
        self._ask("revision")
        return super().revision(spec)

    def signature(self, spec: FunctionSpec) -> ModelSignature | None:
        self._ask("signature")
        return super().signature(spec)

    def profile(self, spec: FunctionSpec) -> ModelProfile | None:
        self._ask("profile")
        return super().profile(spec)


@pytest.fixture
async def platform() -> Slow:
    return Slow(asyncio.get_running_loop())


@pytest.fixture
async def manager(tmp_path: Path, platform: Slow) -> AsyncIterator[Manager]:
    store, latency, logs = SqliteStore(tmp_path / "functions.db"), LearnedLatency(), LogBook(lambda: 0.0)
    made = Manager(store, platform, Scaling(), LatencyModels(latency), logs, fetch_model=_is_there, now=lambda: 0.0)
    yield made
    await made.stop()
    store.close()


async def _is_there(_: str) -> None:
    pass


async def test_the_event_loop_goes_on_while_a_deployments_model_is_read(manager: Manager, platform: Slow) -> None:
    await manager.start()
    await manager.deploy(deployment())
    await manager.update(deployment(cores=2))
    assert set(platform.asked) == {"check", "revision", "signature", "profile"}
    assert platform.stood_still == []

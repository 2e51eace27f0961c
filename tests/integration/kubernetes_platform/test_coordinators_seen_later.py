"""Nodes' coordinators, where the API server does not tell of them when a process begins to lead."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any, cast

import aiohttp
import pytest

from gnomon_core.clock import WallClock
from gnomon_core.errors import GnomonError
from gnomon_platforms.kubernetes.informer import Informer
from gnomon_platforms.kubernetes.writes import Writer
from gnomon_platforms.nodes.coordinators import NodeCoordinators, NodeOptions
from tests.integration.kubernetes_platform.scripted import Script, listed, refusal, serving


async def test_the_next_attempt_sees_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Informer.start, "__defaults__", (0.1,))
    script, context = Script([refusal(403, "Forbidden")]), SimpleNamespace(epoch=lambda: 1)
    with serving(script) as api:
        writer = Writer(api, WallClock(), random.Random(1))
        nodes = NodeCoordinators(api, writer, NodeOptions("t0ken"))
        async with aiohttp.ClientSession() as session:
            for _ in range(2):
                with pytest.raises(GnomonError):
                    await nodes.start(cast("Any", context), session)
            script.steps["list"] = [listed("1")]
            monkeypatch.undo()
            await nodes.start(cast("Any", context), session)
            assert nodes.shadows is not None
            await nodes.stop()
        writer.close()

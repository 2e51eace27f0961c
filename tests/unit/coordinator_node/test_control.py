"""Whom a node's port answers: who leads, as the newest epoch says, and who only looks."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import cast

from aiohttp.test_utils import TestClient, TestServer

from gnomon_coordinator.node.control import Control
from gnomon_coordinator.node.epochs import Epochs
from gnomon_coordinator.node.news import News
from gnomon_coordinator.node.shadows import Shadows
from tests.waiting import until


async def test_a_leader_that_is_overtaken_while_it_waits_is_told_so(tmp_path: Path) -> None:
    news, epochs = News(), Epochs(tmp_path / "epoch")
    # Nothing is wished for here.
    control = Control(cast("Shadows", None), news, epochs, dict, None)
    async with TestClient(TestServer(control.application())) as client:

        async def asked(**query: str) -> tuple[int, str]:
            async with client.get("/v1/state", params=query) as answer:
                return answer.status, (await answer.json()).get("error", {}).get("code", "")

        seen = {"incarnation": news.incarnation, "version": str(news.version)}
        waiting = asyncio.create_task(asked(**seen, wait_s="60", epoch="4"))
        await until(lambda: epochs.newest == 4)
        assert await asked(epoch="5") == (200, "")
        news.happened()
        assert await waiting == (409, "stale_epoch")
        assert await asked(epoch="4") == (409, "stale_epoch")
        assert await asked() == (200, ""), "who does not lead may look"
        assert await asked(epoch="four") == (400, "bad_request")
    assert Epochs(tmp_path / "epoch").newest == 5

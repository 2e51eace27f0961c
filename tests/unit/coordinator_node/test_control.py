"""Whom a node's port answers: who leads, as the newest epoch says, and who only looks."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import cast

from aiohttp.test_utils import TestClient, TestServer
from prometheus_client.parser import text_string_to_metric_families

from gnomon_coordinator.node.control import Control
from gnomon_coordinator.node.pod_sockets import Epochs, News
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


async def test_a_token_that_is_no_text_is_a_wrong_one(tmp_path: Path) -> None:
    control = Control(cast("Shadows", None), News(), Epochs(tmp_path / "epoch"), dict, "secret")
    async with TestServer(control.application()) as server:
        reader, writer = await asyncio.open_connection(server.host, server.port)
        writer.write(b"GET /v1/state HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer \xff\r\nConnection: close\r\n\r\n")
        assert (await reader.read()).split()[1] == b"401"
        writer.close()


async def test_prometheus_reads_the_nodes_state_as_numbers_without_a_token(tmp_path: Path) -> None:
    shadows = [{"state": state, "memory_bytes": 100, "elsewhere": False} for state in ("ready", "starting", "ready", "gone")]
    shadows.append({"state": "ready", "memory_bytes": 7, "elsewhere": True})
    pool = {"ready": True, "containers": 1, "cpus": 8, "claimed_cores": 3}
    state = {"node": "n1", "pool": pool, "bodies": [{"pod_uid": "u-1"}, {"pod_uid": "u-2"}], "shadows": shadows}
    control = Control(cast("Shadows", None), News(), Epochs(tmp_path / "epoch"), lambda: state, "secret")
    async with TestClient(TestServer(control.application())) as client:
        async with client.get("/v1/state") as refused:
            assert refused.status == 401
        async with client.get("/metrics") as answer:
            assert (answer.status, answer.content_type) == (200, "text/plain")
            text = await answer.text()
    read = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    assert {(one.name, *one.labels.values()): one.value for one in read} == {
        ("gnomon_node_pool_ready",): 1,
        ("gnomon_node_containers",): 1,
        ("gnomon_node_cpus",): 8,
        ("gnomon_node_claimed_cores",): 3,
        ("gnomon_node_claimed_bytes",): 300,
        ("gnomon_node_bodies",): 2,
        ("gnomon_node_shadows", "starting"): 1,
        ("gnomon_node_shadows", "ready"): 2,
        ("gnomon_node_shadows", "ending"): 0,
        ("gnomon_node_shadows", "gone"): 1,
    }
    assert "u-1" not in text

"""Whom a node's port answers: who leads, as the newest epoch says, and who only looks."""

import asyncio
from pathlib import Path
from typing import cast

import pytest
from aiohttp.test_utils import TestClient, TestServer
from prometheus_client.parser import text_string_to_metric_families

from gnomon_coordinator.node.api import ChangeFeed, Epochs, NodeApi, epoch_file
from gnomon_coordinator.node.shadows import NodeShadows
from gnomon_core.errors import GnomonError
from tests.refusals import refused
from tests.waiting import until


async def test_waiting_leader_is_refused_once_a_newer_one_is_obeyed(tmp_path: Path) -> None:
    news, epochs = ChangeFeed(), Epochs(tmp_path / "epoch")
    # Nothing is wished for here.
    control = NodeApi(cast("NodeShadows", None), news, epochs, dict, None)
    async with TestClient(TestServer(control.application())) as client:

        async def asked(**query: str) -> tuple[int, str]:
            async with client.get("/v1/state", params=query) as answer:
                return answer.status, (await answer.json()).get("error", {}).get("code", "")

        seen = {"incarnation": news.incarnation, "version": str(news.version)}
        waiting = asyncio.create_task(asked(**seen, wait_s="60", epoch="4"))
        await until(lambda: epochs.newest == 4)
        assert await asked(epoch="5") == (200, "")
        news.changed()
        assert await waiting == (409, "stale_epoch")
        assert await asked(epoch="4") == (409, "stale_epoch")
        assert await asked() == (200, ""), "who does not lead may look"
        assert await asked(epoch="four") == (400, "bad_request")
    assert Epochs(tmp_path / "epoch").newest == 5


async def test_token_that_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    control = NodeApi(cast("NodeShadows", None), ChangeFeed(), Epochs(tmp_path / "epoch"), dict, "secret")
    async with TestServer(control.application()) as server:
        reader, writer = await asyncio.open_connection(server.host, server.port)
        writer.write(b"GET /v1/state HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer \xff\r\nConnection: close\r\n\r\n")
        assert (await reader.read()).split()[1] == b"401"
        writer.close()


async def test_metrics_need_no_token(tmp_path: Path) -> None:
    shadows = [{"state": state, "memory_bytes": 100, "elsewhere": False} for state in ("ready", "starting", "ready", "gone")]
    shadows.append({"state": "ready", "memory_bytes": 7, "elsewhere": True})
    pool = {"ready": True, "containers": 1, "cpus": 8, "claimed_cores": 3}
    state = {"node": "n1", "pool": pool, "bodies": [{"pod_uid": "u-1"}, {"pod_uid": "u-2"}], "shadows": shadows}
    control = NodeApi(cast("NodeShadows", None), ChangeFeed(), Epochs(tmp_path / "epoch"), lambda: state, "secret")
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


async def waits(changes: ChangeFeed, incarnation: str, version: int, timeout_s: float = 60.0) -> bool:
    """Whether somebody who has seen this much is kept waiting."""
    task = asyncio.create_task(changes.wait_newer(incarnation, version, timeout_s))
    for _ in range(5):
        await asyncio.sleep(0)
    kept = not task.done()
    task.cancel()
    return kept


async def test_a_request_for_the_newest_state_waits_until_it_changes() -> None:
    changes = ChangeFeed()
    seen = changes.version
    assert await waits(changes, changes.incarnation, seen)
    waiting = asyncio.create_task(changes.wait_newer(changes.incarnation, seen, 60.0))
    await asyncio.sleep(0)
    changes.changed()
    await asyncio.wait_for(waiting, 10.0)
    assert not await waits(changes, changes.incarnation, seen)
    assert await waits(changes, changes.incarnation, changes.version)


async def test_a_new_client_and_one_of_an_earlier_process_are_answered_at_once() -> None:
    changes = ChangeFeed()
    assert not await waits(changes, "", 0)
    assert not await waits(changes, "another", changes.version + 5)
    assert not await waits(changes, changes.incarnation, changes.version, 0.0)


async def test_waiting_requests_are_answered_when_the_process_ends() -> None:
    changes = ChangeFeed()
    waiting = asyncio.create_task(changes.wait_newer(changes.incarnation, changes.version, 60.0))
    await asyncio.sleep(0)
    changes.close()
    await asyncio.wait_for(waiting, 10.0)
    assert not await waits(changes, changes.incarnation, changes.version)


def test_older_leader_is_refused_also_after_a_restart(tmp_path: Path) -> None:
    epochs = Epochs(tmp_path / "epoch")
    for epoch in (3, 3, 7):
        epochs.obey(epoch)

    for later in (epochs, Epochs(tmp_path / "epoch")):
        with refused(409, "stale_epoch"):
            later.obey(6)
        later.obey(7)


def test_unreadable_epoch_file_counts_as_none(tmp_path: Path) -> None:
    (tmp_path / "epoch").write_text("x")
    assert Epochs(tmp_path / "epoch").newest == 0


def test_each_installation_has_its_own_epochs(tmp_path: Path) -> None:
    """Its Lease begins at 1, on nodes that have obeyed an earlier installation's ninth leader."""
    Epochs(epoch_file(tmp_path, "of the first")).obey(9)
    Epochs(epoch_file(tmp_path, "of the second")).obey(1)
    with pytest.raises(GnomonError):
        Epochs(epoch_file(tmp_path, "of the first")).obey(8)

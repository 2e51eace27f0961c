"""A node's coordinator: its command line, whom its port answers, and when it may end."""

import asyncio
from pathlib import Path
from typing import cast

import pytest
import yaml
from aiohttp.test_utils import TestClient, TestServer
from prometheus_client.parser import text_string_to_metric_families

from gnomon_coordinator.node.__main__ import main, settings_from
from gnomon_coordinator.node.agent import SETTLED_S as INSTALLED_SETTLED_S
from gnomon_coordinator.node.agent import ExitDelay
from gnomon_coordinator.node.api import ChangeFeed, Epochs, NodeApi, epoch_file
from gnomon_coordinator.node.shadows import NodeShadows
from gnomon_core.errors import GnomonError
from tests.refusals import refused
from tests.waiting import until


async def test_waiting_leader_is_refused_once_a_newer_one_is_obeyed(tmp_path: Path) -> None:
    feed, epochs = ChangeFeed(), Epochs(tmp_path / "epoch")
    # Nothing is wished for here.
    control = NodeApi(cast("NodeShadows", None), feed, epochs, dict, None)
    async with TestClient(TestServer(control.application())) as client:

        async def asked(**query: str) -> tuple[int, str]:
            async with client.get("/v1/state", params=query) as answer:
                return answer.status, (await answer.json()).get("error", {}).get("code", "")

        seen = {"incarnation": feed.incarnation, "version": str(feed.version)}
        waiting = asyncio.create_task(asked(**seen, wait_s="60", epoch="4"))
        await until(lambda: epochs.newest == 4)
        assert await asked(epoch="5") == (200, "")
        feed.changed()
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
    assert {(sample.name, *sample.labels.values()): sample.value for sample in read} == {
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
    """True if somebody who has seen this much is kept waiting."""
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
    """An installation's Lease begins at 1, on nodes that have obeyed an earlier installation's ninth leader."""
    Epochs(epoch_file(tmp_path, "of the first")).obey(9)
    Epochs(epoch_file(tmp_path, "of the second")).obey(1)
    with pytest.raises(GnomonError):
        Epochs(epoch_file(tmp_path, "of the first")).obey(8)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("", "set NODE_NAME"),
        ("--node n --port 70000", "70000 is no port"),
        ("--node n --pair-port -1", "-1 is no port"),
        ("--node n --port http", "invalid"),
        ("--node n --token-file {}/nowhere", "No such file"),
        ("--node n --token-file {}/bytes", "can't decode"),
        ("--node n --token-file {}/empty", "is empty"),
        ("--node n --tls-certificate {}/nowhere --tls-key {}/nowhere", "No such file"),
    ],
)
def test_invalid_options_are_explained(
    options: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NODE_NAME", raising=False)
    (tmp_path / "bytes").write_bytes(b"\xff")
    (tmp_path / "empty").write_text(" \n")
    with pytest.raises(SystemExit) as ended:
        settings_from(options.replace("{}", str(tmp_path)).split())
    assert ended.value.code == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(("host", "says"), [("no-such-host.invalid", "need a token"), ("203.0.113.1", "need a token")])
def test_agent_refuses_a_public_address_without_a_token(
    host: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A name may be anybody's address."""
    assert main(["--node", "n", "--kubelet", str(tmp_path), "--pool", str(tmp_path / "pool.sock"), "--host", host]) == 2
    assert says in capsys.readouterr().err


LONGEST_S, SETTLED_S = 50.0, 40.0
BOTH, ONE, NONE = {"u-1", "u-2"}, {"u-1"}, set[str]()


def leaving(at_s: float = 0.0) -> ExitDelay:
    return ExitDelay(at_s, LONGEST_S, SETTLED_S)


def test_agent_without_volumes_exits_at_once() -> None:
    assert leaving(1000.0).may_exit(1000.0, NONE, NONE)


def test_agent_exits_with_the_last_volume_of_ending_pods() -> None:
    ends = leaving()
    assert not ends.may_exit(0.0, BOTH, BOTH)
    assert not ends.may_exit(2.0, BOTH, ONE), "a container has ended, its volume is about to go"
    assert not ends.may_exit(3.0, ONE, ONE)
    assert not ends.may_exit(41.0, ONE, ONE), "it is 38 s since the first one went"
    assert not ends.may_exit(42.0, ONE, NONE)
    assert ends.may_exit(42.5, NONE, NONE)


def test_agent_exits_in_an_update_once_nothing_changes() -> None:
    update = leaving()
    assert not update.may_exit(0.0, BOTH, BOTH)
    assert not update.may_exit(39.9, BOTH, BOTH)
    assert update.may_exit(40.0, BOTH, BOTH)


def test_agent_waits_a_bounded_time_for_a_pod_without_a_body() -> None:
    waits = leaving(10.0)
    assert not waits.may_exit(10.0, BOTH, ONE)
    assert not waits.may_exit(59.9, BOTH, ONE)
    assert waits.may_exit(60.0, BOTH, ONE)


def test_body_without_a_volume_does_not_delay_the_exit() -> None:
    assert leaving().may_exit(0.0, NONE, ONE)


def test_installed_delay_is_shorter_than_the_grace_period() -> None:
    daemons = Path(__file__).parents[3] / "deploy" / "openfaas" / "coordinator" / "daemonset.yaml"
    pod = yaml.safe_load(daemons.read_text())["spec"]["template"]["spec"]
    [stay_s] = [float(word.partition("=")[2]) for word in pod["containers"][0]["args"] if word.startswith("--stay=")]
    assert INSTALLED_SETTLED_S < stay_s < pod["terminationGracePeriodSeconds"] - 5

"""Bodies and Shadows on nodes."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import threading
import urllib.request
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gnomon_coordinator.node.pod_sockets import SOCKET
from gnomon_core import packets
from gnomon_core.errors import GnomonError
from gnomon_core.fleet import InstanceKind, InstanceState
from gnomon_core.functions import FunctionSpec
from gnomon_core.pairs import Pair
from gnomon_platforms.common import MODEL_OVERHEAD_BYTES
from gnomon_platforms.kubernetes.nodes import Claim
from gnomon_platforms.nodes.client import UNREACHABLE
from gnomon_platforms.nodes.models import ServedModels
from gnomon_profiler.repository import DirectoryRepository
from tests.integration.coordinator_node.node import PATIENT, SPLIT, Body, Known, Node
from tests.integration.coordinator_node.played_platform import SPEC, Platform, a_pair, layers_of, refusal
from tests.waiting import eventually, until

pytestmark = [pytest.mark.torch, pytest.mark.timeout(240)]


def pair_of(node: Node, shadow: str) -> tuple[Body, Known]:
    """A Body that works with a Shadow, and what it answered before."""
    node.warm()
    body = node.shared_body()
    known = Known.of(node, body)
    node.pair(shadow, body.uid)
    return body, known


def pool_processes(node: Node, name: str) -> list[int]:
    """The processes of this name below the pool's first one."""
    found: list[int] = []
    parents = [node.pool.process.pid]
    while parents:
        pid = parents.pop()
        try:
            children = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
            found += [child for child in children if Path(f"/proc/{child}/comm").read_text().strip() == name]
        except OSError:
            continue
        parents += children
    return found


def test_a_pair_answers_as_its_body_does_alone_bit_for_bit(node: Node) -> None:
    node.warm()
    body = node.shared_body()
    known = {samples: Known.of(node, body, samples) for samples in (1, 2, 3, 4, 8)}

    status, row = node.request_shadow("s-pair", body.uid, node.blocks, SPLIT)
    assert (status, row["state"], row["cores"]) == (200, "starting", 1)
    row = node.paired("s-pair")
    assert (row["state"], row["blocks"], row["split"], row["pod_uid"]) == ("ready", node.blocks, SPLIT, body.uid)
    assert row["resident_bytes"] > 0
    for samples in (2, 3, 4, 8):
        assert known[samples].together(body)
    assert known[1].alone(body)

    # Other shares, between two batches: of two samples none is given away.
    what = {"epoch": node.epoch, "cores": 1, "blocks": node.blocks, "split": [0, 0, 1, 2], "expected_ms": PATIENT}
    assert node.ask("PATCH", "/v1/shadows/s-pair", what)[0] == 200
    eventually(lambda: node.shadow("s-pair")["split"] == [0, 0, 1, 2], "it does not change")
    assert known[2].alone(body)
    assert known[4].together(body)

    assert node.end("s-pair") == "stopped"
    assert known[8].alone(body)
    assert node.state()["pool"]["claimed_cores"] == 0


def test_a_shadow_is_a_process_that_was_there_before_the_wish(node: Node) -> None:
    """No container is made and nothing is imported for it: that is what it is quick by, on a quiet machine and on a busy one."""
    node.warm()
    body = node.shared_body()
    containers = eventually(lambda: pool_processes(node, "gnomon empty"), "the pool is empty")
    eventually(lambda: node.state()["pool"]["containers"] > 0, "the pool keeps none")
    node.pair("s-quick", body.uid)

    [shadow] = pool_processes(node, "gnomon line.ope")
    assert shadow in containers
    node.end("s-quick")


def test_a_coordinator_that_is_killed_is_replaced_and_the_pair_goes_on(node: Node) -> None:
    body, known = pair_of(node, "s-kill")
    [shadow] = pool_processes(node, "gnomon line.ope")
    [before] = pool_processes(node, "gnomon coord")
    os.kill(before, signal.SIGKILL)

    for _ in range(20):
        assert known.together(body)
    [after] = eventually(lambda: [pid for pid in pool_processes(node, "gnomon coord") if pid != before])
    assert after != before
    # The new one knows the pair, and ends it when it is told to.
    node.paired("s-kill")
    assert pool_processes(node, "gnomon line.ope") == [shadow]
    assert node.end("s-kill") == "stopped"
    assert known.alone(body)


def test_a_pool_that_ends_takes_its_shadows_along_and_no_answer(node: Node) -> None:
    body, known = pair_of(node, "s-pool")
    node.end_pool()

    assert known.answered(body)
    assert node.ended("s-pool") == "the node's pool has ended"
    assert node.request_shadow("s-early", body.uid, node.blocks, SPLIT)[0] == 503
    # Its container is started again. The Body has never let go of the agent: it obeys a coordinator that counts on.
    node.begin_pool()
    node.warm()
    node.pair("s-next", body.uid)
    assert known.together(body)
    node.end("s-next")


def test_an_agent_that_is_killed_finds_volumes_and_bodies_again(node: Node) -> None:
    body, known = pair_of(node, "s-agent")
    incarnation = node.state()["incarnation"]
    node.agent.kill()

    assert known.answered(body)
    node.begin_agent()
    node.warm()
    node.has_come(body.uid)
    state = node.state()
    assert state["incarnation"] != incarnation
    assert state["shadows"] == []
    eventually(lambda: known.alone(body), "the Body has a Shadow that has gone")
    node.pair("s-after", body.uid)
    assert known.together(body)
    node.end("s-after")


def test_a_body_that_ends_takes_its_shadow_along(node: Node) -> None:
    node.warm()
    body = node.body("uid-end")
    node.pair("s-end", "uid-end")
    assert body.kill(signal.SIGTERM) == 0

    assert "Body has gone" in node.ended("s-end")
    eventually(lambda: "uid-end" not in [row["pod_uid"] for row in node.state()["bodies"]], "it is still there")


def test_a_pod_whose_volume_is_taken_away_has_no_shadow_any_more(node: Node) -> None:
    body, known = pair_of(node, "s-away")
    node.kubelet.unpublish(node.pod(body.uid))

    node.ended("s-away")
    assert known.alone(body)
    status, refusal = node.request_shadow("s-again", body.uid, node.blocks, SPLIT)
    assert (status, refusal["code"]) == (409, "no_such_body")


def test_a_stranger_at_anothers_socket_is_that_pods_business_and_nobody_elses(node: Node) -> None:
    """A pod has only its own folder mounted. Whoever is in there speaks as that pod: never as another one, whatever it says."""
    body, known = pair_of(node, "s-mine")
    stranger = node.pod("uid-stranger")
    with stranger.connect() as connection:
        node.has_come("uid-stranger")
        packets.receive(connection)
        # It claims the other's Shadow, in every way that there is.
        for said in (
            {"say": "body", "epoch": 1, "pairs": [{"shadow": "s-mine", "blocks": node.blocks, "split": SPLIT}]},
            {"say": "unpaired", "epoch": 1, "shadow": "s-mine", "reason": "mine now"},
            {"say": "failed", "epoch": 1, "shadow": "s-mine", "reason": "mine now"},
        ):
            packets.send(connection, said)
        for _ in range(5):
            assert known.together(body)
        assert node.shadow("s-mine")["paired"]
        # One that says that it is the other's Shadow is no Body, and not heard any more.
        packets.send(connection, {"say": "registered", "epoch": 1, "shadow": "s-mine", "body": "x", "blocks": [0],
                                  "resident_bytes": 1, "load_ms": 1.0})  # fmt: skip
        eventually(lambda: hung_up(connection), "it is still heard")
    assert known.together(body)
    node.end("s-mine")


def hung_up(connection: socket.socket) -> bool:
    """True if nothing that is sent is taken any more, or nobody reads it: the coordinator has closed its end."""
    connection.setblocking(False)  # noqa: FBT003 - the signature is socket's
    try:
        while True:
            packets.receive(connection)
    except BlockingIOError:
        pass
    except packets.PeerGoneError:
        return True
    try:
        packets.send(connection, {"say": "empty", "epoch": 1})
    except (BlockingIOError, packets.PeerGoneError):
        return True
    return False


def test_unregistered_body_gets_no_shadow_and_missing_token_is_refused(node: Node) -> None:
    node.warm()
    status, refusal = node.request_shadow("s-none", "uid-none", node.blocks, SPLIT)
    assert (status, refusal["code"]) == (409, "no_such_body")
    for method, path in (("GET", "/v1/state"), ("PUT", "/v1/shadows/s"), ("PATCH", "/v1/shadows/s"), ("DELETE", "/v1/shadows/s")):
        assert node.ask(method, path, {}, token="guessed")[0] == 401
    with urllib.request.urlopen(f"http://{node.host}:{node.port}/metrics") as answer:
        assert b"\ngnomon_node_pool_ready 1\n" in answer.read(), "numbers are for everybody"


def test_an_older_leader_is_refused_also_after_a_restart(node: Node) -> None:
    node.warm()
    body = node.shared_body()
    node.epoch += 1
    older = node.epoch - 1
    node.pair("s-epoch", body.uid)
    for method, path, document in (
        ("PUT", "/v1/shadows/s-other", {"epoch": older}),
        ("PATCH", "/v1/shadows/s-epoch", {"epoch": older}),
        ("DELETE", f"/v1/shadows/s-epoch?epoch={older}", None),
    ):
        status, refusal = node.ask(method, path, document)
        assert (status, refusal["code"]) == (409, "stale_epoch")
    assert node.shadow("s-epoch")["paired"]
    node.agent.kill()
    node.begin_agent()
    assert node.ask("DELETE", f"/v1/shadows/s-epoch?epoch={older}")[1]["code"] == "stale_epoch"
    assert node.ask("DELETE", f"/v1/shadows/s-epoch?epoch={node.epoch}")[0] == 200


def test_a_body_without_the_volume_says_so_and_serves(node: Node, tmp_path: Path) -> None:
    pod = node.pod("uid-without")
    has = Body(tmp_path, pod.uid, pod.target / SOCKET, node.models, node.head)
    without = Body(tmp_path, "uid-nothing", tmp_path / "nothing" / SOCKET, node.models, node.head)
    node.started += [has, without]

    assert without.ask(node.batch()) == has.ask(node.batch())
    assert "this Body works without Shadows" in without.said
    assert "works without Shadows" not in has.said


@pytest.mark.parametrize(
    "fields",
    [
        {"weights": "../../etc/passwd"},
        {"program": "/etc/passwd"},
        {"layers": ""},
        {"weight_mode": "stolen"},
        {"cores": 0},
        {"blocks": [2, 1]},
        {"split": [0, 2]},
        {"max_batch": "8"},
        {"epoch": -1},
    ],
)
def test_a_wish_that_cannot_be_read_changes_nothing(node: Node, fields: dict[str, object]) -> None:
    status, refusal = node.request_shadow("s-bad", "uid-none", node.blocks, SPLIT, fields)
    assert (status, refusal["code"]) == (400, "bad_request")
    assert node.shadow("s-bad") == {}


async def test_a_shadow_is_asked_for_told_of_changed_and_ended(platform: Platform, node: Node) -> None:
    await platform.body("p-1")
    began = await platform.pairs.create("p-1", a_pair(node), "p-1-s1")
    assert (began.kind, began.state, began.partner, began.node) == (InstanceKind.SHADOW, InstanceState.STARTING, "p-1", "node-a")
    assert platform.claimed["p-1-s1"] == Claim("node-a", 1.0, MODEL_OVERHEAD_BYTES), "its Body holds the weights that they share"
    await until(lambda: ("p-1", ["p-1-s1"]) in platform.pairs_told)
    seen = platform.seen("p-1-s1")
    assert (seen.state, seen.pair) == (InstanceState.READY, a_pair(node))

    other = a_pair(node, 2, (0, 0, 1, 1))
    await platform.pairs.change("p-1-s1", other)
    await until(lambda: platform.seen("p-1-s1").pair == other)
    assert platform.claimed["p-1-s1"].cores == 2.0

    assert platform.pairs.destroy("p-1-s1")
    assert await platform.events.reason("p-1-s1") == "stopped"
    assert platform.pairs_told[-1] == ("p-1", [])
    assert platform.claimed == {}
    await until(lambda: node.state()["shadows"] == [], "the node remembers it")
    assert not platform.pairs.destroy("p-1-s1")


async def test_private_weights_are_claimed_with_the_shadow(platform: Platform, node: Node) -> None:
    await platform.body("p-11")
    platform.knows("p-11", replace(SPEC, settings=replace(SPEC.settings, weight_mode="private")))
    await platform.pairs.create("p-11", a_pair(node), "p-11-s1")
    weights_bytes = layers_of(node).parameter_bytes(node.blocks)
    assert weights_bytes > 0
    assert platform.claimed["p-11-s1"].memory_bytes == MODEL_OVERHEAD_BYTES + weights_bytes
    await platform.pairs.change("p-11-s1", replace(a_pair(node), blocks=(0,)))
    assert platform.claimed["p-11-s1"].memory_bytes == MODEL_OVERHEAD_BYTES + layers_of(node).parameter_bytes((0,))


async def test_impossible_request_is_refused_without_leftovers(platform: Platform, node: Node) -> None:
    async def code(body: str, pair: Pair) -> str:
        with pytest.raises(GnomonError) as caught:
            await platform.pairs.create(body, pair, "never")
        return caught.value.code

    await platform.body("p-2")
    assert await code("nobody", a_pair(node)) == "no_such_body"
    assert await code("p-2", Pair(1, (len(node.blocks),), (0, 1))) == "no_such_body"
    assert await code("p-2", a_pair(node, 9)) == "no_capacity"
    # A Shadow is a process of its Body's node, whether that is named or not.
    assert await code("p-2", replace(a_pair(node), node="node-b")) == "no_such_node"
    assert await code("p-2", replace(a_pair(node, 9), node="node-a")) == "no_capacity"
    # A pod whose Body has not come, because it has no volume.
    platform.bodies["p-3"] = replace(platform.bodies["p-2"], uid="uid-of-nobody")
    assert await code("p-3", a_pair(node)) == "no_such_body"
    platform.bodies["p-4"] = replace(platform.bodies["p-2"], node="node-b")
    assert await code("p-4", a_pair(node)) == "no_such_body"
    # Refused by the node itself, after the cores were claimed: it knows how many it really has.
    platform.cores = 5000.0
    assert await code("p-2", a_pair(node, 4000)) == "no_capacity"
    platform.cores = 8.0
    assert platform.claimed == {}
    assert platform.pairs.instances("line.openfaas-fn") == []
    assert platform.events.gone == {}


async def test_a_shadow_that_ends_by_itself_is_told_once(platform: Platform, node: Node) -> None:
    body = await platform.body("p-5")
    await platform.pairs.create("p-5", a_pair(node), "p-5-s1")
    await until(lambda: ("p-5", ["p-5-s1"]) in platform.pairs_told)
    body.kill(signal.SIGKILL)

    assert "Body has gone" in await platform.events.reason("p-5-s1")
    assert platform.events.times_gone["p-5-s1"] == 1
    assert platform.pairs_told[-1] == ("p-5", [])
    await until(lambda: node.state()["shadows"] == [], "the node remembers it")


async def test_a_node_that_has_no_coordinator_any_more_has_no_shadows(platform: Platform, node: Node) -> None:
    await platform.body("p-8")
    await platform.pairs.create("p-8", a_pair(node), "p-8-s1")
    await until(lambda: ("p-8", ["p-8-s1"]) in platform.pairs_told)
    platform.adopting_s = 60.0
    platform.pairs.coordinator_removed("node-a")

    assert platform.pools == set()
    assert "no coordinator any more" in await platform.events.reason("p-8-s1")
    assert platform.pairs_told[-1] == ("p-8", [])
    assert platform.claimed == {}
    # Where it answers again, what was told to have gone is ended and not found again.
    await platform.reach()
    await until(lambda: node.state()["shadows"] == [], "it lives")
    assert (platform.events.found, platform.events.times_gone["p-8-s1"]) == ({}, 1)


async def test_a_coordinator_that_is_started_anew_has_lost_its_shadows(platform: Platform, node: Node) -> None:
    await platform.body("p-7")
    await platform.pairs.create("p-7", a_pair(node), "p-7-s1")
    await until(lambda: ("p-7", ["p-7-s1"]) in platform.pairs_told)
    node.agent.kill()
    node.begin_agent()
    await platform.reach()

    assert "started anew" in await platform.events.reason("p-7-s1")
    assert platform.pairs_told[-1] == ("p-7", [])
    await until(lambda: node.uids["p-7"] in {row["pod_uid"] for row in node.state()["bodies"]}, "it has not come back")
    await platform.pairs.create("p-7", a_pair(node), "p-7-s2")
    await until(lambda: ("p-7", ["p-7-s2"]) in platform.pairs_told)


async def test_a_change_takes_as_much_as_its_node_has_heard(
    platform: Platform, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    await platform.body("p-12")
    await platform.pairs.create("p-12", a_pair(node), "p-12-s1")
    await until(lambda: ("p-12", ["p-12-s1"]) in platform.pairs_told)
    client = platform.pairs.connections.clients["node-a"]
    request, lost = client.request, "the request"

    async def over_a_bad_line(method: str, path: str, document: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        answer = {} if method == "PATCH" and lost == "the request" else await request(method, path, document)
        if method == "PATCH" and lost:
            raise GnomonError(503, UNREACHABLE, f"{lost} was lost", "Try again.")
        return answer

    def taken() -> tuple[float, int]:
        return platform.claimed["p-12-s1"].cores, platform.seen("p-12-s1").cores

    monkeypatch.setattr(client, "request", over_a_bad_line)
    assert await refusal(platform.pairs.change("p-12-s1", a_pair(node, 2))) == UNREACHABLE
    assert taken() == (1.0, 1)
    lost = "its answer"
    assert await refusal(platform.pairs.change("p-12-s1", a_pair(node, 2))) == UNREACHABLE
    await until(lambda: taken() == (2.0, 2), "its node has given it two")
    lost = ""
    await platform.pairs.change("p-12-s1", a_pair(node, 1))
    assert taken() == (1.0, 1)
    await until(lambda: node.shadow("p-12-s1")["cores"] == 1)
    assert taken() == (1.0, 1)


async def test_a_change_that_nobody_can_tell_is_refused_until_somebody_can(platform: Platform, node: Node) -> None:
    await platform.body("p-13")
    await platform.pairs.create("p-13", a_pair(node), "p-13-s1")
    await until(lambda: ("p-13", ["p-13-s1"]) in platform.pairs_told)
    other = a_pair(node, 2, (0, 0, 1, 1))
    platform.pairs.connections.set_address("node-a", None)
    assert await refusal(platform.pairs.change("p-13-s1", other)) == UNREACHABLE
    assert (platform.claimed["p-13-s1"].cores, platform.seen("p-13-s1").pair) == (1.0, a_pair(node)), "it does what it did"
    await platform.reach()
    await platform.pairs.change("p-13-s1", other)
    await until(lambda: platform.seen("p-13-s1").pair == other)


async def test_a_shadow_gets_no_more_cores_than_its_node_has(platform: Platform, node: Node) -> None:
    await platform.body("p-14")
    await platform.pairs.create("p-14", a_pair(node), "p-14-s1")
    await until(lambda: ("p-14", ["p-14-s1"]) in platform.pairs_told)
    # Claims do not know how many there are: its node does.
    platform.cores = 5000.0
    assert await refusal(platform.pairs.change("p-14-s1", a_pair(node, 4000))) == "no_capacity"
    assert (platform.claimed["p-14-s1"].cores, node.shadow("p-14-s1")["cores"]) == (1.0, 1)


def left(platform: Platform) -> tuple[object, object]:
    """The claims and the Shadows that are left."""
    return platform.claimed, platform.pairs.instances("line.openfaas-fn")


class Slow(ServedModels):
    """Reads for as long as a test wants."""

    def __init__(self, node: Node) -> None:
        super().__init__(DirectoryRepository(node.models), node.models)
        self.reading, self.goes_on = threading.Event(), threading.Event()

    def files(self, spec: FunctionSpec) -> dict[str, str]:
        self.reading.set()
        assert self.goes_on.wait(20.0), "the loop has waited for it"
        return super().files(spec)


async def test_a_repository_that_is_slow_holds_nothing_up_and_a_body_may_go_meanwhile(node: Node) -> None:
    node.epoch += 1
    models = Slow(node)
    async with aiohttp.ClientSession() as session:
        platform = Platform(node, session, models)
        await platform.reach()
        await platform.body("p-13")
        creating = asyncio.create_task(platform.pairs.create("p-13", a_pair(node), "p-13-s1"))
        await until(models.reading.is_set)
        assert left(platform) == ({}, [])
        del platform.bodies["p-13"]
        models.goes_on.set()
        assert await refusal(creating) == "no_such_body"
        assert left(platform) == ({}, [])
        await platform.pairs.close()


async def test_nodes_that_have_no_folder_of_the_repository_make_no_shadows(node: Node, tmp_path: Path) -> None:
    node.epoch += 1
    shutil.copytree(node.models, tmp_path / "fetched")
    async with aiohttp.ClientSession() as session:
        for folder, why in ((None, "the repository is elsewhere"), (node.models, "is not in ")):
            platform = Platform(node, session, ServedModels(DirectoryRepository(tmp_path / "fetched"), folder))
            platform.pairs.connections.set_address("node-a", f"http://127.0.0.1:{node.port}")
            await until(lambda known=platform: "node-a" in known.pairs.connections.states, "the node is not connected", 120.0)
            await platform.body("p-14")
            assert platform.pools == (set() if folder is None else {"node-a"}), "policies see whether Shadows can be made there"
            with pytest.raises(GnomonError, match=why) as caught:
                await platform.pairs.create("p-14", a_pair(node), "p-14-s1")
            assert caught.value.code == "no_such_body"
            assert left(platform) == ({}, [])
            await platform.pairs.close()


async def test_failed_shadow_request_frees_its_reservation(
    platform: Platform, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    await platform.body("p-15")

    async def broken(method: str, path: str, document: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        raise ValueError(f"{method} {path} {document}")

    with monkeypatch.context() as patched:
        patched.setattr(platform.pairs.connections.clients["node-a"], "request", broken)
        with pytest.raises(ValueError, match="PUT"):
            await platform.pairs.create("p-15", a_pair(node), "p-15-s1")
    assert left(platform) == ({}, [])
    await platform.pairs.create("p-15", a_pair(node), "p-15-s2")
    await until(lambda: ("p-15", ["p-15-s2"]) in platform.pairs_told)

"""Lost requests to a node's coordinator are repeated, and an unreachable node is reconnected."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, cast

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from gnomon_core.fleet import Instance, InstanceState
from gnomon_core.functions import read_deployment
from gnomon_core.pairs import Pair
from gnomon_platforms.kubernetes.nodes import Claim
from gnomon_platforms.kubernetes.objects.placing import Placing
from gnomon_platforms.nodes import client
from gnomon_platforms.nodes.models import ServedModels
from gnomon_platforms.nodes.node_shadow import BodyPod, ShadowContext
from gnomon_platforms.nodes.shadows import ShadowTracker
from gnomon_profiler.repository import DirectoryRepository
from tests.platform_testing import Recorder
from tests.waiting import until

BODY = BodyPod(
    Instance("b-1", "line.openfaas-fn", 1, "node-a", 4, 100, InstanceState.READY, 1.0),
    read_deployment({"service": "line", "image": "i"}),
    "uid-1",
    "node-a",
)
ROW: dict[str, Any] = {
    "id": "s-1", "pod_uid": "uid-1", "state": "ready", "reason": "", "cores": 2, "paired": True, "blocks": [0], "split": [0, 1],
    "wished": {"blocks": [0], "split": [0, 1]}, "memory_bytes": 500, "afar": False, "elsewhere": False, "token": "",
}  # fmt: skip


class PlayedNode:
    """A coordinator of a node, of whose answers some are lost, and what it was asked for."""

    def __init__(self, *rows: dict[str, Any], name: str = "node-a") -> None:
        self.name, self.rows, self.version = name, list(rows), 1
        self.lost: list[str] = []
        """The methods of requests that it does not hear."""
        self.deleted_ids: list[str] = []
        self._news = asyncio.Event()
        app = web.Application()
        app.router.add_get("/v1/state", self._tell)
        app.router.add_delete("/v1/shadows/{id}", self._end)
        self.server = TestServer(app)

    @property
    def address(self) -> str:
        return str(self.server.make_url("")).rstrip("/")

    def says(self, *rows: dict[str, Any]) -> None:
        """Report these as the node's Shadows."""
        self.rows, self.version = list(rows), self.version + 1
        self._news.set()

    def hangs_up(self) -> None:
        """Break the connection of the reader that waits for news, and once more when it asks again."""
        self.lose("GET")
        self._news.set()

    def lose(self, method: str) -> None:
        """The next such request is not heard: aiohttp itself says it again once, over another connection."""
        self.lost += [method, method]

    def _loses(self, request: web.Request) -> bool:
        if request.method not in self.lost:
            return False
        self.lost.remove(request.method)
        assert request.transport is not None
        request.transport.abort()
        return True

    async def _tell(self, request: web.Request) -> web.Response:
        if not self._loses(request) and request.query["version"] == str(self.version):
            self._news.clear()
            await self._news.wait()
            self._loses(request)
        pool = {"ready": True, "containers": 1, "cpus": 4, "claimed_cores": 0}
        about = {"node": self.name, "pool": pool, "bodies": [{"pod_uid": "uid-1"}], "pair_port": 7469}
        return web.json_response({"incarnation": "i", "version": self.version, **about, "shadows": self.rows})

    async def _end(self, request: web.Request) -> web.Response:
        if not self._loses(request):
            self.deleted_ids.append(request.match_info["id"])
        return web.json_response({})


class Platform:
    """The part of a platform that a Shadow which is found on a node needs."""

    def __init__(self, session: aiohttp.ClientSession, models: Path) -> None:
        self.listener, self.pools = Recorder(), set[str]()
        self.lost = False
        """Whether the node did not answer at some time."""
        context = ShadowContext(
            bodies=self,
            capacity=cast("Any", self),
            listener=self.listener,
            now_s=lambda: 0.0,
            epoch=lambda: 1,
            adopting_s=lambda: 0.0,
            models=ServedModels(DirectoryRepository(models), models),
        )
        self.pairs = ShadowTracker(context, session, "token")

    def free_cores(self, node: str) -> float:
        del node
        return 8.0

    def place_shadow(self, placing: Placing, cores: int, named: str) -> str:
        del placing, cores
        return named

    def claim(self, instance_id: str, claim: Claim) -> None: ...

    def withdraw(self, instance_id: str) -> None: ...

    def pool_ready(self, node: str, *, ready: bool) -> None:
        (self.pools.add if ready else self.pools.discard)(node)
        self.lost |= not ready

    def of_instance(self, body_id: str) -> BodyPod | None:
        return BODY if body_id == "b-1" else None

    def of_pod(self, uid: str) -> BodyPod | None:
        return BODY if uid == "uid-1" else None

    def placing(self, body: BodyPod) -> Placing:
        del body
        return Placing()

    def set_pairs(self, body_id: str, shadows: Mapping[str, Pair]) -> None: ...


@pytest.fixture
async def node() -> AsyncIterator[PlayedNode]:
    made = PlayedNode(ROW)
    await made.server.start_server()
    yield made
    await made.server.close()


@pytest.fixture
async def platform(node: PlayedNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Platform]:
    monkeypatch.setattr(client, "RETRY_S", 0.01)
    async with aiohttp.ClientSession() as session:
        made = Platform(session, tmp_path)
        made.pairs.connections.set_address("node-a", node.address)
        await until(lambda: "s-1" in made.listener.found, "the node is not heard")
        yield made
        await made.pairs.close()


async def test_a_node_that_hung_up_is_heard_again_although_nothing_is_new(platform: Platform, node: PlayedNode) -> None:
    node.hangs_up()
    await until(lambda: platform.lost, "nobody has noticed")
    await until(lambda: "node-a" in platform.pools, "it makes no Shadows any more", 5.0)
    assert "node-a" in platform.pairs.connections.states
    assert list(platform.listener.found) == ["s-1"]


async def test_a_node_that_said_nonsense_is_heard_again(platform: Platform, node: PlayedNode) -> None:
    node.says({"id": "s-1"})
    await until(lambda: platform.lost, "nobody has noticed")
    node.says(ROW, {**ROW, "id": "s-2"})
    await until(lambda: "s-2" in platform.listener.found, "nobody listens any more", 5.0)


async def test_an_end_that_was_not_heard_is_said_again(platform: Platform, node: PlayedNode) -> None:
    node.lose("DELETE")
    assert platform.pairs.destroy("s-1")
    await until(lambda: node.deleted_ids == ["s-1"], "the Shadow would live for ever", 5.0)


async def test_an_end_is_said_again_where_its_node_was_not_reached_meanwhile(platform: Platform, node: PlayedNode) -> None:
    node.lose("DELETE")
    assert platform.pairs.destroy("s-1")
    # Its pod is not ready for a moment.
    platform.pairs.connections.set_address("node-a", None)
    platform.pairs.connections.set_address("node-a", node.address)
    await until(lambda: "s-1" in node.deleted_ids, "the Shadow would live for ever", 5.0)
    node.says({**ROW, "state": "gone", "paired": False, "reason": "stopped"})
    assert await platform.listener.reason("s-1") == "stopped"


@pytest.mark.parametrize("state", ["ending", "gone"])
async def test_ending_shadow_is_not_told_to_end_again(platform: Platform, node: PlayedNode, state: str) -> None:
    assert platform.pairs.destroy("s-1")
    await until(lambda: node.deleted_ids == ["s-1"])
    before = node.version
    node.says({**ROW, "state": state, "paired": False, "reason": "stopped"})
    await until(lambda: platform.pairs.connections.states["node-a"]["version"] > before)
    await platform.pairs._background.settled()
    assert len(node.deleted_ids) == (2 if state == "gone" else 1), "what has gone is forgotten there"


async def test_the_half_on_its_bodys_node_is_told_again_as_well(platform: Platform, node: PlayedNode) -> None:
    other = PlayedNode({**ROW, "id": "s-2", "paired": False, "afar": True, "token": "t"}, name="node-b")
    await other.server.start_server()
    node.says(ROW, {**ROW, "id": "s-2", "elsewhere": True})
    platform.pairs.connections.set_address("node-b", other.address)
    await until(lambda: any(instance.id == "s-2" and instance.pair for instance in platform.pairs.instances("line.openfaas-fn")))
    await until(lambda: len(platform.pairs.connections.states["node-a"]["shadows"]) > 1)
    node.lose("DELETE")
    assert platform.pairs.destroy("s-2")
    await until(lambda: node.deleted_ids == ["s-2"], "the pair would work for ever", 5.0)
    assert other.deleted_ids == [], "first its Body lets go of it"
    await platform.pairs.close()
    await other.server.close()


async def test_untold_shadow_is_announced_again(platform: Platform, node: PlayedNode) -> None:
    other = PlayedNode({**ROW, "id": "s-2", "state": "starting", "paired": False, "afar": True, "token": "t"}, name="node-b")
    await other.server.start_server()
    platform.pairs.connections.set_address("node-b", other.address)
    await until(lambda: "s-2" in platform.listener.found)
    other.lose("DELETE")
    assert platform.pairs.destroy("s-2")
    platform.pairs.connections.set_address("node-b", None)
    platform.pairs.connections.set_address("node-b", other.address)
    await until(lambda: "s-2" in other.deleted_ids, "it would have its cores until it had waited long enough for its Body", 5.0)
    assert node.deleted_ids == []
    await platform.pairs.close()
    await other.server.close()


async def test_words_of_a_coordinator_that_was_given_up_meanwhile_are_not_heard(platform: Platform) -> None:
    nodes = platform.pairs.connections
    before, last = nodes.clients["node-a"], nodes.states["node-a"]
    nodes.set_address("node-a", None)
    # An agent that ends answers whoever waits for news: just when its pod is seen to go.
    before._on_state({**last, "version": 2})
    assert nodes.states == {}
    assert platform.pools == set(), "Shadows would be asked for where nobody makes them"
    before._on_lost()

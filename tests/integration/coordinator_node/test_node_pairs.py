"""The cluster's platform and a node's coordinator: Shadows that are asked for, told of, changed, lost and ended."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace

import aiohttp
import pytest

from gnomon_core.errors import GnomonError
from gnomon_core.fleet import Instance, InstanceKind, InstanceState
from gnomon_core.functions import read_deployment
from gnomon_core.pairs import Pair
from gnomon_platforms.kubernetes.nodes import Given
from gnomon_platforms.local.profiles import ProfileFiles
from gnomon_platforms.openfaas.node_home import BodyPod, Home
from gnomon_platforms.openfaas.node_pairs import NodePairs
from gnomon_platforms.testing import Recorder
from gnomon_profiler.repository import DirectoryRepository
from tests.integration.coordinator_node.node import TOKEN, Body, Node
from tests.waiting import until

pytestmark = [pytest.mark.torch, pytest.mark.timeout(240)]
SPEC = read_deployment(
    {"service": "line", "image": "gnomon/body", "annotations": {"gnomon/model": "line@1", "gnomon/max-batch": "8"}}
)


class Platform:
    """As much of a platform as Shadows need: Bodies, claims, a listener."""

    def __init__(self, node: Node, session: aiohttp.ClientSession) -> None:
        self.node, self.told = node, Recorder()
        self.bodies: dict[str, BodyPod] = {}
        self.claimed: dict[str, Given] = {}
        self.pairs_told: list[tuple[str, list[str]]] = []
        self.cores = 8.0
        home = Home(
            body=self.bodies.get,
            told=self._pairs_changed,
            free_cores=lambda _: self.cores - sum(given.cores for given in self.claimed.values()),
            claims=self,
            listener=self.told,
            now_s=lambda: 0.0,
            epoch=lambda: node.epoch,
            repository=DirectoryRepository(node.models),
            models=node.models,
            profiles=ProfileFiles(None),
        )
        self.pairs = NodePairs(home, session, TOKEN)

    def give(self, instance_id: str, given: Given) -> None:
        self.claimed[instance_id] = given

    def take_back(self, instance_id: str) -> None:
        self.claimed.pop(instance_id, None)

    def _pairs_changed(self, body: str, shadows: Mapping[str, Pair]) -> None:
        self.pairs_told.append((body, list(shadows)))

    async def reach(self) -> None:
        self.pairs.reach("node-a", f"http://127.0.0.1:{self.node.port}")
        await until(lambda: self.pairs.connected, "the node is not connected", 120.0)

    async def body(self, name: str) -> Body:
        """A Body in its pod, which the platform knows as an instance of this name."""
        body = self.node.body(f"uid-{name}")
        instance = Instance(name, "line.openfaas-fn", 1, "node-a", 1, 0, InstanceState.READY, 0.0)
        self.bodies[name] = BodyPod(instance, SPEC, f"uid-{name}", "node-a")
        await until(lambda: f"uid-{name}" in {row["pod_uid"] for row in self.pairs._states["node-a"]["bodies"]})
        return body

    def seen(self, shadow: str) -> Instance:
        [found] = [one for one in self.pairs.instances("line.openfaas-fn") if one.id == shadow]
        return found


@pytest.fixture
async def platform(node: Node) -> AsyncIterator[Platform]:
    async with aiohttp.ClientSession() as session:
        made = Platform(node, session)
        await made.reach()
        yield made
        for shadow in made.pairs.instances("line.openfaas-fn"):
            made.pairs.destroy(shadow.id)
        await until(lambda: not made.pairs.instances("line.openfaas-fn"))
        await made.pairs.close()


def a_pair(node: Node, cores: int = 1, split: tuple[int, ...] = (0, 1, 1, 2)) -> Pair:
    return Pair(cores, tuple(node.blocks), split)


async def test_a_shadow_is_asked_for_told_of_changed_and_ended(platform: Platform, node: Node) -> None:
    await platform.body("p-1")
    began = await platform.pairs.create("p-1", a_pair(node), "p-1-s1")
    assert (began.kind, began.state, began.partner, began.node) == (InstanceKind.SHADOW, InstanceState.STARTING, "p-1", "node-a")
    assert platform.claimed["p-1-s1"].cores == 1.0
    await until(lambda: ("p-1", ["p-1-s1"]) in platform.pairs_told)
    seen = platform.seen("p-1-s1")
    assert (seen.state, seen.pair) == (InstanceState.READY, a_pair(node))

    other = a_pair(node, 2, (0, 0, 1, 1))
    await platform.pairs.change("p-1-s1", other)
    await until(lambda: platform.seen("p-1-s1").pair == other)
    assert platform.claimed["p-1-s1"].cores == 2.0

    assert platform.pairs.destroy("p-1-s1")
    assert await platform.told.reason("p-1-s1") == "stopped"
    assert platform.pairs_told[-1] == ("p-1", [])
    assert platform.claimed == {}
    await until(lambda: node.state()["shadows"] == [], "the node remembers it")
    assert not platform.pairs.destroy("p-1-s1")


async def test_what_cannot_be_is_refused_and_leaves_nothing(platform: Platform, node: Node) -> None:
    async def code(body: str, pair: Pair) -> str:
        with pytest.raises(GnomonError) as caught:
            await platform.pairs.create(body, pair, "never")
        return caught.value.code

    await platform.body("p-2")
    assert await code("nobody", a_pair(node)) == "no_such_body"
    assert await code("p-2", Pair(1, (len(node.blocks),), (0, 1))) == "no_such_body"
    assert await code("p-2", a_pair(node, 9)) == "no_capacity"
    # A pod whose Body has not come, because it has no volume.
    platform.bodies["p-3"] = replace(platform.bodies["p-2"], uid="uid-of-nobody")
    assert await code("p-3", a_pair(node)) == "no_such_body"
    platform.bodies["p-4"] = replace(platform.bodies["p-2"], node="node-b")
    assert await code("p-4", a_pair(node)) == "no_such_body"
    # Refused by the node itself, after the cores were claimed.
    node.epoch += 1
    status, _ = node.ask("DELETE", f"/v1/shadows/none?epoch={node.epoch}")
    node.epoch -= 1
    assert (status, await code("p-2", a_pair(node))) == (200, "stale_epoch")
    node.epoch += 1
    assert platform.claimed == {}
    assert platform.pairs.instances("line.openfaas-fn") == []
    assert platform.told.gone == {}


async def test_a_shadow_that_ends_by_itself_is_told_once(platform: Platform, node: Node) -> None:
    body = await platform.body("p-5")
    await platform.pairs.create("p-5", a_pair(node), "p-5-s1")
    await until(lambda: ("p-5", ["p-5-s1"]) in platform.pairs_told)
    body.kill(signal.SIGKILL)

    assert "Body has gone" in await platform.told.reason("p-5-s1")
    assert platform.told.times_gone["p-5-s1"] == 1
    assert platform.pairs_told[-1] == ("p-5", [])
    await until(lambda: node.state()["shadows"] == [], "the node remembers it")


async def test_a_node_that_has_no_coordinator_any_more_has_no_shadows(platform: Platform, node: Node) -> None:
    await platform.body("p-8")
    await platform.pairs.create("p-8", a_pair(node), "p-8-s1")
    await until(lambda: ("p-8", ["p-8-s1"]) in platform.pairs_told)
    platform.pairs.abandoned("node-a")

    assert not platform.pairs.connected
    assert "no coordinator any more" in await platform.told.reason("p-8-s1")
    assert platform.pairs_told[-1] == ("p-8", [])
    assert platform.claimed == {}
    # Whoever finds it again ends what nobody has asked it for.
    await platform.reach()
    await until(lambda: node.state()["shadows"] == [], "it lives")


async def test_another_leader_ends_what_it_has_not_asked_for(platform: Platform, node: Node) -> None:
    await platform.body("p-6")
    await platform.pairs.create("p-6", a_pair(node), "p-6-s1")
    await until(lambda: ("p-6", ["p-6-s1"]) in platform.pairs_told)
    async with aiohttp.ClientSession() as session:
        node.epoch += 1
        other = Platform(node, session)
        await other.reach()
        await until(lambda: node.state()["shadows"] == [], "it lives")
        await other.pairs.close()
    assert await platform.told.reason("p-6-s1")


async def test_a_coordinator_that_is_started_anew_has_lost_its_shadows(platform: Platform, node: Node) -> None:
    await platform.body("p-7")
    await platform.pairs.create("p-7", a_pair(node), "p-7-s1")
    await until(lambda: ("p-7", ["p-7-s1"]) in platform.pairs_told)
    node.agent.kill()
    node.begin_agent()
    await platform.reach()

    assert "started anew" in await platform.told.reason("p-7-s1")
    assert platform.pairs_told[-1] == ("p-7", [])
    await until(lambda: "uid-p-7" in {row["pod_uid"] for row in node.state()["bodies"]}, "it has not come back")
    await platform.pairs.create("p-7", a_pair(node), "p-7-s2")
    await until(lambda: ("p-7", ["p-7-s2"]) in platform.pairs_told)

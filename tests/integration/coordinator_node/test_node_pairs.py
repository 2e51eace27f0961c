"""The cluster's platform and a node's coordinator: Shadows that are asked for, told of, changed, lost and ended."""

from __future__ import annotations

import contextlib
import json
import signal
from collections.abc import AsyncIterator, Awaitable, Mapping
from dataclasses import replace
from typing import Any

import aiohttp
import pytest

from gnomon_core.blocks import Layers
from gnomon_core.errors import GnomonError
from gnomon_core.fleet import Instance, InstanceKind, InstanceState
from gnomon_core.functions import FunctionSpec, read_deployment
from gnomon_core.pairs import Pair
from gnomon_platforms.kubernetes.nodes import Given
from gnomon_platforms.kubernetes.objects.placing import Placing
from gnomon_platforms.local.recipes import MODEL_OVERHEAD_BYTES
from gnomon_platforms.nodes import wishes
from gnomon_platforms.nodes.client import UNREACHABLE
from gnomon_platforms.nodes.home import BodyPod, Home
from gnomon_platforms.nodes.models import ServedModels
from gnomon_platforms.nodes.pairs import NodePairs
from gnomon_platforms.testing import Recorder
from gnomon_profiler.repository import DirectoryRepository
from tests.integration.coordinator_node.known import Known, asked_all_the_time
from tests.integration.coordinator_node.node import PATIENT, TOKEN, Body, Node
from tests.waiting import until

pytestmark = [pytest.mark.torch, pytest.mark.timeout(240)]
SPEC = read_deployment(
    {"service": "line", "image": "gnomon/body", "annotations": {"gnomon/model": "line@1", "gnomon/max-batch": "8"}}
)


class Platform:
    """As much of a platform as Shadows need: Bodies, claims, a listener. It leads since the node's present epoch."""

    def __init__(self, node: Node, session: aiohttp.ClientSession) -> None:
        self.node, self.told = node, Recorder()
        self.adopting_s = 0.0
        epoch = node.epoch
        self.bodies: dict[str, BodyPod] = {}
        self.claimed: dict[str, Given] = {}
        self.pools: set[str] = set()
        self.pairs_told: list[tuple[str, list[str]]] = []
        self.cores = 8.0
        home = Home(
            bodies=self,
            claims=self,
            listener=self.told,
            now_s=lambda: 0.0,
            epoch=lambda: epoch,
            adopting_s=lambda: self.adopting_s,
            models=ServedModels(DirectoryRepository(node.models), node.models),
        )
        self.pairs = NodePairs(home, session, TOKEN)

    def free_cores(self, node: str) -> float:
        del node
        return self.cores - sum(given.cores for given in self.claimed.values())

    def place_shadow(self, placing: Placing, cores: int, named: str) -> str:
        del placing, cores
        return named

    def give(self, instance_id: str, given: Given) -> None:
        self.claimed[instance_id] = given

    def take_back(self, instance_id: str) -> None:
        self.claimed.pop(instance_id, None)

    def pool_ready(self, node: str, *, ready: bool) -> None:
        (self.pools.add if ready else self.pools.discard)(node)

    def of_instance(self, body_id: str) -> BodyPod | None:
        return self.bodies.get(body_id)

    def of_pod(self, uid: str) -> BodyPod | None:
        return next((body for body in self.bodies.values() if body.uid == uid), None)

    def placing(self, body: BodyPod) -> Placing:
        del body
        return Placing()

    def works_with(self, body_id: str, shadows: Mapping[str, Pair]) -> None:
        self.pairs_told.append((body_id, list(shadows)))

    async def reach(self) -> None:
        self.pairs.nodes.reach("node-a", f"http://127.0.0.1:{self.node.port}")
        await until(lambda: "node-a" in self.pools, "the node is not connected", 120.0)

    async def body(self, name: str) -> Body:
        """A Body in its pod, which the platform knows as an instance of this name."""
        body = self.node.body(f"uid-{name}")
        self.knows(name)
        await until(lambda: f"uid-{name}" in {row["pod_uid"] for row in self.pairs.nodes.states["node-a"]["bodies"]})
        return body

    def knows(self, name: str, spec: FunctionSpec = SPEC) -> None:
        """The pod's Body is an instance of this name here."""
        instance = Instance(name, "line.openfaas-fn", 1, "node-a", 1, 0, InstanceState.READY, 0.0)
        self.bodies[name] = BodyPod(instance, spec, f"uid-{name}", "node-a")

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
    assert platform.claimed["p-1-s1"] == Given("node-a", 1.0, MODEL_OVERHEAD_BYTES), "its Body holds the weights that they share"
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


async def test_private_weights_are_claimed_with_the_shadow(platform: Platform, node: Node) -> None:
    await platform.body("p-11")
    platform.knows("p-11", replace(SPEC, settings=replace(SPEC.settings, weight_mode="private")))
    await platform.pairs.create("p-11", a_pair(node), "p-11-s1")
    weights_bytes = layers_of(node).parameter_bytes(node.blocks)
    assert weights_bytes > 0
    assert platform.claimed["p-11-s1"].memory_bytes == MODEL_OVERHEAD_BYTES + weights_bytes
    await platform.pairs.change("p-11-s1", replace(a_pair(node), blocks=(0,)))
    assert platform.claimed["p-11-s1"].memory_bytes == MODEL_OVERHEAD_BYTES + layers_of(node).parameter_bytes((0,))


def layers_of(node: Node) -> Layers:
    return Layers.from_json(json.loads((node.models / node.files["layers"]).read_bytes()))


async def test_what_cannot_be_is_refused_and_leaves_nothing(platform: Platform, node: Node) -> None:
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
    platform.adopting_s = 60.0
    platform.pairs.abandoned("node-a")

    assert platform.pools == set()
    assert "no coordinator any more" in await platform.told.reason("p-8-s1")
    assert platform.pairs_told[-1] == ("p-8", [])
    assert platform.claimed == {}
    # Where it answers again, what was told to have gone is ended and not found again.
    await platform.reach()
    await until(lambda: node.state()["shadows"] == [], "it lives")
    assert (platform.told.found, platform.told.times_gone["p-8-s1"]) == ({}, 1)


@contextlib.asynccontextmanager
async def leading(node: Node, *bodies: str, adopting_s: float = 60.0) -> AsyncIterator[Platform]:
    """The next leader, which knows these Bodies."""
    node.epoch += 1
    async with aiohttp.ClientSession() as session:
        made = Platform(node, session)
        made.adopting_s = adopting_s
        for body in bodies:
            made.knows(body)
        await made.reach()
        yield made
        await made.pairs.close()


async def refusal(order: Awaitable[object]) -> str:
    with pytest.raises(GnomonError) as caught:
        await order
    return caught.value.code


async def test_a_new_leader_goes_on_with_the_shadows_of_the_one_before_it(
    platform: Platform, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wishes, "predicted_ms", lambda *_: PATIENT)
    body = await platform.body("p-6")
    known = Known.of(node, body)
    began = await platform.pairs.create("p-6", a_pair(node), "p-6-s1")
    await until(lambda: ("p-6", ["p-6-s1"]) in platform.pairs_told)
    async with asked_all_the_time(body, known), leading(node, "p-6") as other:
        await until(lambda: ("p-6", ["p-6-s1"]) in other.pairs_told, "it does not know of it")
        found = other.told.found["p-6-s1"]
        assert (found.state, found.partner, found.pair, found.node) == (InstanceState.STARTING, "p-6", a_pair(node), "node-a")
        assert other.seen("p-6-s1") == replace(found, state=InstanceState.READY)
        assert (found.cores, found.memory_bytes) == (began.cores, began.memory_bytes)
        assert other.claimed == {"p-6-s1": platform.claimed["p-6-s1"]}

        # Whoever led before may not know it yet, and orders nothing any more.
        assert await refusal(platform.pairs.change("p-6-s1", a_pair(node, 2))) == "stale_epoch"
        assert (platform.claimed["p-6-s1"].cores, platform.seen("p-6-s1").cores) == (1.0, 1), "what was refused takes no room"
        assert platform.pairs.destroy("p-6-s1")
        await platform.pairs._behind.done()
        assert (node.shadow("p-6-s1")["paired"], node.shadow("p-6-s1")["cores"]) == (True, 1)
    # The second one has stopped, in the midst of it, and a third one comes.
    assert other.told.gone == {"p-6-s1": "the gateway stops; it works on for its Body"}
    assert other.pairs_told[-1] == ("p-6", [])
    async with leading(node, "p-6") as third:
        await until(lambda: ("p-6", ["p-6-s1"]) in third.pairs_told, "it does not know of it")
        changed = a_pair(node, 1, (0, 0, 1, 1))
        await third.pairs.change("p-6-s1", changed)
        await until(lambda: third.seen("p-6-s1").pair == changed)
        # What it does not want any more it ends, like one that it has made.
        assert third.pairs.destroy("p-6-s1")
        assert await third.told.reason("p-6-s1") == "stopped"
        await until(lambda: node.state()["shadows"] == [], "the node remembers it")
        assert (third.told.times_gone["p-6-s1"], third.claimed) == (1, {})
    platform.pairs.abandoned("node-a")


async def test_a_shadow_whose_body_is_found_a_moment_later_waits_for_it(platform: Platform, node: Node) -> None:
    await platform.body("p-9")
    await platform.pairs.create("p-9", a_pair(node), "p-9-s1")
    await until(lambda: ("p-9", ["p-9-s1"]) in platform.pairs_told)
    await platform.pairs.close()
    async with leading(node) as other:
        assert (other.told.found, other.claimed) == ({}, {})
        other.knows("p-9")
        other.pairs.look("node-a")
        assert list(other.told.found) == ["p-9-s1"]
        assert other.pairs_told == [("p-9", ["p-9-s1"])]
        assert node.shadow("p-9-s1")["paired"]
        assert other.pairs.destroy("p-9-s1")
        assert await other.told.reason("p-9-s1") == "stopped"


async def test_a_shadow_whose_body_is_nobodys_ends_when_it_may_not_be_found_any_more(platform: Platform, node: Node) -> None:
    body = await platform.body("p-10")
    await platform.pairs.create("p-10", a_pair(node), "p-10-s1")
    await until(lambda: ("p-10", ["p-10-s1"]) in platform.pairs_told)
    await platform.pairs.close()
    async with leading(node, adopting_s=0.2) as other:
        await until(lambda: other.pairs._again is not None, "nobody looks again")
        other.adopting_s = 0.0
        await until(lambda: node.state()["shadows"] == [], "it lives")
        assert other.told.found == {}
    assert body.ask(node.batch())[1] == 0


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


async def test_a_change_takes_as_much_as_its_node_has_heard(
    platform: Platform, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    await platform.body("p-12")
    await platform.pairs.create("p-12", a_pair(node), "p-12-s1")
    await until(lambda: ("p-12", ["p-12-s1"]) in platform.pairs_told)
    client = platform.pairs.nodes.clients["node-a"]
    wish, lost = client.wish, "the wish"

    async def over_a_bad_line(method: str, path: str, document: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        answer = {} if method == "PATCH" and lost == "the wish" else await wish(method, path, document)
        if method == "PATCH" and lost:
            raise GnomonError(503, UNREACHABLE, f"{lost} was lost", "Try again.")
        return answer

    def taken() -> tuple[float, int]:
        return platform.claimed["p-12-s1"].cores, platform.seen("p-12-s1").cores

    monkeypatch.setattr(client, "wish", over_a_bad_line)
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

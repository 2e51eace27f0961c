"""The cluster's platform and a node's coordinator: Shadows that are asked for, told of, changed, lost and ended."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from gnomon_core.errors import GnomonError
from gnomon_core.fleet import InstanceKind, InstanceState
from gnomon_core.pairs import Pair
from gnomon_platforms.common import MODEL_OVERHEAD_BYTES
from gnomon_platforms.kubernetes.nodes import Given
from gnomon_platforms.nodes.client import UNREACHABLE
from tests.integration.coordinator_node.node import Node
from tests.integration.coordinator_node.played_platform import SPEC, Platform, a_pair, layers_of, refusal
from tests.waiting import until

pytestmark = [pytest.mark.torch, pytest.mark.timeout(240)]


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
    platform.pairs.coordinator_removed("node-a")

    assert platform.pools == set()
    assert "no coordinator any more" in await platform.told.reason("p-8-s1")
    assert platform.pairs_told[-1] == ("p-8", [])
    assert platform.claimed == {}
    # Where it answers again, what was told to have gone is ended and not found again.
    await platform.reach()
    await until(lambda: node.state()["shadows"] == [], "it lives")
    assert (platform.told.found, platform.told.times_gone["p-8-s1"]) == ({}, 1)


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

"""A Body on one node and its Shadow from another one's pool: two nodes' processes, and a platform that speaks with both."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest

from gnomon_core.errors import GnomonError
from gnomon_core.fleet import InstanceState
from gnomon_core.pairs import Pair
from gnomon_platforms.common import MODEL_OVERHEAD_BYTES
from gnomon_platforms.kubernetes.nodes import Claim
from gnomon_platforms.nodes import node_shadow
from gnomon_platforms.nodes.client import UNREACHABLE
from tests.integration.coordinator_node.node import PATIENT, Body, Known, Node, asked_all_the_time
from tests.integration.coordinator_node.played_platform import Platform, a_pair, layers_of, leading, refusal
from tests.integration.coordinator_node.test_body_and_shadow import pool_processes
from tests.waiting import until

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]
SHADOW, COORDINATOR = "gnomon line.ope", "gnomon coord"


@pytest.fixture(scope="module")
def other() -> Iterator[Node]:
    """Another node, with a pool and no Body of its own."""
    folder = Path(tempfile.mkdtemp(prefix="gnomon-"))
    made = Node(folder, name="node-b")
    made.warm()
    yield made
    made.close()
    shutil.rmtree(folder)


async def reach(platform: Platform, other: Node) -> None:
    platform.pairs.connections.set_address("node-b", f"http://127.0.0.1:{other.port}")
    await until(lambda: "node-b" in platform.pools, "the other node is not connected", 120.0)


@pytest.fixture
async def platform(node: Node, other: Node, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Platform]:
    """A platform that knows both nodes and has long timeouts for Shadows."""
    monkeypatch.setattr(node_shadow, "predicted_ms", lambda *_: PATIENT)
    async with aiohttp.ClientSession() as session:
        made = Platform(node, session)
        await made.reach()
        await reach(made, other)
        yield made
        for shadow in made.pairs.instances("line.openfaas-fn"):
            made.pairs.destroy(shadow.id)
        await until(lambda: not made.pairs.instances("line.openfaas-fn"))
        await made.pairs.close()


def far(node: Node, cores: int = 1, split: tuple[int, ...] = (0, 1, 1, 2)) -> Pair:
    """A Shadow of all blocks on the other node."""
    return replace(a_pair(node, cores, split), node="node-b")


async def paired(platform: Platform, node: Node, body_id: str) -> tuple[Body, Known]:
    """A Body that works with a Shadow on the other node, and what it answered before."""
    body = await platform.body(body_id)
    known = Known.of(node, body)
    await platform.pairs.create(body_id, far(node), f"{body_id}-s1")
    await until(lambda: (body_id, [f"{body_id}-s1"]) in platform.pairs_told, "they are no pair")
    return body, known


async def nothing_is_left(platform: Platform, node: Node, other: Node) -> None:
    await until(lambda: node.state()["shadows"] == other.state()["shadows"] == [], "a node remembers it")
    await until(lambda: not pool_processes(other, SHADOW), "its process lives")
    assert other.state()["pool"]["claimed_cores"] == 0
    assert platform.claimed == {}


async def test_a_shadow_from_another_nodes_pool_is_made_changed_and_ended(platform: Platform, node: Node, other: Node) -> None:
    body = await platform.body("f-1")
    known, of_two = Known.of(node, body), Known.of(node, body, 2)
    began = await platform.pairs.create("f-1", far(node), "f-1-s1")
    assert (began.node, began.partner, began.state) == ("node-b", "f-1", InstanceState.STARTING)
    blocks_bytes = layers_of(node).parameter_bytes(node.blocks)
    assert platform.claimed["f-1-s1"] == Claim("node-b", 1.0, MODEL_OVERHEAD_BYTES + blocks_bytes), (
        "there nobody holds its blocks"
    )
    await until(lambda: ("f-1", ["f-1-s1"]) in platform.pairs_told)
    assert (platform.seen("f-1-s1").state, platform.seen("f-1-s1").pair) == (InstanceState.READY, far(node))
    assert all(known.together(body) for _ in range(5))
    assert (len(pool_processes(other, SHADOW)), pool_processes(node, SHADOW)) == (1, [])
    assert (other.state()["pool"]["claimed_cores"], node.state()["pool"]["claimed_cores"]) == (1, 0)

    changed = far(node, 2, (0, 0, 1, 1))
    await platform.pairs.change("f-1-s1", changed)
    await until(lambda: platform.seen("f-1-s1").pair == changed, "it does not change")
    assert platform.claimed["f-1-s1"].cores == 2.0
    await until(lambda: other.state()["pool"]["claimed_cores"] == 2)
    assert of_two.alone(body)
    assert body.ask(known.given)[1] == 1

    assert platform.pairs.destroy("f-1-s1")
    assert await platform.events.reason("f-1-s1") == "stopped"
    assert platform.pairs_told[-1] == ("f-1", [])
    await nothing_is_left(platform, node, other)
    assert known.alone(body)


async def test_remote_shadow_keeps_the_blocks_it_was_made_with(platform: Platform, node: Node) -> None:
    body = await platform.body("f-2")
    some, all_ = replace(far(node), blocks=(0, 1)), far(node)
    await platform.pairs.create("f-2", some, "f-2-s1")
    await until(lambda: ("f-2", ["f-2-s1"]) in platform.pairs_told)
    assert await refusal(platform.pairs.change("f-2-s1", all_)) == "no_such_blocks"
    fewer = replace(some, blocks=(1,))
    await platform.pairs.change("f-2-s1", fewer)
    await until(lambda: platform.seen("f-2-s1").pair == fewer, "it does not change")
    assert body.ask(node.batch())[1] == 1


async def test_a_change_that_its_own_node_cannot_hear_is_no_change_until_it_can(
    platform: Platform, node: Node, other: Node
) -> None:
    body, known = await paired(platform, node, "f-11")
    # Its pod is not ready for a moment.
    platform.pairs.connections.set_address("node-b", None)
    changed = far(node, 2, (0, 0, 1, 1))
    assert await refusal(platform.pairs.change("f-11-s1", changed)) == UNREACHABLE
    assert (platform.claimed["f-11-s1"].cores, node.shadow("f-11-s1")["cores"], other.shadow("f-11-s1")["cores"]) == (1.0, 1, 1)
    assert known.together(body)
    await reach(platform, other)
    await platform.pairs.change("f-11-s1", changed)
    await until(lambda: platform.seen("f-11-s1").pair == changed, "it does not change")
    await until(lambda: other.state()["pool"]["claimed_cores"] == 2)


async def test_impossible_request_is_refused_without_leftovers(platform: Platform, node: Node, other: Node) -> None:
    await platform.body("f-3")

    async def code(pair: Pair) -> str:
        with pytest.raises(GnomonError) as caught:
            await platform.pairs.create("f-3", pair, "never")
        return caught.value.code

    assert await code(replace(far(node), node="node-c")) == "no_such_node"
    assert await code(far(node, 9)) == "no_capacity"
    # Refused by the node itself, which knows how many it really has.
    platform.cores = 5000.0
    assert await code(far(node, 4000)) == "no_capacity"
    platform.cores = 8.0
    assert platform.pairs.instances("line.openfaas-fn") == []
    await nothing_is_left(platform, node, other)


async def test_a_shadow_that_is_killed_costs_no_answer(platform: Platform, node: Node, other: Node) -> None:
    body, known = await paired(platform, node, "f-4")
    [process] = pool_processes(other, SHADOW)
    os.kill(process, signal.SIGKILL)
    assert all(known.answered(body) for _ in range(20))
    await platform.events.reason("f-4-s1")
    assert platform.pairs_told[-1] == ("f-4", [])
    await nothing_is_left(platform, node, other)
    assert known.alone(body)


async def test_a_body_that_is_killed_takes_its_shadow_along(platform: Platform, node: Node, other: Node) -> None:
    body, _ = await paired(platform, node, "f-5")
    body.kill(signal.SIGKILL)
    await platform.events.reason("f-5-s1")
    await nothing_is_left(platform, node, other)


async def restarted(node: Node, before: list[int]) -> None:
    await until(lambda: set(pool_processes(node, COORDINATOR)) - set(before), "there is no other coordinator")
    await until(lambda: node.state()["pool"]["ready"], "it is not heard")


async def test_a_pair_goes_on_without_either_coordinator(platform: Platform, node: Node, other: Node) -> None:
    body, known = await paired(platform, node, "f-6")
    before = pool_processes(node, COORDINATOR) + pool_processes(other, COORDINATOR)
    assert len(before) == 2
    async with asked_all_the_time(body, known):
        for process in before:
            os.kill(process, signal.SIGKILL)
        for each_node in (node, other):
            await restarted(each_node, before)
        # The next ones know it: what they are told is done.
        changed = far(node, 1, (0, 1, 1, 2, 2))
        await platform.pairs.change("f-6-s1", changed)
        await until(lambda: platform.seen("f-6-s1").pair == changed, "it does not change")
    assert ("f-6", []) not in platform.pairs_told
    assert platform.pairs.destroy("f-6-s1")
    assert await platform.events.reason("f-6-s1") == "stopped"
    await nothing_is_left(platform, node, other)
    assert known.alone(body)


@pytest.mark.parametrize("whose", ["the Body's", "the Shadow's"])
async def test_an_agent_that_is_killed_ends_the_pair_and_nothing_else(
    platform: Platform, node: Node, other: Node, whose: str
) -> None:
    name = f"f-7{whose[4].lower()}"
    body, known = await paired(platform, node, name)
    killed = node if whose == "the Body's" else other
    killed.agent.kill()
    assert all(known.answered(body) for _ in range(5))
    killed.begin_agent()
    killed.warm()
    await (platform.reach() if killed is node else reach(platform, other))
    reason = await platform.events.reason(f"{name}-s1")
    assert killed is other or "started anew" in reason
    assert platform.pairs_told[-1] == (name, [])
    node.has_come(body.uid)
    await nothing_is_left(platform, node, other)
    assert known.alone(body)
    await until(lambda: body.uid in {row["pod_uid"] for row in platform.pairs.connections.states["node-a"]["bodies"]})
    await platform.pairs.create(name, far(node), f"{name}-s2")
    await until(lambda: (name, [f"{name}-s2"]) in platform.pairs_told, "there is no next one")
    assert known.together(body)


@pytest.mark.parametrize("body_first", [True, False], ids=["its Body is known", "its Body is found later"])
async def test_a_new_leader_goes_on_with_it(platform: Platform, node: Node, other: Node, *, body_first: bool) -> None:
    name = f"f-8{int(body_first)}"
    body, known = await paired(platform, node, name)
    shadow = f"{name}-s1"
    async with asked_all_the_time(body, known), leading(node, *([name] if body_first else [])) as next_:
        await reach(next_, other)
        if not body_first:
            assert next_.events.found == {}
            next_.knows(name)
            next_.pairs.reconcile("node-a")
        await until(lambda: (name, [shadow]) in next_.pairs_told, "it does not know of it")
        found = next_.events.found[shadow]
        assert (found.node, found.partner, found.pair) == ("node-b", name, far(node))
        assert next_.claimed == {shadow: platform.claimed[shadow]}
        # Whoever led before may not know it yet, and orders nothing any more on either node.
        assert await refusal(platform.pairs.change(shadow, far(node, 2))) == "stale_epoch"
        assert platform.pairs.destroy(shadow)
        await platform.pairs._background.settled()
        assert (node.shadow(shadow)["paired"], other.shadow(shadow)["state"]) == (True, "ready")
        platform.pairs.coordinator_removed("node-a")
        platform.pairs.coordinator_removed("node-b")
        await platform.pairs._background.settled()
    assert next_.events.gone == {shadow: "the gateway stops; it works on for its Body"}
    async with leading(node, name) as last:
        await reach(last, other)
        await until(lambda: (name, [shadow]) in last.pairs_told, "it does not know of it")
        assert last.pairs.destroy(shadow)
        assert await last.events.reason(shadow) == "stopped"
        await nothing_is_left(last, node, other)
    assert known.alone(body)


async def test_next_leader_tells_the_body_of_its_shadow(platform: Platform, node: Node, other: Node) -> None:
    body = await platform.body("f-9")
    known = Known.of(node, body)
    document = {
        "epoch": node.epoch,
        "pod_uid": body.uid,
        "function": "line.openfaas-fn",
        "weight_mode": "shared",
        "max_batch": 8,
    }
    what = {"cores": 1, "blocks": node.blocks, "split": [0, 1, 1, 2], "expected_ms": PATIENT, "afar": True}
    assert other.ask("PUT", "/v1/shadows/f-9-s1", {**document, **node.files, **what})[0] == 200
    await until(lambda: ("f-9", ["f-9-s1"]) in platform.pairs_told, "nobody brings them together")
    assert list(platform.events.found) == ["f-9-s1"]
    assert known.together(body)


async def test_a_body_may_have_one_at_home_and_one_elsewhere(platform: Platform, node: Node, other: Node) -> None:
    body, given = await platform.body("f-10"), node.batch()
    two, three = ([answer for rows in given.split(sizes) for answer in body.ask(rows)[0]] for sizes in ([2, 1, 1], [3, 1]))
    await platform.pairs.create("f-10", a_pair(node, split=(0, 1, 1, 1)), "f-10-s1")
    await until(lambda: ("f-10", ["f-10-s1"]) in platform.pairs_told)
    await platform.pairs.create("f-10", far(node, split=(0, 0, 1, 1)), "f-10-s2")
    await until(lambda: ("f-10", ["f-10-s1", "f-10-s2"]) in platform.pairs_told, "there is no second one")
    assert all(body.ask(given) == (two, 2) for _ in range(5))

    # What one of them does costs the other nothing.
    assert platform.pairs.destroy("f-10-s1")
    assert await platform.events.reason("f-10-s1") == "stopped"
    assert platform.pairs_told[-1] == ("f-10", ["f-10-s2"])
    assert body.ask(given) == (three, 1)
    await platform.pairs.create("f-10", a_pair(node, split=(0, 1, 1, 1)), "f-10-s3")
    await until(lambda: ("f-10", ["f-10-s2", "f-10-s3"]) in platform.pairs_told, "there is no second one any more")
    [process] = pool_processes(other, SHADOW)
    os.kill(process, signal.SIGKILL)
    for _ in range(5):
        body.ask(given)
    await platform.events.reason("f-10-s2")
    assert platform.pairs_told[-1] == ("f-10", ["f-10-s3"])
    assert body.ask(given)[1] == 1
    assert platform.pairs.destroy("f-10-s3")
    await platform.events.reason("f-10-s3")
    await nothing_is_left(platform, node, other)

"""A leader goes on with the Shadows that the one before it has left on a node, and ends those that are nobody's."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gnomon_core.fleet import InstanceState
from gnomon_platforms.nodes import node_shadow
from tests.integration.coordinator_node.known import Known, asked_all_the_time
from tests.integration.coordinator_node.node import PATIENT, Node
from tests.integration.coordinator_node.played_platform import Platform, a_pair, leading, refusal
from tests.waiting import until

pytestmark = [pytest.mark.torch, pytest.mark.timeout(240)]


async def test_a_new_leader_goes_on_with_the_shadows_of_the_one_before_it(
    platform: Platform, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_shadow, "predicted_ms", lambda *_: PATIENT)
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
        await platform.pairs._background.settled()
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
    platform.pairs.coordinator_removed("node-a")


async def test_a_shadow_whose_body_is_found_a_moment_later_waits_for_it(platform: Platform, node: Node) -> None:
    await platform.body("p-9")
    await platform.pairs.create("p-9", a_pair(node), "p-9-s1")
    await until(lambda: ("p-9", ["p-9-s1"]) in platform.pairs_told)
    await platform.pairs.close()
    async with leading(node) as other:
        assert (other.told.found, other.claimed) == ({}, {})
        other.knows("p-9")
        other.pairs.reconcile("node-a")
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
        await until(lambda: other.pairs._recheck is not None, "nobody looks again")
        other.adopting_s = 0.0
        await until(lambda: node.state()["shadows"] == [], "it lives")
        assert other.told.found == {}
    assert body.ask(node.batch())[1] == 0

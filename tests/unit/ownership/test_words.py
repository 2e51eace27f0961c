"""What a replica says of itself, and who is woken by it."""

from __future__ import annotations

from typing import Any, cast

import pytest

from gnomon_core.ownership import OwnershipMap, Replica
from gnomon_gateway.replicas.peers import Peers, PeerSecret
from gnomon_gateway.replicas.replica import ReplicaAgent
from tests.ownership_boards import MemoryBoard

NOBODY: Any = cast("Any", None)


async def test_a_word_that_comes_with_a_question_wakes_what_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The new owner of a function waits until the others have let go of it; they may say so before they are asked."""
    life = ReplicaAgent("b", NOBODY, NOBODY, MemoryBoard(), Peers(PeerSecret("between-the-replicas-only")))
    shared = OwnershipMap(1, (Replica("b", "http://b:8082", 1),), (Replica("a", "http://a:8082", 1),))
    life.learn(shared)
    assert [one.id for one in life.holdings.unreleased_by("f")] == ["a"]
    woken: list[int] = []
    monkeypatch.setattr(life.forwarder, "changed", lambda: woken.append(1))
    life.answer({"from": "a", "map": shared.to_json(), "draining": []})
    assert life.holdings.unreleased_by("f") == []
    assert woken

"""What a leader tells with its questions, and what it remembers of the addresses that it asks."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gnomon_core.clock import VirtualClock
from gnomon_core.errors import GnomonError
from gnomon_gateway.replicas.assigner import Assigner
from gnomon_gateway.replicas.peers import Peers
from gnomon_gateway.replicas.replica import ReplicaAgent, Reports
from tests.ownership_boards import MemoryBoard


class Nobody:
    """No address answers."""

    async def call(self, address: str, *_: Any) -> tuple[int, bytes]:
        raise ConnectionRefusedError(address)


async def test_nothing_is_kept_of_addresses_at_which_nobody_is_any_more() -> None:
    kept: list[Collection[str]] = []
    reports, board = Reports(listener=lambda *_: None, keep_learned=kept.append), MemoryBoard()
    for number, address in enumerate(("10.0.0.1", "10.0.0.2", "10.0.0.3"), 1):
        reports.hear(f"replica-{number}", {"number": number}, address)
    life = SimpleNamespace(reports=reports, identity="replica-1", address="10.0.0.1")
    board.listening = {"10.0.0.1", "10.0.0.2"}
    leader = Assigner(
        board, cast("Peers", Nobody()), VirtualClock(), leads=lambda: True, life=cast("ReplicaAgent", life), look_s=0.01
    )
    await leader.look()
    assert reports.heard == {"10.0.0.1": 1, "10.0.0.2": 2}
    board.listening = set()
    await leader.look()
    assert reports.heard == {"10.0.0.1": 1}, "one's own is not on the board of every platform"
    assert kept == [{"10.0.0.1", "10.0.0.2"}, {"10.0.0.1"}]


def broken(_: Any) -> Any:
    return int(float("inf"))


@pytest.mark.parametrize("name", ["pairs", "plans", "learned"])
def test_a_replica_follows_what_the_leader_tells_with_its_question(name: str) -> None:
    heard: list[Any] = []
    leader = replace(Reports(), pairs=lambda: {"i": 1}, plans=lambda: {"f": 2}, learned=lambda address: {"at": address})
    said = leader.say("10.0.0.2")
    assert said == {"pairs": {"i": 1}, "plans": {"f": 2}, "learned": {"at": "10.0.0.2"}}
    replica = replace(Reports(), **{f"follow_{name}": heard.append})
    replica.follow(said)
    assert heard == [said[name]]
    replica.follow(said | {name: None})
    replica.follow({})
    assert heard == [said[name]], "who does not know, or is of an earlier version, changes nothing"


@pytest.mark.parametrize("name", ["pairs", "plans", "learned"])
def test_what_cannot_be_followed_is_refused_by_name(name: str) -> None:
    with pytest.raises(GnomonError) as refused:
        replace(Reports(), **{f"follow_{name}": broken}).follow({name: {}})
    assert (refused.value.status, refused.value.code) == (400, f"invalid_{name}")

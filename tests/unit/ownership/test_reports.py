"""What a leader remembers of the addresses that it asks."""

from __future__ import annotations

from collections.abc import Collection
from types import SimpleNamespace
from typing import Any, cast

from gnomon_core.clock import VirtualClock
from gnomon_gateway.ownership.assigner import Assigner
from gnomon_gateway.ownership.peers import Peers
from gnomon_gateway.ownership.replica import ReplicaLife
from gnomon_gateway.ownership.reports import Reports
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
        board, cast("Peers", Nobody()), VirtualClock(), leads=lambda: True, life=cast("ReplicaLife", life), look_s=0.01
    )
    await leader.look()
    assert reports.heard == {"10.0.0.1": 1, "10.0.0.2": 2}
    board.listening = set()
    await leader.look()
    assert reports.heard == {"10.0.0.1": 1}, "one's own is not on the board of every platform"
    assert kept == [{"10.0.0.1", "10.0.0.2"}, {"10.0.0.1"}]

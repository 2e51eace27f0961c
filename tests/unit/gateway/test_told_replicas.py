"""How many replicas a function is told to want: what its scaling says now, not what somebody asked for once."""

from __future__ import annotations

from pathlib import Path

from gnomon_core.functions import FunctionKey, read_deployment
from gnomon_gateway.dispatch.latency import LearnedLatency
from gnomon_gateway.functions.manager import Manager
from gnomon_gateway.functions.profiles import LatencyModels
from gnomon_gateway.logs import LogBook
from gnomon_gateway.store import SqliteStore
from tests.unit.gateway.shadow_stage import Scaling, Scripted

KEY = FunctionKey("fn")


class Deciding(Scaling):
    """Wants what it was asked for until it decides."""

    def __init__(self) -> None:
        super().__init__()
        self.wanted = 1

    def request(self, function: str, instances: int) -> None:
        del function
        self.wanted = instances

    def desired(self, function: str) -> int | None:
        del function
        return self.wanted


async def _is_there(_: str) -> None:
    pass


async def test_a_request_that_a_decision_has_gone_past_is_not_told_any_more(tmp_path: Path) -> None:
    """Also where that decision changed nothing: policies that choose sizes have no number to hold."""
    scaling, store = Deciding(), SqliteStore(tmp_path / "functions.db")
    manager = Manager(
        store, Scripted(), scaling, LatencyModels(LearnedLatency()), LogBook(lambda: 0.0), fetch_model=_is_there, now=lambda: 0.0
    )
    await manager.deploy(read_deployment({"service": "fn", "image": "i"}))

    def told() -> int:
        status = manager.status(KEY)
        assert status is not None
        return status.replicas

    await manager.scale(KEY, 3)
    assert told() == 3, "at once"
    scaling.wanted = 2
    assert told() == 2
    await manager.stop()
    store.close()

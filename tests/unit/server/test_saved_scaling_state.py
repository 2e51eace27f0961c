"""What the autoscaler has learned survives a restart, of those functions that do and whatever a policy keeps."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from gnomon_autoscaler.controller import Autoscaler
from gnomon_autoscaler.executor import at_once
from gnomon_autoscaler.registry import BUILT_IN, PolicyPlugin
from gnomon_autoscaler.testing import MemoryFleet, MemoryFunction
from gnomon_core.clock import VirtualClock
from gnomon_core.functions import read_deployment
from gnomon_core.scaling import Decision, Observation, PolicyState
from gnomon_core.settings import ScaleSettings, Settings
from gnomon_gateway.dispatch.latency import LearnedLatency
from gnomon_gateway.functions.manager import Manager
from gnomon_gateway.functions.profiles import LatencyModels
from gnomon_gateway.logs import LogBook
from gnomon_gateway.store import SqliteStore
from gnomon_server.scaling import ScalingAdapter
from gnomon_server.scaling_state import SavedScalingState
from tests.unit.gateway.shadow_stage import NAME, Scripted


class Odd:
    """A third party's policy, which keeps what is no JSON."""

    name, period_s, needs, state_version, default_scheduler = "odd", 1.0, frozenset[str](), 1, "immediate"

    def decide(self, seen: Observation, state: PolicyState) -> tuple[Decision, PolicyState]:
        del seen, state
        return Decision((), "as it is", 0), PolicyState("odd", 1, {"seen": {1, 2}})  # type: ignore[dict-item]


def process() -> tuple[VirtualClock, Autoscaler]:
    """One with two functions, of which the first names a third party's policy."""
    clock = VirtualClock()
    fleet = MemoryFleet(clock.now_s)
    fleet.known["a.ns"] = MemoryFunction(Settings(autoscaler="odd"))
    fleet.known["b.ns"] = MemoryFunction(Settings(autoscaler="lv", scale=ScaleSettings(max=9)), rps=25.0, latency_s=(0.1,))
    policies = {**BUILT_IN, "odd": PolicyPlugin(lambda _: Odd(), "Keeps a set.")}
    return clock, Autoscaler(fleet, clock, policies=policies, executor=at_once, stamp_s=lambda: 1e9)


async def test_one_functions_state_that_is_no_json_costs_no_other_its_own(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock, last = process()
    running = asyncio.create_task(last.run())
    await clock.advance(40)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    with caplog.at_level(logging.WARNING, "gnomon"):
        for _ in range(3):
            SavedScalingState(last, tmp_path).save()
    assert [record.getMessage().split(":")[0] for record in caplog.records] == ["a.ns"], "once"
    _, successor = process()
    SavedScalingState(successor, tmp_path).restore()
    for name in ("a.ns", "b.ns"):
        successor.redeployed(name)
    assert [successor.desired(name) for name in ("a.ns", "b.ns")] == [None, last.desired("b.ns")]
    assert last.desired("b.ns") == 3


async def _is_there(_: str) -> None:
    pass


class Gateway:
    """A gateway on the state folder of an earlier one. No policy ever answers it."""

    def __init__(self, folder: Path) -> None:
        platform = Scripted()
        scaling = ScalingAdapter(BUILT_IN, lambda: platform.capabilities)
        self.store = SqliteStore(folder / "functions.db")
        self.manager = Manager(
            self.store,
            platform,
            scaling,
            LatencyModels(LearnedLatency()),
            LogBook(lambda: 0.0),
            fetch_model=_is_there,
            now=lambda: 0.0,
        )
        self.autoscaler = Autoscaler(self.manager.instances, VirtualClock(), executor=lambda *_: None, stamp_s=lambda: 1e9)
        scaling.bind(self.autoscaler)
        self.kept = SavedScalingState(self.autoscaler, folder)

    async def start(self) -> None:
        self.kept.restore()
        await self.manager.start()

    async def stop(self) -> None:
        self.kept.save()
        await self.manager.stop()
        self.store.close()


async def test_what_was_kept_of_a_function_that_is_gone_is_not_for_the_next_one_by_its_name(tmp_path: Path) -> None:
    spec = read_deployment({"service": "fn", "image": "i"})
    first = Gateway(tmp_path)
    await first.manager.deploy(spec)
    first.autoscaler.request(NAME, 7)
    await first.stop()
    second = Gateway(tmp_path)
    await second.start()
    assert second.autoscaler.desired(NAME) == 7
    second.store.delete_function(spec.key)  # it was removed, and this process has not heard of it yet
    await second.stop()
    third = Gateway(tmp_path)
    await third.start()
    await third.manager.deploy(spec)
    assert third.autoscaler.desired(NAME) is None
    await third.stop()

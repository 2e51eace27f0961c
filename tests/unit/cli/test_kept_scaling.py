"""What the autoscaler has learned survives a restart, whatever one function's policy keeps."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from gnomon_autoscaler.beside import at_once
from gnomon_autoscaler.loop import Autoscaler
from gnomon_autoscaler.registry import BUILT_IN, Offer
from gnomon_autoscaler.testing import MemoryFleet, MemoryFunction
from gnomon_cli.kept_scaling import KeptScaling
from gnomon_core.clock import VirtualClock
from gnomon_core.scaling import Decision, Observation, PolicyState
from gnomon_core.settings import ScaleSettings, Settings


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
    policies = {**BUILT_IN, "odd": Offer(lambda _: Odd(), "Keeps a set.")}
    return clock, Autoscaler(fleet, clock, policies=policies, caller=at_once, stamp_s=lambda: 1e9)


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
            KeptScaling(last, tmp_path).save()
    assert [record.getMessage().split(":")[0] for record in caplog.records] == ["a.ns"], "once"
    _, successor = process()
    KeptScaling(successor, tmp_path).restore()
    for name in ("a.ns", "b.ns"):
        successor.redeployed(name)
    assert [successor.desired(name) for name in ("a.ns", "b.ns")] == [None, last.desired("b.ns")]
    assert last.desired("b.ns") == 3

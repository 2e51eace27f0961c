"""A function that nothing happens to is left in peace, and is missed by nobody: what it decides is what it would have decided."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gnomon_autoscaler.controller import LONG_SKIPS_S, Autoscaler
from gnomon_autoscaler.executor import at_once
from gnomon_autoscaler.testing import FUNCTION, MemoryFleet, MemoryFunction
from gnomon_core.clock import VirtualClock
from gnomon_core.scaling import FunctionLoad, LoadCounters
from gnomon_core.settings import ScaleSettings, Settings


class StampingFleet(MemoryFleet):
    """A fleet that can tell whether anything is new, and counts how often it is looked at."""

    looks = 0

    def load(self, function: str) -> FunctionLoad | None:
        self.looks += 1
        return super().load(function)

    def stamp(self, function: str) -> object:
        load = super().load(function)
        counters = load.counters
        return self.standing(function), counters.arrivals, counters.queued, counters.executing, load.requested

    def standing(self, function: str) -> object:
        load = super().load(function)
        return load.settings, tuple((one.id, one.state) for one in load.instances)

    def counters(self, function: str) -> LoadCounters | None:
        load = super().load(function)
        return None if load is None else load.counters


class Stage:
    """The same function twice: in a fleet that stamps, and in one that does not."""

    def __init__(self, settings: Settings) -> None:
        self.clock = VirtualClock()
        self.stamping = StampingFleet(self.clock.now_s, (("node-1", 64),), 0.0)
        self.plain = MemoryFleet(self.clock.now_s, (("node-1", 64),), 0.0)
        self.fleets = self.stamping, self.plain
        for fleet in self.fleets:
            fleet.known[FUNCTION] = MemoryFunction(settings)
        self.loops = [Autoscaler(fleet, self.clock, executor=at_once) for fleet in self.fleets]

    @property
    def functions(self) -> list[MemoryFunction]:
        return [fleet.known[FUNCTION] for fleet in self.fleets]

    @property
    def counts(self) -> tuple[int, int]:
        first, second = (len(function.instances) for function in self.functions)
        return first, second

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(loop.run()) for loop in self.loops]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def settings(policy: str, **scale: Any) -> Settings:
    return Settings(autoscaler=policy, scale=ScaleSettings(**scale))


async def test_a_quiet_function_is_looked_at_each_few_minutes() -> None:
    stage = Stage(settings("openfaas", min=1))
    async with stage.running():
        await stage.clock.advance(5)
        before = stage.stamping.looks
        await stage.clock.advance(4 * LONG_SKIPS_S[0])
        assert 4 <= stage.stamping.looks - before <= 20  # 2,400 without rest
    assert stage.counts == (1, 1)


async def test_a_quiet_function_is_asked_at_its_policys_turns_and_not_looked_at_between_them() -> None:
    stage = Stage(settings("mark", min=1))  # decides each 5 s, and plans anew each minute
    async with stage.running():
        await stage.clock.advance(20)
        before = stage.stamping.looks
        await stage.clock.advance(25)
        assert stage.stamping.looks - before <= 6


async def test_functions_that_began_to_rest_together_wake_one_by_one() -> None:
    stage = Stage(settings("openfaas", min=1))
    names = [f"f{number}.ns" for number in range(50)]
    for name in names:
        stage.stamping.known[name] = MemoryFunction(settings("openfaas", min=1))
    async with stage.running():
        await stage.clock.advance(10)
        most = 0
        for _ in range(round(LONG_SKIPS_S[0])):
            before = stage.stamping.looks
            await stage.clock.advance(1.0)
            most = max(most, stage.stamping.looks - before)
        assert most < len(names) / 4


async def test_a_function_under_load_does_not_rest() -> None:
    stage = Stage(settings("openfaas", min=1))
    async with stage.running():
        stage.stamping.known[FUNCTION].rps = 0.1
        await stage.clock.advance(15)
        before = stage.stamping.looks
        await stage.clock.advance(60)
        assert stage.stamping.looks - before >= 60  # each turn of its policy


async def test_between_turns_of_its_policy_only_a_busy_functions_counters_are_taken_and_its_bins_are_as_exact() -> None:
    stage = Stage(settings("mark", min=1))  # decides each 5 s
    async with stage.running():
        for second in range(120):
            for function in stage.functions:
                function.rps = 2.0 + second % 7
            if second == 60:
                before = stage.stamping.looks
            await stage.clock.advance(1.0)
        assert stage.stamping.looks - before <= 60 / 5 + 2  # 120 bins
        counted, looked = (loop.export_state([FUNCTION])["functions"] for loop in stage.loops)
    assert counted == looked


async def test_an_instance_that_ends_under_load_is_replaced_within_a_turn() -> None:
    stage = Stage(settings("mark", min=2))
    async with stage.running():
        for function in stage.functions:
            function.rps = 5.0
        await stage.clock.advance(41)
        stage.stamping.known[FUNCTION].instances.popitem()
        await stage.clock.advance(1.0)
        assert stage.counts[0] == 2


@pytest.mark.parametrize("policy", ["openfaas", "kpa", "od", "lv", "hpa", "mark", "target-tracking"])
async def test_skipped_function_wakes_for_a_burst_without_delay(policy: str) -> None:
    stage = Stage(settings(policy, min=1, max=8))
    async with stage.running():
        for quiet_s, rps in ((100.0, 20.0), (400.0, 30.0), (47.0, 10.0)):
            for function in stage.functions:
                function.rps = 0.0
            await stage.clock.advance(quiet_s)
            for function in stage.functions:
                function.rps = rps
            for _ in range(60):
                await stage.clock.advance(0.5)
                resting, awake = stage.counts
                assert resting == awake, f"{policy} after {quiet_s} s, at {stage.clock.now_s()}"


async def test_idle_function_scales_to_zero_in_time() -> None:
    stage = Stage(settings("openfaas", min=1, zero=True, zero_duration_s=100.0))
    async with stage.running():
        await stage.clock.advance(2)
        before = stage.stamping.looks
        await stage.clock.advance(50)
        assert stage.stamping.looks - before < 12
        for _ in range(120):
            await stage.clock.advance(0.5)
            resting, awake = stage.counts
            assert resting == awake
        assert stage.counts == (0, 0)


async def test_a_poke_and_an_operator_wake_it() -> None:
    stage = Stage(settings("openfaas", min=1, max=5))
    async with stage.running():
        await stage.clock.advance(20)
        stage.loops[0].request(FUNCTION, 3)
        await stage.clock.advance(0.0)
        assert stage.counts[0] == 3


async def test_an_instance_that_ends_in_its_rest_is_replaced_within_a_turn() -> None:
    stage = Stage(settings("openfaas", min=2))
    async with stage.running():
        await stage.clock.advance(40)
        stage.stamping.known[FUNCTION].instances.popitem()
        await stage.clock.advance(1.0)
        assert stage.counts[0] == 2

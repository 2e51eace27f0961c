"""Quarantine of requests that fail their batch."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from gnomon_core.fleet import InstanceState
from gnomon_core.functions import FunctionKey, FunctionSpec, read_deployment
from gnomon_core.scaling import CreateBody
from gnomon_core.settings import Settings
from gnomon_gateway.dispatch.dispatcher import MAX_QUARANTINED, QUARANTINE_S, Answer, Dispatcher, Effect, Quarantine, Send
from gnomon_gateway.dispatch.latency import LearnedLatency
from gnomon_gateway.functions.function_runtime import FunctionRuntime
from gnomon_gateway.functions.manager import Manager
from gnomon_gateway.functions.profiles import LatencyModels
from gnomon_gateway.queueing.queue import Batch, LaneKey, Request
from gnomon_gateway.scheduling.policies import Immediate
from gnomon_gateway.store import SqliteStore
from tests.unit.gateway.stage import NAME, Client, Holding, Scaling, Scripted

EVENTS = LaneKey("events", "f")


def request(body: bytes = b"good", *, at_s: float = 0.0, idempotent: bool = True) -> Request:
    return Request(EVENTS, at_s, at_s + 30.0, meta=b"POST\n/\n\nx-call-id: %d" % id(body), body=body, replay_safe=idempotent)


class World:
    """A function whose instance fails a whole batch where one of its members is poison: with 500, or by its end."""

    def __init__(self, *, deadly: bool = False) -> None:
        self.dispatcher = Dispatcher(Settings(), Immediate(), LearnedLatency(), 0.0)
        self.deadly = deadly
        self.instances = 0
        self.codes: dict[Request, int] = {}
        self.batches: list[list[bytes]] = []
        self.begin()

    def begin(self) -> list[Effect]:
        self.instances += 1
        return self.dispatcher.instance_ready(f"i{self.instances}", 1, 8, 0.0)

    def arrive(self, *requests: Request, at_s: float = 0.0) -> None:
        self.carry_out(self.dispatcher.arrive(requests, at_s), [], at_s + 0.1)

    def carry_out(self, effects: list[Effect], results: list[int], at_s: float) -> None:
        for effect in effects:
            if isinstance(effect, Answer):
                assert effect.request not in self.codes, "answered twice"
                self.codes[effect.request] = effect.error.status if effect.error is not None else results[effect.member]
            elif isinstance(effect, Send):
                self.execute(effect.batch, at_s)

    def execute(self, batch: Batch, at_s: float) -> None:
        bodies = [bytes(request.body) for request in batch.requests]
        self.batches.append(bodies)
        if b"poison" in bodies and self.deadly:
            self.carry_out(self.dispatcher.instance_gone(batch.instance_id, at_s), [], at_s)
            self.carry_out(self.begin(), [], at_s)
        else:
            codes = [500 if b"poison" in bodies else 200] * len(bodies)
            self.carry_out(self.dispatcher.finished(batch.instance_id, batch.id, codes, at_s), codes, at_s)


@pytest.mark.parametrize("deadly", [False, True])
def test_innocents_beside_a_poison_request_succeed_by_themselves(*, deadly: bool) -> None:
    world = World(deadly=deadly)
    requests = [request(b"good %d" % number) for number in range(7)]
    poison = request(b"poison")
    world.arrive(*requests[:3], poison, *requests[3:])
    assert [world.codes[request] for request in requests] == [200] * 7
    assert world.codes[poison] == (502 if deadly else 500)
    assert [len(batch) for batch in world.batches] == [8, *[1] * 8]
    assert world.dispatcher.retried == 8


@pytest.mark.parametrize("deadly", [False, True])
def test_nothing_is_executed_twice_where_nobody_said_that_it_may(*, deadly: bool) -> None:
    world = World(deadly=deadly)
    requests = [request(b"good", idempotent=False), request(b"poison", idempotent=False), request(b"more", idempotent=False)]
    world.arrive(*requests)
    assert world.batches == [[b"good", b"poison", b"more"]]
    assert [world.codes[request] for request in requests] == [502 if deadly else 500] * 3


def test_request_that_fails_alone_is_not_retried() -> None:
    world = World()
    world.arrive(request(b"poison"))
    assert world.batches == [[b"poison"]]


@pytest.mark.parametrize("deadly", [False, True])
def test_an_input_that_failed_alone_as_well_shares_no_batch_for_a_while(*, deadly: bool) -> None:
    world = World(deadly=deadly)
    world.arrive(request(), request(b"poison"))
    world.batches.clear()
    innocents = [request(at_s=1.0), request(b"more", at_s=1.0)]
    again = request(b"poison", at_s=1.0)
    world.arrive(innocents[0], again, innocents[1], at_s=1.0)
    assert sorted(world.batches) == [[b"good", b"more"], [b"poison"]]
    assert world.codes[again] == (502 if deadly else 500)
    assert world.instances == (4 if deadly else 1)  # one more than what the first poison took: the second took one, not two


def test_an_input_leaves_quarantine_when_it_succeeds_and_after_a_while() -> None:
    quarantine = Quarantine()
    quarantine.add(request(b"poison"), 0.0)
    for at_s, alone in ((1.0, True), (QUARANTINE_S, False), (QUARANTINE_S - 1.0, False)):
        poisonous = request(b"poison")
        quarantine.isolate(poisonous, at_s)
        assert poisonous.lane.solo is alone
    quarantine.add(request(b"poison"), 0.0)
    quarantine.release(request(b"poison"))
    assert not len(quarantine)


def test_quarantine_is_bounded_and_forgets_the_oldest() -> None:
    quarantine = Quarantine()
    for number in range(MAX_QUARANTINED + 5):
        quarantine.add(request(b"%d" % number), 0.0)
    assert len(quarantine) == MAX_QUARANTINED
    oldest, newest = request(b"0"), request(b"%d" % (MAX_QUARANTINED + 4))
    quarantine.isolate(oldest, 1.0)
    quarantine.isolate(newest, 1.0)
    assert (oldest.lane.solo, newest.lane.solo) == (False, True)


KEY = FunctionKey("fn")


def deployment(process: str) -> FunctionSpec:
    return read_deployment({"service": "fn", "image": "i", "envProcess": process, "annotations": {"gnomon/deadline-ms": "1000"}})


class Stage:
    """A gateway with one function, whose handler takes five seconds."""

    def __init__(self, folder: Path) -> None:
        self.platform, self.latency = Scripted(), LearnedLatency()
        self.store = SqliteStore(folder / "functions.db")
        self.manager = Manager(
            self.store,
            self.platform,
            Scaling(),
            LatencyModels(self.latency),
            now=lambda: 0.0,
        )

    async def begin(self) -> None:
        await self.manager.deploy(deployment("slow"))
        await self.manager.instances.apply(NAME, [CreateBody(1)])
        self.ready("b1")
        self.takes_five_seconds()

    def takes_five_seconds(self) -> None:
        for _ in range(10):
            self.latency.observe(NAME, 1, 1, 5.0)

    def ready(self, name: str) -> Holding:
        channel = Holding()
        body = self.platform.there[name] = replace(self.platform.there[name], state=InstanceState.READY)
        self.manager.instances.instance_ready(body, channel)
        return channel

    @property
    def runtime(self) -> FunctionRuntime:
        runtime = self.manager.directory.lookup("fn")
        assert runtime is not None
        return runtime

    async def ask(self) -> Client:
        asked, now_s = Client(), time.monotonic()
        self.runtime.submit(Request(self.runtime.event_lane, now_s, now_s + 1.0, responder=asked))
        await asyncio.sleep(0)
        return asked


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    made = Stage(tmp_path)
    await made.begin()
    yield made
    await made.manager.stop()
    made.store.close()


async def test_request_that_cannot_be_in_time_is_refused(stage: Stage) -> None:
    assert (await stage.ask()).outcomes == ["deadline_cannot_be_met"]


async def test_a_mended_one_gets_its_first_request(stage: Stage) -> None:
    await stage.manager.update(deployment("quick"))
    stage.takes_five_seconds()  # the last one serves until the new one is ready
    channel = stage.ready("b2")
    await asyncio.sleep(0)
    assert (await stage.ask()).outcomes == []
    assert len(channel.ends) == 1


async def test_late_failures_of_the_old_version_do_not_count_against_the_new(stage: Stage) -> None:
    stage.latency.forget(NAME)
    last = stage.ready("b1")
    await stage.ask()
    await stage.manager.update(deployment("quick"))
    stage.ready("b2")
    await asyncio.sleep(0)
    last.end()
    assert stage.latency.seconds(NAME, 1, 1) is None


async def test_redeployed_function_starts_with_a_clean_record(stage: Stage) -> None:
    await stage.manager.remove(KEY)
    await stage.manager.deploy(deployment("quick"))
    assert stage.latency.seconds(NAME, 1, 1) is None


async def test_late_failures_of_a_removed_function_spare_its_successor(stage: Stage) -> None:
    stage.latency.forget(NAME)
    last = stage.ready("b1")
    await stage.ask()
    await stage.manager.remove(KEY)
    await stage.manager.deploy(deployment("quick"))
    last.end()
    assert stage.latency.seconds(NAME, 1, 1) is None
    stage.latency.observe(NAME, 1, 1, 0.05)
    await stage.manager.instances.settle()
    assert stage.latency.seconds(NAME, 1, 1) == pytest.approx(0.05), "nor does its end take away what that one has learned"


async def test_nothing_is_kept_of_one_that_was_removed(stage: Stage) -> None:
    await stage.manager.remove(KEY)
    await stage.manager.instances.settle()
    assert stage.latency.seconds(NAME, 1, 1) is None


async def test_changed_settings_alone_change_nothing_that_was_learned(stage: Stage) -> None:
    await stage.manager.update(replace(deployment("slow"), labels={"team": "vision"}))
    assert stage.latency.seconds(NAME, 1, 1) == pytest.approx(5.0)

"""A handler that took too long, mended or deployed anew, is not refused requests by what the one before it took."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from gnomon_core.errors import GnomonError
from gnomon_core.fleet import InstanceState
from gnomon_core.functions import FunctionKey, FunctionSpec, read_deployment
from gnomon_core.scaling import CreateBody
from gnomon_core.wire import Frame, Kind, Member
from gnomon_gateway.dispatch.latency import LearnedLatency
from gnomon_gateway.functions.function_runtime import FunctionRuntime
from gnomon_gateway.functions.manager import Manager
from gnomon_gateway.functions.profiles import LatencyModels
from gnomon_gateway.logs import LogBook
from gnomon_gateway.queueing.request import Request
from gnomon_gateway.store import SqliteStore
from tests.unit.gateway.shadow_stage import NAME, Scaling, Scripted, Silent

KEY = FunctionKey("fn")


def deployment(process: str) -> FunctionSpec:
    return read_deployment({"service": "fn", "image": "i", "envProcess": process, "annotations": {"gnomon/deadline-ms": "1000"}})


class Holding(Silent):
    """A `BatchChannel` whose batch ends when the test says so."""

    def __init__(self) -> None:
        self.ends: list[Callable[[Frame | None], None]] = []

    def run(self, frame: Frame, done: Callable[[Frame | None], None], stream: object = None) -> None:  # type: ignore[override]
        del frame, stream
        self.ends.append(done)

    def end(self) -> None:
        self.ends.pop()(Frame(Kind.RESULT, members=[Member(200, 1, b"", b"")]))


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
            LogBook(lambda: 0.0),
            fetch_model=_is_there,
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
        runtime = self.manager.lookup("fn")
        assert runtime is not None
        return runtime

    async def ask(self) -> Asked:
        asked, now_s = Asked(), time.monotonic()
        self.runtime.submit(Request(self.runtime.event_lane, now_s, now_s + 1.0, responder=asked))
        await asyncio.sleep(0)
        return asked


class Asked:
    """The responder of a request; `refused` says why it was."""

    def __init__(self) -> None:
        self.refused = ""

    def answer(self, member: Member, head: bytes) -> None: ...
    def stream(self, frame: Frame) -> None: ...
    def broken(self) -> None: ...

    def refuse(self, error: GnomonError) -> None:
        self.refused = error.code


async def _is_there(_: str) -> None:
    pass


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    made = Stage(tmp_path)
    await made.begin()
    yield made
    await made.manager.stop()
    made.store.close()


async def test_it_is_refused_what_it_cannot_do_in_time(stage: Stage) -> None:
    assert (await stage.ask()).refused == "deadline_cannot_be_met"


async def test_a_mended_one_gets_its_first_request(stage: Stage) -> None:
    await stage.manager.update(deployment("quick"))
    stage.takes_five_seconds()  # the last one serves until the new one is ready
    channel = stage.ready("b2")
    await asyncio.sleep(0)
    assert (await stage.ask()).refused == ""
    assert len(channel.ends) == 1


async def test_what_the_last_one_still_ends_does_not_speak_for_the_mended_one(stage: Stage) -> None:
    stage.latency.forget(NAME)
    last = stage.ready("b1")
    await stage.ask()
    await stage.manager.update(deployment("quick"))
    stage.ready("b2")
    await asyncio.sleep(0)
    last.end()
    assert stage.latency.seconds(NAME, 1, 1) is None


async def test_one_that_is_deployed_anew_begins_with_nothing(stage: Stage) -> None:
    await stage.manager.remove(KEY)
    await stage.manager.deploy(deployment("quick"))
    assert stage.latency.seconds(NAME, 1, 1) is None


async def test_what_a_removed_one_still_ends_does_not_speak_for_the_one_in_its_place(stage: Stage) -> None:
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

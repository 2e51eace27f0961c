"""Functions whose instances do not start: which calls wait, which are refused at once and by what, and when that is over."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from gnomon_core.errors import GnomonError
from gnomon_core.fleet import Instance, InstanceState
from gnomon_core.functions import FunctionKey, read_deployment
from gnomon_core.interfaces import InstanceRequest, LogQuery
from gnomon_core.scaling import CreateBody
from gnomon_core.wire import Frame, Kind, Member
from gnomon_gateway.functions.deployments import StartFailures, summary
from gnomon_gateway.functions.logs import LogBook
from gnomon_gateway.functions.manager import Manager
from gnomon_gateway.functions.profiles import LatencyModels
from gnomon_gateway.queueing.queue import Request
from gnomon_gateway.store import SqliteStore
from tests.unit.gateway.stage import NAME, Client, Scaling, Scripted, Silent

KEY = FunctionKey("fn")
REASON = "exit status 1; its log ends: Traceback (most recent call last): | File handler.py | ImportError: no handle()"
FULL = GnomonError(503, "no_capacity", "An instance needs 64 cores; node n has 2 cores free.", "Ask for less.")


class BackingOff(Scaling):
    """Starts nothing for a while after failed starts."""

    backoff_s = 0.0

    def start_backoff_s(self, function: str) -> float:
        del function
        return self.backoff_s


class Full(Scripted):
    """A platform that may have no room."""

    refusal: GnomonError | None = None

    async def create(self, request: InstanceRequest) -> Instance:
        if self.refusal is not None:
            raise self.refusal
        return await super().create(request)


class Answering(Silent):
    """A `BatchChannel` that answers each batch at once."""

    def run(self, frame: Frame, done: Callable[[Frame | None], None], stream: object = None) -> None:  # type: ignore[override]
        del stream
        done(Frame(Kind.RESULT, frame.batch_id, frame.epoch, members=[Member(200, 1, b"", b"") for _ in frame.members]))


class Stage:
    def __init__(self, folder: Path) -> None:
        self.platform, self.scaling, self.store = Full(), BackingOff(), SqliteStore(folder / "functions.db")
        self.logs = LogBook(lambda: 0.0)
        self.manager = Manager(
            self.store,
            self.platform,
            self.scaling,
            LatencyModels(),
            self.logs,
            now=lambda: 0.0,
        )
        self.instances = self.manager.instances

    async def call(self) -> Client:
        """A call, as far as it goes at once."""
        caller, runtime, now_s = Client(), self.manager.directory.lookup("fn"), time.monotonic()
        assert runtime is not None
        runtime.submit(Request(runtime.event_lane, now_s, now_s + 60.0, responder=caller))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return caller

    async def start(self) -> Instance:
        await self.instances.apply(NAME, [CreateBody(1)])
        return list(self.platform.there.values())[-1]

    async def fail(self, reason: str = REASON) -> None:
        body = await self.start()
        del self.platform.there[body.id]
        self.instances.instance_gone(body.id, reason)

    def ready(self, body: Instance) -> None:
        found = self.platform.there[body.id] = replace(body, state=InstanceState.READY)
        self.instances.instance_ready(found, Answering())

    def problem(self) -> tuple[str, bool] | None:
        """The message to users, and whether no start is expected to help."""
        found = self.manager.detail(KEY)
        assert found is not None
        return None if found.status.problem is None else (found.status.problem.code, found.cannot_start)


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    made = Stage(tmp_path)
    await made.manager.deploy(read_deployment({"service": "fn", "image": "i"}))
    yield made
    await made.manager.stop()
    made.store.close()


async def test_calls_wait_for_the_retry_after_one_failed_start(stage: Stage) -> None:
    await stage.fail()
    caller = await stage.call()
    assert caller.errors == []
    assert stage.problem() == ("function_cannot_start", False)
    stage.ready(await stage.start())
    assert caller.outcomes
    assert stage.problem() is None


async def test_second_failed_start_refuses_calls_with_the_reason(stage: Stage) -> None:
    await stage.fail()
    waited = await stage.call()
    await stage.fail()
    stage.scaling.backoff_s = 4.0
    for caller in (waited, await stage.call()):
        assert caller.errors
        assert (caller.errors[0].status, caller.errors[0].code) == (503, "function_cannot_start")
        assert "ImportError: no handle() (exit status 1)" in caller.errors[0].message
        assert "Traceback" not in caller.errors[0].message
    assert (await stage.call()).errors[0].retry_after_s == 4.0
    assert stage.problem() == ("function_cannot_start", True)


async def test_calls_are_refused_until_the_retried_start_is_ready(stage: Stage) -> None:
    await stage.fail()
    await stage.fail()
    body = await stage.start()
    assert (await stage.call()).errors
    stage.ready(body)
    stage.instances.stop(stage.manager._functions[KEY], body.id)
    await stage.instances.settle()
    del stage.platform.there[body.id]
    stage.instances.instance_gone(body.id, "stopped")
    assert (await stage.call()).errors == [], "it does start: another one is worth waiting for"


async def test_a_deployment_forgets_failed_starts(stage: Stage) -> None:
    await stage.fail()
    await stage.fail()
    await stage.manager.update(read_deployment({"service": "fn", "image": "i", "envVars": {"FIXED": "yes"}}))
    assert stage.problem() is None
    assert (await stage.call()).errors == []


async def test_no_capacity_refuses_calls_and_is_logged_once(stage: Stage) -> None:
    waiting = await stage.call()
    stage.platform.refusal = FULL
    for _ in range(3):
        with pytest.raises(GnomonError):
            await stage.start()
    caller = await stage.call()
    assert (len(waiting.errors), len(caller.errors)) == (1, 1)
    for error in waiting.errors + caller.errors:
        assert (error.status, error.code, error.message, error.retry_after_s) == (503, "no_capacity", FULL.message, 1.0)
    assert stage.problem() == ("no_capacity", True)
    told_in_log = [line.text for line in stage.logs.lines(LogQuery(KEY))]
    assert told_in_log == [f"gnomon: no instance can be created: {FULL}"]


async def test_a_want_of_room_for_more_does_not_refuse_calls_while_one_starts(stage: Stage) -> None:
    body = await stage.start()
    stage.platform.refusal = FULL
    with pytest.raises(GnomonError):
        await stage.start()
    caller = await stage.call()
    assert caller.errors == []
    assert stage.problem() == ("no_capacity", False)
    stage.ready(body)
    assert caller.outcomes
    assert stage.problem() is None, "one is wanted, and it is ready"


async def test_the_gateway_is_ready_when_each_function_has_had_its_first_instance(stage: Stage) -> None:
    assert not stage.manager.all_been_ready()
    body = await stage.start()
    assert not stage.manager.all_been_ready()
    stage.ready(body)
    assert stage.manager.all_been_ready()
    del stage.platform.there[body.id]
    stage.instances.instance_gone(body.id, "it was killed")
    assert stage.manager.all_been_ready(), "its successor is on its way: no reason to lead clients elsewhere"


def test_call_is_admitted_after_the_backoff() -> None:
    known = StartFailures()
    for at_s in (0.0, 0.5):
        known.failed(at_s, REASON)
    assert known.refusal(1.0, starting=0, instances=0, backoff_s=0.0) is not None
    assert known.refusal(10.0, starting=0, instances=0, backoff_s=2.0).retry_after_s == 2.0  # type: ignore[union-attr]
    assert known.refusal(10.0, starting=1, instances=1, backoff_s=0.0) is not None
    assert known.refusal(10.0, starting=0, instances=0, backoff_s=0.0) is None


@pytest.mark.parametrize(
    ("reason", "message"),
    [
        ("exit status 3", "exit status 3"),
        (REASON, "ImportError: no handle() (exit status 1)"),
        ("not ready after 60 s; its log ends: loading", "loading (not ready after 60 s)"),
        ("could not be started: " + "x" * 1000, "could not be started: " + "x" * 578),
    ],
)
def test_callers_are_told_the_last_line_of_the_log(reason: str, message: str) -> None:
    assert summary(reason) == message


async def test_instance_killed_while_executing_is_no_failed_start(stage: Stage) -> None:
    """The end of the channel is heard first, and the instance takes no batches any more when its own end is."""
    runtime = stage.manager.directory.lookup("fn")
    assert runtime is not None
    bodies = [await stage.start() for _ in range(2)]
    for body in bodies:
        stage.ready(body)
    for body in bodies:
        runtime.instance_gone(body.id, "its channel closed")
        del stage.platform.there[body.id]
        stage.instances.instance_gone(body.id, "ended by SIGKILL")
    assert stage.problem() is None
    await stage.start()
    assert (await stage.call()).errors == []

"""A function's runtime when another replica gets its queue: hand on what waits, finish what executes, begin nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from gnomon_core.fleet import Instance, InstanceState
from gnomon_core.functions import FunctionKey
from gnomon_core.settings import Settings
from gnomon_core.wire import Frame, Kind, Member
from gnomon_gateway.dispatch.latency import LearnedLatency
from gnomon_gateway.functions.function_runtime import FunctionRuntime
from gnomon_gateway.queueing.queue import Request
from gnomon_gateway.scheduling.policies import Immediate
from tests.unit.gateway.stage import Client


class OneInstance:
    """An instance that answers when it is told to, and refuses what is older than it has seen."""

    unread = False

    def __init__(self) -> None:
        self.newest = 0
        self.executed: list[tuple[int, bytes]] = []
        self._answer: Callable[[], None] = lambda: None

    def run(self, frame: Frame, done: Callable[[Frame | None], None], stream: Callable[[Frame], None] | None = None) -> None:
        del stream
        if frame.epoch < self.newest:
            refused = [Member(409, 1, b"", b"") for _ in frame.members]
            asyncio.get_running_loop().call_soon(done, Frame(Kind.RESULT, frame.batch_id, self.newest, members=refused))
            return
        self.newest = frame.epoch
        self.executed += [(frame.epoch, bytes(member.body)) for member in frame.members]
        members = [Member(200, 1, b"", member.body) for member in frame.members]
        self._answer = lambda: done(Frame(Kind.RESULT, frame.batch_id, frame.epoch, members=members))

    def cancel(self, batch_id: int) -> None: ...

    async def probe(self, timeout_s: float) -> bool:
        del timeout_s
        return True

    def answer(self) -> None:
        self._answer()


def runtime_with(instance: OneInstance, epoch: int = 3) -> FunctionRuntime:
    settings = Settings(max_batch=1)
    runtime = FunctionRuntime(FunctionKey("f"), settings, Immediate(), LearnedLatency(), epoch=epoch)
    runtime.instance_ready(Instance("i", runtime.name, 1, "here", 1, 0, InstanceState.READY, 0.0), instance)
    return runtime


def submit(runtime: FunctionRuntime, body: bytes) -> Client:
    client, now_s = Client(), time.monotonic()
    runtime.submit(Request(runtime.event_lane, now_s, now_s + 60.0, body=body, responder=client))
    return client


async def turn() -> None:
    """Wait until the loop has done what was scheduled for its next turns."""
    for _ in range(3):
        await asyncio.sleep(0)


async def test_waiting_requests_move_and_executing_ones_finish() -> None:
    instance = OneInstance()
    runtime = runtime_with(instance)
    executes = submit(runtime, b"executes")
    await turn()
    waits = submit(runtime, b"waits")
    await turn()
    arrives = submit(runtime, b"arrives")  # in this very turn of the loop
    runtime.disown()
    assert (waits.outcomes, arrives.outcomes, executes.outcomes) == (["queue_moved"], ["queue_moved"], [])
    quiet = asyncio.ensure_future(runtime.wait_idle())
    await turn()
    assert not quiet.done()
    instance.answer()
    await asyncio.wait_for(quiet, 10)
    assert executes.outcomes == [b"executes"]
    assert instance.executed == [(3, b"executes")]
    # Only what was answered counts as answered, and nothing is thought to be under way.
    assert (runtime.metrics.invocations, runtime.metrics.started - runtime.metrics.left) == (1, 1)
    runtime.close()


async def test_later_requests_are_forwarded_at_once() -> None:
    instance = OneInstance()
    runtime = runtime_with(instance)
    runtime.disown()
    late = submit(runtime, b"late")
    await turn()
    assert (late.outcomes, instance.executed) == (["queue_moved"], [])
    runtime.own(5)
    again = submit(runtime, b"again")
    await turn()
    instance.answer()
    assert (again.outcomes, instance.executed) == ([b"again"], [(5, b"again")])
    runtime.close()


async def test_quiet_waits_for_what_nobody_waits_for_any_more() -> None:
    """A batch whose client has left is still executed: another owner must not begin beside it."""
    instance = OneInstance()
    runtime = runtime_with(instance)
    now_s = time.monotonic()
    request = Request(runtime.event_lane, now_s, now_s + 60.0, body=b"x", responder=Client())
    runtime.submit(request)
    await turn()
    runtime.left(request)
    assert runtime.dispatcher.in_system == 0
    quiet = asyncio.ensure_future(runtime.wait_idle())
    await turn()
    assert not quiet.done()
    instance.answer()
    await asyncio.wait_for(quiet, 10)
    runtime.close()


async def test_an_instance_that_knows_a_later_owner_executes_nothing_and_stays() -> None:
    instance = OneInstance()
    runtime = runtime_with(instance)
    ended: list[int] = []
    runtime.own(3, ended.append)
    instance.newest = 8
    refused, waits = submit(runtime, b"refused"), submit(runtime, b"waits")
    await turn()
    assert (refused.outcomes, waits.outcomes, ended) == (["queue_moved"], ["queue_moved"], [8])
    assert (instance.executed, runtime.ready, runtime.dispatcher.in_system) == ([], 1, 0)
    runtime.own(9, ended.append)
    served = submit(runtime, b"served")
    await turn()
    instance.answer()
    assert (served.outcomes, instance.executed) == ([b"served"], [(9, b"served")])
    runtime.close()


async def test_single_gateway_continues_from_an_instance_s_epoch() -> None:
    """Where there were several replicas, and there is one now that shares nothing, what instances remember must not stop it."""
    instance = OneInstance()
    runtime = runtime_with(instance, epoch=1)
    instance.newest = 8
    client = submit(runtime, b"goes on")
    await turn()
    instance.answer()
    assert (client.outcomes, instance.executed) == ([b"goes on"], [(8, b"goes on")])
    runtime.close()

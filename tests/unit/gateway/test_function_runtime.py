"""A function's runtime on a real event loop: requests of one turn are let in together, and its instances are probed."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Iterator

import pytest

from gnomon_core.errors import GnomonError
from gnomon_core.fleet import Instance, InstanceState
from gnomon_core.functions import FunctionKey
from gnomon_core.settings import Settings
from gnomon_core.wire import Frame, Kind, Member
from gnomon_gateway.dispatch.dispatcher import Dispatcher, function_removed
from gnomon_gateway.dispatch.latency import LearnedLatency
from gnomon_gateway.functions import function_runtime
from gnomon_gateway.functions.function_runtime import FunctionRuntime, Health
from gnomon_gateway.http.acceptor import find_disconnected
from gnomon_gateway.queueing.queue import Request
from gnomon_gateway.scheduling.policies import Immediate
from gnomon_platforms.channel import Batch as PendingBatch
from gnomon_platforms.channel import Channel, ExchangeChannel, Outcome
from tests.unit.gateway.stage import Client
from tests.waiting import until


class Echo:
    """An instance that answers when it is told to."""

    unread = ()

    def __init__(self) -> None:
        self.batches: list[list[bytes]] = []
        self._answer: Callable[[], None] = lambda: None
        self.lose: Callable[[], None] = lambda: None
        """End the channel while the last batch executes."""

    def run(self, frame: Frame, done: Callable[[Frame | None], None], stream: Callable[[Frame], None] | None = None) -> None:
        del stream
        self.batches.append([bytes(member.body) for member in frame.members])
        members = [Member(200, 1, b"", member.body) for member in frame.members]
        self._answer = lambda: done(Frame(Kind.RESULT, frame.batch_id, members=members))
        self.lose = lambda: done(None)

    def cancel(self, batch_id: int) -> None: ...

    async def probe(self, timeout_s: float) -> bool:
        del timeout_s
        return True

    def answer(self) -> None:
        self._answer()


class Served:
    """A function with one instance."""

    def __init__(self) -> None:
        self.echo = Echo()
        self.runtime = FunctionRuntime(FunctionKey("fn"), Settings(max_batch=8), Immediate(), LearnedLatency())
        body = Instance("i1", "fn", 1, "node", 1, 1, InstanceState.READY, 0.0)
        self.runtime.instance_ready(body, self.echo)

    def send(self, client: Client, body: bytes) -> Request:
        now_s = time.monotonic()
        request = Request(self.runtime.event_lane, now_s, now_s + 5, body=body, responder=client)
        self.runtime.submit(request)
        return request


@pytest.fixture
async def served() -> Served:
    return Served()


class Exchanges(ExchangeChannel):
    """The channel of an instance that is reached by a connection for each batch. The test says what becomes of each."""

    def __init__(self, runtime: FunctionRuntime, name: str) -> None:
        super().__init__(lambda reason: runtime.instance_gone(name, reason), 60.0, name, concurrency=3)
        self.outcomes: list[asyncio.Future[Outcome]] = []
        runtime.instance_ready(Instance(name, "fn", 1, "node", 1, 1, InstanceState.READY, 0.0, concurrency=3), self)

    async def probe(self, timeout_s: float) -> bool:
        del timeout_s
        return True

    async def _exchange(self, batch: PendingBatch, frame: Frame) -> Outcome:
        comes: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self.outcomes.append(comes)
        outcome = await comes
        members = [Member(200, 1, b"", member.body) for member in frame.members]
        return outcome if outcome.trouble else Outcome(Frame(Kind.RESULT, batch.id, members=members))


REFUSED, BROKEN_OFF = Outcome(None, "connection refused", unread=True), Outcome(None, "connection reset")


@pytest.mark.parametrize(
    ("outcome", "answer"), [(Outcome(), b"first"), (BROKEN_OFF, "instance_lost")], ids=["answers", "breaks off"]
)
async def test_instance_that_takes_no_connection_any_more_loses_only_what_it_may_have_executed(
    outcome: Outcome, answer: bytes | str
) -> None:
    runtime = FunctionRuntime(FunctionKey("fn"), Settings(max_batch=1), Immediate(), LearnedLatency())
    ended, client = Exchanges(runtime, "ended"), Client()
    now_s = time.monotonic()
    for body in (b"first", b"second", b"third"):
        runtime.submit(Request(runtime.event_lane, now_s, now_s + 60.0, body=body, responder=client))
    await until(lambda: len(ended.outcomes) == 3)
    ended.outcomes[1].set_result(REFUSED)
    ended.outcomes[2].set_result(REFUSED)
    await until(lambda: runtime.load().queued == 2)
    assert (client.outcomes, ended.closed) == ([], False)
    ended.outcomes[0].set_result(outcome)
    await until(lambda: ended.closed)
    assert client.outcomes == [answer]
    successor = Exchanges(runtime, "successor")
    await until(lambda: len(successor.outcomes) == 2)
    for exchange in successor.outcomes:
        exchange.set_result(Outcome())
    await until(lambda: len(client.outcomes) == 3)
    assert set(client.outcomes[1:]) == {b"second", b"third"}
    runtime.close()


async def test_requests_of_one_loop_turn_form_one_batch(served: Served) -> None:
    client = Client()
    for body in (b"a", b"b", b"c"):
        served.send(client, body)
    await asyncio.sleep(0)
    assert served.echo.batches == [[b"a", b"b", b"c"]]
    served.send(client, b"d")
    await asyncio.sleep(0)
    served.echo.answer()
    assert served.echo.batches[1:] == [[b"d"]]
    assert client.outcomes == [b"a", b"b", b"c"]


async def test_a_client_that_leaves_in_the_turn_in_which_it_came_is_not_served(served: Served) -> None:
    client = Client()
    served.send(client, b"stays")
    served.runtime.left(served.send(client, b"leaves"))
    await asyncio.sleep(0)
    assert served.echo.batches == [[b"stays"]]
    served.echo.answer()
    assert client.outcomes == [b"stays"]
    assert served.runtime.load().queued == served.runtime.load().executing == 0


class Connected(Client):
    """A client on a connection of its own, whose end the event loop does not watch."""

    def __init__(self, served: Served, waited_s: float) -> None:
        super().__init__()
        self.connection, self.accepted = socket.socketpair()
        self.descriptor = self.accepted.fileno()
        self.runtime = served.runtime
        now_s = time.monotonic()
        self.request = Request(self.runtime.event_lane, now_s - waited_s, now_s + 5, body=b"leaves", responder=self, client=self)
        self.runtime.submit(self.request)

    def lost(self) -> None:
        self.runtime.left(self.request)


@pytest.fixture
def connect(served: Served) -> Iterator[Callable[[float], Connected]]:
    """Connects a client, whose request has waited for this many seconds already."""
    connected: list[Connected] = []

    def client(waited_s: float) -> Connected:
        connected.append(Connected(served, waited_s))
        return connected[-1]

    yield client
    for each in connected:
        each.connection.close()
        each.accepted.close()


async def test_disconnected_client_is_in_no_batch(served: Served, connect: Callable[[float], Connected]) -> None:
    client = Client()
    served.send(client, b"first")
    await asyncio.sleep(0)
    leaving = [connect(1.0) for _ in range(20)]
    for leaver in leaving[:10]:
        leaver.connection.close()
    served.send(client, b"stays")
    await asyncio.sleep(0)
    assert served.runtime.metrics.left == 10, "those that left before they were admitted"
    for leaver in leaving[10:]:
        leaver.connection.close()
    served.echo.answer()
    assert served.echo.batches == [[b"first"], [b"stays"]]
    served.echo.answer()
    assert (client.outcomes, [leaver.outcomes for leaver in leaving]) == ([b"first", b"stays"], [[]] * 20)
    assert served.runtime.metrics.left == 20
    assert not served.runtime.busy


async def test_connection_is_checked_once_if_there_is_no_backlog(
    served: Served, connect: Callable[[float], Connected], monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Client()
    served.send(client, b"first")
    await asyncio.sleep(0)
    asked: list[object] = []

    def find_and_note(clients: list[Connected]) -> list[Connected]:
        asked.extend(clients)
        return find_disconnected(clients)

    monkeypatch.setattr(function_runtime, "find_disconnected", find_and_note)
    prompt = connect(-60.0)
    await asyncio.sleep(0)
    prompt.connection.close()
    served.echo.answer()
    assert asked == [prompt]
    assert served.echo.batches == [[b"first"], [b"leaves"]]


async def test_stopping_function_finishes_requests_that_just_arrived(served: Served) -> None:
    client = Client()
    served.send(client, b"last")
    drained = asyncio.ensure_future(served.runtime.drain_all())
    await asyncio.sleep(0)
    assert served.echo.batches == [[b"last"]]
    assert not drained.done()
    served.echo.answer()
    await asyncio.wait_for(drained, 1.0)
    assert client.outcomes == [b"last"]


async def test_requests_that_just_arrived_get_the_same_error(served: Served) -> None:
    client = Client()
    served.send(client, b"running")
    await asyncio.sleep(0)
    served.send(client, b"just now")
    served.runtime.fail_waiting(function_removed())
    assert client.outcomes == ["function_removed"]


class Unwritable(Client):
    """A client to whom no answer can be written, and perhaps no error either."""

    def __init__(self, *, refusable: bool) -> None:
        super().__init__()
        self.refusable = refusable

    def answer(self, member: Member, head: bytes) -> None:
        del member, head
        raise UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not allowed")

    def refuse(self, error: GnomonError) -> None:
        if not self.refusable:
            raise RuntimeError
        super().refuse(error)

    def broken(self) -> None:
        self.outcomes.append("broken")


async def test_an_answer_that_cannot_be_written_costs_no_other_client_its_own(served: Served) -> None:
    clients = [Client(), Unwritable(refusable=True), Unwritable(refusable=False), Client()]
    for number, client in enumerate(clients):
        served.send(client, b"%d" % number)
    await asyncio.sleep(0)
    served.echo.answer()
    assert [client.outcomes for client in clients] == [[b"0"], ["internal_error"], ["broken"], [b"3"]]
    assert not served.runtime.busy


async def test_request_that_cannot_be_transferred_holds_up_no_other(served: Served) -> None:
    running, stuck, waiting = Client(), Unwritable(refusable=False), Client()
    served.send(running, b"running")
    await asyncio.sleep(0)
    served.send(stuck, b"stuck")
    served.send(waiting, b"waiting")
    await asyncio.sleep(0)
    served.runtime.disown()
    assert (stuck.outcomes, waiting.outcomes) == (["broken"], ["queue_moved"])


class Streaming(Echo):
    """An instance whose answer comes in parts."""

    def __init__(self) -> None:
        super().__init__()
        self.part: Callable[[Frame], None] = lambda _: None
        self.cancelled: list[int] = []

    def run(self, frame: Frame, done: Callable[[Frame | None], None], stream: Callable[[Frame], None] | None = None) -> None:
        super().run(frame, done)
        assert stream is not None
        self.part = stream

    def cancel(self, batch_id: int) -> None:
        self.cancelled.append(batch_id)


class Deaf(Unwritable):
    """Takes no part of a stream."""

    def stream(self, frame: Frame) -> None:
        raise OSError(f"no room for {frame.kind}")


async def test_unwritable_part_ends_its_stream_and_not_the_channel() -> None:
    served, streaming, deaf = Served(), Streaming(), Deaf(refusable=True)
    served.runtime.instance_gone("i1", "replaced")
    served.runtime.instance_ready(Instance("i2", "fn", 1, "node", 1, 1, InstanceState.READY, 0.0), streaming)
    now_s = time.monotonic()
    served.runtime.submit(Request(served.runtime.stream_lane, now_s, now_s + 5, responder=deaf, streaming=True))
    await asyncio.sleep(0)
    for kind in (Kind.STREAM_START, Kind.STREAM_DATA):
        streaming.part(Frame(kind, 1, members=[Member(200, 1, b"", b"part")]))
    assert deaf.outcomes == ["broken"]
    assert streaming.cancelled == [1], "the instance need not go on"
    assert (served.runtime.busy, served.runtime.metrics.started) == (False, 1)
    streaming.answer()
    assert served.runtime.in_flight("i2") == 0


class Terminating(Channel):
    """The channel of an instance whose batches end when the test says so."""

    def __init__(self, runtime: FunctionRuntime, name: str) -> None:
        super().__init__(lambda reason: runtime.instance_gone(name, reason), concurrency=4)
        self.executing: list[PendingBatch] = []
        runtime.instance_ready(Instance(name, "fn", 1, "node", 1, 1, InstanceState.READY, 0.0, concurrency=4), self)

    def _transmit(self, batch: PendingBatch, frame: Frame) -> None:
        batch.result = Frame(Kind.RESULT, frame.batch_id, members=[Member(200, 1, b"", member.body) for member in frame.members])
        self.executing.append(batch)

    def _release(self) -> None:
        for batch in self.executing:
            self._finish(batch, None)

    async def probe(self, timeout_s: float) -> bool:
        del timeout_s
        return True

    def answer(self) -> None:
        batch = self.executing.pop()
        self._finish(batch, batch.result)


async def test_requests_that_an_ending_instance_did_not_take_are_all_executed_by_others() -> None:
    runtime = FunctionRuntime(FunctionKey("fn"), Settings(max_batch=1), Immediate(), LearnedLatency())
    ended, executing, later, now_s = Exchanges(runtime, "ended"), Client(), Client(), time.monotonic()
    runtime.submit(Request(runtime.event_lane, now_s, now_s + 30.0, body=b"first", responder=executing))
    await until(lambda: len(ended.outcomes) == 1)
    ended.drain("its pod is terminating")
    # The answer arrives with the next requests, and ends the channel before it has refused either.
    ended.outcomes[0].set_result(Outcome())
    for body in (b"second", b"third"):
        runtime.submit(Request(runtime.event_lane, now_s, now_s + 30.0, body=body, responder=later))
    await until(lambda: ended.closed)
    assert (executing.outcomes, later.outcomes) == ([b"first"], [])
    successor = Exchanges(runtime, "successor")
    await until(lambda: len(successor.outcomes) == 2)
    for exchange in successor.outcomes:
        exchange.set_result(Outcome())
    await until(lambda: len(later.outcomes) == 2)
    assert later.outcomes == [b"second", b"third"]


@pytest.mark.parametrize("ends_first", [False, True])
async def test_instance_that_is_told_to_end_answers_what_it_executes_and_others_the_rest(*, ends_first: bool) -> None:
    runtime = FunctionRuntime(FunctionKey("fn"), Settings(), Immediate(), LearnedLatency())
    channel, executing, later = Terminating(runtime, "i1"), Client(), Client()

    def send(client: Client, body: bytes) -> None:
        now_s = time.monotonic()
        runtime.submit(Request(runtime.event_lane, now_s, now_s + 30.0, body=body, responder=client))

    send(executing, b"first")
    await asyncio.sleep(0)
    channel.drain("its pod is terminating")
    send(later, b"second")
    await asyncio.sleep(0)
    if not ends_first:
        await asyncio.sleep(0)
    assert executing.outcomes == later.outcomes == []
    channel.answer()
    await asyncio.sleep(0)
    assert executing.outcomes == [b"first"]
    other = Terminating(runtime, "i2")
    other.answer()
    assert later.outcomes == [b"second"]


async def test_request_of_an_instance_that_is_killed_while_it_ends_is_not_executed_again() -> None:
    runtime = FunctionRuntime(FunctionKey("fn"), Settings(), Immediate(), LearnedLatency())
    channel, client, now_s = Terminating(runtime, "i1"), Client(), time.monotonic()
    for body in (b"first", b"second"):
        runtime.submit(Request(runtime.event_lane, now_s, now_s + 30.0, body=body, responder=client))
        await asyncio.sleep(0)
        channel.drain("its pod is terminating")
    await asyncio.sleep(0)
    channel.close()
    runtime.instance_gone("i1", "its pod has failed")
    assert client.outcomes == ["instance_lost"]
    other = Terminating(runtime, "i2")
    assert [bytes(batch.result.members[0].body) for batch in other.executing if batch.result] == [b"second"]


async def test_closed_instance_counts_as_ready_until_forgotten(served: Served) -> None:
    served.send(Client(), b"first")
    await asyncio.sleep(0)
    served.echo.lose()
    assert served.runtime.has_been_ready("i1")
    assert not served.runtime.forget("i1")
    assert not served.runtime.has_been_ready("i1")


async def test_instance_killed_by_a_retried_request_is_no_failed_start(served: Served) -> None:
    now_s = time.monotonic()
    suspect = Request(served.runtime.event_lane, now_s, now_s + 30.0, body=b"poison", replay_safe=True)
    suspect.retried = True
    served.runtime.submit(suspect)
    await asyncio.sleep(0)
    served.echo.lose()
    assert served.runtime.forget("i1")


class Played:
    """The channel of an idle instance that answers canaries as it is told."""

    unread = ()

    def __init__(self, *, answers: bool = True) -> None:
        self.answers = answers
        self.asked = asyncio.Event()

    def run(self, frame: Frame, done: object, stream: object = None) -> None:
        raise AssertionError(frame, done, stream)

    def cancel(self, batch_id: int) -> None:
        raise AssertionError(batch_id)

    async def probe(self, timeout_s: float) -> bool:
        del timeout_s
        self.asked.set()
        return self.answers


class Informed(Played):
    """A channel that may know without asking."""

    knows = True

    def is_known_healthy(self) -> bool:
        return self.knows


class Watched:
    """A function with these instances, watched."""

    def __init__(self, **channels: Played) -> None:
        self.frozen: list[str] = []
        dispatcher = Dispatcher(Settings(), Immediate(), LearnedLatency(), 0.0)
        for name in channels:
            dispatcher.instance_ready(name, 1, 1, 0.0)
        self.health = Health(dispatcher, channels, lambda name, _: self.frozen.append(name))


@pytest.fixture
def probes_quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(function_runtime, "PROBE_EVERY_S", 0.005)


@pytest.mark.usefixtures("probes_quickly")
async def test_healthy_instance_is_not_probed_while_it_is_known() -> None:
    asked, known = Played(), Informed()
    stage = Watched(asked=asked, known=known)
    stage.health.start()
    for _ in range(3):
        asked.asked.clear()
        await asyncio.wait_for(asked.asked.wait(), 20)
    assert not known.asked.is_set()
    known.knows = False
    await asyncio.wait_for(known.asked.wait(), 20)
    stage.health.stop()
    assert stage.frozen == []


@pytest.mark.usefixtures("probes_quickly")
async def test_unanswered_probe_is_reported_once() -> None:
    silent, asked = Informed(answers=False), Played()
    silent.knows = False
    stage = Watched(silent=silent, asked=asked)
    stage.health.start()
    for _ in range(3):
        asked.asked.clear()
        await asyncio.wait_for(asked.asked.wait(), 20)
    stage.health.stop()
    assert stage.frozen == ["silent"]


@pytest.mark.usefixtures("probes_quickly")
async def test_a_thousand_functions_are_checked_at_a_few_common_times(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, at_s = asyncio.get_running_loop(), set[float]()
    monkeypatch.setattr(function_runtime, "PROBE_EVERY_S", 3.0)
    stages = [Watched() for _ in range(1000)]
    with monkeypatch.context() as patched:
        patched.setattr(loop, "call_at", lambda when_s, _: at_s.add(when_s))
        for number, stage in enumerate(stages):
            patched.setattr(loop, "time", lambda begun_s=100 + 0.003 * number: begun_s)
            stage.health.start()
    assert len(at_s) <= 31
    assert (min(at_s), max(at_s)) == (pytest.approx(103.0), pytest.approx(106.0))

"""The cores of instances: sizes, concurrency, and cores that a node lends to the batches of functions that compete for it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace

import pytest

from gnomon_core.fleet import Instance, InstanceState
from gnomon_core.functions import FunctionKey
from gnomon_core.scaling import Resize
from gnomon_core.settings import Settings
from gnomon_core.wire import Frame, Kind, Member
from gnomon_gateway.dispatch.dispatcher import Dispatcher, Drained, Effect, Send
from gnomon_gateway.dispatch.fleet import Sizing, Worker, Workers
from gnomon_gateway.dispatch.latency import LearnedLatency
from gnomon_gateway.functions.function_runtime import FunctionRuntime
from gnomon_gateway.queueing.queue import Batch, Request
from gnomon_gateway.scheduling.policies import Economical, Immediate
from gnomon_platforms.local.nodes import LocalNode
from tests.unit.gateway.dispatching import errors, request, sent
from tests.unit.gateway.stage import NAME, Scripted, Silent, Stage

CORES = 8
SETTINGS = Settings(max_batch=1)


@pytest.fixture
def node() -> LocalNode:
    return LocalNode(tuple(range(CORES)), CORES, 2**30)


def function(node: LocalNode, name: str, *, cores: int = CORES) -> Dispatcher:
    """A function with one instance that keeps one core."""
    made = Dispatcher(SETTINGS, Economical(1.0), LearnedLatency(), 0.0, lender=node)
    node.allocate(name, 1.0, 0, cores, idle_cores=1)
    made.instance_ready(name, cores, 1, 0.0, idle_cores=1)
    return made


def batch(effects: list[Effect]) -> Batch:
    [sent] = [effect.batch for effect in effects if isinstance(effect, Send)]
    return sent


def lent(node: LocalNode) -> float:
    """Cores that nobody else can borrow now."""
    return node.unallocated_cores - node._arbiter.free


def test_a_batch_has_the_cores_that_it_has_borrowed_and_gives_them_back_at_its_end(node: LocalNode) -> None:
    dispatcher = function(node, "a")
    sent = batch(dispatcher.arrive([request()], 0.0))
    assert (sent.lent, lent(node)) == (5, 4), "60 % of eight while nothing waits, of which one is its own"
    assert dispatcher.finished("a", sent.id, [200], 1.0)
    assert lent(node) == 0
    assert dispatcher.counters(2.0).busy_core_s == 5.0


def test_two_functions_share_the_node(node: LocalNode) -> None:
    first, second = function(node, "a"), function(node, "b")
    assert batch(first.arrive([request()], 0.0)).lent == 4
    assert batch(second.arrive([request()], 0.0)).lent == 4
    assert node._arbiter.free == 0


def lose(dispatcher: Dispatcher, sent: Batch) -> None:
    dispatcher.instance_gone("a", 1.0)


def lose_unread(dispatcher: Dispatcher, sent: Batch) -> None:
    dispatcher.instance_gone("a", 1.0, unread={sent.id})


def refuse(dispatcher: Dispatcher, sent: Batch) -> None:
    dispatcher.batch_refused("a", sent.id, 1.0)


def drain(dispatcher: Dispatcher, sent: Batch) -> None:
    dispatcher.drain("a", 1.0)
    dispatcher.finished("a", sent.id, [200], 2.0)


def switch(dispatcher: Dispatcher, sent: Batch) -> None:
    dispatcher.set_policy(SETTINGS, Immediate(), 1.0)
    dispatcher.finished("a", sent.id, [200], 2.0)


def own_cores(dispatcher: Dispatcher, sent: Batch) -> None:
    dispatcher.instance_ready("a", 2, 1, 1.0)
    dispatcher.finished("a", sent.id, [200], 2.0)


def leave(dispatcher: Dispatcher, sent: Batch) -> None:
    dispatcher.left(sent.requests[0], 1.0)
    dispatcher.finished("a", sent.id, [499], 2.0)


@pytest.mark.parametrize("end", [lose, lose_unread, refuse, drain, switch, own_cores, leave])
def test_whatever_ends_a_batch_gives_its_cores_back(node: LocalNode, end: Callable[[Dispatcher, Batch], None]) -> None:
    dispatcher = function(node, "a")
    sent = batch(dispatcher.arrive([request()], 0.0))
    assert lent(node) == 4
    end(dispatcher, sent)
    assert lent(node) == 0
    assert dispatcher.workers.busy_cores == 0


def test_another_policy_borrows_all_that_there_are_for_each_batch_and_gives_them_back(node: LocalNode) -> None:
    dispatcher = function(node, "a")
    dispatcher.set_policy(SETTINGS, Immediate(), 0.0)
    sent = batch(dispatcher.arrive([request()], 0.0))
    assert sent.lent == CORES
    dispatcher.finished("a", sent.id, [200], 1.0)
    assert lent(node) == 0


def test_an_instance_with_cores_of_its_own_borrows_none(node: LocalNode) -> None:
    node.allocate("own", 2.0, 0, 2)
    dispatcher = Dispatcher(SETTINGS, Economical(1.0), LearnedLatency(), 0.0, lender=node)
    dispatcher.instance_ready("own", 2, 1, 0.0)
    sent = batch(dispatcher.arrive([request()], 0.0))
    assert (sent.cores, sent.lent, lent(node)) == (2, 0, 0)


def test_predictions_follow_the_share_of_the_node(node: LocalNode) -> None:
    dispatcher = function(node, "a")
    worker = dispatcher.workers.by_id["a"]
    first = batch(dispatcher.arrive([request()], 0.0))
    dispatcher.finished("a", first.id, [200], 1.0)
    assert worker.size == CORES
    function(node, "b")
    second = batch(dispatcher.arrive([request()], 1.0))
    assert (worker.size, worker.slot.cores, worker.slot.size) == (4, CORES, 4)
    dispatcher.finished("a", second.id, [200], 2.0)
    node.release("b")
    batch(dispatcher.arrive([request()], 2.0))
    assert worker.size == CORES


class Unread(list[Worker]):
    """Idle instances that nothing may go through."""

    def __iter__(self) -> Iterator[Worker]:
        raise AssertionError("the idle instances were read")


def test_only_instances_that_borrow_are_looked_at_for_their_share() -> None:
    workers = Workers(Sizing(LearnedLatency(), 1.0, ()))
    for number in range(3):
        workers.add(f"own-{number}", 2, 1)
    workers.add("borrows", 8, 1, idle_cores=1)
    workers.add("borrowed", 8, 1, idle_cores=1)
    workers.add("borrowed", 2, 1)
    asked: list[str] = []

    def share_of(instance: str) -> int:
        asked.append(instance)
        return 4

    workers.idle = Unread(workers.idle)
    workers.share_cores(share_of)
    assert (asked, workers.by_id["borrows"].size) == (["borrows"], 4)
    workers.remove(workers.by_id["borrows"])
    workers.share_cores(share_of)
    assert asked == ["borrows"]


class Instances:
    """A channel that records how many cores each batch says that it may use."""

    unread = False

    def __init__(self) -> None:
        self.cores: list[int] = []
        self.end: Callable[[], None] = lambda: None

    def run(self, frame: Frame, done: Callable[[Frame | None], None], stream: object = None) -> None:
        del stream
        self.cores.append(frame.cores)
        self.end = lambda: done(Frame(Kind.RESULT, frame.batch_id, members=[Member(200, 1, b"", b"")]))

    def cancel(self, batch_id: int) -> None: ...

    async def probe(self, timeout_s: float) -> bool:
        del timeout_s
        return True


async def test_a_batch_says_how_many_cores_it_may_use(node: LocalNode) -> None:
    runtime = FunctionRuntime(FunctionKey("fn"), SETTINGS, Economical(1.0), LearnedLatency(), lender=node)
    node.allocate("a", 1.0, 0, CORES, idle_cores=1)
    channel = Instances()
    runtime.instance_ready(Instance("a", "fn", 1, "n", CORES, 1, InstanceState.READY, 0.0, idle_cores=1), channel)

    def send() -> None:
        runtime.submit(Request(runtime.event_lane, 0.0, float("inf")))
        runtime.refuse_waiting()
        runtime._admit()

    send()
    channel.end()
    node.allocate("a", 2.0, 0, 2)
    runtime.instance_resized("a", 2)
    send()
    channel.end()
    assert channel.cores == [CORES, 0], "the request has waited since 0 s: all cores; then those of the instance"
    runtime.close()


class Resizing(Scripted):
    """Gives cores at once, as a process has them, or when a test says so, as a pod has them once its kubelet has come to it."""

    def __init__(self) -> None:
        super().__init__()
        self.at_once = True

    async def resize(self, instance_id: str, cores: int) -> None:
        if self.at_once and instance_id in self.there:
            self.there[instance_id] = replace(self.there[instance_id], cores=cores)


@pytest.fixture
async def platform() -> Resizing:
    return Resizing()


@pytest.fixture
async def stage(platform: Resizing) -> AsyncIterator[Stage]:
    made = Stage(platform)
    await made.begin()
    yield made
    made.deployed.runtime.close()


def believed(stage: Stage) -> int:
    """The cores that batches are made for, and latencies learned by."""
    return stage.deployed.runtime.dispatcher.workers.by_id["b1"].cores


async def test_cores_that_are_there_at_once_are_believed_at_once(stage: Stage) -> None:
    await stage.instances.apply(NAME, [Resize("b1", 2)])
    assert believed(stage) == 2


async def test_cores_that_are_to_come_are_believed_when_they_have(stage: Stage, platform: Resizing) -> None:
    platform.at_once = False
    await stage.instances.apply(NAME, [Resize("b1", 2)])
    assert believed(stage) == 1
    body = platform.there["b1"] = replace(platform.there["b1"], cores=2)
    stage.instances.instance_ready(body, Silent())
    assert believed(stage) == 2


async def test_a_resize_of_one_that_has_gone_changes_nothing(stage: Stage) -> None:
    stage.gone("b1")
    stage.platform.there.clear()
    await stage.instances.apply(NAME, [Resize("b1", 2)])
    assert stage.deployed.runtime.largest_batches() == {}


def make(**concurrency: int) -> Dispatcher:
    dispatcher = Dispatcher(Settings(queue_max_requests=20), Immediate(), LearnedLatency(), 0.0)
    for name, count in concurrency.items():
        dispatcher.instance_ready(name, 2, 1, 0.0, concurrency=count)
    return dispatcher


def places(effects: list[Effect]) -> list[tuple[str, int]]:
    return [(effect.batch.instance_id, effect.batch.id) for effect in effects if isinstance(effect, Send)]


def test_instance_gets_at_most_its_concurrency() -> None:
    dispatcher = make(a=3)
    effects = dispatcher.arrive([request() for _ in range(5)], 0.0)
    assert len(sent(effects)) == 3
    assert dispatcher.counters(0.0).queued == 2
    [(name, first), *_] = places(effects)
    assert len(sent(dispatcher.finished(name, first, [200], 1.0))) == 1


def test_requests_go_to_the_instance_that_executes_fewest() -> None:
    dispatcher = make(a=4, b=4)
    effects = [effect for _ in range(6) for effect in dispatcher.arrive([request()], 0.0)]
    assert [name for name, _ in places(effects)] == ["a", "b", "a", "b", "a", "b"]
    of_b = [batch for name, batch in places(effects) if name == "b"]
    for batch in of_b[:2]:
        dispatcher.finished("b", batch, [200], 1.0)
    effects = [effect for _ in range(2) for effect in dispatcher.arrive([request()], 1.0)]
    assert [name for name, _ in places(effects)] == ["b", "b"]


def test_an_instance_is_as_busy_as_one_however_much_it_executes() -> None:
    dispatcher = make(a=4)
    effects = dispatcher.arrive([request(), request()], 0.0)
    for (name, batch), at_s in zip(places(effects), (1.0, 2.0), strict=True):
        dispatcher.finished(name, batch, [200], at_s)
    load = dispatcher.counters(5.0)
    assert (load.busy_core_s, load.concurrency_s) == (2 * 2.0, 3.0)


def test_instance_is_drained_after_its_last_batch() -> None:
    dispatcher = make(a=2)
    effects = dispatcher.arrive([request(), request(), request()], 0.0)
    assert dispatcher.drain("a", 0.0) == []
    (_, first), (_, second) = places(effects)
    assert Drained("a") not in dispatcher.finished("a", first, [200], 1.0)
    effects = dispatcher.finished("a", second, [200], 1.0)
    assert Drained("a") in effects
    assert not sent(effects)


def test_unread_batches_of_a_dead_instance_wait_again() -> None:
    dispatcher = make(a=3)
    dispatcher.arrive([request() for _ in range(3)], 0.0)
    effects = dispatcher.instance_gone("a", 1.0, unread={1, 3})
    assert errors(effects) == ["instance_lost"]
    assert dispatcher.counters(1.0).queued == 2


def test_admission_counts_on_all_its_places() -> None:
    dispatcher = make(a=4)
    assert dispatcher.workers.capacity().samples == 4
    assert [place.idle for place in dispatcher.workers.places(0.0)] == [True] * 4
    dispatcher.arrive([request()], 0.0)
    assert [place.idle for place in dispatcher.workers.places(0.0)] == [False, True, True, True]
    assert dispatcher.workers.view(solo=False).room == 3, "adaptive need not wait for company here"

"""Policies decide outside the event loop: quick ones together, slow ones alone, those of third parties for a limited time."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeVar

import pytest

from gnomon_autoscaler import executor as module
from gnomon_autoscaler.executor import MAX_ABANDONED, WORKERS, Executor, Outcome, Overrun, PolicyExecutor, at_once

T = TypeVar("T")


def submit(executor: Executor, call: Callable[[], T], limit_s: float | None = None) -> asyncio.Future[T]:
    """The call's result, or its error."""
    answered: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    def then(outcome: Outcome[T]) -> None:
        try:
            answered.set_result(outcome())
        except Exception as error:  # noqa: BLE001 - it is the future's to raise
            answered.set_exception(error)

    executor(call, limit_s, then)
    return answered


@pytest.fixture
def released() -> Iterator[threading.Event]:
    """The event that blocked calls wait for. It is set when the test ends, so that no worker stays behind."""
    event = threading.Event()
    yield event
    event.set()


@pytest.mark.parametrize("make", [PolicyExecutor, lambda: at_once], ids=["threads", "at once"])
@pytest.mark.parametrize("limit_s", [None, 20.0])
async def test_a_call_returns_or_raises(make: Callable[[], Executor], limit_s: float | None) -> None:
    executor = make()
    assert await submit(executor, lambda: 42, limit_s) == 42
    with pytest.raises(ZeroDivisionError):
        await submit(executor, lambda: 1 // 0, limit_s)


async def test_calls_of_one_turn_share_a_worker_and_keep_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LONG_S", 60.0)  # on a busy machine a worker may stand still for longer than 20 ms
    executor, order = PolicyExecutor(), list[int]()

    def call(number: int) -> threading.Thread:
        order.append(number)
        return threading.current_thread()

    threads = await asyncio.gather(*(submit(executor, partial(call, number)) for number in range(50)))
    assert order == list(range(50))
    assert len(set(threads)) == 1
    assert threads[0] is not threading.current_thread()


async def test_policies_decide_again_once_the_machine_has_a_thread_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each function waits for its own decision, so that nobody else would submit a call."""
    monkeypatch.setattr(module, "BACKOFF_S", 0.01)
    start, refused = threading.Thread.start, [RuntimeError("can't start new thread")] * 2

    def limited(thread: threading.Thread) -> None:
        if refused:
            raise refused.pop()
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)
    async with asyncio.timeout(60):
        assert await submit(PolicyExecutor(), lambda: 42) == 42
    assert refused == []


async def test_no_worker_is_left_when_the_queue_is_empty() -> None:
    executor, threads = PolicyExecutor(), list[threading.Thread]()
    for _ in range(20):
        threads.append(await submit(executor, threading.current_thread))
    for thread in threads:
        thread.join(20)
    assert not any(thread.is_alive() for thread in threads)


@pytest.mark.parametrize("limit_s", [None, 20.0])
async def test_a_slow_policy_holds_up_no_other(limit_s: float | None, released: threading.Event) -> None:
    executor = PolicyExecutor()
    slow = submit(executor, lambda: released.wait(20), limit_s)
    quick = [submit(executor, partial(abs, number)) for number in range(20)]
    assert await asyncio.gather(*quick) == list(range(20))
    assert not slow.done()
    later = submit(executor, lambda: "later")
    assert await later == "later"
    assert not slow.done()
    released.set()
    assert await slow


@pytest.mark.parametrize("limit_s", [20.0, 0.05, None], ids=["slow", "overruns", "unlimited"])
async def test_results_before_a_slow_call_do_not_wait_for_its_end(limit_s: float | None, released: threading.Event) -> None:
    executor = PolicyExecutor()
    quick = [submit(executor, partial(abs, number)) for number in range(3)]
    slow = submit(executor, lambda: released.wait(20), limit_s)
    async with asyncio.timeout(10):
        assert await asyncio.gather(*quick) == [0, 1, 2]
    assert not released.is_set()
    released.set()
    await asyncio.gather(slow, return_exceptions=True)


async def test_a_call_that_overruns_is_abandoned_and_those_behind_it_are_executed(released: threading.Event) -> None:
    executor, workers = PolicyExecutor(), list[threading.Thread]()

    def endless() -> None:
        workers.append(threading.current_thread())
        while not released.wait(0.001):
            pass

    overrunning = submit(executor, endless, 0.05)
    behind = [submit(executor, lambda: "answered") for _ in range(3)]
    with pytest.raises(Overrun, match=r"no answer within 0\.05 s of CPU time"):
        await overrunning
    assert await asyncio.gather(*behind) == ["answered"] * 3
    [worker] = workers
    assert worker.is_alive()
    assert worker.daemon, "the process ends although a policy never returns"
    assert await submit(executor, lambda: "goes on", 20.0) == "goes on"
    released.set()
    worker.join(20)
    assert not worker.is_alive()


async def test_a_limit_is_cpu_time_so_that_a_busy_machine_costs_no_decision(released: threading.Event) -> None:
    """A call that is kept from running, here by a lock, is late and has not overrun."""
    executor = PolicyExecutor()
    late = submit(executor, lambda: released.wait(20), 0.1)
    behind = [submit(executor, lambda: "answered") for _ in range(3)]
    assert await asyncio.gather(*behind) == ["answered"] * 3
    await asyncio.sleep(0.5)
    released.set()
    assert await late


async def test_a_call_that_computes_overruns_long_before_one_that_waits(released: threading.Event) -> None:
    executor = PolicyExecutor()

    def computing() -> None:
        while not released.is_set():
            sum(range(1000))

    async with asyncio.timeout(20):
        begun_s = time.monotonic()
        with pytest.raises(Overrun, match=r"no answer within 0\.5 s of CPU time"):
            await submit(executor, computing, 0.5)
        assert time.monotonic() - begun_s < module.WALL_FACTOR * 0.5


async def test_policies_of_this_distribution_have_no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WALL_FACTOR", 0.0)
    executor = PolicyExecutor()
    slow = submit(executor, lambda: time.sleep(0.2) or "slow")
    assert await slow == "slow"


@pytest.mark.parametrize("raised", [SystemExit, KeyboardInterrupt, GeneratorExit])
async def test_a_policy_that_raises_what_ends_threads_has_failed(raised: type[BaseException]) -> None:
    def leaving() -> None:
        raise raised

    executor = PolicyExecutor()
    answers = [submit(executor, leaving), submit(executor, lambda: "goes on")]
    async with asyncio.timeout(20):
        with pytest.raises(RuntimeError, match=raised.__name__):
            await answers[0]
        assert await answers[1] == "goes on"


async def test_a_result_after_the_limit_is_dropped(released: threading.Event) -> None:
    executor, passed = PolicyExecutor(), asyncio.Event()
    outcomes: list[Outcome[str]] = []
    workers: list[threading.Thread] = []

    def late() -> str:
        workers.append(threading.current_thread())
        released.wait(20)
        return "too late"

    def then(outcome: Outcome[str]) -> None:
        outcomes.append(outcome)
        passed.set()

    executor(late, 0.01, then)
    await passed.wait()
    released.set()
    workers[0].join(20)
    assert await submit(executor, lambda: "next") == "next"
    [outcome] = outcomes
    with pytest.raises(Overrun):
        outcome()


async def test_abandoned_workers_are_bounded_until_they_return(released: threading.Event) -> None:
    executor = PolicyExecutor()
    begun: list[threading.Thread] = []

    def endless() -> None:
        begun.append(threading.current_thread())
        released.wait(20)

    async with asyncio.timeout(20):
        while len(begun) < MAX_ABANDONED:
            with pytest.raises(Overrun, match="no answer within"):
                await submit(executor, endless, 0.001)
        with pytest.raises(Overrun, match="not asked: 8 earlier calls have not returned yet"):
            await submit(executor, endless, 0.001)
        assert len(begun) == MAX_ABANDONED
        assert await submit(executor, lambda: "ours") == "ours"
        released.set()
        for worker in begun:
            worker.join(20)
        while True:
            try:
                assert await submit(executor, lambda: "theirs", 20.0) == "theirs"
            except Overrun:  # the event loop has not heard of all ends yet
                continue
            break


async def test_concurrent_calls_are_bounded_by_the_workers(released: threading.Event) -> None:
    executor, begun, lock = PolicyExecutor(), 0, threading.Lock()

    def slow() -> None:
        nonlocal begun
        with lock:
            begun += 1
        released.wait(20)

    answers = [submit(executor, slow) for _ in range(WORKERS + 3)]
    while begun < WORKERS:  # noqa: ASYNC110 - threads tell nobody
        await asyncio.sleep(0.01)
    for _ in range(10):
        await asyncio.sleep(0.01)
        assert begun == WORKERS
    released.set()
    await asyncio.gather(*answers)
    assert begun == WORKERS + 3

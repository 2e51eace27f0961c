"""Policies think beside the event loop: quickly together, slowly alone, and never for too long."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import pytest

from gnomon_autoscaler import beside as module
from gnomon_autoscaler.beside import AT_ONCE, Beside, Caller, Outcome, Overrun, at_once

T = TypeVar("T")


def ask(caller: Caller, call: Callable[[], T], limit_s: float = 20.0) -> asyncio.Future[T]:
    """The answer, or what was raised instead of one."""
    answered: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    def then(outcome: Outcome[T]) -> None:
        try:
            answered.set_result(outcome())
        except Exception as error:  # noqa: BLE001 - it is the future's to raise
            answered.set_exception(error)

    caller(call, limit_s, then)
    return answered


@pytest.fixture(params=[Beside, lambda: at_once], ids=["beside", "at once"])
def caller(request: pytest.FixtureRequest) -> Caller:
    made: Caller = request.param()
    return made


async def test_a_call_returns_or_raises(caller: Caller) -> None:
    assert await ask(caller, lambda: 42) == 42
    with pytest.raises(ZeroDivisionError):
        await ask(caller, lambda: 1 // 0)


async def test_what_is_asked_together_is_answered_in_its_order_by_one_thread_and_not_by_the_loops(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "LONG_S", 60.0)  # a thread that others keep from running does not think for long
    beside = Beside()
    order: list[int] = []

    def call(number: int) -> threading.Thread:
        order.append(number)
        return threading.current_thread()

    threads = await asyncio.gather(*(ask(beside, partial(call, number)) for number in range(50)))
    assert order == list(range(50))
    assert len(set(threads)) == 1
    assert threads[0] is not threading.current_thread()


async def test_threads_are_used_again() -> None:
    beside = Beside()
    threads = {await ask(beside, threading.current_thread) for _ in range(100)}
    assert len(threads) < 20


async def test_who_thinks_for_long_holds_nobody_up() -> None:
    beside, released = Beside(), threading.Event()
    long = ask(beside, lambda: released.wait(20))
    quick = [ask(beside, partial(abs, number)) for number in range(20)]
    assert await asyncio.gather(*quick) == list(range(20))
    assert not long.done()
    later = ask(beside, lambda: "later")
    assert await later == "later"
    assert not long.done()
    released.set()
    assert await long


@pytest.mark.parametrize("limit_s", [20.0, 0.05], ids=["long", "for ever"])
async def test_who_was_answered_before_a_long_thought_does_not_wait_for_its_end(limit_s: float) -> None:
    beside, released = Beside(), threading.Event()
    quick = [ask(beside, partial(abs, number)) for number in range(3)]
    long = ask(beside, lambda: released.wait(20), limit_s)
    async with asyncio.timeout(10):
        assert await asyncio.gather(*quick) == [0, 1, 2]
    assert not released.is_set()
    released.set()
    await asyncio.gather(long, return_exceptions=True)


async def test_who_thinks_for_too_long_is_told_so_and_ends_and_those_behind_are_answered() -> None:
    beside = Beside()
    threads: list[threading.Thread] = []

    def endless() -> None:
        threads.append(threading.current_thread())
        while True:
            threading.Event().wait(0.001)

    overrunning = ask(beside, endless, 0.05)
    behind = [ask(beside, lambda: "answered") for _ in range(3)]
    with pytest.raises(Overrun, match=r"no answer within 0\.05 s"):
        await overrunning
    assert await asyncio.gather(*behind) == ["answered"] * 3
    [thread] = threads
    thread.join(20)
    assert not thread.is_alive()
    assert await ask(beside, lambda: "goes on") == "goes on"


async def test_a_limit_is_cpu_time_so_that_a_busy_machine_costs_no_decision() -> None:
    """Whoever is kept from running, here by a lock, is late; it has overrun nothing."""
    beside, released = Beside(), threading.Event()
    late = ask(beside, lambda: released.wait(20), 0.1)
    behind = [ask(beside, lambda: "answered") for _ in range(3)]
    assert await asyncio.gather(*behind) == ["answered"] * 3
    await asyncio.sleep(0.5)
    released.set()
    assert await late


async def test_a_call_that_computes_for_too_long_has_overrun_long_before_one_that_waits() -> None:
    beside = Beside()

    def computing() -> None:
        while True:
            sum(range(1000))

    async with asyncio.timeout(20):
        with pytest.raises(Overrun, match=r"no answer within 0\.05 s of CPU time"):
            await ask(beside, computing, 0.05)


async def test_a_policy_that_ends_its_thread_has_overrun() -> None:
    def leaving() -> None:
        raise SystemExit

    beside = Beside()
    async with asyncio.timeout(20):
        with pytest.raises(Overrun):
            await ask(beside, leaving, 0.1)
        assert await ask(beside, lambda: "goes on") == "goes on"


async def test_an_answer_that_comes_after_its_time_is_not_told() -> None:
    beside, released, told = Beside(), threading.Event(), asyncio.Event()
    late: list[object] = []

    def in_c_code() -> str:
        released.wait(20)
        return "too late"

    def then(outcome: Outcome[str]) -> None:
        late.append(outcome)
        told.set()

    beside(in_c_code, 0.01, then)
    await told.wait()
    released.set()
    assert await ask(beside, lambda: "next") == "next"
    assert len(late) == 1
    with pytest.raises(Overrun):
        late[0]()  # type: ignore[operator]


async def test_so_many_think_at_once_and_no_more() -> None:
    beside, released = Beside(), threading.Event()
    begun = 0
    lock = threading.Lock()

    def long() -> None:
        nonlocal begun
        with lock:
            begun += 1
        released.wait(20)

    answers = [ask(beside, long) for _ in range(AT_ONCE + 3)]
    while begun < AT_ONCE:  # noqa: ASYNC110 - threads tell nobody
        await asyncio.sleep(0.01)
    for _ in range(10):
        await asyncio.sleep(0.01)
        assert begun == AT_ONCE
    released.set()
    await asyncio.gather(*answers)
    assert begun == AT_ONCE + 3

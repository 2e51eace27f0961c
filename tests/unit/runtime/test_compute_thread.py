"""One thread that takes turns, and who is asked between them."""

import select
import threading
from collections.abc import Iterator

import pytest

from gnomon_runtime.application import Channel
from gnomon_runtime.compute_thread import ComputeThread

PATIENCE_S = 30.0


class IdleWork:
    """Counts how often it is asked, and answers as soon as something waits."""

    def __init__(self) -> None:
        self.asked = 0

    def attend(self, channel: Channel) -> None:
        self.asked += 1
        select.select([channel.fileno()], [], [])


@pytest.fixture
def compute_thread() -> Iterator[ComputeThread]:
    made = ComputeThread("turns")
    yield made
    made.submit(lambda: None).result(PATIENCE_S)


def test_calls_run_in_order_in_one_thread(compute_thread: ComputeThread) -> None:
    threads, order = set(), []

    def act(number: int) -> int:
        threads.add(threading.get_ident())
        order.append(number)
        return 2 * number

    futures = [compute_thread.submit(act, number) for number in range(50)]
    assert [future.result(PATIENCE_S) for future in futures] == [2 * number for number in range(50)]
    assert order == list(range(50))
    assert len(threads) == 1
    assert threading.get_ident() not in threads


def test_exception_of_a_call_is_set_on_its_future(compute_thread: ComputeThread) -> None:
    failed = compute_thread.submit(lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        failed.result(PATIENCE_S)
    assert compute_thread.submit(lambda: 7).result(PATIENCE_S) == 7


def test_cancelled_call_is_not_run(compute_thread: ComputeThread) -> None:
    begun, go_on, taken = threading.Event(), threading.Event(), []

    def first() -> None:
        begun.set()
        go_on.wait(PATIENCE_S)

    compute_thread.submit(first)
    assert begun.wait(PATIENCE_S)
    waiting = compute_thread.submit(taken.append, 1)
    assert waiting.cancel()
    go_on.set()
    compute_thread.submit(lambda: None).result(PATIENCE_S)
    assert taken == []


def test_idle_work_runs_between_calls_only(compute_thread: ComputeThread) -> None:
    beside = IdleWork()
    compute_thread.submit(compute_thread.set_idle_work, beside).result(PATIENCE_S)
    for number in range(1, 6):
        assert compute_thread.submit(lambda: beside.asked).result(PATIENCE_S) == number
    compute_thread.submit(compute_thread.set_idle_work, None).result(PATIENCE_S)
    asked = compute_thread.submit(lambda: beside.asked).result(PATIENCE_S)
    assert compute_thread.submit(lambda: beside.asked).result(PATIENCE_S) == asked

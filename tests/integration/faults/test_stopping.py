"""SIGTERM and Ctrl-C: what was let in is answered, what comes later is refused, and nothing is left."""

from __future__ import annotations

import asyncio
import signal
import socket

from tests.integration.faults.callers import Callers, until
from tests.integration.faults.conftest import Faulty, freeze, go_on
from tests.integration.faults.history import BROKE_OFF
from tests.integration.serve.conftest import is_alive

ENDS_S = 60.0


async def ended(gateway: Faulty) -> int:
    assert gateway.process is not None
    return await asyncio.to_thread(gateway.process.wait, ENDS_S)


def tell(gateway: Faulty, number: int = signal.SIGTERM) -> None:
    assert gateway.process is not None
    gateway.process.send_signal(number)


def address(gateway: Faulty) -> tuple[str, int]:
    host, _, port = gateway.url.rpartition("/")[2].partition(":")
    return host, int(port)


def listens(gateway: Faulty) -> bool:
    try:
        socket.create_connection(address(gateway)).close()
    except ConnectionError:
        return False
    return True


async def test_sigterm_answers_what_was_let_in_refuses_the_rest_and_exits_with_0(lone: Faulty, callers: Callers) -> None:
    lone.serve("work", instances=2)
    lone.serve("still", deadline_ms=300)
    await until(lambda: (lone.ready("work"), lone.ready("still")) == (2, 1), "not ready")
    processes, working = lone.instances(), lone.pids("work")
    for pid in (*working, *lone.pids("still")):
        freeze(pid)
    async with asyncio.TaskGroup() as group:
        admitted = [group.create_task(callers.call("work", sleep_s=0.05)) for _ in range(20)]
        stuck = [group.create_task(callers.call("still")) for _ in range(2)]
        await until(lambda: lone.in_flight("work") == 20, "not let in")
        ending = group.create_task(ended(lone))
        # Callers whose next request may come at any moment of the end.
        restless = [group.create_task(one_after_another(callers, ending)) for _ in range(4)]
        tell(lone)
        await until(lambda: lone.call("GET", "/healthz").status == 503, "it does not stop")
        for pid in working:
            go_on(pid)
        await until(lambda: not listens(lone), "it still takes connections")
        await asyncio.wait([*admitted, *stuck, ending, *restless])
    assert ending.result() == 0, "also with an instance that never reacts"
    assert {task.result().status for task in admitted} == {200}
    assert {task.result().code for task in stuck} == {"deadline_exceeded"}
    # Who connects between the last look at the kernel's queue and the listener's end: in microseconds, or as long as the gateway
    # has to wait there for a processor.
    seen = callers.history.check(may_break_off=True)
    assert set(seen) <= {"200", "504 deadline_exceeded", "503 stopping", BROKE_OFF}
    not_let_in = [end.token for end in callers.history.ends if end.code == BROKE_OFF]
    assert not any(map(callers.history.runs_of, not_let_in)), "executed, and not answered"
    await until(lambda: not any(map(is_alive, processes)), "a process was left behind")


async def test_while_it_drains_it_says_so_and_takes_nothing_new(lone: Faulty, callers: Callers) -> None:
    lone.serve("long")
    await until(lambda: lone.ready("long") == 1, "not ready")
    idle = socket.create_connection(address(lone))
    [pid] = lone.pids("long")
    freeze(pid)
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(callers.call("long"))
        await until(lambda: lone.in_flight("long") == 1, "not let in")
        assert lone.call("GET", "/healthz").status == 200
        tell(lone)
        await until(lambda: lone.call("GET", "/healthz").status == 503, "it says that it is well")
        answer = lone.call("GET", "/healthz")
        assert (answer.status, answer.headers["Retry-After"], answer.json()["error"]["code"]) == (503, "1", "not_healthy")
        assert [lone.call("GET", f"/v2/health/{what}").status for what in ("live", "ready")] == [200, 503]
        late = await callers.call("long")
        assert (late.status, late.code, late.retry_after) == (503, "stopping", True)
        idle.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert idle.recv(4096).startswith(b"HTTP/1.1 503"), "also on a connection from before"
        go_on(pid)
        ending = group.create_task(ended(lone))
    idle.close()
    assert (waiting.result().status, ending.result()) == (200, 0)
    callers.history.check()


async def one_after_another(callers: Callers, ending: asyncio.Task[int]) -> None:
    while not ending.done():
        await callers.call("work", sleep_s=0.01)
        await asyncio.sleep(0.01)


async def test_a_second_ctrl_c_does_not_wait(lone: Faulty, callers: Callers) -> None:
    lone.serve("long")
    await until(lambda: lone.ready("long") == 1, "not ready")
    processes = lone.instances()
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(callers.call("long", sleep_s=20))
        await until(lambda: bool(callers.history.executions), "not begun")
        tell(lone, signal.SIGINT)
        await until(lambda: lone.call("GET", "/healthz").status == 503, "it does not stop")
        tell(lone, signal.SIGINT)
        ending = group.create_task(ended(lone))
    assert ending.result() == -signal.SIGINT
    assert waiting.result().code == BROKE_OFF
    await until(lambda: not any(map(is_alive, processes)), "a process was left behind")

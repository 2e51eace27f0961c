"""Callers that hang up, cannot wait, or come in too great a number: nothing is run for them, and nothing is left of them."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

from tests.integration.faults.callers import Callers, until
from tests.integration.faults.conftest import Faulty, freeze, go_on

MiB = 2**20


async def test_half_of_the_callers_hang_up_while_they_wait_and_none_of_those_is_executed(
    faulty: Faulty, callers: Callers
) -> None:
    faulty.serve("storm", max_batch=4)
    await until(lambda: faulty.ready("storm") == 1, "not ready")
    [pid] = faulty.pids("storm")
    chance = random.Random(5)
    freeze(pid)
    async with asyncio.TaskGroup() as group:
        first = group.create_task(callers.call("storm"))
        await until(lambda: faulty.in_flight("storm") == 1, "not dispatched")
        stay = [group.create_task(callers.call("storm")) for _ in range(40)]
        leave = [group.create_task(callers.call("storm", leave_after_s=chance.uniform(0.05, 1))) for _ in range(40)]
        await asyncio.wait(leave)
        await until(lambda: faulty.in_flight("storm") == 41, "the gateway has not noticed who left")
        go_on(pid)
    assert {task.result().status for task in [first, *stay]} == {200}
    assert not any(callers.history.runs_of(task.result().token) for task in leave)
    assert callers.history.check() == {"200": 41, "left": 40}


async def test_after_a_storm_of_hang_ups_at_any_moment_everything_is_as_before(faulty: Faulty, callers: Callers) -> None:
    faulty.serve("storm", instances=2, max_batch=4)
    await until(lambda: faulty.ready("storm") == 2, "not ready")
    chance = random.Random(6)
    async with asyncio.TaskGroup() as group:
        for number in range(400):
            leave_after_s = chance.uniform(0.001, 0.1) if number % 2 else None
            group.create_task(callers.call("storm", sleep_s=0.005, leave_after_s=leave_after_s))
            await asyncio.sleep(chance.uniform(0, 0.004))
    await until(lambda: faulty.in_flight("storm") == 0, "somebody is still being waited for")
    before = callers.history.check()
    assert set(before) == {"200", "left"}
    async with asyncio.TaskGroup() as group:
        for _ in range(100):
            group.create_task(callers.call("storm", sleep_s=0.005))
    assert callers.history.check() == {"200": before["200"] + 100, "left": before["left"]}
    assert faulty.in_flight("storm") == 0


async def test_what_expires_while_it_waits_is_refused_in_time_and_never_executed(faulty: Faulty, callers: Callers) -> None:
    faulty.serve("short")
    await until(lambda: faulty.ready("short") == 1, "not ready")
    [pid] = faulty.pids("short")
    chance = random.Random(7)
    freeze(pid)
    async with asyncio.TaskGroup() as group:
        patient = group.create_task(callers.call("short"))
        await until(lambda: faulty.in_flight("short") == 1, "not dispatched")
        hasty = [group.create_task(callers.call("short", deadline_ms=chance.uniform(50, 500))) for _ in range(50)]
        # They are answered while the instance stands still: by their deadline and by nothing else.
        await asyncio.wait(hasty)
        go_on(pid)
    ends = [task.result() for task in hasty]
    assert {end.status for end in ends} <= {503, 504}
    assert all(end.retry_after for end in ends)
    assert [run.token for run in callers.history.executions] == [patient.result().token]
    callers.history.check()


async def test_overload_with_short_deadlines_is_refused_with_a_reason_and_a_time_to_come_back(
    faulty: Faulty, callers: Callers
) -> None:
    faulty.serve("over", queue_max_requests=50)
    await until(lambda: faulty.ready("over") == 1, "not ready")
    chance = random.Random(8)
    async with asyncio.TaskGroup() as group:
        for _ in range(400):
            group.create_task(callers.call("over", sleep_s=0.02, deadline_ms=chance.uniform(50, 500)))
            await asyncio.sleep(0.005)
    seen = callers.history.check()
    refused = [end for end in callers.history.ends if end.status != 200]
    assert {end.status for end in refused} <= {429, 503, 504}
    assert all(end.retry_after for end in refused)
    assert seen["200"] > 0
    assert refused, "four times of what it can do"
    assert faulty.in_flight("over") == 0


async def test_a_queue_is_full_by_count(faulty: Faulty, callers: Callers) -> None:
    faulty.serve("full", queue_max_requests=5)
    await until(lambda: faulty.ready("full") == 1, "not ready")
    [pid] = faulty.pids("full")
    freeze(pid)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(callers.call("full"))]
        await until(lambda: faulty.in_flight("full") == 1, "not dispatched")
        tasks += [group.create_task(callers.call("full")) for _ in range(19)]
        await until(lambda: len(callers.history.ends) == 14, "not refused")
        go_on(pid)
    assert callers.history.check() == {"200": 6, "429 queue_full": 14}
    assert all(task.result().retry_after for task in tasks if task.result().status == 429)


async def test_a_queue_is_full_by_bytes_and_memory_stays_bounded(faulty: Faulty, callers: Callers) -> None:
    faulty.serve("heavy", queue_max_bytes=10 * MiB)
    await until(lambda: faulty.ready("heavy") == 1, "not ready")
    [pid] = faulty.pids("heavy")
    freeze(pid)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(callers.call("heavy", filler=3 * MiB)) for _ in range(4)]
        await until(lambda: faulty.in_flight("heavy") == 4, "one executes, three fill the queue")
        before = largest_bytes(faulty)
        tasks += [group.create_task(callers.call("heavy", filler=3 * MiB)) for _ in range(56)]
        await until(lambda: len(callers.history.ends) == 56, "not refused")
        grown = largest_bytes(faulty) - before
        go_on(pid)
    assert callers.history.check() == {"200": 4, "429 queue_full": 56}
    assert all(task.result().retry_after for task in tasks if task.result().status == 429)
    assert grown < 30 * MiB, f"56 bodies of 3 MiB, refused by their headers, made the gateway grow by {grown / MiB:.0f} MiB"


def largest_bytes(gateway: Faulty) -> int:
    """The most memory that the gateway has held so far."""
    assert gateway.process is not None
    for line in Path(f"/proc/{gateway.process.pid}/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024
    raise AssertionError

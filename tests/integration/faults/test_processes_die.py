"""SIGKILL to everything that is not an instance: zygote, supervisor, gateway."""

from __future__ import annotations

import asyncio

from tests.integration.faults.callers import Callers, until
from tests.integration.faults.conftest import Faulty, freeze, go_on, kill
from tests.integration.serve.conftest import is_alive


async def test_a_killed_zygote_is_not_noticed_by_callers_and_scaling_goes_on(faulty: Faulty, callers: Callers) -> None:
    faulty.serve("echo", instances=2)
    await until(lambda: faulty.ready("echo") == 2, "not ready")
    async with callers.load("echo", 4, sleep_s=0.005):
        kill(*faulty.zygotes())
        await until(lambda: faulty.scale("echo", 4) is None and faulty.ready("echo") == 4, "no instance starts any more")
    assert set(callers.history.check()) == {"200"}


async def test_zygotes_that_die_at_the_same_moment_take_nobody_along(faulty: Faulty, callers: Callers) -> None:
    names = ("one", "two", "three")
    for name in names:
        faulty.serve(name)
    await until(lambda: all(faulty.ready(name) for name in names), "not ready")
    before = {name: faulty.pids(name) for name in names}
    supervisor = faulty.supervisor()
    freeze(supervisor)
    kill(*faulty.zygotes())
    go_on(supervisor)
    faulty.scale("two", 2)
    await until(lambda: faulty.ready("two") == 2, "no instance starts any more")
    assert {(await callers.call(name)).status for name in names} == {200}
    for name, pids in before.items():
        assert set(pids) <= set(faulty.pids(name)), faulty.log(name)
    assert faulty.supervisor() == supervisor
    callers.history.check()


async def test_instances_come_back_after_the_supervisor_was_killed(faulty: Faulty, callers: Callers) -> None:
    faulty.serve("echo", instances=2)
    await until(lambda: faulty.ready("echo") == 2, "not ready")
    before = set(faulty.pids("echo"))
    async with callers.load("echo", 4, sleep_s=0.005):
        kill(faulty.supervisor())
        await until(
            lambda: faulty.ready("echo") == 2 and not before & set(faulty.pids("echo")), "the instances did not come back"
        )
    seen = callers.history.check()
    assert set(seen) <= {"200", "502 instance_lost"}
    assert seen["502 instance_lost"] <= 2, "two instances, a request each"


async def test_a_supervisor_that_is_killed_while_it_starts_is_replaced_too(faulty: Faulty, callers: Callers) -> None:
    faulty.serve("echo")
    await until(lambda: faulty.ready("echo") == 1, "not ready")
    first = faulty.supervisor()
    kill(first)
    await until(lambda: faulty.children() not in ([], [first]), "no second supervisor")
    kill(*faulty.children())
    answers = await asyncio.gather(*(callers.call("echo") for _ in range(8)))
    assert {answer.status for answer in answers} == {200}, "requests are held until an instance is there"
    callers.history.check()


async def test_a_killed_gateway_leaves_no_process_and_serves_again(lone: Faulty, callers: Callers) -> None:
    lone.serve("echo", instances=2)
    await until(lambda: lone.ready("echo") == 2, "not ready")
    processes = lone.instances()
    async with callers.load("echo", 4, sleep_s=0.005):
        await until(lambda: len(callers.history.ends) > 20, "no answers")
        lone.kill()
        await until(lambda: not any(map(is_alive, processes)), "a process outlived its gateway")
        lone.start()
        callers.url = lone.url
        again = len(callers.history.ends)
        await until(lambda: len(callers.history.ends) > again + 20, "no answers after the restart")
    seen = callers.history.check(may_break_off=True)
    assert set(seen) == {"200", "broke off"}

"""Deployments, scales and policies that change under load: nothing let in is lost, and what cannot be does not happen."""

from __future__ import annotations

import asyncio

from tests.integration.faults.callers import Callers, until
from tests.integration.faults.conftest import Faulty, freeze, go_on

SLOW_START = {"START_S": "0.3"}


async def test_a_rolling_update_to_instances_that_start_slowly_fails_no_request(faulty: Faulty, callers: Callers) -> None:
    faulty.serve("roll", instances=2, env=SLOW_START)
    await until(lambda: faulty.ready("roll") == 2, "not ready")
    before = set(faulty.pids("roll"))
    least = 2
    async with callers.load("roll", 6, sleep_s=0.005):
        assert faulty.serve("roll", method="PUT", instances=2, env={**SLOW_START, "VERSION": "2"}).status == 202
        while before & set(faulty.pids("roll")):
            least = min(least, await asyncio.to_thread(faulty.ready, "roll"))
            await asyncio.sleep(0.01)
    assert set(callers.history.check()) == {"200"}
    assert least == 2, "there were never fewer instances than before"
    await until(lambda: faulty.ready("roll") == 2, "not two of the new version")


async def test_a_version_that_never_starts_leaves_the_old_one_serving_and_says_why(faulty: Faulty, callers: Callers) -> None:
    faulty.serve("broken", instances=2)
    await until(lambda: faulty.ready("broken") == 2, "not ready")
    before = faulty.pids("broken")
    async with callers.load("broken", 4, sleep_s=0.005):
        assert faulty.serve("broken", method="PUT", instances=2, env={"BROKEN": "1"}).status == 202
        await until(lambda: "starts failed in a row" in str(faulty.decisions("broken")), "the decisions do not say it")
        await asyncio.sleep(1)
    assert "this version never starts" in faulty.log("broken")
    assert set(callers.history.check()) == {"200"}
    assert faulty.pids("broken") == before
    # A version that starts again ends it.
    faulty.serve("broken", method="PUT", instances=2, env={"VERSION": "3"})
    async with callers.load("broken", 4, sleep_s=0.005):
        await until(lambda: faulty.ready("broken") == 2 and not set(before) & set(faulty.pids("broken")), "not replaced")
    assert set(callers.history.check()) == {"200"}


async def test_on_a_full_node_an_update_goes_one_instance_at_a_time(faulty: Faulty, callers: Callers) -> None:
    faulty.serve("full", instances=4, cores=2, env=SLOW_START)
    await until(lambda: faulty.ready("full") == 4, "not ready")
    before = set(faulty.pids("full"))
    least = 4
    async with callers.load("full", 6, sleep_s=0.005):
        faulty.serve("full", method="PUT", instances=4, cores=2, env={**SLOW_START, "VERSION": "2"})
        while before & set(faulty.pids("full")) or await asyncio.to_thread(faulty.ready, "full") < 4:
            least = min(least, await asyncio.to_thread(faulty.ready, "full"))
            await asyncio.sleep(0.01)
    assert set(callers.history.check()) == {"200"}
    assert least >= 3


async def test_on_a_full_node_a_version_that_never_starts_takes_the_place_of_one_instance(
    faulty: Faulty, callers: Callers
) -> None:
    faulty.serve("full", instances=4, cores=2)
    await until(lambda: faulty.ready("full") == 4, "not ready")
    async with callers.load("full", 6, sleep_s=0.005):
        faulty.serve("full", method="PUT", instances=4, cores=2, env={"BROKEN": "1"})
        await until(lambda: "starts failed in a row" in str(faulty.decisions("full")), "the decisions do not say it")
        assert faulty.ready("full") == 3
    assert set(callers.history.check()) == {"200"}


async def test_updates_that_overtake_each_other_end_with_the_last(faulty: Faulty, callers: Callers) -> None:
    faulty.serve("twice", instances=2, env=SLOW_START)
    await until(lambda: faulty.ready("twice") == 2, "not ready")
    before = set(faulty.pids("twice"))
    async with callers.load("twice", 4, sleep_s=0.005):
        for version in ("2", "3", "4"):
            assert faulty.serve("twice", method="PUT", instances=2, env={**SLOW_START, "VERSION": version}).status == 202
        await until(lambda: len(faulty.pids("twice")) == 2 and not before & set(faulty.pids("twice")), "old ones remain")
        await until(lambda: faulty.ready("twice") == 2, "not ready again")
    assert set(callers.history.check()) == {"200"}
    answers = [faulty.call("POST", "/function/twice", b"x;") for _ in range(4)]
    assert {answer.headers["X-Version"] for answer in answers} == {"4"}


async def test_instances_that_have_not_started_are_given_up_for_those_of_another_version(faulty: Faulty) -> None:
    faulty.serve("late", instances=2, env={"START_S": "100"})
    await until(lambda: len(faulty.pids("late")) == 2, "not begun")
    before = set(faulty.pids("late"))
    assert faulty.serve("late", method="PUT", instances=2, env={"VERSION": "2"}).status == 202
    await until(lambda: faulty.ready("late") == 2, "not ready")
    await until(lambda: not before & set(faulty.pids("late")), "they still start, for nobody")


async def test_a_function_deleted_in_the_middle_of_an_update_answers_what_it_had_let_in(faulty: Faulty, callers: Callers) -> None:
    faulty.serve("gone", instances=2, env=SLOW_START)
    await until(lambda: faulty.ready("gone") == 2, "not ready")
    pids = faulty.pids("gone")
    for pid in pids:
        freeze(pid)
    async with asyncio.TaskGroup() as group:
        running = [group.create_task(callers.call("gone", sleep_s=0.05)) for _ in range(8)]
        await until(lambda: faulty.in_flight("gone") == 8, "not let in")
        assert faulty.serve("gone", method="PUT", instances=2, env={**SLOW_START, "VERSION": "2"}).status == 202
        assert faulty.call("DELETE", "/system/functions", {"functionName": "gone"}).status == 202
        assert (await callers.call("gone")).code == "function_not_found"
        for pid in pids:
            go_on(pid)
    assert {task.result().status for task in running} == {200}
    await until(lambda: not faulty.pids("gone"), "an instance was left behind")
    callers.history.check()
    faulty.serve("gone")
    assert (await callers.call("gone")).status == 200


async def test_a_function_that_is_replaced_by_one_of_its_name_answers_what_it_had_let_in(
    faulty: Faulty, callers: Callers
) -> None:
    """As `deploy --replace` does it: what waits is answered by the old instance, beside the new one."""
    faulty.serve("again")
    await until(lambda: faulty.ready("again") == 1, "not ready")
    [pid] = faulty.pids("again")
    freeze(pid)
    async with asyncio.TaskGroup() as group:
        running = [group.create_task(callers.call("again", sleep_s=0.01)) for _ in range(8)]
        await until(lambda: faulty.in_flight("again") == 8, "not let in")
        assert faulty.call("DELETE", "/system/functions", {"functionName": "again"}).status == 202
        faulty.serve("again", env={"VERSION": "2"})
        await until(lambda: faulty.ready("again") == 1, "the new one is not ready")
        go_on(pid)
    assert {task.result().status for task in running} == {200}
    await until(lambda: pid not in faulty.pids("again"), "the old instance was left behind")
    callers.history.check()
    assert faulty.call("POST", "/function/again", b"x;").headers["X-Version"] == "2"


async def test_scaling_to_zero_under_load_holds_requests_and_fails_none(faulty: Faulty, callers: Callers) -> None:
    faulty.serve("zero", instances=2)
    await until(lambda: faulty.ready("zero") == 2, "not ready")
    async with callers.load("zero", 4, sleep_s=0.005):
        for _ in range(5):
            await asyncio.to_thread(faulty.scale, "zero", 0)
            await asyncio.sleep(0.2)
    assert set(callers.history.check()) == {"200"}


async def test_twenty_changes_of_policy_in_a_row_fail_no_request_and_keep_the_instances(faulty: Faulty, callers: Callers) -> None:
    faulty.serve("whim", instances=2, most=2)
    await until(lambda: faulty.ready("whim") == 2, "not ready")
    before = faulty.pids("whim")
    scaling = ("openfaas", "kpa", "k-lv", "hpa", "fixed", "od", "lv")
    scheduling = ("immediate", "fixed", "adaptive")
    async with callers.load("whim", 4, sleep_s=0.005):
        for number in range(20):
            policies = {"autoscaler": scaling[number % 7], "scheduler": scheduling[number % 3], "max_batch": 1 + number % 4}
            answer = await asyncio.to_thread(lambda p=policies: faulty.serve("whim", method="PUT", instances=2, most=2, **p))
            assert answer.status == 202
    assert set(callers.history.check()) == {"200"}
    assert set(before) <= set(faulty.pids("whim"))


async def test_a_setting_that_cannot_be_is_refused_and_changes_nothing(faulty: Faulty, callers: Callers) -> None:
    faulty.serve("firm", instances=1)
    await until(lambda: faulty.ready("firm") == 1, "not ready")
    before = (faulty.pids("firm"), {key: faulty.status("firm")[key] for key in ("annotations", "envVars", "image", "replicas")})
    async with callers.load("firm", 2, sleep_s=0.005):
        for wrong in ({"autoscaler": "clairvoyant"}, {"scheduler": "clairvoyant"}, {"max_batch": "many"}, {"speed": "high"}):
            answer = await asyncio.to_thread(lambda w=wrong: faulty.serve("firm", method="PUT", env={"VERSION": "2"}, **w))
            assert answer.status == 400, wrong
            assert answer.json()["error"]["hint"], "it says what is allowed"
    assert set(callers.history.check()) == {"200"}
    status = faulty.status("firm")
    assert before == (faulty.pids("firm"), {key: status[key] for key in ("annotations", "envVars", "image", "replicas")})
    assert faulty.call("POST", "/function/firm", b"x;").headers["X-Version"] == "1"

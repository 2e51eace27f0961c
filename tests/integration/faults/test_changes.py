"""Updates, stops, failing policies and clients that leave under load."""

from __future__ import annotations

import asyncio
import random
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gnomon_core.process_memory import peak_bytes
from tests.integration.faults.conftest import Faulty, freeze, go_on, serving
from tests.integration.faults.history import BROKE_OFF, Callers, until
from tests.integration.serve.conftest import is_alive

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


async def test_broken_version_leaves_the_old_one_serving(faulty: Faulty, callers: Callers) -> None:
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
    faulty.serve("full", instances=4, cores=2, cpu="2", env=SLOW_START)
    await until(lambda: faulty.ready("full") == 4, "not ready")
    before = set(faulty.pids("full"))
    least = 4
    async with callers.load("full", 6, sleep_s=0.005):
        faulty.serve("full", method="PUT", instances=4, cores=2, cpu="2", env={**SLOW_START, "VERSION": "2"})
        while before & set(faulty.pids("full")) or await asyncio.to_thread(faulty.ready, "full") < 4:
            least = min(least, await asyncio.to_thread(faulty.ready, "full"))
            await asyncio.sleep(0.01)
    assert set(callers.history.check()) == {"200"}
    assert least >= 3


async def test_broken_version_on_a_full_node_costs_one_instance(faulty: Faulty, callers: Callers) -> None:
    faulty.serve("full", instances=4, cores=2, cpu="2")
    await until(lambda: faulty.ready("full") == 4, "not ready")
    async with callers.load("full", 6, sleep_s=0.005):
        faulty.serve("full", method="PUT", instances=4, cores=2, cpu="2", env={"BROKEN": "1"})
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


async def test_starting_instances_are_replaced_by_a_newer_version(faulty: Faulty) -> None:
    faulty.serve("late", instances=2, env={"START_S": "100"})
    await until(lambda: len(faulty.pids("late")) == 2, "not begun")
    before = set(faulty.pids("late"))
    assert faulty.serve("late", method="PUT", instances=2, env={"VERSION": "2"}).status == 202
    await until(lambda: faulty.ready("late") == 2, "not ready")
    await until(lambda: not before & set(faulty.pids("late")), "they still start, for nobody")


async def test_removal_during_an_update_answers_admitted_requests(faulty: Faulty, callers: Callers) -> None:
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


async def test_recreated_function_answers_admitted_requests_of_the_old_one(faulty: Faulty, callers: Callers) -> None:
    """`deploy --replace` does this: what waits is answered by the old instance, beside the new one."""
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


async def test_policy_changes_lose_no_request_and_keep_the_instances(faulty: Faulty, callers: Callers) -> None:
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


POLICIES = """
import time
from dataclasses import dataclass

from gnomon_autoscaler import replica_policy_plugin
from gnomon_autoscaler.replica_policy import DesiredCount


def sleeps():
    time.sleep(5)


def computes():
    while True:
        pass


def raises():
    raise RuntimeError("I had not thought of that")


def answers_nonsense():
    return "four"


def exits():
    raise SystemExit(3)


@dataclass(frozen=True)
class Until:
    name: str
    fault: object
    version: int = 1
    period_s: float = 0.2
    default_scheduler: str = "immediate"

    def desired_count(self, seen, memory):
        if len(seen.ready) == 3:
            return self.fault()
        return DesiredCount(3, "three", {})


def offer(fault):
    return replica_policy_plugin(lambda settings: Until(fault.__name__, fault), "Wants three, then fails.")


SLEEPS, COMPUTES, RAISES, NONSENSE, EXITS = map(offer, (sleeps, computes, raises, answers_nonsense, exits))
"""
NAMES = ("sleeps", "computes", "raises", "nonsense", "exits")


@pytest.fixture
def misled(tmp_path: Path, build_archive: Callable[..., bytes], monkeypatch: pytest.MonkeyPatch) -> Iterator[Faulty]:
    """A gateway whose operator named the five policies of an installed package; a sixth one is offered and not named."""
    installed = tmp_path / "site"
    information = installed / "misfits-1.0.dist-info"
    information.mkdir(parents=True)
    (installed / "misfits.py").write_text(POLICIES)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: misfits\nVersion: 1.0\n")
    lines = [f"{name} = misfits:{name.upper()}" for name in (*NAMES, "unnamed")]
    (information / "entry_points.txt").write_text("\n".join(["[gnomon.scaling_policies]", *lines, ""]))
    monkeypatch.setenv("PYTHONPATH", str(installed))
    yield from serving(tmp_path / "state", build_archive, *(f"--policy={name}" for name in NAMES))


async def test_a_policy_that_fails_leaves_the_last_decision_and_after_three_times_fixed_takes_over(
    misled: Faulty, callers: Callers
) -> None:
    for name in NAMES:
        assert misled.serve(name, autoscaler=name).status == 202
    await until(lambda: all(misled.ready(name) == 3 for name in NAMES), "the policies did not decide")
    async with callers.load("sleeps", 2), callers.load("computes", 2), callers.load("raises", 2):
        await until(lambda: all("fixed instead" in str(misled.decisions(name)) for name in NAMES), "nobody took over")
    assert set(callers.history.check()) == {"200"}
    said = {name: str(misled.decisions(name)) for name in NAMES}
    assert "'NoneType' object has no attribute 'count'; the last decision stays in force" in said["sleeps"], (
        "waiting costs no CPU"
    )
    assert "no answer within 1 s of CPU time; the last decision stays in force" in said["computes"]
    assert "RuntimeError: I had not thought of that; the last decision stays in force" in said["raises"]
    for name in NAMES:
        assert misled.decisions(name)[0]["desired"] == 3
        assert misled.ready(name) == 3, "nothing was taken away"
        # It is still scaled: by `fixed`, at an operator's word.
        misled.scale(name, 1)
    # One after the other: a failed policy is tried again after 15 s, and that one asks for three once more.
    acted: set[str] = set()

    def each_acted_once() -> bool:
        acted.update(name for name in NAMES if misled.ready(name) == 1)
        return acted == set(NAMES)

    await until(each_acted_once, "fixed does not act")
    # What is installed and was not named is not known.
    answer = misled.serve("sly", autoscaler="unnamed")
    assert (answer.status, answer.json()["error"]["code"]) == (400, "unknown_policy")
    assert all(name in answer.json()["error"]["hint"] for name in NAMES)


MiB = 2**20


async def test_half_of_the_callers_hang_up_while_they_wait_and_none_of_those_is_executed(
    faulty: Faulty, callers: Callers
) -> None:
    faulty.serve("storm", max_batch=4)
    await until(lambda: faulty.ready("storm") == 1, "not ready")
    [pid] = faulty.pids("storm")
    rng = random.Random(5)
    freeze(pid)
    async with asyncio.TaskGroup() as group:
        first = group.create_task(callers.call("storm"))
        await until(lambda: faulty.in_flight("storm") == 1, "not dispatched")
        stay = [group.create_task(callers.call("storm")) for _ in range(40)]
        leave = [group.create_task(callers.call("storm", leave_after_s=rng.uniform(0.05, 1))) for _ in range(40)]
        await asyncio.wait(leave)
        await until(lambda: faulty.in_flight("storm") == 41, "the gateway has not noticed who left")
        go_on(pid)
    assert {task.result().status for task in [first, *stay]} == {200}
    assert not any(callers.history.runs_of(task.result().token) for task in leave)
    assert callers.history.check() == {"200": 41, "left": 40}


async def test_after_a_storm_of_hang_ups_at_any_moment_everything_is_as_before(faulty: Faulty, callers: Callers) -> None:
    faulty.serve("storm", instances=2, max_batch=4)
    await until(lambda: faulty.ready("storm") == 2, "not ready")
    rng = random.Random(6)
    async with asyncio.TaskGroup() as group:
        for number in range(400):
            leave_after_s = rng.uniform(0.001, 0.1) if number % 2 else None
            group.create_task(callers.call("storm", sleep_s=0.005, leave_after_s=leave_after_s))
            await asyncio.sleep(rng.uniform(0, 0.004))
    await until(lambda: faulty.in_flight("storm") == 0, "somebody is still being waited for")
    before = callers.history.check()
    assert set(before) == {"200", "left"}
    async with asyncio.TaskGroup() as group:
        for _ in range(100):
            group.create_task(callers.call("storm", sleep_s=0.005))
    assert callers.history.check() == {"200": before["200"] + 100, "left": before["left"]}
    assert faulty.in_flight("storm") == 0


async def test_expired_request_is_refused_in_time_and_never_executed(faulty: Faulty, callers: Callers) -> None:
    faulty.serve("short")
    await until(lambda: faulty.ready("short") == 1, "not ready")
    [pid] = faulty.pids("short")
    rng = random.Random(7)
    freeze(pid)
    async with asyncio.TaskGroup() as group:
        patient = group.create_task(callers.call("short"))
        await until(lambda: faulty.in_flight("short") == 1, "not dispatched")
        hasty = [group.create_task(callers.call("short", deadline_ms=rng.uniform(50, 500))) for _ in range(50)]
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
    rng = random.Random(8)
    async with asyncio.TaskGroup() as group:
        for _ in range(400):
            group.create_task(callers.call("over", sleep_s=0.02, deadline_ms=rng.uniform(50, 500)))
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
    return peak_bytes(gateway.process.pid)

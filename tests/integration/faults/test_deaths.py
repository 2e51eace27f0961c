"""Processes that are killed under load."""

from __future__ import annotations

import asyncio
import io
import random
from collections.abc import Callable, Coroutine
from pathlib import Path

import aiohttp
import pytest
import torch
from PIL import Image

from gnomon_profiler.extractor import Description, capture
from gnomon_profiler.repository import DirectoryRepository
from tests.integration.faults.conftest import Faulty, freeze, go_on, kill
from tests.integration.faults.history import Callers, until
from tests.integration.serve.conftest import is_alive

ROUNDS = 15
EVERY_S = 0.2


async def test_sigkill_in_the_middle_of_a_batch_costs_only_that_batch(faulty: Faulty, callers: Callers) -> None:
    faulty.serve("victim", instances=2, max_batch=4)
    await until(lambda: faulty.ready("victim") == 2, "not ready")
    history = callers.history
    async with asyncio.TaskGroup() as group:
        for _ in range(16):
            group.create_task(callers.call("victim", sleep_s=0.5))
        await until(lambda: any(run.batch == 2 for run in history.executions), "no batch of several")
        pid = next(run.pid for run in history.executions if run.batch == 2)
        kill(pid)
    doomed = max((run for run in history.executions if run.pid == pid), key=lambda run: run.batch)
    seen = history.check()
    batch = {run.token for run in history.executions if (run.pid, run.batch) == (doomed.pid, doomed.batch)}
    lost = {end.token for end in history.ends if end.code == "instance_lost"}
    assert len(batch) > 1, "the batch was to hold several"
    assert lost == batch
    assert seen == {"200": 16 - len(batch), "502 instance_lost": len(batch)}
    await until(lambda: faulty.ready("victim") == 2, "it was not replaced")


async def test_a_batch_that_a_killed_instance_never_received_is_not_lost(faulty: Faulty, callers: Callers) -> None:
    faulty.serve("deaf")
    for _ in range(5):
        await until(lambda: faulty.ready("deaf") == 1, "not ready")
        [pid] = faulty.pids("deaf")
        freeze(pid)
        async with asyncio.TaskGroup() as group:
            for _ in range(3):
                group.create_task(callers.call("deaf"))
            await until(lambda: faulty.in_flight("deaf") == 3, "not let in")
            kill(pid)
    assert callers.history.check() == {"200": 15}


async def test_random_kills_hang_and_confuse_nobody(
    faulty: Faulty, callers: Callers, record_property: Callable[[str, object], None]
) -> None:
    faulty.serve("prey", instances=3)
    await until(lambda: faulty.ready("prey") == 3, "not ready")
    rng = random.Random(4)
    kills = 0
    async with callers.load("prey", 8, sleep_s=0.02):
        for _ in range(ROUNDS):
            await asyncio.sleep(EVERY_S)
            pids = await asyncio.to_thread(faulty.pids, "prey")
            if pids:
                kill(rng.choice(pids))
                kills += 1
    seen = callers.history.check()
    record_property("availability", f"{seen['200']}/{seen.total()} under {kills} kills")
    assert set(seen) <= {"200", "502 instance_lost"}
    # One request a batch, one batch in flight at an instance, and none of it lost if the instance had not read it.
    assert seen["502 instance_lost"] <= kills, faulty.log("prey")
    await until(lambda: faulty.ready("prey") == 3, "not all came back")


@pytest.mark.slow
async def test_frozen_instances_are_found_and_replaced_whether_idle_or_busy(faulty: Faulty, callers: Callers) -> None:
    faulty.serve("idle", instances=2)
    faulty.serve("busy", deadline_ms=500)
    await until(lambda: (faulty.ready("idle"), faulty.ready("busy")) == (2, 1), "not ready")
    [busy], [idle, _] = faulty.pids("busy"), faulty.pids("idle")
    freeze(idle)
    freeze(busy)
    # The instance has the first; the second waits for it. Neither is kept beyond its deadline.
    answers = await asyncio.gather(callers.call("busy"), callers.call("busy"))
    assert [answer.code for answer in answers] == ["deadline_exceeded"] * 2
    await until(lambda: "did not answer a canary" in faulty.log("idle"), "the idle one was not found")
    await until(lambda: "its batch has been executing for" in faulty.log("busy"), "the busy one was not found")
    await until(lambda: (faulty.ready("idle"), faulty.ready("busy")) == (2, 1), "not replaced")
    assert [(await callers.call(name)).status for name in ("busy", "idle", "idle")] == [200] * 3
    kill(busy, idle)
    callers.history.check()


async def test_an_instance_that_thaws_does_not_run_what_nobody_waits_for_and_serves_on(faulty: Faulty, callers: Callers) -> None:
    faulty.serve("late")
    await until(lambda: faulty.ready("late") == 1, "not ready")
    [pid] = faulty.pids("late")
    freeze(pid)
    expired = await callers.call("late", deadline_ms=200)
    left = await callers.call("late", leave_after_s=0.2)
    assert (expired.status, expired.code, left.code) == (504, "deadline_exceeded", "left")
    await until(lambda: faulty.in_flight("late") == 0, "the gateway has not noticed who left")
    go_on(pid)
    after = await callers.call("late")
    assert after.status == 200
    [run] = callers.history.executions
    assert (run.token, run.pid) == (after.token, pid)
    # The instance's answer to the batch that had expired came, and was dropped.
    assert faulty.late("late") == 1
    callers.history.check()


async def test_a_late_answer_is_dropped_and_counted(faulty: Faulty, callers: Callers) -> None:
    faulty.serve("late", max_batch=2)
    await until(lambda: faulty.ready("late") == 1, "not ready")
    expired = await callers.call("late", sleep_s=1.0, deadline_ms=100)
    assert expired.code == "deadline_exceeded"
    assert (await callers.call("late")).status == 200
    assert faulty.late("late") == 1
    assert len(callers.history.runs_of(expired.token)) == 1
    callers.history.check()


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


# A model's inference changes nothing: when its instance dies, it is run once more, and its caller sees nothing of it.
SIDE = 64
DETAILS = {
    "labels": ["red", "green", "blue"],
    "preprocess": {"size": SIDE, "crop_fraction": 1.0, "interpolation": "bicubic", "mean": [0, 0, 0], "std": [255, 255, 255]},
}
BUSY_TICKS = 3
"""Of a hundredth of a second each: by then it has its batch and works on it."""
CONVOLUTIONS = 10
"""An inference of them is 0.6 s of work at 80 GFLOPS of a core: much longer than the test waits between two looks."""


class Slow(torch.nn.Module):
    """Which colour there is most of, after a lot of work."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = torch.nn.Conv2d(3, 256, 3, padding=1)
        self.work = torch.nn.Sequential(*[torch.nn.Conv2d(256, 256, 3, padding=1)] * CONVOLUTIONS)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return image.mean((2, 3)) + 1e-9 * self.work(self.wide(image)).mean()


@pytest.fixture
def with_model(faulty: Faulty) -> Faulty:
    description = Description("slow", "1", "image-classification", DETAILS, ("image",), ("logits",))
    files = capture(Slow().eval(), (torch.ones(2, 3, SIDE, SIDE),), description)
    DirectoryRepository(faulty.state / "models").put("slow", "1", files)
    return faulty


def green() -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", (SIDE, SIDE), (0, 255, 0)).save(stream, "PNG")
    return stream.getvalue()


def cpu_ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


@pytest.mark.torch
async def test_an_inference_whose_instance_dies_at_work_is_run_once_more(with_model: Faulty) -> None:
    annotations = {"gnomon/model": "slow@1", "gnomon/autoscaler": "fixed"}
    with_model.call("POST", "/system/functions", {"service": "slow", "image": "gnomon/body", "annotations": annotations})
    pixels = [channel for channel in (0.0, 1.0, 0.0) for _ in range(SIDE * SIDE)]
    tensors = {"inputs": [{"name": "image", "datatype": "FP32", "shape": [1, 3, SIDE, SIDE], "data": pixels}]}
    async with aiohttp.ClientSession(with_model.url) as session:

        async def photograph() -> str:
            async with session.post("/function/slow", data=green()) as answer:
                return str((await answer.json())["label"])

        async def inference() -> str:
            async with session.post("/v2/models/slow/infer", json=tensors) as answer:
                logits = (await answer.json())["outputs"][0]["data"]
                return DETAILS["labels"][logits.index(max(logits))]

        assert await killed_at_work(with_model, photograph) == "green"
        assert await killed_at_work(with_model, inference) == "green"


async def killed_at_work(with_model: Faulty, ask: Callable[[], Coroutine[None, None, str]]) -> str:
    """The answer to a caller whose request the only instance was executing when it was killed."""
    await until(lambda: with_model.ready("slow") == 1, "not ready")
    [pid] = with_model.pids("slow")
    idle = cpu_ticks(pid)
    running = asyncio.create_task(ask())
    await until(lambda: cpu_ticks(pid) > idle + BUSY_TICKS, "it never worked")
    assert not running.done()
    kill(pid)
    return await running

"""Instances that are killed or frozen under their requests."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from tests.integration.faults.callers import Callers, until
from tests.integration.faults.conftest import Faulty, kill

ROUNDS = 30
EVERY_S = 0.3


async def test_sigkill_in_the_middle_of_a_batch_costs_only_that_batch(faulty: Faulty, callers: Callers) -> None:
    faulty.serve("victim", instances=2, max_batch=4)
    await until(lambda: faulty.ready("victim") == 2, "not ready")
    history = callers.history
    async with asyncio.TaskGroup() as group:
        for _ in range(16):
            group.create_task(callers.call("victim", sleep_s=0.5))
        await until(lambda: any(run.batch == 2 for run in history.executions), "no batch of several")
        doomed = next(run for run in history.executions if run.batch == 2)
        kill(doomed.pid)
    seen = history.check()
    batch = {run.token for run in history.executions if (run.pid, run.batch) == (doomed.pid, doomed.batch)}
    lost = {end.token for end in history.ends if end.code == "instance_lost"}
    assert len(batch) > 1, "the batch was to hold several"
    assert lost == batch
    assert seen == {"200": 16 - len(batch), "502 instance_lost": len(batch)}
    await until(lambda: faulty.ready("victim") == 2, "it was not replaced")


async def test_random_kills_for_ten_seconds_hang_and_confuse_nobody(
    faulty: Faulty, callers: Callers, record_property: Callable[[str, object], None]
) -> None:
    faulty.serve("prey", instances=3)
    await until(lambda: faulty.ready("prey") == 3, "not ready")
    chance = random.Random(4)
    kills = 0
    async with callers.load("prey", 8, sleep_s=0.02):
        for _ in range(ROUNDS):
            await asyncio.sleep(EVERY_S)
            pids = await asyncio.to_thread(faulty.pids, "prey")
            if pids:
                kill(chance.choice(pids))
                kills += 1
    seen = callers.history.check()
    record_property("availability", f"{seen['200']}/{seen.total()} under {kills} kills")
    assert set(seen) <= {"200", "502 instance_lost"}
    assert seen["502 instance_lost"] <= kills
    await until(lambda: faulty.ready("prey") == 3, "not all came back")

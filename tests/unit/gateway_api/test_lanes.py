"""Bounded concurrency by key."""

from __future__ import annotations

import asyncio
from functools import partial

from gnomon_gateway.asynchronous.queue import Lanes


class Work:
    def __init__(self) -> None:
        self.begun: list[str] = []
        self.release = asyncio.Event()
        self.running = 0
        self.most = 0

    async def job(self, name: str) -> None:
        self.begun.append(name)
        self.running += 1
        self.most = max(self.most, self.running)
        await self.release.wait()
        self.running -= 1


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_lane_runs_so_many_at_a_time_in_order() -> None:
    work, lanes = Work(), Lanes(2)
    for number in range(5):
        lanes.add("a", partial(work.job, str(number)))
    await settle()
    assert work.begun == ["0", "1"]
    work.release.set()
    await settle()
    assert work.begun == ["0", "1", "2", "3", "4"]
    assert work.most == 2


async def test_a_full_lane_does_not_hold_up_another() -> None:
    work, lanes = Work(), Lanes(1)
    for key in ("slow", "slow", "other"):
        lanes.add(key, partial(work.job, key))
    await settle()
    assert work.begun == ["slow", "other"]
    work.release.set()
    await lanes.stop(1.0)


async def test_stopping_lets_what_runs_end_and_begins_nothing() -> None:
    work, lanes = Work(), Lanes(1)
    lanes.add("a", partial(work.job, "runs"))
    lanes.add("a", partial(work.job, "waits"))
    lanes.add("a", partial(work.job, "later"), delay_s=0.001)
    await settle()
    asyncio.get_running_loop().call_later(0.01, work.release.set)
    await lanes.stop(5.0)
    assert work.running == 0
    assert work.begun == ["runs"]


async def test_stopping_cancels_what_takes_too_long() -> None:
    work, lanes = Work(), Lanes(1)
    lanes.add("a", partial(work.job, "runs"))
    await settle()
    await lanes.stop(0.0)
    assert work.begun == ["runs"]
    assert work.running == 1, "it was cut off, not finished"

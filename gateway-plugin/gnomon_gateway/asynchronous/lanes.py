"""Bounded concurrency by key: one slow function, or one slow callback host, never takes the others' turns."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass, field
from typing import TypeAlias

Job: TypeAlias = Callable[[], Awaitable[None]]


@dataclass(slots=True)
class _Lane:
    waiting: deque[Job] = field(default_factory=deque)
    running: int = 0


class Lanes:
    """Runs jobs in the order they came, at most `width` of a key at a time. A job raises nothing."""

    def __init__(self, width: int) -> None:
        self._width = width
        self._lanes: dict[Hashable, _Lane] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._timers: set[asyncio.TimerHandle] = set()
        self._stopped = False

    def add(self, key: Hashable, job: Job, delay_s: float = 0.0) -> None:
        """Run a job when its turn comes, not before `delay_s` have passed."""
        if self._stopped:
            return
        if delay_s > 0:
            self._later(key, job, delay_s)
            return
        self._lanes.setdefault(key, _Lane()).waiting.append(job)
        self._advance(key)

    async def stop(self, grace_s: float) -> None:
        """Begin no job any more, let those that run finish for a while, then cancel them."""
        self._stopped = True
        for timer in self._timers:
            timer.cancel()
        self._lanes.clear()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=grace_s)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _later(self, key: Hashable, job: Job, delay_s: float) -> None:
        def due() -> None:
            self._timers.discard(timer)
            self.add(key, job)

        timer = asyncio.get_running_loop().call_later(delay_s, due)
        self._timers.add(timer)

    def _advance(self, key: Hashable) -> None:
        lane = self._lanes.get(key)
        while lane is not None and lane.waiting and lane.running < self._width:
            lane.running += 1
            task = asyncio.create_task(self._run(key, lane, lane.waiting.popleft()))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _run(self, key: Hashable, lane: _Lane, job: Job) -> None:
        try:
            await job()
        finally:
            lane.running -= 1
            self._advance(key)
            if not lane.running and not lane.waiting and self._lanes.get(key) is lane:
                del self._lanes[key]

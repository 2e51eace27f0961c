"""How long the event loop keeps its callers waiting: the one figure that says whether something blocks it.

A task sleeps and looks how late it woke. What ran too long in between made every request wait as long.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from gnomon_core.clock import Clock
from gnomon_gateway.histogram import Histogram

PERIOD_S = 0.1
BOUNDS_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0)


class LoopLag:
    """Samples the lag of the loop that it was started on."""

    def __init__(self, clock: Clock) -> None:
        self.histogram = Histogram(BOUNDS_S)
        self._clock = clock
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._sample())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def _sample(self) -> None:
        while True:
            begin_s = self._clock.now_s()
            await self._clock.sleep(PERIOD_S)
            self.histogram.observe(max(0.0, self._clock.now_s() - begin_s - PERIOD_S))

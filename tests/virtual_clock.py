"""A `Clock` that a test moves."""

from __future__ import annotations

import asyncio


class VirtualClock:
    """A clock that stands still until `advance` moves it.

    A sleeper wakes when the clock is moved to or past its time, earliest first.
    """

    def __init__(self, start_s: float = 0.0) -> None:
        self._now_s = start_s
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._order = 0

    def now_s(self) -> float:
        return self._now_s

    async def sleep(self, duration_s: float) -> None:
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._order += 1
        self._sleepers.append((self._now_s + max(duration_s, 0.0), self._order, woken))
        await woken

    async def advance(self, duration_s: float) -> None:
        """Move the clock and let everything that this wakes run before returning."""
        end_s = self._now_s + duration_s
        await _settle()
        while due := [sleeper for sleeper in self._sleepers if sleeper[0] <= end_s]:
            first = min(due)
            self._sleepers.remove(first)
            self._now_s = max(self._now_s, first[0])
            if not first[2].done():
                first[2].set_result(None)
            await _settle()
        self._now_s = end_s


async def _settle() -> None:
    # Ten turns of the loop: enough for a woken task to run into its next wait through a few layers of awaits.
    for _ in range(10):
        await asyncio.sleep(0)

"""Batches without a pause to instances of a platform, and what has become of each."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from gnomon_core.interfaces import BatchChannel
from tests.platform_testing import answers, request_frame, send

PAUSE_S = 0.02


class Load:
    """Sends one batch after the other to each channel. `answered` and `lost` count them."""

    def __init__(self) -> None:
        self.answered = 0
        self.lost = 0
        self.left: set[str] = set()
        """Instances that get nothing more."""
        self._tasks: list[asyncio.Task[None]] = []

    def add(self, name: str, channel: BatchChannel) -> None:
        """Send batches to this one, too."""
        self._tasks.append(asyncio.create_task(self._send(name, channel)))

    async def more(self, batches: int, limit_s: float) -> None:
        """Return when so many more have been answered."""
        goal = self.answered + batches
        async with asyncio.timeout(limit_s):
            while self.answered < goal:  # noqa: ASYNC110 - each batch would set an event
                await asyncio.sleep(PAUSE_S)

    async def end(self) -> None:
        """Send nothing more; what is in flight is awaited."""
        self.left.add("*")
        await asyncio.gather(*self._tasks)

    async def _send(self, name: str, channel: BatchChannel) -> None:
        number = 0
        while not {name, "*"} & self.left:
            number += 1
            body = f"{name} {number}".encode()
            frame = await send(channel, request_frame(body, batch_id=number))
            if frame is None:
                # What was not read can be sent to somebody else.
                self.lost += number not in channel.unread
                return
            assert answers(frame) == [(200, body)]
            self.answered += 1
            await asyncio.sleep(PAUSE_S)


@asynccontextmanager
async def load() -> AsyncIterator[Load]:
    """A load that ends with the block."""
    sent = Load()
    try:
        yield sent
    finally:
        await sent.end()

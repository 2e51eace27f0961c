"""Clients that note what they send and what they get."""

from __future__ import annotations

import asyncio
import io
import itertools
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import aiohttp

from tests.integration.faults.history import End, History

HANGS_S = 60.0
"""No request of these tests may take so long: whatever is not answered by then hangs."""


class Callers:
    """Sends requests with tokens of its own to the functions behind `url`."""

    def __init__(self, session: aiohttp.ClientSession, url: str, history: History) -> None:
        self._session = session
        self.url = url
        self._numbers = itertools.count()
        self.history = history

    async def call(
        self,
        function: str,
        *,
        sleep_s: float = 0.0,
        deadline_ms: float | None = None,
        leave_after_s: float | None = None,
        filler: int = 0,
    ) -> End:
        """One request; its end is in the history. `leave_after_s` is when the caller hangs up."""
        token = f"{function}-{next(self._numbers)}"
        headers = {} if deadline_ms is None else {"X-Gnomon-Deadline-Ms": str(deadline_ms)}
        self.history.sent(token, time.monotonic())
        try:
            async with asyncio.timeout(leave_after_s or HANGS_S):
                async with self._session.post(
                    f"{self.url}/function/{function}?sleep={sleep_s}",
                    data=io.BytesIO(token.encode() + b";" + bytes(filler)),
                    headers=headers,
                ) as answer:
                    body = await answer.read()
        except aiohttp.ClientError:
            return self.history.broke_off(token, time.monotonic())
        except TimeoutError:
            if leave_after_s is None:
                raise AssertionError(f"{token} hangs") from None
            return self.history.left(token, time.monotonic())
        named = {name.lower(): value for name, value in answer.headers.items()}
        return self.history.answered(token, answer.status, named, body, time.monotonic())

    @asynccontextmanager
    async def load(self, function: str, callers: int, *, sleep_s: float = 0.0, pause_s: float = 0.0) -> AsyncIterator[None]:
        """Callers that send one request after another while the block runs; the last ones are answered when it ends."""
        ended = asyncio.Event()

        async def go_on() -> None:
            while not ended.is_set():
                await self.call(function, sleep_s=sleep_s)
                await asyncio.sleep(pause_s)

        async with asyncio.TaskGroup() as group:
            for _ in range(callers):
                group.create_task(go_on())
            try:
                yield
            finally:
                ended.set()


async def until(what: Callable[[], bool], why: str, limit_s: float = 60.0) -> None:
    """Wait until it is so; what is slow on a busy machine is no failure, what never comes is."""
    end_s = time.monotonic() + limit_s
    while not await asyncio.to_thread(what):
        assert time.monotonic() < end_s, why
        await asyncio.sleep(0.02)

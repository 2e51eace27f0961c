"""One HTTP exchange with a function through the provider, and when it is tried again.

    429 with X-OpenFaaS-Internal   the replica has as many as it takes: nothing ran; wait a little, another one may be free
    503 with X-OpenFaaS-Internal   no replica: nothing ran; wake the function and try again
    no connection                  nothing was sent: the provider is away
    anything else                  the function's answer, or what its failing looks like

That header says that an answer is the platform's and not the function's: OpenFaaS's own queue worker goes by it. A provider picks
a replica by chance, so with as many requests under way as all replicas take together, some meet a busy one: with five replicas of
one place each, four requests under way and a fifth, it is four times in five. That is a matter of pauses of milliseconds here.
"""

from __future__ import annotations

import asyncio
import io
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING

from gnomon_core.errors import INTERNAL_HEADER

if TYPE_CHECKING:
    import aiohttp

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.01, 0.5
_NOT_RUN = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)
_NO_DEFAULTS = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")


@dataclass(frozen=True, slots=True)
class Ask:
    """A request as it is sent: the path and query below the function's name, undecoded."""

    method: str
    target: str
    headers: Mapping[str, str] | list[tuple[str, str]]
    body: bytes | memoryview


class Route:
    """The way to one function: `address` is the provider's /function/NAME. `wake` returns when it has a replica."""

    def __init__(
        self, session: aiohttp.ClientSession, address: str, wake: Callable[[], Awaitable[None]], chance: random.Random
    ) -> None:
        self.address = address
        self._session, self._wake, self._chance = session, wake, chance

    @asynccontextmanager
    async def answered(self, ask: Ask) -> AsyncIterator[aiohttp.ClientResponse]:
        """The answer of a function that has run, or the last refusal where the caller is out of patience first.

        The caller bounds the time.
        """
        import yarl  # noqa: PLC0415 - comes with aiohttp, which only who has instances elsewhere needs

        url = yarl.URL(self.address + ask.target, encoded=True)
        pause_s = FIRST_PAUSE_S
        while True:
            async with self._session.request(
                ask.method,
                url,
                data=io.BytesIO(ask.body) if ask.body else None,
                headers=ask.headers,
                allow_redirects=False,
                skip_auto_headers=_NO_DEFAULTS,
            ) as answer:
                if answer.status not in _NOT_RUN or INTERNAL_HEADER not in answer.headers:
                    yield answer
                    return
                await answer.read()
            if answer.status == HTTPStatus.SERVICE_UNAVAILABLE:
                await self._wake()
            await asyncio.sleep(pause_s * self._chance.uniform(0.5, 1.5))
            pause_s = min(LONGEST_PAUSE_S, 2 * pause_s)

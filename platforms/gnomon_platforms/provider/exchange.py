"""One HTTP exchange with a function through the provider, and when it is tried again.

    429 with X-OpenFaaS-Internal   the replica has as many as it takes: nothing ran; wait a little, another one may be free
    503 with X-OpenFaaS-Internal   no replica: nothing ran; wake the function and try again
    no connection                  nothing was sent: the provider is away
    anything else                  the function's answer, or what its failing looks like

That header says that an answer is the platform's and not the function's: OpenFaaS's own queue worker goes by it. A provider picks
a replica by chance, so with as many requests under way as all replicas take together, some meet a busy one: with five replicas of
one place each, and four requests under way, the fifth does four times in five. It costs pauses of milliseconds here.
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

FIRST_PAUSE_S = 0.01
LONGEST_PAUSES_S: Mapping[int, float] = {HTTPStatus.TOO_MANY_REQUESTS: 0.05, HTTPStatus.SERVICE_UNAVAILABLE: 0.5}
"""Of what was not run, by its status. While one slot tries, a replica idles: twenty tries a second are less of a waste."""
_NO_DEFAULTS = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")


LARGE_BYTES = 2**20
"""From which on a body is sent in parts: all at once would hold the event loop up."""


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
                data=_payload(ask.body),
                headers=ask.headers,
                allow_redirects=False,
                skip_auto_headers=_NO_DEFAULTS,
            ) as answer:
                longest_s = LONGEST_PAUSES_S.get(answer.status)
                if longest_s is None or INTERNAL_HEADER not in answer.headers:
                    yield answer
                    return
                await answer.read()
            if answer.status == HTTPStatus.SERVICE_UNAVAILABLE:
                await self._wake()
            await asyncio.sleep(pause_s * self._chance.uniform(0.5, 1.5))
            pause_s = min(longest_s, 2 * pause_s)


def _payload(body: bytes | memoryview) -> bytes | io.BytesIO | None:
    if not body:
        return None
    return io.BytesIO(body) if len(body) >= LARGE_BYTES else bytes(body)

"""Callers of an echo service on Knative, and the outcome of each call."""

from __future__ import annotations

import asyncio
import time
from collections import Counter

import aiohttp

from tests.waiting import until

LIMIT_S = 240.0
CALLERS = 16
AGAIN_S = 0.05
UNAVAILABLE, NOT_CONNECTED = 503, b"remote connection failure"
"""Envoy's answer when an endpoint refuses connections: the request was not sent."""


class Users:
    """Clients of a session, at a URL. An answer is right that is what was sent; what begins with `slow` takes its pod a while.

    Who finds nobody to connect to has sent nothing, and comes again; so does who is told that by Envoy.
    """

    def __init__(self, session: aiohttp.ClientSession, url: str, *, word: str = "", callers: int = CALLERS) -> None:
        self._session, self._url, self._word, self._callers = session, url, word, callers
        self._ended = False
        self.answered = 0
        self.lost: Counter[int] = Counter()
        """By caller, the answers that were not right."""
        self.wrong_answers: list[tuple[int, bytes]] = []
        """The wrong answers: caller and body."""

    async def once(self, body: bytes) -> tuple[int, bytes]:
        """The status and the answer; 0 where there was none."""
        give_up_s = time.monotonic() + LIMIT_S
        while True:
            try:
                async with self._session.post(self._url, data=body) as answer:
                    status, text = answer.status, await answer.read()
                if status != UNAVAILABLE or NOT_CONNECTED not in text or time.monotonic() > give_up_s:
                    return status, text
                await asyncio.sleep(AGAIN_S)
            except aiohttp.ClientConnectorError as error:
                if time.monotonic() > give_up_s:
                    return 0, repr(error).encode()
                await asyncio.sleep(AGAIN_S)
            except (aiohttp.ClientError, TimeoutError) as error:
                return 0, repr(error).encode()

    def failures(self) -> str:
        """How many of `told` there are of each kind, in the order of their first."""
        return ", ".join(
            f"{count} × {status} {text.decode(errors='replace')!r}"
            for (status, text), count in Counter(self.wrong_answers).items()
        )

    async def at_once(self, count: int) -> None:
        """Make this many concurrent calls; all must be answered."""
        bodies = [b"%s%d" % (self._word.encode(), number) for number in range(count)]
        answers = await asyncio.gather(*map(self.once, bodies))
        assert list(answers) == [(200, body) for body in bodies]

    async def keep_asking(self) -> None:
        """All callers, each again as soon as it has its answer, until they are told to end."""
        await asyncio.gather(*(self._ask_on(number) for number in range(self._callers)))

    def end(self) -> None:
        """Ask no more."""
        self._ended = True

    async def more(self, count: int) -> None:
        """Return when so many more have been answered."""
        goal = self.answered + count
        await until(lambda: self.answered >= goal, f"{count} more answers", LIMIT_S)

    async def _ask_on(self, caller: int) -> None:
        number = 0
        while not self._ended:
            number += 1
            body = b"%s%d/%d" % (self._word.encode(), caller, number)
            answer = await self.once(body)
            if answer == (200, body):
                self.answered += 1
            else:
                self.lost[caller] += 1
                self.wrong_answers.append(answer)
                # Envoy notices one by one that connections of a killed gateway are closed: at once, it might use the next one.
                await asyncio.sleep(AGAIN_S)

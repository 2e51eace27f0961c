"""What gateways have learned of Revisions' batches, asked of each every few seconds.

    each ready gateway ▶ its page ▶ seconds of batches of 1, 2, … and their spread ▶ one curve for each Revision

How many gateways there are matters as much: each has a queue of its own for what the ingress sends to it, and a plan for the
arrivals of all would be one for none of them. One more counts at once, one less after a while: plans for fewer queues than there
are overload pods, plans for more are cautious, and while gateways are replaced one by one, or one is restarted, they stay. One
that does not answer for a while is taken to know what it said last; what it knew goes with it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from gnomon_core.addresses import http_url
from gnomon_core.clock import Clock
from gnomon_core.functions import FunctionKey
from gnomon_platforms.knative.resources import ACTIVATOR_METRICS_PORT
from gnomon_platforms.knative.scaling.asking import asked
from gnomon_platforms.knative.scaling.objects import RevisionPod
from gnomon_platforms.knative.scaling.signals.learned import MOST_BYTES, PAGE, Learned, learned, together

if TYPE_CHECKING:
    import aiohttp

PERIOD_S = 5.0
PATIENCE_S = 3.0
FEWER_AFTER_S = 60.0
"""As long as one that ends may answer what it has."""

_LOG = logging.getLogger("gnomon.knative")


class Gateways:
    """The ready ones of `pods`, and what they know. `start` needs a session."""

    def __init__(self, pods: Callable[[], Iterable[RevisionPod]], clock: Clock) -> None:
        self._pods, self._clock = pods, clock
        self._told: dict[str, dict[FunctionKey, Learned]] = {}
        """By gateway."""
        self._queues, self._fewer_since_s = 1, clock.now_s()
        self._task: asyncio.Task[None] | None = None

    @property
    def queues(self) -> int:
        """In how many queues a Revision's requests wait, or waited a moment ago: one, where no gateway is."""
        now_s, count = self._clock.now_s(), max(1, len(self._ready()))
        if count >= self._queues or now_s - self._fewer_since_s >= FEWER_AFTER_S:
            self._queues, self._fewer_since_s = count, now_s
        return self._queues

    def learned(self, key: FunctionKey) -> Learned | None:
        """How long a Revision's batches take; None where no gateway knows."""
        return together([told[key] for told in self._told.values() if key in told])

    def start(self, session: aiohttp.ClientSession) -> None:
        """Begin to ask."""
        self._task = asyncio.get_running_loop().create_task(self._run(session))

    async def stop(self) -> None:
        """Ask no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self, session: aiohttp.ClientSession) -> None:
        while True:
            try:
                await self._look(session)
            except Exception:  # noqa: BLE001 - whatever it is, the next look may do better
                _LOG.exception("what gateways have learned could not be taken in")
            await self._clock.sleep(PERIOD_S)

    async def _look(self, session: aiohttp.ClientSession) -> None:
        ready = self._ready()
        pages = await asyncio.gather(*(self._page(session, pod) for pod in ready))
        for pod, page in zip(ready, pages, strict=True):
            if page is not None:
                self._told[pod.name] = learned(page.decode("utf-8", "replace"))
        there = {pod.name for pod in self._pods()}
        self._told = {name: told for name, told in self._told.items() if name in there}

    @staticmethod
    async def _page(session: aiohttp.ClientSession, pod: RevisionPod) -> bytes | None:
        url = http_url(pod.ip, ACTIVATOR_METRICS_PORT, PAGE)
        return await asked(session, url, most_bytes=MOST_BYTES, patience_s=PATIENCE_S)

    def _ready(self) -> list[RevisionPod]:
        return [pod for pod in self._pods() if pod.ready and not pod.ending and pod.ip]

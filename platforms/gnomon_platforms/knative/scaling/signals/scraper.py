"""Asks pods every second and activators five or twenty times a second, and hands what they tell on.

A request to a Revision without pods waits at an activator, so the pause between two looks there is what it waits for longer:
0.025 s on average while any Revision has no pods, when activators are asked more often. A pod that does not answer in time is
taken to be as it was, for a moment; activators that have not answered for a while mean that nobody sees what waits, and `seeing`
says so.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from gnomon_core.clock import Clock
from gnomon_core.functions import FunctionKey
from gnomon_platforms.knative.scaling.objects import RevisionPod
from gnomon_platforms.knative.scaling.resources import ACTIVATOR_METRICS_PORT, AUTOSCALING_PORT
from gnomon_platforms.knative.scaling.signals.stat import PAGE as STATS
from gnomon_platforms.knative.scaling.signals.stat import PodStat, read_stat
from gnomon_platforms.knative.scaling.signals.waiting import PAGE as WAITING
from gnomon_platforms.knative.scaling.signals.waiting import waiting

if TYPE_CHECKING:
    import aiohttp

POD_PERIOD_S = 1.0
AWAKE_PERIOD_S, ASLEEP_PERIOD_S = 0.2, 0.05
"""Between two looks at activators: while every Revision has pods, and while one may have to be woken."""
POD_PATIENCE_S = 0.8
ACTIVATOR_PATIENCE_S = 3.0
BLIND_AFTER_S = 5.0
AS_IT_WAS_S = 3.0
AT_ONCE = 64
_OK = 200

_LOG = logging.getLogger("gnomon.knative")


class Scraper:
    """The two loops. `took_stats` is told every second what a Revision's pods say, `took_waiting` what waits at activators.

    `asleep` is whether some Revision has no pods.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        clock: Clock,
        *,
        pods: Callable[[], Mapping[FunctionKey, Iterable[RevisionPod]]],
        activators: Callable[[], Iterable[RevisionPod]],
        asleep: Callable[[], bool],
        took_stats: Callable[[FunctionKey, list[PodStat]], None],
        took_waiting: Callable[[Mapping[FunctionKey, float]], None],
    ) -> None:
        self._session, self._clock = session, clock
        self._pods, self._activators, self._asleep = pods, activators, asleep
        self._took_stats, self._took_waiting = took_stats, took_waiting
        self._places = asyncio.Semaphore(AT_ONCE)
        self._heard_s: dict[str, float] = {}
        self._blind = False
        self._last: dict[str, tuple[float, PodStat]] = {}
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin."""
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(self._every(lambda: POD_PERIOD_S, self._look_at_pods)),
            loop.create_task(self._every(self._activator_period_s, self._look_at_activators)),
        ]

    async def stop(self) -> None:
        """Ask no more."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def seeing(self) -> bool:
        """Whether every activator that is ready has told lately what waits at it, and there is one."""
        now_s = self._clock.now_s()
        ready = [one.name for one in self._activators() if one.ready]
        return bool(ready) and all(now_s - self._heard_s.get(name, float("-inf")) <= BLIND_AFTER_S for name in ready)

    def _activator_period_s(self) -> float:
        return ASLEEP_PERIOD_S if self._asleep() else AWAKE_PERIOD_S

    async def _every(self, pause_s: Callable[[], float], look: Callable[[], Awaitable[None]]) -> None:
        origin_s = self._clock.now_s()
        while True:
            try:
                await look()
            except Exception:  # noqa: BLE001 - whatever it is, the next look may do better
                _LOG.exception("a look at the load failed")
            period_s = pause_s()
            await self._clock.sleep(period_s - (self._clock.now_s() - origin_s) % period_s)

    async def _look_at_pods(self) -> None:
        asked = [(key, pod) for key, pods in self._pods().items() for pod in pods if pod.running and pod.ip]
        told = await asyncio.gather(*(self._stat(pod) for _, pod in asked))
        now_s, before, self._last = self._clock.now_s(), self._last, {}
        by_key: dict[FunctionKey, list[PodStat]] = {key: [] for key in self._pods()}
        for (key, pod), stat in zip(asked, told, strict=True):
            name = f"{pod.namespace}/{pod.name}"
            known = before.get(name) if stat is None else (now_s, stat)
            if known is not None and now_s - known[0] <= AS_IT_WAS_S:
                self._last[name] = known
                by_key.setdefault(key, []).append(known[1])
        for key, stats in by_key.items():
            self._took_stats(key, stats)

    async def _stat(self, pod: RevisionPod) -> PodStat | None:
        data = await self._get(pod.ip, AUTOSCALING_PORT, STATS, POD_PATIENCE_S)
        if data is None:
            return None
        try:
            return read_stat(data)
        except ValueError as error:
            _LOG.warning("%s/%s tells what cannot be read: %s", pod.namespace, pod.name, error)
            return None

    async def _look_at_activators(self) -> None:
        activators = [one for one in self._activators() if one.running and one.ip]
        pages = await asyncio.gather(
            *(self._get(one.ip, ACTIVATOR_METRICS_PORT, WAITING, ACTIVATOR_PATIENCE_S) for one in activators)
        )
        now_s = self._clock.now_s()
        total: dict[FunctionKey, float] = {}
        for activator, page in zip(activators, pages, strict=True):
            if page is None:
                continue
            self._heard_s[activator.name] = now_s
            for key, requests in waiting(page.decode("utf-8", "replace")).items():
                total[key] = total.get(key, 0.0) + requests
        self._say_blind()
        self._took_waiting(total)

    def _say_blind(self) -> None:
        blind = not self.seeing
        if blind and not self._blind:
            _LOG.warning(
                "activators do not tell what waits at them: nothing is scaled to zero until they do. Where that lasts, set "
                "metrics-protocol: prometheus in config-observability and restart the activator."
            )
        self._blind = blind

    async def _get(self, address: str, port: int, path: str, patience_s: float) -> bytes | None:
        import aiohttp  # noqa: PLC0415 - comes with the session

        host = f"[{address}]" if ":" in address else address
        limit = aiohttp.ClientTimeout(total=patience_s)
        with contextlib.suppress(aiohttp.ClientError, TimeoutError, OSError):
            async with self._places, self._session.get(f"http://{host}:{port}{path}", timeout=limit) as answer:
                if answer.status == _OK:
                    return await answer.read()
        return None

"""Asks pods every second and activators five or twenty times a second, and hands what they tell on.

Each Revision has a task of its own: its load is delivered as soon as its own pods have answered, whatever pods of others do. Of
many pods a random sample is asked each second, as large as Knative's own autoscaler takes it, and its mean stands for all: that
also bounds what one Revision can take up.

A request to a Revision without pods waits at an activator, so the pause between two looks there is what it waits for longer:
0.025 s on average while any Revision has no pods, when activators are asked more often. Each activator is asked by itself, and
what it tells is handed on at once, with what the others told last: one on a node that has died, which a connection is tried to
for three seconds, delays nobody. A ready pod that does not answer in time is taken to be as the Revision's others; pods none of
which answers, and an activator, as they were, for a moment. Activators that have not answered for a while mean that nobody sees
what waits, and `seeing` says so.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from gnomon_core.addresses import http_url
from gnomon_core.background import Background
from gnomon_core.clock import Clock
from gnomon_core.functions import FunctionKey
from gnomon_platforms.knative.resources import ACTIVATOR_METRICS_PORT, AUTOSCALING_PORT
from gnomon_platforms.knative.scaling.asking import asked
from gnomon_platforms.knative.scaling.objects import RevisionPod
from gnomon_platforms.knative.scaling.signals.stat import MOST_BYTES as MOST_STAT_BYTES
from gnomon_platforms.knative.scaling.signals.stat import PAGE as STATS
from gnomon_platforms.knative.scaling.signals.stat import PodStat, read_stat
from gnomon_platforms.knative.scaling.signals.waiting import MOST_BYTES as MOST_WAITING_BYTES
from gnomon_platforms.knative.scaling.signals.waiting import PAGE as WAITING
from gnomon_platforms.knative.scaling.signals.waiting import beside, waiting

if TYPE_CHECKING:
    import aiohttp

POD_PERIOD_S = 1.0
AWAKE_PERIOD_S, ASLEEP_PERIOD_S = 0.2, 0.05
"""Between two looks at activators: while every Revision has pods, and while one may have to be woken."""
POD_PATIENCE_S = 0.8
ACTIVATOR_PATIENCE_S = 3.0
BLIND_AFTER_S = 5.0
AS_IT_WAS_S = 3.0
ALL_UP_TO = 3
"""Of so few pods all are asked."""
UNBOUNDED_SAMPLE = 1.96**2 * 100.0 / 5.0**2
"""How many of infinitely many pods are asked: confidence 95 %, variance 100, margin of error 5."""

_LOG = logging.getLogger("gnomon.knative")


def sample_size(pods: int) -> int:
    """How many of a Revision's pods are asked: `populationMeanSampleSize` in Knative's pkg/autoscaler/metrics/sample_size.go."""
    return pods if pods <= ALL_UP_TO else math.ceil(pods * UNBOUNDED_SAMPLE / (pods + UNBOUNDED_SAMPLE - 1.0))


class Scraper:
    """`follow` begins to ask a Revision's pods, which `pods` lists, and `leave` ends it; activators are asked from `start` on.

    `took_stats` is told every second what all pods of a Revision have had, `took_waiting` what waits at all activators.
    `took_beside` is told how many requests more have come than pods have counted. `asleep` is whether some Revision has no pods.
    `gateways` are asked as activators are, and need not be there.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        clock: Clock,
        chance: random.Random,
        *,
        pods: Callable[[FunctionKey], Iterable[RevisionPod]],
        activators: Callable[[], Iterable[RevisionPod]],
        gateways: Callable[[], Iterable[RevisionPod]] = tuple,
        asleep: Callable[[], bool],
        took_stats: Callable[[FunctionKey, PodStat], None],
        took_waiting: Callable[[Mapping[FunctionKey, float]], None],
        took_beside: Callable[[Mapping[FunctionKey, float]], None] = lambda _: None,
    ) -> None:
        self._session, self._clock, self._chance = session, clock, chance
        self._pods, self._activators, self._gateways, self._asleep = pods, activators, gateways, asleep
        self._took_stats, self._took_waiting, self._took_beside = took_stats, took_waiting, took_beside
        self._following: dict[FunctionKey, asyncio.Task[None]] = {}
        self._last: dict[FunctionKey, tuple[float, PodStat]] = {}
        """What the pods of each Revision had, and when one of them told it."""
        self._told: dict[str, tuple[float, Mapping[FunctionKey, float]]] = {}
        """What each activator said last, and when."""
        self._counted: dict[str, Mapping[FunctionKey, float]] = {}
        """What each gateway had counted when it was heard last."""
        self._asking: dict[str, asyncio.Task[None]] = {}
        self._saw_s, self._blind = clock.now_s(), False
        self._tasks = Background()

    def start(self) -> None:
        """Begin to ask activators and gateways."""
        self._tasks.begin(self._every(self._activator_period_s, self._look_at_activators, self._clock.now_s()))

    def follow(self, key: FunctionKey) -> None:
        """Ask a Revision's pods from now on, at a moment of the second of its own: a thousand at once would be a burst."""
        begun_s = self._clock.now_s() - self._chance.random() * POD_PERIOD_S
        looking = self._every(lambda: POD_PERIOD_S, partial(self._look_at_pods, key), begun_s)
        self._following[key] = self._tasks.begin(looking)

    def leave(self, key: FunctionKey) -> None:
        """Ask them no more: the Revision has gone."""
        self._last.pop(key, None)
        self._following.pop(key).cancel()

    async def stop(self) -> None:
        """Ask no more."""
        await self._tasks.end()

    @property
    def seeing(self) -> bool:
        """Whether every activator and gateway that gets requests has told lately what waits in it, and there is an activator."""
        ready, gateways = ([one.name for one in listed() if one.ready and not one.ending] for listed in self._holders)
        return bool(ready) and all(self._heard(name, BLIND_AFTER_S) for name in (*ready, *gateways))

    @property
    def _holders(self) -> tuple[Callable[[], Iterable[RevisionPod]], Callable[[], Iterable[RevisionPod]]]:
        """Who holds requests that wait."""
        return self._activators, self._gateways

    def _heard(self, activator: str, within_s: float) -> bool:
        told = self._told.get(activator)
        return told is not None and self._clock.now_s() - told[0] <= within_s

    def _activator_period_s(self) -> float:
        return ASLEEP_PERIOD_S if self._asleep() else AWAKE_PERIOD_S

    async def _every(self, pause_s: Callable[[], float], look: Callable[[], Awaitable[None]], origin_s: float) -> None:
        while True:
            try:
                await look()
            except Exception:  # noqa: BLE001 - whatever it is, the next look may do better
                _LOG.exception("a look at the load failed")
            period_s = pause_s()
            await self._clock.sleep(period_s - (self._clock.now_s() - origin_s) % period_s)

    async def _look_at_pods(self, key: FunctionKey) -> None:
        """Ask a sample of a Revision's pods. Those that are not ready may hold requests still, or may not have begun."""
        running = [pod for pod in self._pods(key) if pod.running and pod.ip]
        ready, others = [pod for pod in running if pod.ready], [pod for pod in running if not pod.ready]
        of_ready, of_others = await asyncio.gather(self._sample(ready), self._sample(others))
        told = _of_all([one for one in of_ready if one is not None], len(ready))
        more = _of_all([one or PodStat() for one in of_others], len(others))
        now_s = self._clock.now_s()
        if told is not None or not ready:
            self._last[key] = now_s, told or PodStat()
        known_s, known = self._last.get(key, (-math.inf, PodStat()))
        stat = known if now_s - known_s <= AS_IT_WAS_S else PodStat()
        self._took_stats(key, stat if more is None else stat + more)

    async def _sample(self, pods: Sequence[RevisionPod]) -> list[PodStat | None]:
        """What some of them tell; None for one that does not."""
        return await asyncio.gather(*map(self._stat, self._chance.sample(pods, sample_size(len(pods)))))

    async def _stat(self, pod: RevisionPod) -> PodStat | None:
        url = http_url(pod.ip, AUTOSCALING_PORT, STATS)
        data = await asked(self._session, url, most_bytes=MOST_STAT_BYTES, patience_s=POD_PATIENCE_S)
        if data is None:
            return None
        try:
            return read_stat(data)
        except ValueError as error:
            _LOG.warning("%s/%s tells what cannot be read: %s", pod.namespace, pod.name, error)
            return None

    async def _look_at_activators(self) -> None:
        """Ask each that is not being asked still. One that is ending holds requests until it has ended, and is asked, too."""
        activators = {one.name: one for listed in self._holders for one in listed() if one.running and one.ip}
        gone = self._told.keys() - activators.keys()
        for name in gone:
            del self._told[name]
            self._counted.pop(name, None)
        if gone:
            self._hand_on()
        for name, one in activators.items():
            if name not in self._asking:
                task = self._asking[name] = self._tasks.begin(self._ask(one))
                task.add_done_callback(partial(self._has_asked, name))
        self._say_blind()

    async def _ask(self, activator: RevisionPod) -> None:
        """What waits at one activator; handed on also where it does not say: then what it said before may hold no more."""
        url = http_url(activator.ip, ACTIVATOR_METRICS_PORT, WAITING)
        page = await asked(self._session, url, most_bytes=MOST_WAITING_BYTES, patience_s=ACTIVATOR_PATIENCE_S)
        if page is not None:
            text = page.decode("utf-8", "replace")
            self._told[activator.name] = self._clock.now_s(), waiting(text)
            self._count(activator.name, beside(text))
        self._hand_on()

    def _count(self, name: str, counts: Mapping[FunctionKey, float]) -> None:
        """Hand on what a gateway has counted since it was heard last; what it had counted before that is nobody's news."""
        before, self._counted[name] = self._counted.get(name), counts
        if before is not None and counts:
            # One that counts from nothing again has been restarted.
            since = {
                key: count - before.get(key, 0.0) if count >= before.get(key, 0.0) else count for key, count in counts.items()
            }
            self._took_beside({key: count for key, count in since.items() if count})

    def _hand_on(self) -> None:
        total: dict[FunctionKey, float] = {}
        for name, (_, told) in self._told.items():
            if self._heard(name, AS_IT_WAS_S):
                for key, requests in told.items():
                    total[key] = total.get(key, 0.0) + requests
        self._took_waiting(total)

    def _has_asked(self, name: str, _: asyncio.Task[None]) -> None:
        del self._asking[name]

    def _say_blind(self) -> None:
        """Once it has lasted: an activator that is new, or has not been asked yet, is no trouble."""
        now_s = self._clock.now_s()
        if self.seeing:
            self._saw_s, self._blind = now_s, False
        elif not self._blind and now_s - self._saw_s > AS_IT_WAS_S:
            self._blind = True
            _LOG.warning(
                "activators do not tell what waits at them: nothing is scaled to zero until they do. Where that lasts, set "
                "metrics-protocol: prometheus in config-observability and restart the activator."
            )


def _of_all(told: Sequence[PodStat], pods: int) -> PodStat | None:
    """What so many pods have together, by some of them; None where none has told."""
    return sum(told, PodStat()) * (pods / len(told)) if told else None

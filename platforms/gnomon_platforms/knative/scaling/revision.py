"""One Revision: how many pods its policy wants, and the task that makes it so.

The autoscaler's loop speaks of instances that it creates and destroys. A Revision's Deployment has a number: as many as there are
instances. Which pod each of them is, and how large, `instances` knows.

Whatever happens, news from an informer, another number, a request that waits, only lets the Revision be looked at again:
`planning` says what to write, `steps` writes it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from gnomon_core.errors import GnomonError
from gnomon_core.scaling import Action, FunctionLoad
from gnomon_core.settings import Settings
from gnomon_platforms.knative.buffer_status import buffer_of
from gnomon_platforms.knative.scaling.configuration import ClusterSettings
from gnomon_platforms.knative.scaling.instances import RevisionInstances
from gnomon_platforms.knative.scaling.measured import Measured
from gnomon_platforms.knative.scaling.objects import NO_TEMPLATE, Document, LiveRevision, PaFacts, SksFacts, pa_facts
from gnomon_platforms.knative.scaling.planning import PROXY, Demand, Plan, Seen, plan
from gnomon_platforms.knative.scaling.probe import proxied
from gnomon_platforms.knative.scaling.rules import Rules, rules
from gnomon_platforms.knative.scaling.signals.load import RevisionLoad
from gnomon_platforms.knative.scaling.signals.stat import PodStat
from gnomon_platforms.knative.scaling.surroundings import Surroundings
from gnomon_platforms.kubernetes.rivals import REMIND_S
from gnomon_platforms.nodes.home import BodyPod

LOOK_AGAIN_S = 2.0
SOON_S = 0.5
PROBE_PERIOD_S = 0.25

_LOG = logging.getLogger("gnomon.knative")


class ScaledRevision:
    """One Revision of our class. `close` ends its task."""

    def __init__(self, pa: PaFacts, around: Surroundings) -> None:
        self.key = pa.key
        self.name = str(pa.key)
        self._around = around
        self.instances = RevisionInstances(pa.key, around)
        self._measured = Measured(self.instances.profile, around.clock, self._measured_anew)
        self._known: tuple[object, ...] | None = None
        self._rules = self._read(pa, around.live(pa.key), around.cluster())
        self._load = RevisionLoad(around.clock.now_s())
        self._floor, self._floor_until_s = 0, 0.0
        self._proxied: bool | None = None
        self._probing: asyncio.Task[None] | None = None
        self._last_want: int | None = None
        self._rival, self._say_rival_s = "", 0.0
        """The uid of who else counts its pods, once that was said, and when it is to be said again at the soonest."""
        self._told_alone = ""
        self._look = asyncio.Event()
        self._adopt(pa)
        self._task = asyncio.get_running_loop().create_task(self._run())

    def look(self) -> None:
        """Something has changed."""
        self._look.set()

    async def close(self) -> None:
        """Look no longer."""
        self._measured.close()
        tasks = [task for task in (self._task, self._probing) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # What the autoscaler's loop sees and decides

    def function_load(self) -> FunctionLoad | None:
        """Its load now; None where the PodAutoscaler has gone, or its model's profile is still to be read."""
        pa = self._around.pa(self.key)
        rules_ = None if pa is None else self._rules_of(pa)
        if rules_ is None or not self._measured.known:
            return None
        return self.instances.load(rules_, self._measured.profile, self._load.counters(self._around.clock.now_s()))

    async def apply(self, actions: Sequence[Action]) -> None:
        """Take what was decided; PartlyRefused where a Shadow was refused, all else has been taken then."""
        try:
            await self.instances.apply(actions, self._rules)
        finally:
            self.look()

    def body(self, body_id: str) -> BodyPod | None:
        """One of its Bodies, where it has a pod."""
        return self.instances.body(body_id, self._rules)

    def measured(self, all_pods: PodStat) -> None:
        """What its pods together have had in the last second."""
        now_s = self._around.clock.now_s()
        self._load.pods(now_s, all_pods)
        if self._load.busy(now_s, self._rules.window_s):
            # Whether activators are in the way depends on it.
            self.look()

    def waits(self, requests: float) -> None:
        """So many requests wait at activators: the first wakes it."""
        if self._load.waits(self._around.clock.now_s(), requests) and self.wanted == 0:
            self._around.brain.poke(self.name)

    def came_beside(self, requests: float) -> None:
        """So many requests more have come, in batches, than its pods tell of."""
        self._load.beside(requests)

    @property
    def wanted(self) -> int:
        """How many pods the policy wants."""
        return self.instances.wanted

    @property
    def ready(self) -> int:
        """How many of its pods are ready."""
        return self.instances.ready

    def _adopt(self, pa: PaFacts) -> None:
        """Begin with what there is. Until the window has been seen once, a load that is not known yet is taken to need it."""
        target = self._around.target(pa)
        active = pa.active.status
        count = 0 if active == "False" else max(self._rules.initial_scale, target.replicas if target is not None else 0)
        if pa.initialized:
            count = 0 if active == "False" else target.replicas if target is not None else 0
            self._floor, self._floor_until_s = count, self._around.clock.now_s() + self._rules.window_s
        self.instances.begin(count, buffer_of(pa.status))

    # The task

    async def _run(self) -> None:
        while True:
            self._look.clear()
            again_s: float | None = LOOK_AGAIN_S
            try:
                again_s = await self._once()
            except GnomonError as error:
                _LOG.warning("%s: %s", self.name, error)
            except Exception:  # noqa: BLE001 - a fault of ours in one plan must not leave the Revision to itself
                _LOG.exception("%s could not be looked after", self.name)
            with contextlib.suppress(TimeoutError):
                # Not wait_for: it forgets a cancellation that comes together with what it waits for.
                async with asyncio.timeout(again_s):
                    await self._look.wait()

    async def _once(self) -> float | None:
        """Plan and write; when to look again if nothing happens."""
        await self._mind_rival()
        found = self._plan()
        if found is None:
            return None
        seen, planned = found
        if planned.want != 0 or seen.sks is None or seen.sks.mode != PROXY:
            self._proxied = None
        if planned.probe:
            self._probe(seen.pa, seen.sks)
        current = await self._take(seen, planned)
        waits = self._floor_until_s - self._around.clock.now_s()
        refused_s = None if seen.rival else self.instances.asks_again_s
        asked = planned.again_s, waits if waits > 0.0 else None, refused_s, None if current else SOON_S
        times = [one for one in asked if one is not None]
        return max(0.05, min(times)) if times else None

    def _plan(self) -> tuple[Seen, Plan] | None:
        pa = self._around.pa(self.key)
        if pa is None or pa.ending:
            return None
        around, now_s = self._around, self._around.clock.now_s()
        rules_ = self._rules_of(pa)
        rival = around.rival(pa)
        last = next(iter(around.brain.decisions(self.name, 1)), None)
        wanted = max(self.wanted, self._floor if now_s < self._floor_until_s else 0)
        counters = self._load.counters(now_s)
        demand = Demand(
            wanted,
            holds=counters.queued + counters.executing > 0,
            busy=self._load.busy(now_s, rules_.window_s),
            panic_load=self._load.recent(now_s, rules_.panic_s, by_rps=rules_.by_rps),
            policy=last.policy if last is not None else "",
            reason=last.reason if last is not None else "",
            shadows=self.instances.shadows(rules_.settings),
            buffer=self.instances.buffer(rules_.settings),
        )
        seen = Seen(
            pa,
            around.sks(self.key),
            around.target(pa),
            self.ready,
            rules_,
            demand,
            proxied=self._proxied,
            wakeable=around.wakeable(),
            now_s=around.wall_s(),
            rival=rival.says if rival is not None else "",
        )
        return seen, plan(seen)

    async def _mind_rival(self) -> None:
        """Say now and then that somebody else counts its pods; when nobody does any more, go on with those that there are."""
        pa = self._around.pa(self.key)
        if pa is None:
            return
        found, target, now_s = self._around.rival(pa), self._around.target(pa), self._around.clock.now_s()
        if found is None and self._rival:
            self._rival = ""
            self._adopt(pa)
        elif found is not None and target is not None and (found.uid != self._rival or now_s >= self._say_rival_s):
            self._rival, self._say_rival_s = found.uid, now_s + REMIND_S / 2
            _LOG.warning("%s: %s", self.name, found.says)
            await self._around.steps.say(target, found)

    def _rules_of(self, pa: PaFacts) -> Rules:
        """Read again only when one of what they follow from has changed."""
        self._measured.look()
        live, cluster = self._around.live(self.key), self._around.cluster()
        now = pa, live, cluster, self._measured.known, self._measured.profile
        if self._known is None or any(new is not old for new, old in zip(now, self._known, strict=True)):
            self._known = now
            self._rules = self._read(pa, live, cluster)
        return self._rules

    def _measured_anew(self) -> None:
        """Its model has another profile."""
        self.look()
        self._around.brain.poke(self.name)

    def _read(self, pa: PaFacts, live: LiveRevision | None, cluster: ClusterSettings) -> Rules:
        def check(settings: Settings) -> None:
            self._measured.follow(settings)
            self._around.brain.check(settings)
            if self._measured.known:
                self._around.brain.check_profile(settings, self._measured.profile)

        own, template = (None, NO_TEMPLATE) if live is None else (live.annotations, live.template)
        return rules(pa, cluster, own, check, template)

    async def _take(self, seen: Seen, planned: Plan) -> bool:
        """Write a plan; whether all of it was still of what there is."""
        pa, steps = seen.pa, self._around.steps
        writes: list[Any] = [] if seen.rival else [self.instances.resize(seen.rules)]
        if planned.replicas is not None and seen.target is not None:
            self._say(seen, planned)
            writes.append(steps.scale(pa, seen.target, planned.replicas))
        if planned.route is not None:
            writes.append(steps.route(pa, planned.route))
        if planned.status != pa.status:
            writes.append(steps.tell(pa, lambda document: self._status(seen, document)))
        alone = seen.demand.shadows
        if alone is not None and seen.target is not None and alone.status == "False" and alone.reason != self._told_alone:
            self._told_alone = alone.reason
            writes.append(steps.alone(pa, seen.target, alone))
        done = await asyncio.gather(*writes, return_exceptions=True)
        for one in done:
            if isinstance(one, BaseException):
                raise one
        return False not in done

    @staticmethod
    def _status(seen: Seen, document: Document) -> Mapping[str, Any] | None:
        """The status by the PodAutoscaler as it is now."""
        return plan(replace(seen, pa=pa_facts(document))).status

    def _say(self, seen: Seen, planned: Plan) -> None:
        if planned.replicas != self._last_want and seen.target is not None:
            reason = seen.demand.reason or "as Knative's annotations say"
            _LOG.info("%s: %d to %d pods: %s", self.name, seen.target.replicas, planned.replicas, reason)
        self._last_want = planned.replicas

    def _probe(self, pa: PaFacts, sks: SksFacts | None) -> None:
        """Ask at the public Service until an activator answers, or nobody wants to know any more."""
        if sks is None or not sks.service or (self._probing is not None and not self._probing.done()):
            return

        async def ask() -> None:
            around = self._around
            while True:
                address = await around.steps.address(pa.key.namespace, sks.service)
                if address is not None and await proxied(address, pa.protocol):
                    self._proxied = True
                    self.look()
                    return
                await around.clock.sleep(PROBE_PERIOD_S)
                found = self._plan()
                if found is None or not found[1].probe:
                    return

        self._probing = asyncio.get_running_loop().create_task(ask())
        self._probing.add_done_callback(self._probed)

    def _probed(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            _LOG.warning("%s: its Service could not be asked: %s", self.name, task.exception())
            asyncio.get_running_loop().call_later(LOOK_AGAIN_S, self.look)

"""The controller of the autoscaler class `gnomon`: scales every Revision whose PodAutoscaler has this class by its policy.

    informers' events ─▶ the reconciler of each Revision (`revision`), created and closed with its PodAutoscaler
    scraped metrics ───▶ the same: load, waiting requests
    the policy loop ───▶ `load` and `apply`

`KnativeAutoscaler` is a `ScaledFleet`, so the same loop with the same policies scales Revisions and functions on one machine.
`RevisionBodies` finds the Bodies of all Revisions by name and by pod.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gnomon_core.background import Background
from gnomon_core.clock import Clock, WallClock, utc_now_s
from gnomon_core.functions import FunctionKey, parse_key
from gnomon_core.pairs import Pair
from gnomon_core.scaling import Action, FunctionLoad
from gnomon_platforms.common import open_session
from gnomon_platforms.knative.autoscaler.cluster import CONFIGS, AutoscalerOptions, KnativeCluster, PolicyLoop
from gnomon_platforms.knative.autoscaler.metrics import PodStat, Scraper
from gnomon_platforms.knative.autoscaler.objects import PaFacts, RevisionPod, ScaleTarget
from gnomon_platforms.knative.autoscaler.public_endpoints import OwnSlice
from gnomon_platforms.knative.autoscaler.revision import ScaledRevision
from gnomon_platforms.kubernetes.client import Api, Fence
from gnomon_platforms.kubernetes.informer import Change
from gnomon_platforms.kubernetes.objects.placing import Placing
from gnomon_platforms.kubernetes.resources import resizes_pods
from gnomon_platforms.nodes.node_shadow import BodyPod

if TYPE_CHECKING:
    import aiohttp


class KnativeAutoscaler:
    """The `ScaledFleet` of our class's Revisions. `fence` is called before each write; `wall_s` gives seconds since 1970."""

    def __init__(
        self,
        api: Api,
        options: AutoscalerOptions | None = None,
        *,
        fence: Fence | None = None,
        clock: Clock | None = None,
        rng: random.Random | None = None,
        wall_s: Callable[[], float] = utc_now_s,
        epoch: Callable[[], int] = lambda: 0,
    ) -> None:
        self._options = options or AutoscalerOptions()
        self._cluster = KnativeCluster(
            api,
            self._options,
            clock or WallClock(),
            rng or random.SystemRandom(),
            conflicts_changed=self._deployment_changed,
            wall_s=wall_s,
            epoch=epoch,
            fence=fence,
        )
        self._scaled: dict[FunctionKey, ScaledRevision] = {}
        self._of_deployment: dict[FunctionKey, FunctionKey] = {}
        """The Revision of each Deployment."""
        self._waiting: set[FunctionKey] = set()
        """Revisions with waiting requests at the last scrape."""
        self._closing = Background()
        self._policies: PolicyLoop | None = None
        self._session: aiohttp.ClientSession | None = None

    async def start(self, policies: PolicyLoop) -> None:
        """Start the informers, the scrapers and the reconciliation of Revisions.

        Raises:
            GnomonError: 503 `kubernetes_…`, with a hint.

        """
        cluster = self._cluster
        await asyncio.gather(*(informer.start() for informer in cluster.informers), cluster.conflicts.start())
        cluster.resizes = await asyncio.to_thread(resizes_pods, cluster.api)
        self._policies, self._session = policies, open_session()
        cluster.scraper = Scraper(
            self._session,
            cluster.clock,
            cluster.rng,
            pods=cluster.pods_to_scrape,
            activators=cluster.activators.values,
            gateways=cluster.gateway_pods.values,
            asleep=lambda: any(scaled.wanted == 0 for scaled in self._scaled.values()),
            on_stats=self._pods_measured,
            on_waiting=self._requests_wait,
            on_uncounted=self._requests_in_batches,
        )
        if cluster.shadows is not None:
            await cluster.shadows.start(RevisionBodies(self._scaled, policies.poke), policies.poke, self._session)
        cluster.configs.listen(self._config_changed)
        cluster.pod_autoscalers.listen(self._pod_autoscaler_changed)
        cluster.services.listen(self._same_name_changed)
        cluster.revisions.listen(self._same_name_changed)
        cluster.all_pods.listen(self._pod_changed)
        cluster.deployments.listen(self._target_changed)
        cluster.public.knative.listen(self._same_name_changed)
        cluster.public.own.listen(self._slice_changed)
        cluster.gateway_pods.listen(self._gateway_changed)
        cluster.scraper.start()
        cluster.gateways.start(self._session)

    async def stop(self) -> None:
        """Stop. Revisions stay as they are."""
        cluster = self._cluster
        if cluster.scraper is not None:
            await cluster.scraper.stop()
        await cluster.gateways.stop()
        await asyncio.gather(*(scaled.close() for scaled in self._scaled.values()), self._closing.settled())
        await cluster.background.settled()
        if cluster.shadows is not None:
            await cluster.shadows.stop()
        self._scaled.clear()
        await asyncio.gather(*(informer.stop() for informer in cluster.informers), cluster.conflicts.stop())
        if self._session is not None:
            await self._session.close()
        cluster.writer.close()

    # The fleet that the autoscaler's loop observes

    def functions(self) -> Sequence[str]:
        return [scaled.name for scaled in self._scaled.values()]

    def load(self, function: str) -> FunctionLoad | None:
        found = self._scaled.get(parse_key(function))
        return None if found is None else found.function_load()

    async def apply(self, function: str, actions: Sequence[Action]) -> None:
        """Apply a policy's decision to a Revision; pods are created and removed in the background.

        Raises:
            GnomonError: 409 `foreign_autoscaler`; 503 `no_capacity` and the like, after all other actions were applied.

        """
        key = parse_key(function)
        revision, pa = self._scaled.get(key), self._cluster.pa(key)
        if pa is not None and (refusal := self._cluster.conflicts.scaling_conflict(pa.deployment)) is not None:
            raise refusal
        if revision is not None:
            await revision.apply(actions)

    # For the page of the class, and for metrics

    def pod_of(self, function: str, body_id: str) -> str | None:
        """The name of a Body's pod; None while it has none."""
        found = self._scaled.get(parse_key(function))
        return None if found is None else found.instances.pod_name(body_id)

    def revisions(self) -> Sequence[ScaledRevision]:
        """All Revisions of the class."""
        return tuple(self._scaled.values())

    @property
    def resizes(self) -> bool:
        """True if the cluster can resize pods in place."""
        return self._cluster.resizes

    @property
    def observing(self) -> bool:
        """True if activators report their waiting requests."""
        return self._cluster.activators_seen

    @property
    def trouble(self) -> str:
        """The reason why the informers' caches are stale; empty while they are current."""
        return "" if self._policies is None else self._cluster.trouble

    # Informers' events

    def _pod_autoscaler_changed(self, change: Change[PaFacts]) -> None:
        assert self._policies is not None
        assert self._cluster.scraper is not None
        key, pa = _key(change), change.new
        ours = pa is not None and pa.class_name == self._options.class_name
        if not ours or (pa is not None and change.old is not None and change.old.uid != pa.uid):
            forgotten = self._forget(key)
            if forgotten and pa is not None and not ours and not pa.ending:
                self._closing.begin(self._cluster.public.release(pa))
        if pa is None or not ours or pa.ending:
            return
        revision = self._scaled.get(key)
        if revision is not None:
            revision.trigger()
            return
        self._of_deployment[pa.deployment] = key
        self._scaled[key] = ScaledRevision(pa, self._cluster, self._policies)
        self._scaled[key].start()
        self._cluster.scraper.follow(key)

    def _forget(self, key: FunctionKey) -> bool:
        """Stop scaling a Revision. Returns whether it was scaled."""
        assert self._policies is not None
        assert self._cluster.scraper is not None
        revision = self._scaled.pop(key, None)
        if revision is None:
            return False
        self._of_deployment = {target: of for target, of in self._of_deployment.items() if of != key}
        self._cluster.scraper.leave(key)
        self._policies.removed(revision.name)
        revision.instances.leave()
        self._closing.begin(revision.close())
        return True

    def _same_name_changed(self, change: Change[Any]) -> None:
        """Handle a change of an object that has its Revision's name."""
        self._trigger(_key(change))

    def _pod_changed(self, change: Change[RevisionPod]) -> None:
        pod = change.new or change.old
        if pod is not None:
            self._trigger(FunctionKey(pod.revision, pod.namespace))

    def _slice_changed(self, change: Change[OwnSlice]) -> None:
        found = change.new or change.old
        if found is not None:
            self._trigger(FunctionKey(found.service, change.name[0]))

    def _gateway_changed(self, _: Change[RevisionPod]) -> None:
        """Handle a change of a gateway's pod: the public endpoints of Revisions that batch may change."""
        for scaled in self._scaled.values():
            if scaled.batches:
                scaled.trigger()

    def _target_changed(self, change: Change[ScaleTarget]) -> None:
        self._deployment_changed(_key(change))

    def _deployment_changed(self, deployment: FunctionKey) -> None:
        """Handle a change of a Deployment, or of another autoscaler that targets it."""
        key = self._of_deployment.get(deployment)
        if key is not None:
            self._trigger(key)

    def _config_changed(self, change: Change[Mapping[str, str]]) -> None:
        if change.name[1] in CONFIGS:
            self._cluster.read_settings()
            for scaled in self._scaled.values():
                scaled.trigger()

    def _trigger(self, key: FunctionKey) -> None:
        found = self._scaled.get(key)
        if found is not None:
            found.trigger()

    # Scraped metrics

    def _pods_measured(self, key: FunctionKey, all_pods: PodStat) -> None:
        """Take the last second's statistics of all pods of a Revision."""
        found = self._scaled.get(key)
        if found is not None:
            found.pods_measured(all_pods)

    def _requests_wait(self, waiting: Mapping[FunctionKey, float]) -> None:
        """Take the number of requests that wait at activators and gateways, by Revision; zero for all others."""
        for key in waiting.keys() | self._waiting:
            found = self._scaled.get(key)
            if found is not None:
                found.requests_wait(waiting.get(key, 0.0))
        self._waiting = set(waiting)

    def _requests_in_batches(self, arrivals: Mapping[FunctionKey, float]) -> None:
        """Take the number of new requests that were sent in batches and that pods have not counted, by Revision."""
        for key, requests in arrivals.items():
            revision = self._scaled.get(key)
            if revision is not None:
                revision.requests_in_batches(requests)


def _key(change: Change[Any]) -> FunctionKey:
    return FunctionKey(change.name[1], change.name[0])


class RevisionBodies:
    """The `node_shadow.Bodies` of all Revisions. `poke` is called with the Revision whose Body's Shadows have changed."""

    def __init__(self, scaled: Mapping[FunctionKey, ScaledRevision], poke: Callable[[str], None]) -> None:
        self._scaled, self._poke = scaled, poke

    def of_instance(self, body_id: str) -> BodyPod | None:
        found = self._owner(body_id)
        return None if found is None else found.body(body_id)

    def of_pod(self, uid: str) -> BodyPod | None:
        names = (scaled.instances.of_pod(uid) for scaled in self._scaled.values())
        return self.of_instance(next(filter(None, names), ""))

    def placing(self, body: BodyPod) -> Placing:
        found = self._owner(body.instance.id)
        return Placing() if found is None else found.instances.placing

    def set_pairs(self, body_id: str, shadows: Mapping[str, Pair]) -> None:
        found = self._owner(body_id)
        if found is not None:
            found.instances.works_with(body_id, shadows)
            self._poke(found.name)

    def _owner(self, body_id: str) -> ScaledRevision | None:
        """The Revision of a Body, by the Body's name, which begins with the Revision's."""
        function = body_id.rpartition("-")[0]
        return self._scaled.get(parse_key(function)) if function else None

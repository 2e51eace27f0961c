"""The controller of the autoscaler class `gnomon`: scales every Revision whose PodAutoscaler has this class by its policy.

`KnativeAutoscaler` is a `ScaledFleet`, so the same loop with the same policies scales Revisions and functions on one machine.
`Hearing` passes scraped metrics to their Revisions. `RevisionBodies` finds the Bodies of all Revisions by name and by pod.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gnomon_core.background import Background
from gnomon_core.clock import Clock, WallClock, utc_now_s
from gnomon_core.functions import FunctionKey, parse_key
from gnomon_core.pairs import Pair
from gnomon_core.scaling import Action, FunctionLoad
from gnomon_platforms.common import open_session
from gnomon_platforms.knative.autoscaler.configuration import ClusterSettings, cluster_settings, config_data
from gnomon_platforms.knative.autoscaler.metrics import Gateways, PodStat, Scraper
from gnomon_platforms.knative.autoscaler.objects import (
    LiveRevision,
    PaFacts,
    RevisionPod,
    ScaleTarget,
    SksFacts,
    live_revision,
    pa_facts,
    revision_pod,
    scale_target,
    sks_facts,
)
from gnomon_platforms.knative.autoscaler.public_endpoints import PublicEndpoints
from gnomon_platforms.knative.autoscaler.revision import Brain, ScaledRevision, Surroundings
from gnomon_platforms.knative.autoscaler.shadows import ModelOptions, RevisionShadows
from gnomon_platforms.knative.autoscaler.steps import Steps
from gnomon_platforms.knative.resources import (
    ACTIVATOR_LABELS,
    CLASS,
    GATEWAY_LABELS,
    POD_AUTOSCALERS,
    REVISION_LABEL,
    REVISIONS,
    SERVERLESS_SERVICES,
    SYSTEM_NAMESPACE,
)
from gnomon_platforms.kubernetes.client import Api, Fence
from gnomon_platforms.kubernetes.conflicting_autoscalers import Rivals
from gnomon_platforms.kubernetes.informer import Change, Informer, Source
from gnomon_platforms.kubernetes.objects.placing import Placing
from gnomon_platforms.kubernetes.resources import CONFIG_MAPS, DEPLOYMENTS, PODS, resizes_pods
from gnomon_platforms.kubernetes.writes import Writer
from gnomon_platforms.nodes.node_shadow import BodyPod

if TYPE_CHECKING:
    import aiohttp


class Hearing:
    """Passes scraped metrics to Revisions. `scaled` is the live mapping of the class's Revisions."""

    def __init__(self, scaled: Mapping[FunctionKey, ScaledRevision]) -> None:
        self._scaled = scaled
        self._waited: set[FunctionKey] = set()
        """Revisions with waiting requests at the last scrape."""

    def took_stats(self, key: FunctionKey, all_pods: PodStat) -> None:
        """Take the last second's statistics of all pods of a Revision."""
        found = self._scaled.get(key)
        if found is not None:
            found.measured(all_pods)

    def took_waiting(self, waiting: Mapping[FunctionKey, float]) -> None:
        """Take the number of requests that wait at activators and gateways, by Revision; zero for all others."""
        for key in waiting.keys() | self._waited:
            found = self._scaled.get(key)
            if found is not None:
                found.waits(waiting.get(key, 0.0))
        self._waited = set(waiting)

    def took_beside(self, came: Mapping[FunctionKey, float]) -> None:
        """Take the number of new requests that went out in batches and that pods have not counted, by Revision."""
        for key, requests in came.items():
            found = self._scaled.get(key)
            if found is not None:
                found.came_beside(requests)


class RevisionBodies:
    """See `gnomon_platforms.nodes.node_shadow.Bodies`. `poke` is called with the Revision whose Body's Shadows have changed."""

    def __init__(self, scaled: Mapping[FunctionKey, ScaledRevision], poke: Callable[[str], None]) -> None:
        self._scaled, self._poke = scaled, poke

    def of_instance(self, body_id: str) -> BodyPod | None:
        found = self._owner(body_id)
        return None if found is None else found.body(body_id)

    def of_pod(self, uid: str) -> BodyPod | None:
        names = (one.instances.of_pod(uid) for one in self._scaled.values())
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


SILENT_S = 90.0
"""The silence of a watch that counts as a failure; a healthy watch is renewed twice a minute."""
CONFIGS = ("config-autoscaler", "config-deployment", "config-features")


@dataclass(frozen=True, slots=True)
class AutoscalerOptions:
    """The operator's options. `namespace` None means every namespace; without `models` policies have no profiles."""

    namespace: str | None = None
    class_name: str = CLASS
    system_namespace: str = SYSTEM_NAMESPACE
    models: ModelOptions | None = None


class KnativeAutoscaler:
    """See `gnomon_core.scaling.ScaledFleet`. `fence` is called right before each write; `wall_s` are seconds since 1970."""

    def __init__(
        self,
        api: Api,
        options: AutoscalerOptions | None = None,
        *,
        fence: Fence | None = None,
        clock: Clock | None = None,
        chance: random.Random | None = None,
        wall_s: Callable[[], float] = utc_now_s,
        epoch: Callable[[], int] = lambda: 0,
    ) -> None:
        self._options = options or AutoscalerOptions()
        self._clock, self._wall_s = clock or WallClock(), wall_s
        self._chance = chance or random.SystemRandom()
        self._writer = Writer(api, self._clock, self._chance, fence)
        everywhere = self._options.namespace
        system = self._options.system_namespace
        self._pas: Informer[PaFacts] = Informer(api, Source(POD_AUTOSCALERS, everywhere), pa_facts)
        self._services: Informer[SksFacts] = Informer(api, Source(SERVERLESS_SERVICES, everywhere), sks_facts)
        self._targets: Informer[ScaleTarget] = Informer(api, Source(DEPLOYMENTS, everywhere, labels=REVISION_LABEL), scale_target)
        self._pods: Informer[RevisionPod] = Informer(
            api, Source(PODS, everywhere, labels=REVISION_LABEL), revision_pod, index=(REVISION_LABEL,)
        )
        self._revisions: Informer[LiveRevision] = Informer(api, Source(REVISIONS, everywhere), live_revision)
        self._configs: Informer[Mapping[str, str]] = Informer(api, Source(CONFIG_MAPS, system), config_data)
        self._activators: Informer[RevisionPod] = Informer(api, Source(PODS, system, labels=ACTIVATOR_LABELS), revision_pod)
        self._gateways: Informer[RevisionPod] = Informer(api, Source(PODS, system, labels=GATEWAY_LABELS), revision_pod)
        self._public = PublicEndpoints(api, self._writer, everywhere, self._gateways, self._clock)
        self._known_by_gateways = Gateways(self._gateways.values, self._clock)
        self._rivals = Rivals(api, everywhere, self._rivals_changed, self._clock)
        models = self._options.models
        self._shadows = None if models is None else RevisionShadows(api, self._writer, models, self._clock, epoch)
        self._api, self.resizes = api, True
        self._cluster = ClusterSettings()
        self._scaled: dict[FunctionKey, ScaledRevision] = {}
        self._of_target: dict[tuple[str, str], FunctionKey] = {}
        self._closing = Background()
        self._around: Surroundings | None = None
        self._scraper: Scraper | None = None
        self._session: aiohttp.ClientSession | None = None

    async def start(self, brain: Brain) -> None:
        """Start the informers, the scrapers and the reconciliation of Revisions.

        Raises:
            GnomonError: 503 `kubernetes_…`, with a hint.

        """
        await asyncio.gather(*(informer.start() for informer in self._informers()), self._rivals.start())
        self.resizes = await asyncio.to_thread(resizes_pods, self._api)
        self._session = open_session()
        heard = Hearing(self._scaled)
        self._scraper = Scraper(
            self._session,
            self._clock,
            self._chance,
            pods=self._pods_to_ask,
            activators=self._activators.values,
            gateways=self._gateways.values,
            asleep=lambda: any(one.wanted == 0 for one in self._scaled.values()),
            took_stats=heard.took_stats,
            took_waiting=heard.took_waiting,
            took_beside=heard.took_beside,
        )
        self._around = Surroundings(
            pa=lambda key: self._pas.get(key.namespace, key.name),
            sks=lambda key: self._services.get(key.namespace, key.name),
            target=lambda pa: self._targets.get(pa.key.namespace, pa.deployment.name),
            pods=self._pods_of,
            live=lambda key: self._revisions.get(key.namespace, key.name),
            cluster=lambda: self._cluster,
            rival=lambda pa: self._rivals.of(pa.deployment),
            wakeable=lambda: self.seeing,
            resizes=self.resizes,
            shadows=self._shadows,
            gateways=self._known_by_gateways,
            public=self._public,
            brain=brain,
            steps=Steps(self._writer),
            clock=self._clock,
            wall_s=self._wall_s,
        )
        if self._shadows is not None:
            await self._shadows.start(RevisionBodies(self._scaled, brain.poke), brain.poke, self._session)
        self._configs.listen(self._config_changed)
        self._pas.listen(self._pa_changed)
        self._services.listen(self._named_changed)
        self._revisions.listen(self._named_changed)
        self._pods.listen(self._pod_changed)
        self._targets.listen(self._target_changed)
        self._public.knative.listen(self._named_changed)
        self._gateways.listen(self._gateway_changed)
        self._scraper.start()
        self._known_by_gateways.start(self._session)

    async def stop(self) -> None:
        """Stop. Revisions stay as they are."""
        if self._scraper is not None:
            await self._scraper.stop()
        await self._known_by_gateways.stop()
        await asyncio.gather(*(one.close() for one in self._scaled.values()), self._closing.settled())
        if self._shadows is not None:
            await self._shadows.stop()
        self._scaled.clear()
        await asyncio.gather(*(informer.stop() for informer in self._informers()), self._rivals.stop())
        if self._session is not None:
            await self._session.close()
        self._writer.close()

    # The fleet that the autoscaler's loop observes

    def functions(self) -> Sequence[str]:
        return [one.name for one in self._scaled.values()]

    def load(self, function: str) -> FunctionLoad | None:
        found = self._scaled.get(parse_key(function))
        return None if found is None else found.function_load()

    async def apply(self, function: str, actions: Sequence[Action]) -> None:
        """Apply a policy's decision to a Revision; pods are created and removed in the background.

        Raises:
            GnomonError: 409 `foreign_autoscaler`; 503 `no_capacity` and the like, after all other actions were applied.

        """
        key = parse_key(function)
        found, pa = self._scaled.get(key), self._pas.get(key.namespace, key.name)
        if pa is not None and (refusal := self._rivals.hindrance(pa.deployment)) is not None:
            raise refusal
        if found is not None:
            await found.apply(actions)

    # What there is to tell of it

    def pod_of(self, function: str, body_id: str) -> str | None:
        """The name of a Body's pod; None while it has none."""
        found = self._scaled.get(parse_key(function))
        return None if found is None else found.instances.pod_name(body_id)

    def revisions(self) -> Sequence[ScaledRevision]:
        """All Revisions of the class."""
        return tuple(self._scaled.values())

    @property
    def seeing(self) -> bool:
        """Whether activators report their waiting requests."""
        return self._scraper is not None and self._scraper.seeing

    @property
    def trouble(self) -> str:
        """Why the informers' state is stale; empty while it is not."""
        if self._around is None:
            return ""
        lost = [one for one in self._informers() if one.silent_s > SILENT_S]
        return f"nothing was heard of the API server for {max(one.silent_s for one in lost):.0f} s" if lost else ""

    # What informers and pods tell

    def _informers(self) -> tuple[Informer[Any], ...]:
        revisions = self._pas, self._services, self._targets, self._pods, self._revisions
        nodes = () if self._shadows is None else self._shadows.informers
        services = self._public.knative, self._public.own
        return *revisions, *services, self._configs, self._activators, self._gateways, *nodes

    def _pods_of(self, key: FunctionKey) -> Iterable[RevisionPod]:
        return (pod for pod in self._pods.labelled(REVISION_LABEL, key.name) if pod.namespace == key.namespace)

    def _pods_to_ask(self, key: FunctionKey) -> Iterable[RevisionPod]:
        return (pod for pod in self._pods_of(key) if not pod.ending)

    def _pa_changed(self, change: Change[PaFacts]) -> None:
        assert self._around is not None
        assert self._scraper is not None
        namespace, name = change.name
        key = FunctionKey(name, namespace)
        pa = change.new
        if pa is None or pa.class_name != self._options.class_name or (change.old is not None and change.old.uid != pa.uid):
            forgotten = self._forget(key)
            if forgotten and pa is not None and pa.class_name != self._options.class_name and not pa.ending:
                self._closing.begin(self._public.release(pa))
        if pa is None or pa.class_name != self._options.class_name or pa.ending:
            return
        if key not in self._scaled:
            self._of_target[namespace, str(pa.target.get("name"))] = key
            self._scaled[key] = ScaledRevision(pa, self._around)
            self._scraper.follow(key)
        self._scaled[key].look()

    def _forget(self, key: FunctionKey) -> bool:
        """Stop scaling a Revision; whether it was scaled."""
        assert self._around is not None
        assert self._scraper is not None
        found = self._scaled.pop(key, None)
        if found is None:
            return False
        self._of_target = {target: of for target, of in self._of_target.items() if of != key}
        self._scraper.leave(key)
        self._around.brain.removed(found.name)
        found.instances.leave()
        self._closing.begin(found.close())
        return True

    def _named_changed(self, change: Change[Any]) -> None:
        self._look(FunctionKey(change.name[1], change.name[0]))

    def _pod_changed(self, change: Change[RevisionPod]) -> None:
        pod = change.new or change.old
        if pod is not None:
            self._look(FunctionKey(pod.revision, pod.namespace))

    def _gateway_changed(self, change: Change[RevisionPod]) -> None:
        """Handle a change of a gateway's pod: the public endpoints of Revisions that batch may change."""
        del change
        for one in self._scaled.values():
            if one.batches:
                one.look()

    def _target_changed(self, change: Change[ScaleTarget]) -> None:
        self._rivals_changed(FunctionKey(change.name[1], change.name[0]))

    def _rivals_changed(self, deployment: FunctionKey) -> None:
        key = self._of_target.get((deployment.namespace, deployment.name))
        if key is not None:
            self._look(key)

    def _look(self, key: FunctionKey) -> None:
        found = self._scaled.get(key)
        if found is not None:
            found.look()

    def _config_changed(self, change: Change[Mapping[str, str]]) -> None:
        if change.name[1] in CONFIGS:
            system = self._options.system_namespace
            self._cluster = cluster_settings(*(self._configs.get(system, name) or {} for name in CONFIGS))
            for one in self._scaled.values():
                one.look()

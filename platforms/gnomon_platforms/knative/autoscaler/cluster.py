"""The cluster as the autoscaler class sees it: informers, looked up by Revision, and the writer.

    PodAutoscaler   which Revisions have our class, and by which annotations they are scaled
    ServerlessService   whether requests go to pods or to activators first; we create it, Knative's controller acts on it
    Deployment      the number of pods; its pods, by the label of the Revision
    Revision        Gnomon's annotations, which can be changed while it serves; its template
    ConfigMaps      the defaults of all Revisions
    pods of activators and gateways   who holds requests

A Revision, its PodAutoscaler and its ServerlessService have one name, the `FunctionKey`. A Deployment's name is in the
PodAutoscaler. All reads are of caches, which may be slightly stale; writes therefore carry the version that they were decided
from.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from gnomon_core.background import Background
from gnomon_core.clock import Clock
from gnomon_core.functions import FunctionKey
from gnomon_core.profiles import ModelProfile
from gnomon_core.scaling import DecisionRecord
from gnomon_core.settings import Settings
from gnomon_platforms.knative.autoscaler.metrics import Gateways, Scraper
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
from gnomon_platforms.knative.autoscaler.rules import ClusterSettings, cluster_settings, config_data
from gnomon_platforms.knative.autoscaler.shadows import ModelOptions, RevisionShadows
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
from gnomon_platforms.kubernetes.conflicting_autoscalers import ConflictingAutoscaler, ConflictingAutoscalers
from gnomon_platforms.kubernetes.events import EventRecorder
from gnomon_platforms.kubernetes.informer import Informer, Source
from gnomon_platforms.kubernetes.resources import CONFIG_MAPS, DEPLOYMENTS, PODS
from gnomon_platforms.kubernetes.writes import Writer

SILENT_S = 90.0
"""The silence of a watch that counts as a failure; a healthy watch is renewed twice a minute."""
CONFIGS = ("config-autoscaler", "config-deployment", "config-features")


class PolicyLoop(Protocol):
    """The autoscaler's loop with its policies, which decides on the instances of all Revisions."""

    def check(self, settings: Settings) -> object:
        """Raise a GnomonError for settings by which nothing can be scaled here."""
        ...

    def check_profile(self, settings: Settings, profile: ModelProfile | None) -> None:
        """Raise a GnomonError if the settings' policy needs another profile of the Revision's model."""
        ...

    def makes_shadows(self, settings: Settings) -> bool:
        """True if the settings' policy creates Shadows where it can."""
        ...

    def poke(self, function: str) -> None:
        """Decide on a Revision now and not at its next period: its first request waits, or its Shadows or profile changed."""
        ...

    def removed(self, function: str) -> None:
        """Forget a Revision."""
        ...

    def decisions(self, function: str, limit: int) -> Sequence[DecisionRecord]:
        """The last decisions, the newest first."""
        ...


@dataclass(frozen=True, slots=True)
class AutoscalerOptions:
    """The operator's options. `namespace` None means every namespace; without `models` policies have no profiles."""

    namespace: str | None = None
    class_name: str = CLASS
    system_namespace: str = SYSTEM_NAMESPACE
    models: ModelOptions | None = None


class KnativeCluster:
    """The state that Revisions are reconciled from, and the writer.

    `conflicts_changed` is called with a Deployment that another autoscaler begins or ceases to target, `fence` before each write.
    `wall_s` are seconds since 1970.
    """

    def __init__(
        self,
        api: Api,
        options: AutoscalerOptions,
        clock: Clock,
        rng: random.Random,
        *,
        conflicts_changed: Callable[[FunctionKey], None],
        wall_s: Callable[[], float],
        epoch: Callable[[], int],
        fence: Fence | None = None,
    ) -> None:
        self.api, self.options, self.clock, self.rng, self.wall_s = api, options, clock, rng, wall_s
        self.writer = Writer(api, clock, rng, fence)
        everywhere, system = options.namespace, options.system_namespace
        self.pod_autoscalers: Informer[PaFacts] = Informer(api, Source(POD_AUTOSCALERS, everywhere), pa_facts)
        self.services: Informer[SksFacts] = Informer(api, Source(SERVERLESS_SERVICES, everywhere), sks_facts)
        ours = Source(DEPLOYMENTS, everywhere, labels=REVISION_LABEL)
        self.deployments: Informer[ScaleTarget] = Informer(api, ours, scale_target)
        pods = Source(PODS, everywhere, labels=REVISION_LABEL)
        self.all_pods: Informer[RevisionPod] = Informer(api, pods, revision_pod, index=(REVISION_LABEL,))
        self.revisions: Informer[LiveRevision] = Informer(api, Source(REVISIONS, everywhere), live_revision)
        self.configs: Informer[Mapping[str, str]] = Informer(api, Source(CONFIG_MAPS, system), config_data)
        self.activators: Informer[RevisionPod] = Informer(api, Source(PODS, system, labels=ACTIVATOR_LABELS), revision_pod)
        self.gateway_pods: Informer[RevisionPod] = Informer(api, Source(PODS, system, labels=GATEWAY_LABELS), revision_pod)
        self.public = PublicEndpoints(api, self.writer, everywhere, self.gateway_pods, clock)
        self.gateways = Gateways(self.gateway_pods.values, clock)
        self.conflicts = ConflictingAutoscalers(api, everywhere, conflicts_changed, clock)
        self.shadows = None if options.models is None else RevisionShadows(api, self.writer, options.models, clock, epoch)
        """The Shadows of all Revisions; None if no models are configured."""
        self.background = Background()
        self.events = EventRecorder(self.writer, clock, self.background, self._deployment_uid)
        self.settings = ClusterSettings()
        """The defaults of all Revisions; another object after each change."""
        self.resizes = True
        """Whether the cluster can resize pods in place."""
        self.scraper: Scraper | None = None

    @property
    def informers(self) -> tuple[Informer[Any], ...]:
        """All informers, to start and stop them."""
        revisions = self.pod_autoscalers, self.services, self.deployments, self.all_pods, self.revisions
        nodes = () if self.shadows is None else self.shadows.informers
        services = self.public.knative, self.public.own
        return *revisions, *services, self.configs, self.activators, self.gateway_pods, *nodes

    @property
    def trouble(self) -> str:
        """The reason why the informers' caches are stale; empty while they are current."""
        silent_s = max(informer.silent_s for informer in self.informers)
        return f"The API server has not answered for {silent_s:.0f} s" if silent_s > SILENT_S else ""

    @property
    def activators_seen(self) -> bool:
        """True if activators report their waiting requests: a Revision at zero could not be woken otherwise."""
        return self.scraper is not None and self.scraper.observing

    def pa(self, key: FunctionKey) -> PaFacts | None:
        return self.pod_autoscalers.get(key.namespace, key.name)

    def sks(self, key: FunctionKey) -> SksFacts | None:
        return self.services.get(key.namespace, key.name)

    def target(self, pa: PaFacts) -> ScaleTarget | None:
        """The Deployment that a PodAutoscaler scales."""
        return self.deployments.get(pa.key.namespace, pa.deployment.name)

    def revision(self, key: FunctionKey) -> LiveRevision | None:
        return self.revisions.get(key.namespace, key.name)

    def conflict(self, pa: PaFacts) -> ConflictingAutoscaler | None:
        """The other autoscaler that targets the Revision's Deployment; None without one."""
        return self.conflicts.of(pa.deployment)

    def pods(self, key: FunctionKey) -> Iterable[RevisionPod]:
        return (pod for pod in self.all_pods.labelled(REVISION_LABEL, key.name) if pod.namespace == key.namespace)

    def pods_to_scrape(self, key: FunctionKey) -> Iterable[RevisionPod]:
        return (pod for pod in self.pods(key) if not pod.ending)

    def read_settings(self) -> None:
        """Read the defaults of all Revisions again."""
        system = self.options.system_namespace
        self.settings = cluster_settings(*(self.configs.get(system, name) or {} for name in CONFIGS))

    async def _deployment_uid(self, deployment: FunctionKey) -> str | None:
        found = self.deployments.get(deployment.namespace, deployment.name)
        return None if found is None else found.uid

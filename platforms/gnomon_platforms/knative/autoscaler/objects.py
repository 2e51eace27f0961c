"""Facts about Knative's objects and pods, read from documents as the API server sends them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from gnomon_core.clock import seconds_of
from gnomon_core.functions import FunctionKey
from gnomon_core.settings import PREFIX, Settings
from gnomon_platforms.knative.resources import CLASS, CLASS_ANNOTATION, QUEUE_CONTAINER, REVISION_LABEL
from gnomon_platforms.kubernetes.objects.placing import Placing, placing_of
from gnomon_platforms.kubernetes.objects.pod_template import CSI_DRIVER
from gnomon_platforms.kubernetes.objects.pods import cores_of, memory_of, resize_trouble

Document = dict[str, Any]

BATCH_ANNOTATIONS = (f"{PREFIX}max-batch", f"{PREFIX}scheduler")
"""Annotations that request buffering of a Revision."""
NOT_OWNED = "NotOwned"
"""The reason of a condition if another object owns the ServerlessService of that name."""


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition of an object. `since_s` is the time of its last transition in seconds since 1970."""

    status: str = "Unknown"
    reason: str = ""
    message: str = ""
    since_s: float = 0.0


@dataclass(frozen=True, slots=True)
class PaFacts:
    """A PodAutoscaler, by which a Revision is scaled. `status` is the last one written."""

    key: FunctionKey
    uid: str
    generation: int
    class_name: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    target: Mapping[str, str]
    protocol: str
    concurrency: int
    reachable: bool
    ending: bool
    status: Mapping[str, Any]

    def condition(self, kind: str) -> Condition:
        """The condition of this type; Unknown if there is none."""
        return conditions(self.status).get(kind, Condition())

    @property
    def active(self) -> Condition:
        """The condition Active. The reason NotOwned is ignored: it says nothing about the Revision's traffic."""
        found = self.condition("Active")
        return Condition() if found.reason == NOT_OWNED else found

    @property
    def deployment(self) -> FunctionKey:
        """The key of the Deployment that it scales."""
        return FunctionKey(str(self.target.get("name") or ""), self.key.namespace)

    @property
    def initialized(self) -> bool:
        """True if the first scale was reached once."""
        return self.condition("ScaleTargetInitialized").status == "True"


@dataclass(frozen=True, slots=True)
class SksFacts:
    """A ServerlessService: whether requests go to pods, or to activators first.

    `proxied_since_s` is since when its endpoints are activators, None while they are not.
    """

    owner_uid: str
    mode: str
    activators: int
    protocol: str
    target: Mapping[str, str]
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    service: str
    private_service: str
    ready: bool
    message: str
    proxied_since_s: float | None


@dataclass(frozen=True, slots=True)
class RevisionPod:
    """A pod of a Revision, of the activator, or of our gateway.

    `container` is the serving container. `cores` are those of its specification, `effective_cores` the allocated ones, 0 if it
    does not run or reports none; `limited` is whether they are a CPU limit. `trouble` is why the node has not resized it.
    """

    namespace: str
    name: str
    revision: str
    ip: str
    running: bool
    ready: bool
    ending: bool
    uid: str = ""
    version: str = ""
    created_at: float = 0.0
    node: str = ""
    container: str = ""
    cores: float = 0.0
    effective_cores: float = 0.0
    limited: bool = False
    memory_bytes: int = 0
    trouble: str = ""
    reported: bool = False
    """Whether the node has reported the container's resources: before that, Kubernetes refuses to resize the pod."""

    @property
    def resizable(self) -> bool:
        """True if the pod can be resized now."""
        return self.running and self.reported and not self.ending

    @property
    def resizing(self) -> bool:
        """True if a resize is in progress on its node."""
        return self.reported and not self.trouble and self.cores != self.effective_cores


TIMEOUT_S = 300.0
"""Knative's default response timeout of a Revision."""


@dataclass(frozen=True, slots=True)
class Template:
    """Settings from a Revision's specification, shared by gateways and autoscaler class, which must agree.

    `cores` are the whole cores that its pods start with, 0 if it requests none or less than one; `timeout_s` is Knative's
    timeout of a request, 0 if unknown.
    """

    cores: int = 0
    timeout_s: float = 0.0

    def under(self, settings: Settings, own: Mapping[str, str]) -> Settings:
        """Return `settings` with the template's values where none of the Revision's `own` annotations overrides them."""
        if f"{PREFIX}cores" not in own and self.cores:
            # The default of one core would make a policy shrink the pods; batch latencies are also profiled for this size.
            settings = replace(settings, cores=self.cores)
        if f"{PREFIX}deadline-ms" not in own and self.timeout_s:
            # A deadline beyond Knative's own timeout would let a batch wait for requests that Knative has already given up.
            settings = replace(settings, deadline_s=self.timeout_s, slo_s=min(settings.slo_s, self.timeout_s))
        return settings


NO_TEMPLATE = Template()


@dataclass(frozen=True, slots=True)
class LiveRevision:
    """A Revision: Gnomon's annotations, which can be changed while it serves, and the fixed properties of its pods.

    `mounted` is whether pods mount the volume for Shadows, `placing` their node constraints, `template` the settings that its
    specification implies.
    """

    annotations: Mapping[str, str]
    mounted: bool
    placing: Placing = field(default_factory=Placing)
    template: Template = NO_TEMPLATE
    batches: bool = False
    """Whether the Revision's requests go through the gateway."""


@dataclass(frozen=True, slots=True)
class ScaleTarget:
    """A Revision's Deployment: its number of replicas, and the resource version that this was read from."""

    uid: str
    version: str
    replicas: int


def pa_facts(document: Document) -> PaFacts:
    """Read a PodAutoscaler."""
    metadata, spec = document["metadata"], document.get("spec") or {}
    annotations = metadata.get("annotations") or {}
    return PaFacts(
        key=FunctionKey(metadata["name"], metadata["namespace"]),
        uid=metadata["uid"],
        generation=int(metadata.get("generation") or 0),
        class_name=annotations.get(CLASS_ANNOTATION, ""),
        labels=metadata.get("labels") or {},
        annotations=annotations,
        target=spec.get("scaleTargetRef") or {},
        protocol=str(spec.get("protocolType") or "http1"),
        concurrency=int(spec.get("containerConcurrency") or 0),
        reachable=spec.get("reachability") != "Unreachable",
        ending="deletionTimestamp" in metadata,
        status=document.get("status") or {},
    )


def sks_facts(document: Document) -> SksFacts:
    """Read a ServerlessService."""
    metadata, spec, status = document["metadata"], document.get("spec") or {}, document.get("status") or {}
    known = conditions(status)
    ready, proxied = known.get("Ready", Condition()), known.get("ActivatorEndpointsPopulated", Condition())
    owner = next((reference["uid"] for reference in metadata.get("ownerReferences") or () if reference.get("controller")), "")
    current = status.get("observedGeneration") == metadata.get("generation")
    return SksFacts(
        owner_uid=owner,
        mode=str(spec.get("mode") or "Serve"),
        activators=int(spec.get("numActivators") or 0),
        protocol=str(spec.get("protocolType") or ""),
        target=spec.get("objectRef") or {},
        labels=metadata.get("labels") or {},
        annotations=metadata.get("annotations") or {},
        service=str(status.get("serviceName") or ""),
        private_service=str(status.get("privateServiceName") or ""),
        ready=ready.status == "True" and current,
        message=ready.message or ready.reason,
        proxied_since_s=proxied.since_s if proxied.status == "True" else None,
    )


def revision_pod(document: Document) -> RevisionPod:
    """Read a pod."""
    metadata, spec, status = document["metadata"], document.get("spec") or {}, document.get("status") or {}
    running = status.get("phase") == "Running"
    container = serving_container(spec.get("containers") or ())
    name = str(container.get("name") or "")
    statuses = [
        container_status for container_status in status.get("containerStatuses") or () if container_status.get("name") == name
    ]
    reported = statuses[0].get("resources") if statuses else None
    resources = container.get("resources") or {}
    return RevisionPod(
        namespace=metadata["namespace"],
        name=metadata["name"],
        revision=(metadata.get("labels") or {}).get(REVISION_LABEL, ""),
        ip=str(status.get("podIP") or ""),
        running=running,
        ready=running and conditions(status).get("Ready", Condition()).status == "True",
        ending="deletionTimestamp" in metadata,
        uid=metadata.get("uid", ""),
        version=metadata.get("resourceVersion", ""),
        created_at=seconds_of(metadata.get("creationTimestamp")),
        node=spec.get("nodeName") or "",
        container=name,
        cores=cores_of(resources),
        effective_cores=cores_of(reported or {}),
        limited="cpu" in (resources.get("limits") or {}),
        memory_bytes=memory_of(resources),
        trouble=resize_trouble(status),
        reported=reported is not None,
    )


def serving_container(containers: Iterable[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The container that gets a Revision's requests: the only one with a port if there are several."""
    users = [container for container in containers if container.get("name") != QUEUE_CONTAINER]
    return next((user for user in users if user.get("ports")), users[0] if users else {})


def scale_target(document: Document) -> ScaleTarget:
    """Read a Deployment. Kubernetes' default for absent replicas is 1."""
    metadata, replicas = document["metadata"], (document.get("spec") or {}).get("replicas")
    return ScaleTarget(metadata["uid"], metadata["resourceVersion"], 1 if replicas is None else int(replicas))


def live_revision(document: Document) -> LiveRevision:
    """Read a Revision."""
    metadata, spec = document["metadata"], document.get("spec") or {}
    own = {key: text for key, text in (metadata.get("annotations") or {}).items() if key.startswith(PREFIX)}
    drivers = {(volume.get("csi") or {}).get("driver") for volume in spec.get("volumes") or ()}
    return LiveRevision(own, CSI_DRIVER in drivers, placing_of(spec), template_of(spec), buffered(document))


def buffered(document: Mapping[str, Any]) -> bool:
    """True if requests to this Revision go through the gateway: autoscaler class and gateway must agree, so both ask here."""
    annotations = document["metadata"].get("annotations") or {}
    asks = any(name in annotations for name in BATCH_ANNOTATIONS)
    return asks and annotations.get(CLASS_ANNOTATION) == CLASS and not _speaks_h2c(document)


def _speaks_h2c(document: Mapping[str, Any]) -> bool:
    """True if the port is named for HTTP/2 without TLS, which the gateway does not speak."""
    containers = (document.get("spec") or {}).get("containers") or ()
    return any(port.get("name") == "h2c" for container in containers for port in container.get("ports") or ())


def template_of(spec: Mapping[str, Any]) -> Template:
    """The settings that a Revision's specification implies."""
    cores = int(cores_of(serving_container(spec.get("containers") or ()).get("resources") or {}))
    return Template(cores, float(spec.get("timeoutSeconds") or TIMEOUT_S))


def conditions(status: Mapping[str, Any]) -> dict[str, Condition]:
    """The conditions of a status by their type."""
    return {
        condition["type"]: Condition(
            str(condition.get("status") or "Unknown"),
            str(condition.get("reason") or ""),
            str(condition.get("message") or ""),
            seconds_of(condition.get("lastTransitionTime")),
        )
        for condition in status.get("conditions") or ()
    }

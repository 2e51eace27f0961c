"""Knative: its configuration, our class and the gateway, and all that a batch passes from an ingress to a Body.

    any ingress ─▶ Service of a Revision ─▶ gateway's pods, port 8012 ─▶ port 8012 of the Revision's pods
                                                ▲ port 9090
                                                └─ autoscaler class: the requests that wait

If a part of this is missing, nothing fails: requests go to Revisions one by one. A Revision with a route gets batches if

    gnomon/max-batch ▶ our autoscaler class ▶ names the Secret with the token ▶ the Secret exists ▶ its pods started with it

Pods wait for a missing Secret; anything else that is missing costs batches, not requests.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gnomon_cli.doctor.cluster import (
    NAMESPACE_LABEL,
    ClientPod,
    Cluster,
    PodPort,
    ReviewSubject,
    denied,
    ingress_rules,
    named_ports,
    option,
    permissions,
    pod_labels,
    ready,
)
from gnomon_cli.doctor.findings import Check, Level
from gnomon_cli.doctor.shadows import ShadowClient, daemons, has_option
from gnomon_core.coordination import NODES_NAMESPACE
from gnomon_core.settings import PREFIX, Settings
from gnomon_platforms.knative.autoscaler.objects import BATCH_ANNOTATIONS, buffered, conditions, revision_pod
from gnomon_platforms.knative.autoscaler.planning import NO_POOL, NO_VOLUME, NOT_CONFIGURED, VOLUMES_DISABLED
from gnomon_platforms.knative.autoscaler.public_endpoints import MANAGED_BY_LABEL, MANAGER, SERVICE_NAME_LABEL, own_slice
from gnomon_platforms.knative.autoscaler.rules import CSI_FEATURE
from gnomon_platforms.knative.batching.revisions import BATCH_SECRET, RevisionReader, misread
from gnomon_platforms.knative.permissions import AUTOSCALER, GATEWAY
from gnomon_platforms.knative.resources import (
    ACTIVATOR_METRICS_PORT,
    CLASS,
    CLASS_ANNOTATION,
    GATEWAY_LABELS,
    GATEWAY_PORT,
    INGRESSES,
    POD_AUTOSCALERS,
    QUEUE_CONTAINER,
    QUEUE_PORT,
    REVISION_LABEL,
    REVISIONS,
    SYSTEM_NAMESPACE,
)
from gnomon_platforms.kubernetes.client import Document
from gnomon_platforms.kubernetes.resources import (
    CONFIG_MAPS,
    DEPLOYMENTS,
    ENDPOINT_SLICES,
    NAMESPACES,
    NETWORK_POLICIES,
    PODS,
    SECRETS,
    Permission,
    Scope,
)
from gnomon_platforms.nodes.coordinators import POOLS

NAMESPACE = SYSTEM_NAMESPACE
GROUPS = ("serving.knative.dev/v1", "autoscaling.internal.knative.dev/v1alpha1", "networking.internal.knative.dev/v1alpha1")
SCALER, BUFFER = "gnomon-autoscaler", "gnomon-gateway"
INSTALL = "kubectl apply -k deploy/knative"
INSIDE = "svc.cluster.local"
"""Knative's default domain, whose names are served inside the cluster only."""
ON_KNATIVE = ShadowClient(NAMESPACE, SCALER, "kubectl apply -k deploy/knative-models", REVISION_LABEL)
"""The autoscaler class, as it may ask for Shadows."""
_ENABLED = '{"data":{"' + CSI_FEATURE + '":"enabled"}}'
ALLOW_VOLUMES = f"kubectl -n {NAMESPACE} patch configmap config-features --type merge -p '{_ENABLED}'"
MISSING = {
    VOLUMES_DISABLED: ALLOW_VOLUMES,
    NO_VOLUME: 'Give the template of its service the volume: docs/howto/run-on-knative.md, "Bodies with Shadows".',
    NOT_CONFIGURED: ON_KNATIVE.install,
    NO_POOL: f"kubectl -n {NODES_NAMESPACE} logs -l app.kubernetes.io/component=coordinator -c pool",
}
"""Advice where Bodies of a Revision work alone, by the reason of its condition `Shadows`."""


def knative_checks(cluster: Cluster, subject: ReviewSubject) -> Iterator[tuple[str, Check]]:
    """The checks of an installation on Knative, beside those of the cluster."""
    yield "Knative", lambda: serving(cluster)
    yield "Knative's metrics", lambda: metrics(cluster)
    yield "Knative's volumes", lambda: volumes(cluster)
    yield "Knative's scaling", lambda: scaling(cluster)
    yield "Knative's network", lambda: network(cluster)
    yield "Knative's domain", lambda: domain(cluster)
    yield "permissions", lambda: rights(cluster, subject)
    yield "autoscaler class", lambda: ready(cluster, NAMESPACE, SCALER, f"{INSTALL}/autoscaler")
    yield "gateway", lambda: gateway(cluster)
    yield "Shadows' Revisions", lambda: alone(cluster)


def serving(cluster: Cluster) -> tuple[Level, str, str]:
    """Check whether the API server knows Knative Serving's resources.

    Raises:
        Refused, Unreachable: the API server refuses the request, or cannot be reached.

    """
    missing = [group for group in GROUPS if cluster.get(f"/apis/{group}") is None]
    if missing:
        return Level.FAIL, f"The cluster does not know {', '.join(missing)}.", "Install Knative Serving."
    return Level.OK, "Knative Serving is installed.", ""


def metrics(cluster: Cluster) -> tuple[Level, str, str]:
    """Check whether activators expose waiting requests. Otherwise nothing scales to zero: no request could wake a Revision.

    Raises:
        Refused, Unreachable: the API server refuses the request, or cannot be reached.

    """
    value = settings(cluster, "config-observability").get("metrics-protocol", "none")
    if value != "prometheus":
        patch = '{"data":{"metrics-protocol":"prometheus"}}'
        hint = (
            f"kubectl -n {NAMESPACE} patch configmap config-observability --type merge -p '{patch}' && "
            f"kubectl -n {NAMESPACE} rollout restart deployment activator"
        )
        return (
            Level.WARN,
            f"metrics-protocol is {value}: activators do not report waiting requests: no Revision scales to zero.",
            hint,
        )
    return Level.OK, "metrics-protocol is prometheus: activators report waiting requests.", ""


def rights(cluster: Cluster, subject: ReviewSubject) -> tuple[Level, str, str]:
    """Check whether the account has its component's permissions, or those of all three components if it belongs to none.

    The autoscaler class needs more if it requests Shadows: access to the pods of the nodes' pools.

    Raises:
        Refused, Unreachable: the API server refuses the request, or cannot be reached.

    """
    shadows = has_option(cluster, ON_KNATIVE)
    scaler = (*AUTOSCALER, *(POOLS if shadows else ()))
    tables: dict[str, tuple[Permission, ...]] = {SCALER: scaler, BUFFER: GATEWAY}
    name = subject.account[1] if subject.account else ""
    required = tables.get(name, scaler + GATEWAY)
    scopes = {Scope.CLUSTER: None, Scope.SYSTEM: NAMESPACE, Scope.NODES: NODES_NAMESPACE}
    return permissions(cluster, required, scopes, subject, ON_KNATIVE.install if shadows else INSTALL)


def gateway(cluster: Cluster) -> tuple[Level, str, str]:
    """Check whether the gateway for Revisions that batch is ready. Without it every request is a batch of one.

    Raises:
        Refused, Unreachable: the API server refuses the request, or cannot be reached.

    """
    install = f"{INSTALL}/gateway"
    if cluster.find(DEPLOYMENTS, NAMESPACE, BUFFER) is None:
        return Level.WARN, f"There is no Deployment {BUFFER}: no Revision batches.", install
    if cluster.find(DEPLOYMENTS, NAMESPACE, SCALER) is None:
        message = f"There is no Deployment {SCALER}, which leads Services to the gateway: no Revision batches."
        return Level.WARN, message, f"{INSTALL}/autoscaler"
    return ready(cluster, NAMESPACE, BUFFER, install)


def volumes(cluster: Cluster) -> tuple[Level, str, str]:
    """Check that Revisions' pods may have the volume by which Bodies reach their node's coordinator, if there are coordinators.

    Raises:
        Refused, Unreachable: the API server refuses the request, or cannot be reached.

    """
    value = settings(cluster, "config-features").get(CSI_FEATURE, "disabled").lower()
    if value == "enabled":
        return Level.OK, f"{CSI_FEATURE} is enabled: pods may have the volume by which their Bodies have Shadows.", ""
    message = (
        f"{CSI_FEATURE} is {value}: pods cannot have the volume of their node's coordinator, and Bodies run without Shadows."
    )
    if daemons(cluster) is None:
        return Level.OK, message, ""
    return Level.WARN, message, ALLOW_VOLUMES


def alone(cluster: Cluster) -> tuple[Level, str, str]:
    """Revisions that have no Shadows although their policy makes them, and what the first of them lacks.

    A Revision without a route is not reported: its service's next Revision may have what it lacks.

    Raises:
        Refused, Unreachable: the API server refuses the request, or cannot be reached.

    """
    without_shadows = {}
    for autoscaler in cluster.items(POD_AUTOSCALERS.path()):
        condition = conditions(autoscaler.get("status") or {}).get("Shadows")
        reached = (autoscaler.get("spec") or {}).get("reachability") != "Unreachable"
        if reached and condition is not None and condition.status == "False":
            without_shadows[f"{autoscaler['metadata']['namespace']}/{autoscaler['metadata']['name']}"] = condition
    if not without_shadows:
        return Level.OK, "No Revision lacks Shadows that its policy would make.", ""
    name, first = min(without_shadows.items())
    more = f", and of {len(without_shadows) - 1} more," if len(without_shadows) > 1 else ""
    return Level.WARN, f"Bodies of {name}{more} have no Shadows: {first.message}", MISSING.get(first.reason, "")


def scaling(cluster: Cluster) -> tuple[Level, str, str]:
    """Check whether functions may scale to zero, and which autoscaler class is the default.

    Raises:
        Refused, Unreachable: the API server refuses the request, or cannot be reached.

    """
    found = settings(cluster, "config-autoscaler")
    default = found.get("pod-autoscaler-class", "kpa.autoscaling.knative.dev")
    if found.get("enable-scale-to-zero", "true").lower() == "false":
        return (
            Level.WARN,
            "enable-scale-to-zero is false: no Revision scales to zero.",
            f"Set it in {NAMESPACE}/config-autoscaler.",
        )
    return Level.OK, f"Revisions that name no class get {default}.", ""


def network(cluster: Cluster) -> tuple[Level, str, str]:
    """Check whether pods are addressable at their own IPs, and which ingress class is the default.

    Raises:
        Refused, Unreachable: the API server refuses the request, or cannot be reached.

    """
    found = settings(cluster, "config-network")
    default = found.get("ingress-class", "istio.ingress.networking.knative.dev")
    if found.get("mesh-compatibility-mode", "auto").lower() == "enabled":
        hint = f"Set mesh-compatibility-mode in {NAMESPACE}/config-network to auto or disabled for Revisions that batch."
        return Level.WARN, "Pods are reached through a mesh, so none can be chosen for a batch.", hint
    return Level.OK, f"Pods are reached at their own addresses; routes that name no class get {default}.", ""


def domain(cluster: Cluster) -> tuple[Level, str, str]:
    """Check whether services have external domain names. With Knative's default domain, an ingress serves internal callers only.

    Raises:
        Refused, Unreachable: the API server refuses the request, or cannot be reached.

    """
    named = sorted(
        domain_name
        for domain_name in settings(cluster, "config-domain")
        if not domain_name.startswith("_") and domain_name != INSIDE
    )
    if named:
        return Level.OK, f"Services have names under {', '.join(named)}.", ""
    patch = '{"data":{"knative.example.com":""}}'
    hint = f"With a domain of yours: kubectl -n {NAMESPACE} patch configmap config-domain --type merge -p '{patch}'"
    return Level.WARN, f"The domain is {INSIDE}: services answer inside the cluster only, and 404 to all others.", hint


def settings(cluster: Cluster, name: str) -> dict[str, str]:
    """The entries of a ConfigMap. A missing ConfigMap has none: Knative then uses its defaults.

    Raises:
        Refused, Unreachable: the API server refuses the request, or cannot be reached.

    """
    found = cluster.find(CONFIG_MAPS, NAMESPACE, name) or {}
    return dict(found.get("data") or {})


DEFAULT_PORT = 8080
"""The default port of `gnomon serve`."""
_ENFORCED = "where the cluster's network enforces them"


def batch_checks(cluster: Cluster) -> Iterator[tuple[str, Check]]:
    """The checks of a batch's path, from a Revision's Service to a Body."""
    yield "batches' way", lambda: batch_way(cluster)
    yield "batches' network", lambda: batch_network(cluster)
    yield "batches' Revisions", lambda: batch_revisions(cluster)


def batch_way(cluster: Cluster) -> tuple[Level, str, str]:
    """Check whether the Services of Revisions that batch lead to gateways that are ready.

    Raises:
        Refused, Unreachable: the API server refuses the request, or cannot be reached.

    """
    gateway = cluster.find(DEPLOYMENTS, NAMESPACE, BUFFER)
    if gateway is None:
        return Level.OK, "There is no gateway that Services could lead to.", ""
    port = int(option(gateway, "--port") or DEFAULT_PORT)
    if port != GATEWAY_PORT:
        message = f"{BUFFER} listens on {port}, and Services of Revisions lead to {GATEWAY_PORT}: requests are refused."
        return Level.WARN, message, f"{INSTALL}/gateway"
    pods = cluster.items(PODS.path(NAMESPACE), {"labelSelector": GATEWAY_LABELS})
    ready = {pod.ip for pod in map(revision_pod, pods) if pod.ready and not pod.ending}
    if not ready:
        message = f"No pod of {BUFFER} is ready: each request goes to its Revision by itself."
        return Level.WARN, message, f"kubectl -n {NAMESPACE} get pods -l {GATEWAY_LABELS}"
    revisions = batched(cluster)
    past = sorted(key for key in revisions if not ready & _led_to(cluster, *key))
    if past:
        (namespace, name), more = past[0], f" Nor do {len(past) - 1} more." if len(past) > 1 else ""
        message = f"The Service {name} in {namespace} does not lead to a ready gateway: its requests go one by one.{more}"
        return Level.WARN, message, f"kubectl -n {NAMESPACE} logs deployment/{SCALER}"
    return (
        Level.OK,
        f"{len(ready)} gateways are ready, and the Services of {len(revisions)} Revisions that batch lead to them.",
        "",
    )


def batch_network(cluster: Cluster) -> tuple[Level, str, str]:
    """Check that network policies admit ingresses and the autoscaler class to the gateway, and the gateway to batching Revisions.

    Raises:
        Refused, Unreachable: the API server refuses the request, or cannot be reached.

    """
    gateway, scaler = (cluster.find(DEPLOYMENTS, NAMESPACE, name) for name in (BUFFER, SCALER))
    if gateway is None:
        return Level.OK, "There is no gateway that policies could block.", ""
    rules = ingress_rules(cluster.items(NETWORK_POLICIES.path(NAMESPACE)), pod_labels(gateway))
    # An ingress may be anywhere: one in a namespace without labels stands for all of them.
    clients = [("ingresses", GATEWAY_PORT, ClientPod({NAMESPACE_LABEL: "ingress"}, {}, same_namespace=False))]
    if scaler is not None:
        page = int(option(gateway, "--page-port") or ACTIVATOR_METRICS_PORT)
        clients.append((SCALER, page, ClientPod(_labels(cluster, NAMESPACE), pod_labels(scaler), same_namespace=True)))
    named = named_ports(gateway)
    shut = [
        f"{name} to port {port} of {BUFFER}"
        for name, port, client_pod in clients
        if denied(rules, PodPort(port, named), client_pod)
    ]
    if shut:
        return Level.WARN, f"NetworkPolicies in {NAMESPACE} do not let {' nor '.join(shut)}, {_ENFORCED}.", f"{INSTALL}/gateway"
    closed = _closed(cluster, NAMESPACE, gateway)
    if closed:
        namespace, name = min(closed)
        more = f" nor to {len(closed) - 1} more" if len(closed) > 1 else ""
        message = f"NetworkPolicies in {namespace} do not let {BUFFER} to port {QUEUE_PORT} of {name}{more}, {_ENFORCED}."
        allowed = ", ".join(f"{label}: {value}" for label, value in sorted(pod_labels(gateway).items()))
        return Level.WARN, message, f"Let in pods with {allowed} from namespaces with {NAMESPACE_LABEL}: {NAMESPACE}."
    return Level.OK, "No NetworkPolicy is in the way of batches.", ""


def _led_to(cluster: Cluster, namespace: str, revision: str) -> set[str]:
    """The addresses in a Revision's EndpointSlices that the autoscaler class manages."""
    labels = f"{SERVICE_NAME_LABEL}={revision},{MANAGED_BY_LABEL}={MANAGER}"
    slices = cluster.items(ENDPOINT_SLICES.path(namespace), {"labelSelector": labels})
    return {ip for document in slices for ip in own_slice(document).addresses.ips}


def _closed(cluster: Cluster, gateway_namespace: str, gateway: Document) -> list[tuple[str, str]]:
    """Batching Revisions whose network policies do not admit the gateway."""
    closed: list[tuple[str, str]] = []
    namespace_labels, labels = _labels(cluster, gateway_namespace), pod_labels(gateway)
    revisions = batched(cluster)
    for namespace in sorted({namespace for namespace, _ in revisions}):
        policies = cluster.items(NETWORK_POLICIES.path(namespace))
        client_pod = ClientPod(namespace_labels, labels, same_namespace=namespace == gateway_namespace)
        for workload in cluster.items(DEPLOYMENTS.path(namespace), {"labelSelector": REVISION_LABEL}) if policies else ():
            revision = namespace, workload["metadata"]["labels"][REVISION_LABEL]
            rules = ingress_rules(policies, pod_labels(workload))
            if revision in revisions and denied(rules, PodPort(QUEUE_PORT, named_ports(workload)), client_pod):
                closed.append(revision)
    return closed


def _labels(cluster: Cluster, namespace: str) -> dict[str, str]:
    """The labels of a namespace."""
    found = cluster.find(NAMESPACES, None, namespace) or {}
    return {NAMESPACE_LABEL: namespace, **((found.get("metadata") or {}).get("labels") or {})}


HOWTO = 'docs/howto/run-on-knative.md, "Batch requests".'

Key = tuple[str, str]
"""Namespace and name."""
Lack = tuple[str, str]
"""The problem, and the advice."""


def batch_revisions(cluster: Cluster) -> tuple[Level, str, str]:
    """Revisions that request batches and get none, and what the first of them lacks.

    Raises:
        Refused, Unreachable: the API server refuses the request, or cannot be reached.

    """
    routed, count = _routed(cluster), 0
    lacks: dict[Key, Lack] = {}
    secrets: dict[str, Document | None] = {}
    for document in cluster.items(REVISIONS.path()):
        key = _key(document)
        if not _wants_batches(document) or key not in routed:
            continue
        count += 1
        if key[0] not in secrets:
            secrets[key[0]] = cluster.find(SECRETS, key[0], BATCH_SECRET)
        lack = _not_buffered(document) or _misread(document) or _without_token(cluster, document, secrets[key[0]])
        if lack is not None:
            lacks[key] = lack
    if not lacks:
        return Level.OK, f"None of {count} Revisions that ask for batches lacks anything.", ""
    (namespace, name), (problem, hint) = min(lacks.items())
    more = f" Nor do {len(lacks) - 1} more." if len(lacks) > 1 else ""
    return Level.WARN, f"{namespace}/{name} gets no batches: {problem}.{more}", hint


def batched(cluster: Cluster) -> set[Key]:
    """The Revisions that have a route and whose requests pass through the gateway.

    Raises:
        Refused, Unreachable: the API server refuses the request, or cannot be reached.

    """
    routed = _routed(cluster)
    return {key for revision in cluster.items(REVISIONS.path()) if buffered(revision) and (key := _key(revision)) in routed}


def _routed(cluster: Cluster) -> set[Key]:
    """The Revisions that Ingresses of any class route to."""
    rules = [rule for document in cluster.items(INGRESSES.path()) for rule in (document.get("spec") or {}).get("rules") or ()]
    paths = [path for rule in rules for path in (rule.get("http") or {}).get("paths") or ()]
    splits = [split for path in paths for split in path.get("splits") or () if split.get("percent", 100)]
    return {(str(split.get("serviceNamespace")), str(split.get("serviceName"))) for split in splits}


def _not_buffered(document: Document) -> Lack | None:
    """The reason why a Revision's requests bypass the gateway, and the remedy; None if they do not."""
    if not buffered(document):
        named = _annotations(document).get(CLASS_ANNOTATION, "not said")
        if named != CLASS:
            return f"its {CLASS_ANNOTATION} is {named}, not {CLASS}", f"Give it to the template of its service. {HOWTO}"
        return "its port is named h2c, and the gateway speaks HTTP/1.1", f"Name it http1 in the template of its service. {HOWTO}"
    return None


def _misread(document: Document) -> Lack | None:
    """A Revision's invalid settings, because of which all of its settings are ignored; None if they are valid."""
    (namespace, name), problem = _key(document), misread(document)
    hint = f"kubectl -n {namespace} annotate revision {name} … --overwrite, and the same in the template of its service."
    return (f"its settings are left out: {problem}", hint) if problem else None


def _without_token(cluster: Cluster, document: Document, secret: Document | None) -> Lack | None:
    """The reason why a Revision's pods cannot authenticate the gateway by its token; None if they can or max-batch is 1."""
    namespace, name = _key(document)
    key = RevisionReader(_any)(document).token_key
    if not key:
        one_by_one = str(_annotations(document).get(f"{PREFIX}max-batch", "1")) == "1"
        return None if one_by_one else (f"it was not given the Secret {BATCH_SECRET}, and gets its requests one by one", HOWTO)
    make = f'kubectl -n {namespace} create secret generic {BATCH_SECRET} --from-literal={key}="$(openssl rand -hex 32)"'
    if secret is None:
        return f"there is no Secret {BATCH_SECRET} in {namespace}, and its pods wait for it", make
    if not (secret.get("data") or {}).get(key):
        # Patch only this key: other services keep their keys in the same Secret.
        value = "'\"$(openssl rand -hex 32)\"'"
        more = f'kubectl -n {namespace} patch secret {BATCH_SECRET} -p \'{{"stringData":{{"{key}":"{value}"}}}}\''
        return f"the Secret {BATCH_SECRET} in {namespace} has no key {key}", more
    pods = cluster.items(PODS.path(namespace), {"labelSelector": f"{REVISION_LABEL}={name}"})
    changed, started = _changed(secret, key), [start for pod in pods if (start := _started_at(pod))]
    if any(start < changed for start in started):
        restart = f"kubectl -n {namespace} delete pods -l {REVISION_LABEL}={name}"
        return f"pods of it started before the Secret {BATCH_SECRET} was changed, and may know another token", restart
    return None


def _any(_: Settings) -> None:
    """Accept all settings: this check does not validate them."""


def _annotations(document: Document) -> dict[str, str]:
    return document["metadata"].get("annotations") or {}


def _changed(secret: Document, key: str) -> str:
    """The time of the key's last change, from the Secret's managedFields: RFC 3339 in UTC, so that strings compare.

    There is one time per field manager, so a key may have the time of a change to another key.
    """
    metadata = secret["metadata"]
    fields = [
        (entry.get("time") or "", (entry.get("fieldsV1") or {}).get("f:data") or {})
        for entry in metadata.get("managedFields") or ()
    ]
    return max([metadata.get("creationTimestamp") or "", *(at for at, data in fields if f"f:{key}" in data)])


def _started_at(pod: Mapping[str, Any]) -> str:
    """The earliest start time of the pod's running user containers; empty if none runs."""
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    running = [(status.get("state") or {}).get("running") or {} for status in statuses if status.get("name") != QUEUE_CONTAINER]
    return min((state["startedAt"] for state in running if state.get("startedAt")), default="")


def _key(document: Document) -> Key:
    return document["metadata"]["namespace"], document["metadata"]["name"]


def _wants_batches(document: Document) -> bool:
    return any(name in _annotations(document) for name in BATCH_ANNOTATIONS)

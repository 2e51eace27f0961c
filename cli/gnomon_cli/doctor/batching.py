"""Batches on Knative: do Services lead to the gateway, and do network policies let everybody through who is on the way?

    any ingress ─▶ Service of a Revision ─▶ gateway's pods, port 8012 ─▶ port 8012 of the Revision's pods
                                                ▲ port 9090
                                                └─ autoscaler class: what waits

While one of these is missing nothing fails: requests go to Revisions by themselves. `batched` looks at the Revisions.
"""

from __future__ import annotations

from collections.abc import Iterator

from gnomon_cli.doctor.batched import batched, revisions
from gnomon_cli.doctor.findings import Level, Look
from gnomon_cli.doctor.knative import BUFFER, INSTALL, NAMESPACE, SCALER
from gnomon_cli.doctor.looking import Cluster
from gnomon_cli.doctor.policies import NAMESPACE_LABEL, Comer, Door, shut_out, ways_in
from gnomon_cli.doctor.workloads import named_ports, option, pod_labels
from gnomon_platforms.knative.autoscaler.objects import revision_pod
from gnomon_platforms.knative.autoscaler.public_endpoints import MANAGED_BY_LABEL, MANAGER, SERVICE_NAME_LABEL, own_slice
from gnomon_platforms.knative.resources import (
    ACTIVATOR_METRICS_PORT,
    GATEWAY_LABELS,
    GATEWAY_PORT,
    QUEUE_PORT,
    REVISION_LABEL,
)
from gnomon_platforms.kubernetes.client import Document
from gnomon_platforms.kubernetes.resources import DEPLOYMENTS, ENDPOINT_SLICES, NAMESPACES, NETWORK_POLICIES, PODS

PORT = 8080
"""Where `gnomon serve` listens unless it is told otherwise."""
_ENFORCED = "where the cluster's network enforces them"


def batch_checks(cluster: Cluster) -> Iterator[tuple[str, Look]]:
    """The checks of what a batch passes, from a Revision's Service to a Body."""
    yield "batches' way", lambda: way(cluster)
    yield "batches' network", lambda: network(cluster)
    yield "batches' Revisions", lambda: revisions(cluster)


def way(cluster: Cluster) -> tuple[Level, str, str]:
    """Whether the Services of Revisions that batch lead to gateways that are ready.

    Raises:
        Refused, Unreachable: it cannot be looked at.

    """
    gateway = cluster.one(DEPLOYMENTS, NAMESPACE, BUFFER)
    if gateway is None:
        return Level.OK, "There is no gateway that Services could lead to.", ""
    port = int(option(gateway, "--port") or PORT)
    if port != GATEWAY_PORT:
        said = f"{BUFFER} listens on {port}, and Services of Revisions lead to {GATEWAY_PORT}: requests are refused."
        return Level.WARN, said, f"{INSTALL}/gateway"
    pods = cluster.items(PODS.path(NAMESPACE), {"labelSelector": GATEWAY_LABELS})
    ready = {pod.ip for pod in map(revision_pod, pods) if pod.ready and not pod.ending}
    if not ready:
        said = f"No pod of {BUFFER} is ready: each request goes to its Revision by itself."
        return Level.WARN, said, f"kubectl -n {NAMESPACE} get pods -l {GATEWAY_LABELS}"
    wanted = batched(cluster)
    past = sorted(key for key in wanted if not ready & _led_to(cluster, *key))
    if past:
        (namespace, name), more = past[0], f" Nor do {len(past) - 1} more." if len(past) > 1 else ""
        said = f"The Service {name} in {namespace} does not lead to a ready gateway: its requests go one by one.{more}"
        return Level.WARN, said, f"kubectl -n {NAMESPACE} logs deployment/{SCALER}"
    return Level.OK, f"{len(ready)} gateways are ready, and the Services of {len(wanted)} Revisions that batch lead to them.", ""


def network(cluster: Cluster) -> tuple[Level, str, str]:
    """Whether network policies let ingresses and the class in to the gateway, and the gateway to pods of Revisions that batch.

    Raises:
        Refused, Unreachable: it cannot be looked at.

    """
    gateway, scaler = (cluster.one(DEPLOYMENTS, NAMESPACE, name) for name in (BUFFER, SCALER))
    if gateway is None:
        return Level.OK, "There is no gateway that anybody could be kept from.", ""
    rules = ways_in(cluster.items(NETWORK_POLICIES.path(NAMESPACE)), pod_labels(gateway))
    # An ingress may be anywhere: one in a namespace without labels stands for all of them.
    comers = [("ingresses", GATEWAY_PORT, Comer({NAMESPACE_LABEL: "ingress"}, {}, beside=False))]
    if scaler is not None:
        page = int(option(gateway, "--page-port") or ACTIVATOR_METRICS_PORT)
        comers.append((SCALER, page, Comer(_labels(cluster, NAMESPACE), pod_labels(scaler), beside=True)))
    doors = named_ports(gateway)
    shut = [f"{name} to port {port} of {BUFFER}" for name, port, comer in comers if shut_out(rules, Door(port, doors), comer)]
    if shut:
        return Level.WARN, f"NetworkPolicies in {NAMESPACE} do not let {' nor '.join(shut)}, {_ENFORCED}.", f"{INSTALL}/gateway"
    closed = _closed(cluster, NAMESPACE, gateway)
    if closed:
        namespace, name = min(closed)
        more = f" nor to {len(closed) - 1} more" if len(closed) > 1 else ""
        said = f"NetworkPolicies in {namespace} do not let {BUFFER} to port {QUEUE_PORT} of {name}{more}, {_ENFORCED}."
        allowed = ", ".join(f"{label}: {value}" for label, value in sorted(pod_labels(gateway).items()))
        return Level.WARN, said, f"Let in pods with {allowed} from namespaces with {NAMESPACE_LABEL}: {NAMESPACE}."
    return Level.OK, "No NetworkPolicy is in the way of batches.", ""


def _led_to(cluster: Cluster, namespace: str, revision: str) -> set[str]:
    """The addresses to which the Service of a Revision leads by slices of the autoscaler class."""
    labels = f"{SERVICE_NAME_LABEL}={revision},{MANAGED_BY_LABEL}={MANAGER}"
    slices = cluster.items(ENDPOINT_SLICES.path(namespace), {"labelSelector": labels})
    return {ip for document in slices for ip in own_slice(document).addresses.ips}


def _closed(cluster: Cluster, home: str, gateway: Document) -> list[tuple[str, str]]:
    """Revisions that batch, and whose pods' ports are shut to the gateway."""
    closed: list[tuple[str, str]] = []
    there, labels = _labels(cluster, home), pod_labels(gateway)
    wanted = batched(cluster)
    for namespace in sorted({namespace for namespace, _ in wanted}):
        policies = cluster.items(NETWORK_POLICIES.path(namespace))
        comer = Comer(there, labels, beside=namespace == home)
        for workload in cluster.items(DEPLOYMENTS.path(namespace), {"labelSelector": REVISION_LABEL}) if policies else ():
            revision = namespace, workload["metadata"]["labels"][REVISION_LABEL]
            rules = ways_in(policies, pod_labels(workload))
            if revision in wanted and shut_out(rules, Door(QUEUE_PORT, named_ports(workload)), comer):
                closed.append(revision)
    return closed


def _labels(cluster: Cluster, namespace: str) -> dict[str, str]:
    """A namespace's."""
    found = cluster.one(NAMESPACES, None, namespace) or {}
    return {NAMESPACE_LABEL: namespace, **((found.get("metadata") or {}).get("labels") or {})}

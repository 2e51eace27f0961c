"""Batches on Knative: does the ingress find the gateway, and do network policies let everybody through who is on the way?

    our ingress ─ --gateway ─▶ Service ─▶ gateway's pods ─▶ port 8012 of Revisions' pods
                                             ▲ port 9090
                                             └─ autoscaler class: what waits

While one of these is missing nothing fails: requests go to Revisions by themselves. `batched` looks at the Revisions.
"""

from __future__ import annotations

from collections.abc import Iterator

from gnomon_cli.doctor.batched import batched, revisions
from gnomon_cli.doctor.findings import Level, Look
from gnomon_cli.doctor.knative import BUFFER, INSTALL, NAMESPACE, PROXY, SCALER
from gnomon_cli.doctor.looking import Cluster
from gnomon_cli.doctor.policies import NAMESPACE_LABEL, Comer, Door, shut_out, ways_in
from gnomon_cli.doctor.workloads import named_ports, option, pod_labels
from gnomon_platforms.knative.ingress.backends import (
    GatewayPlace,
    StillView,
    gateway_of,
    gateway_place,
    service_facts,
    slice_facts,
)
from gnomon_platforms.knative.ingress.names import SERVICE_LABEL
from gnomon_platforms.knative.resources import ACTIVATOR_METRICS_PORT, GATEWAY_LABELS, QUEUE_PORT, REVISION_LABEL
from gnomon_platforms.kubernetes.client import Document
from gnomon_platforms.kubernetes.resources import DEPLOYMENTS, ENDPOINT_SLICES, NAMESPACES, NETWORK_POLICIES, PODS, SERVICES

PORT = 8080
"""Where `gnomon serve` listens unless it is told otherwise."""
_ENFORCED = "where the cluster's network enforces them"


def batch_checks(cluster: Cluster) -> Iterator[tuple[str, Look]]:
    """The checks of what a batch passes, from the ingress to a Body."""
    yield "batches' way", lambda: way(cluster)
    yield "batches' network", lambda: network(cluster)
    yield "batches' Revisions", lambda: revisions(cluster)


def way(cluster: Cluster) -> tuple[Level, str, str]:
    """Whether the ingress leads to gateways that are ready, and that the autoscaler class asks what waits.

    Raises:
        Refused, Unreachable: it cannot be looked at.
        GnomonError: 400 `ingress_gateway`: the ingress cannot begin with what it is told.

    """
    proxy = cluster.one(DEPLOYMENTS, NAMESPACE, PROXY)
    if proxy is None:
        return Level.OK, "There is no ingress of ours that could lead to a gateway.", ""
    place = _place(proxy)
    if place is None:
        return Level.WARN, f"{PROXY} has no --gateway: each request goes to its Revision by itself.", f"{INSTALL}/ingress"
    if place.endpoint is not None:
        return Level.OK, f"{PROXY} leads to a gateway at {place.endpoint}, which was not looked at.", ""
    return _service(cluster, place)


def network(cluster: Cluster) -> tuple[Level, str, str]:
    """Whether network policies let ingress and class in to the gateway, and the gateway to the pods of Revisions that batch.

    Raises:
        Refused, Unreachable: it cannot be looked at.
        GnomonError: as `way`.

    """
    proxy, scaler = (cluster.one(DEPLOYMENTS, NAMESPACE, name) for name in (PROXY, SCALER))
    place = None if proxy is None else _place(proxy)
    home = place.service[0] if place is not None and place.service[0] else NAMESPACE
    gateway = cluster.one(DEPLOYMENTS, home, BUFFER)
    if gateway is None:
        return Level.OK, "There is no gateway that anybody could be kept from.", ""
    here, rules = _labels(cluster, NAMESPACE), ways_in(cluster.items(NETWORK_POLICIES.path(home)), pod_labels(gateway))
    ports = (
        (proxy, PROXY, option(gateway, "--port") or PORT),
        (scaler, SCALER, option(gateway, "--page-port") or ACTIVATOR_METRICS_PORT),
    )
    shut = [
        f"{name} to port {port} of {BUFFER}"
        for workload, name, port in ports
        if workload is not None
        and shut_out(rules, Door(int(port), named_ports(gateway)), Comer(here, pod_labels(workload), beside=home == NAMESPACE))
    ]
    if shut:
        return Level.WARN, f"NetworkPolicies in {home} do not let {' nor '.join(shut)}, {_ENFORCED}.", f"{INSTALL}/gateway"
    closed = _closed(cluster, home, gateway)
    if closed:
        namespace, name = min(closed)
        more = f" nor to {len(closed) - 1} more" if len(closed) > 1 else ""
        said = f"NetworkPolicies in {namespace} do not let {BUFFER} to port {QUEUE_PORT} of {name}{more}, {_ENFORCED}."
        allowed = ", ".join(f"{label}: {value}" for label, value in sorted(pod_labels(gateway).items()))
        return Level.WARN, said, f"Let in pods with {allowed} from namespaces with {NAMESPACE_LABEL}: {home}."
    return Level.OK, "No NetworkPolicy is in the way of batches.", ""


def _place(proxy: Document) -> GatewayPlace | None:
    """Where the ingress leads Revisions that batch; None where it was told nothing."""
    told = option(proxy, "--gateway")
    return gateway_place(told, NAMESPACE) if told else None


def _service(cluster: Cluster, place: GatewayPlace) -> tuple[Level, str, str]:
    """Whether there are gateways behind the Service of the ingress's `--gateway`, by the ingress's own judgement."""
    namespace, name = place.service
    service = cluster.one(SERVICES, namespace, name)
    leads = f"{PROXY} leads to port {place.port} of Service {name} in {namespace}"
    if service is None:
        hint = f"{INSTALL}/gateway, or let --gateway of Deployment {PROXY} in {NAMESPACE} name the Service that there is."
        return Level.WARN, f"{leads}, which is not there: each request goes to its Revision by itself.", hint
    facts = service_facts(service)
    slices = cluster.items(ENDPOINT_SLICES.path(namespace), {"labelSelector": f"{SERVICE_LABEL}={name}"})
    ready = gateway_of(place, StillView({facts.key: facts}, tuple(slice_facts(one) for one in slices))).endpoints
    if place.port not in {one.port for one in facts.ports}:
        ports = ", ".join(str(one.port) for one in facts.ports)
        hint = f"Let --gateway of Deployment {PROXY} in {NAMESPACE} name one that it has: {ports}."
        return Level.WARN, f"{leads}, which has no such port: each request goes to its Revision by itself.", hint
    if not ready:
        hint = f"kubectl -n {namespace} get service,endpointslices,pods --show-labels"
        return Level.WARN, f"{leads}, behind which nobody is ready: each request goes to its Revision by itself.", hint
    pods = cluster.items(PODS.path(NAMESPACE), {"labelSelector": GATEWAY_LABELS})
    unheard = {one.ip for one in ready} - {one["ip"] for pod in pods for one in (pod.get("status") or {}).get("podIPs") or ()}
    if unheard:
        addresses = ", ".join(sorted(unheard))
        said = f"{leads}, where the autoscaler class does not ask what waits ({addresses}): it wakes nobody for that."
        return Level.WARN, said, f"It asks pods with {GATEWAY_LABELS} in {NAMESPACE}: run the gateway there. {INSTALL}/gateway"
    return Level.OK, f"{leads}, and the class asks what waits at the {len(ready)} behind it.", ""


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

"""NetworkPolicies where the cluster's network enforces them: what ours let through, from pod to pod.

Whether it does is found out first, by a policy that shuts a pod which was reached before. Where it does not, as on the cluster
that is booted here, these tests are skipped and say so; test_manifests reads the policies there instead.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from kubernetes import client

from gnomon_core.coordination import NODES_NAMESPACE
from gnomon_platforms.kubernetes.objects.names import FUNCTION_LABEL
from tests.cluster import build
from tests.cluster.client import Cluster, Kubectl
from tests.kubernetes.installation.forms import DEPLOY, Kustomized, Manifest, Name
from tests.kubernetes.installation.standing_in import Place, Standing, as_installed

pytestmark = pytest.mark.timeout(600)
SYSTEM, FUNCTIONS, SERVING = "openfaas", "openfaas-fn", "knative-serving"
ENFORCED_WITHIN_S = 6.0
TAKES_EFFECT_S = 60.0
AT_ONCE = 8
Paths = Mapping[tuple[str, str, int], bool]
"""Client, server and port of a connection, and whether it is allowed."""


@pytest.fixture(scope="module")
def kubectl(cluster: Cluster, compiled: build.Programs) -> Kubectl:
    return Kubectl(compiled.folder / "kubectl", cluster.kubeconfig)


@pytest.fixture(scope="module")
def stranger(cluster: Cluster, kubectl: Kubectl, answer_image: str) -> Iterator[Standing]:
    """A pod that belongs to nobody's installation, on a network that enforces policies; else all of this is skipped."""
    with namespaces(cluster, f"test-{secrets.token_hex(4)}") as [name]:
        pods = Standing(cluster, kubectl, answer_image)
        pods.put({"stranger": Place(name), "shut": Place(name, {"shut": "yes"})})
        assert pods.ask("stranger", "shut", 8080)
        policies: Any = client.NetworkingV1Api(cluster.api)
        nobody = {"podSelector": {"matchLabels": {"shut": "yes"}}, "policyTypes": ["Ingress"]}
        policies.create_namespaced_network_policy(name, {"metadata": {"name": "nobody"}, "spec": nobody})
        deadline_s = time.monotonic() + ENFORCED_WITHIN_S
        while pods.ask("stranger", "shut", 8080):
            if time.monotonic() > deadline_s:
                pytest.skip("this cluster's network enforces no NetworkPolicies: a pod that one shuts is reached by everybody")
            time.sleep(0.2)
        yield pods


@contextlib.contextmanager
def namespaces(cluster: Cluster, *names: str, labels: Mapping[str, str] | None = None) -> Iterator[tuple[str, ...]]:
    """Namespaces of our own, which are gone afterwards."""
    for name in names:
        cluster.core.create_namespace({"metadata": {"name": name, "labels": dict(labels or {})}})
    try:
        yield names
    finally:
        for name in names:
            cluster.core.delete_namespace(name, grace_period_seconds=0)


def is_there(cluster: Cluster, name: str) -> bool:
    return name in {namespace.metadata.name for namespace in cluster.core.list_namespace().items}


@contextlib.contextmanager
def applied(kubectl: Kubectl, objects: list[Manifest]) -> Iterator[None]:
    """Apply these objects; nothing of them stays afterwards."""
    given = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
    try:
        kubectl("apply", "-f", "-", given=given)
        yield
    finally:
        kubectl("delete", "--ignore-not-found", "--timeout=100s", "-f", "-", given=given)


def of_kinds(manifests: Mapping[Name, Manifest], *kinds: str) -> list[Manifest]:
    return [manifest for (kind, _, _), manifest in manifests.items() if kind in kinds]


def holds(pods: Standing, expected: Paths) -> None:
    """Wait until the network does what is expected, all of it at the same time."""

    def seen() -> dict[tuple[str, str, int], bool]:
        with ThreadPoolExecutor(AT_ONCE) as threads:
            return dict(zip(expected, threads.map(lambda path: pods.ask(*path), expected), strict=True))

    found = seen()
    deadline_s = time.monotonic() + TAKES_EFFECT_S
    while found != expected and time.monotonic() < deadline_s:
        found = seen()
    assert found == expected


def test_a_function_is_reached_by_the_gateway_alone_and_reaches_no_pod_no_node_and_no_api_server(
    cluster: Cluster, kubectl: Kubectl, kustomized: Kustomized, stranger: Standing
) -> None:
    """The port for requests is the port for batches; whatever else listens in a function's pod is reached by nobody."""
    if any(is_there(cluster, name) for name in (SYSTEM, FUNCTIONS, NODES_NAMESPACE)):
        pytest.skip("something is installed on this cluster already")
    manifests = {**kustomized(DEPLOY / "openfaas"), **kustomized(DEPLOY / "openfaas" / "coordinator")}
    gateway = manifests["Deployment", SYSTEM, "gateway"]
    function = Place(FUNCTIONS, {FUNCTION_LABEL: "classify"}, {"http": 8080, "other": 9000})
    places = {
        "gateway": as_installed(gateway),
        "replica": as_installed(gateway),
        "function": function,
        "another": Place(FUNCTIONS, {FUNCTION_LABEL: "echo"}),
        "coordinator": as_installed(manifests["DaemonSet", NODES_NAMESPACE, "coordinator"]),
    }
    kubernetes = cluster.core.read_namespaced_service("kubernetes", "default").spec.cluster_ip
    [kubelet, *_] = addresses_of_nodes(cluster)
    with applied(kubectl, of_kinds(manifests, "Namespace", "NetworkPolicy")):
        service = manifests["Service", SYSTEM, "gateway"]
        cluster.core.create_namespaced_service(SYSTEM, service)
        pods = stranger.others_beside()
        pods.put(places)
        holds(
            pods,
            {
                ("gateway", "function", 8080): True,
                ("stranger", "function", 8080): False,
                ("another", "function", 8080): False,
                ("coordinator", "function", 8080): False,
                ("gateway", "function", 9000): False,
                ("stranger", "function", 9000): False,
                ("function", "gateway", 8080): True,
                ("stranger", "gateway", 8080): True,
                ("function", "gateway.openfaas", 8080): True,  # by its name, which asks the cluster's name server
                ("replica", "gateway", 8082): True,
                ("function", "gateway", 8082): False,
                ("stranger", "gateway", 8082): False,
                ("gateway", "coordinator", 7468): True,
                ("function", "coordinator", 7468): False,
                ("stranger", "coordinator", 7468): False,
                ("function", "coordinator", 7469): True,
                ("stranger", "coordinator", 7469): False,
                ("function", "stranger", 8080): False,
                ("coordinator", "gateway", 8080): False,
                ("gateway", kubernetes, 443): True,
                ("function", kubernetes, 443): False,
                ("stranger", kubelet[0], kubelet[1]): True,
                ("function", kubelet[0], kubelet[1]): False,
            },
        )


def addresses_of_nodes(cluster: Cluster) -> list[tuple[str, int]]:
    """The addresses of the nodes' kubelets."""
    found = []
    for node in cluster.core.list_node().items:
        [address, *_] = [address.address for address in node.status.addresses if address.type == "InternalIP"]
        found.append((address, node.status.daemon_endpoints.kubelet_endpoint.port))
    return found


def test_knatives_parts_are_reached_by_whom_they_are_for(
    cluster: Cluster, kubectl: Kubectl, kustomized: Kustomized, stranger: Standing
) -> None:
    """Ingresses, wherever they are, reach the gateway; figures are read from namespaces that are labelled for it."""
    policies: Any = client.NetworkingV1Api(cluster.api)
    if not is_there(cluster, SERVING):
        pytest.skip("there is no Knative")
    manifests = kustomized(DEPLOY / "knative")
    ours = {f"gnomon-{part}" for part in ("gateway", "autoscaler")}
    if ours & {network_policy.metadata.name for network_policy in policies.list_namespaced_network_policy(SERVING).items}:
        pytest.skip("something is installed on this cluster already")
    places = {name: as_installed(manifests["Deployment", SERVING, name]) for name in sorted(ours)}
    collecting = f"test-{secrets.token_hex(4)}"
    with (
        namespaces(cluster, collecting, labels={"metrics": "enabled"}),
        applied(kubectl, of_kinds(manifests, "NetworkPolicy")),
    ):
        pods = stranger.others_beside()
        try:
            pods.put({**places, "collector": Place(collecting)})
            holds(
                pods,
                {
                    ("stranger", "gnomon-gateway", 8012): True,
                    ("gnomon-autoscaler", "gnomon-gateway", 9090): True,
                    ("collector", "gnomon-gateway", 9090): True,
                    ("stranger", "gnomon-gateway", 9090): False,
                    ("collector", "gnomon-autoscaler", 8080): True,
                    ("stranger", "gnomon-autoscaler", 8080): False,
                },
            )
        finally:
            pods.end()

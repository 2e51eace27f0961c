"""A control plane that a test may break, with a node that the test plays."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client
from urllib3.exceptions import HTTPError

from benchmarks.kubernetes.pods import Plane, booted
from tests.cluster import build
from tests.cluster.client import Cluster, reached, until
from tests.kubernetes.openfaas.kubelet import Kubelet

NAMESPACE = "openfaas-fn"
HANDLER = """
def handle(event, context):
    return str(context.cores) if event.path == "/cores" else event.body
"""


@dataclass
class Breakable:
    """The control plane, how it is reached, and its nodes."""

    plane: Plane
    cluster: Cluster
    kubelets: list[Kubelet]


@pytest.fixture
def handler(tmp_path: Path) -> Path:
    folder = tmp_path / "function"
    folder.mkdir()
    (folder / "handler.py").write_text(HANDLER)
    return folder


@pytest.fixture(scope="session")
def lasting(compiled: build.Programs) -> Iterator[tuple[Plane, Cluster]]:
    """The control plane, with the namespace of functions. What a test breaks of it, it mends."""
    del compiled  # it skips where nothing is
    with booted(controllers=True) as plane:
        cluster = reached(plane.kubeconfig)
        cluster.core.create_namespace({"metadata": {"name": NAMESPACE}})
        accounts = cluster.core.list_namespaced_service_account
        until(lambda: any(account.metadata.name == "default" for account in accounts(NAMESPACE).items), "the service account")
        yield plane, cluster
        cluster.api.close()


@pytest.fixture
def breakable(lasting: tuple[Plane, Cluster], handler: Path) -> Iterator[Breakable]:
    """The cluster with two nodes of the test's own. The test's deployments are removed before the nodes are."""
    plane, cluster = lasting
    kubelets = [Kubelet(cluster.api, name, handler, second_octet=octet) for name, octet in (("node-a", 11), ("node-b", 12))]
    for kubelet in kubelets:
        kubelet.start()
    until(lambda: all(usable(cluster, kubelet.name) for kubelet in kubelets), "the nodes")
    yield Breakable(plane, cluster, kubelets)
    until(lambda: answers(cluster), "the API server")
    for kubelet in kubelets:
        kubelet.hurried = True
    cluster.apps.delete_collection_namespaced_deployment(NAMESPACE, propagation_policy="Background")
    until(lambda: not left(cluster), "what was deployed to go", 120.0)
    for kubelet in kubelets:
        kubelet.stop()


def answers(cluster: Cluster, namespace: str = NAMESPACE) -> bool:
    """True if the API server is there, which has this namespace."""
    try:
        return bool(cluster.core.read_namespace(namespace))
    except (HTTPError, client.ApiException):
        return False


def left(cluster: Cluster) -> list[str]:
    """The remaining objects of functions."""
    core, budgets = cluster.core, client.PolicyV1Api(cluster.api).list_namespaced_pod_disruption_budget
    kinds: list[Any] = [core.list_namespaced_pod, core.list_namespaced_secret, core.list_namespaced_service, budgets]
    return [resource.metadata.name for kind in kinds for resource in kind(NAMESPACE).items]


def usable(cluster: Cluster, name: str) -> bool:
    """True if a node takes pods."""
    found = cluster.core.read_node(name)
    ready = any(condition.type == "Ready" and condition.status == "True" for condition in found.status.conditions or ())
    return ready and not found.spec.taints

"""A control plane with controllers and scheduler, and one node that a test plays."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from kubernetes import client

from gnomon_platforms.kubernetes.client import connect
from gnomon_platforms.openfaas.store import KubernetesStore
from tests.cluster import build
from tests.cluster.client import Cluster, until
from tests.kubernetes.conftest import plane
from tests.kubernetes.openfaas.kubelet import Kubelet

HANDLER = "def handle(event, context):\n    return event.body\n"
NAMESPACE = "openfaas-fn"


@pytest.fixture(scope="session")
def controlled(compiled: build.Programs) -> Iterator[Cluster]:
    """The control plane, with the namespace of functions."""
    del compiled
    with plane(controllers=True) as cluster:
        labels = {"pod-security.kubernetes.io/enforce": "restricted"}
        cluster.core.create_namespace({"metadata": {"name": NAMESPACE, "labels": labels}})
        accounts = cluster.core.list_namespaced_service_account
        until(lambda: any(account.metadata.name == "default" for account in accounts(NAMESPACE).items), "the service account")
        yield cluster


@pytest.fixture(scope="session")
def echo_handler(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("echo") / "function"
    folder.mkdir()
    (folder / "handler.py").write_text(HANDLER)
    return folder


@pytest.fixture
def kubelet(controlled: Cluster, echo_handler: Path) -> Iterator[Kubelet]:
    """A node, for one test. What the test deployed is gone before it is."""
    node = Kubelet(controlled.api, "node-a", echo_handler)
    node.start()

    def usable() -> bool:
        found = controlled.core.read_node("node-a")
        return (
            any(condition.type == "Ready" and condition.status == "True" for condition in found.status.conditions or ())
            and not found.spec.taints
        )

    until(usable, "the node")
    yield node
    node.hurried = True
    controlled.apps.delete_collection_namespaced_deployment(NAMESPACE, propagation_policy="Background")
    until(lambda: not controlled.core.list_namespaced_pod(NAMESPACE).items, "the pods to end")
    node.stop()
    gone(controlled)


def gone(cluster: Cluster) -> None:
    """Remove all Services and Secrets. The garbage collector may be removing the same ones."""
    cluster.core.delete_collection_namespaced_secret(NAMESPACE)
    cluster.core.delete_collection_namespaced_service(NAMESPACE)


@pytest.fixture
def core(controlled: Cluster) -> client.CoreV1Api:
    api: client.CoreV1Api = controlled.core
    return api


def opened(kubeconfig: Path) -> KubernetesStore:
    return KubernetesStore(connect(kubeconfig))

"""A control plane that a test may break, with a node that the test plays."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from benchmarks.kubernetes.planes import Plane, booted
from deploy.test_cluster import build
from deploy.test_cluster.clusters import Cluster, reached, until
from tests.kubernetes.openfaas.kubelet import Kubelet
from tests.unit.runtime.conftest import forget_handlers

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
    forget_handlers()
    folder = tmp_path / "function"
    folder.mkdir()
    (folder / "handler.py").write_text(HANDLER)
    return folder


@pytest.fixture
def breakable(compiled: build.Programs, handler: Path) -> Iterator[Breakable]:
    """One for a single test, with the namespace of functions and two nodes."""
    del compiled  # it skips where nothing is
    with booted(controllers=True) as plane:
        cluster = reached(plane.kubeconfig)
        cluster.core.create_namespace({"metadata": {"name": NAMESPACE}})
        accounts = cluster.core.list_namespaced_service_account
        until(lambda: any(one.metadata.name == "default" for one in accounts(NAMESPACE).items), "the service account")
        kubelets = [Kubelet(cluster.api, name, handler, second_octet=octet) for name, octet in (("node-a", 11), ("node-b", 12))]
        for kubelet in kubelets:
            kubelet.start()
        until(lambda: all(usable(cluster, kubelet.name) for kubelet in kubelets), "the nodes")
        yield Breakable(plane, cluster, kubelets)
        for kubelet in kubelets:
            kubelet.stop()
        cluster.api.close()


def usable(cluster: Cluster, name: str) -> bool:
    """Whether a node takes pods."""
    found = cluster.core.read_node(name)
    ready = any(one.type == "Ready" and one.status == "True" for one in found.status.conditions or ())
    return ready and not found.spec.taints

"""Hundreds of nodes that run nothing, for tests of what a controller decides."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from kubernetes import client

from tests.cluster import build, fake_nodes
from tests.cluster.client import Cluster, Kubectl, reached, until
from tests.cluster.control_plane import ControlPlane
from tests.cluster.processes import Programs
from tests.cluster.settings import folders

NODES = 200


@pytest.fixture
def simulated(compiled: build.Programs, tmp_path: Path) -> Iterator[Cluster]:
    """A control plane with controllers and kwok."""
    kwok = build.kept(folders(), build.KWOK_SOURCES)
    if kwok is None:
        pytest.skip("kwok is not compiled: make cluster-build")
    running = Programs(tmp_path / "state", end_with_us=True)
    plane = ControlPlane(tmp_path / "state", compiled.folder, running)
    try:
        plane.start_controllers(plane.boot())
        fake_nodes.FakeNodes(plane.state, kwok, running).start(plane.kubeconfig)
        fake_nodes.add(Kubectl(compiled.folder / "kubectl", plane.kubeconfig), NODES)
        cluster = reached(plane.kubeconfig)
        yield cluster
        cluster.api.close()
    finally:
        plane.end()


def test_pods_are_scheduled_to_fake_nodes_and_seem_to_run(simulated: Cluster) -> None:
    def ready(node: client.V1Node) -> bool:
        conditions = node.status.conditions if node.status else None
        return any(each.type == "Ready" and each.status == "True" for each in conditions or [])

    until(lambda: sum(map(ready, simulated.core.list_node().items)) == NODES, "the nodes", limit_s=90)
    template = {"metadata": {"labels": {"app": "many"}}, "spec": {"containers": [{"name": "c", "image": "nothing:v1"}]}}
    spec = {"selector": {"matchLabels": {"app": "many"}}, "replicas": 100, "template": template}
    simulated.apps.create_namespaced_deployment("default", {"metadata": {"name": "many"}, "spec": spec})

    def available() -> bool:
        return bool(simulated.apps.read_namespaced_deployment("many", "default").status.available_replicas == 100)

    until(available, "a hundred pods", limit_s=90)
    used = {pod.spec.node_name for pod in simulated.core.list_namespaced_pod("default").items}
    assert len(used) > 50  # the scheduler spreads them

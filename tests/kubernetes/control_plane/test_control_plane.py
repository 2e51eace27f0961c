"""A real control plane: objects are watched and refused as anywhere, fake nodes take pods, configuration is restored."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client, watch

from tests.cluster import build, fake_nodes
from tests.cluster.client import Cluster, Kubectl, reached, until
from tests.cluster.control_plane import ControlPlane
from tests.cluster.knative import configured
from tests.cluster.phases import Trouble
from tests.cluster.processes import Programs
from tests.cluster.settings import folders


def config_map(name: str, **data: str) -> client.V1ConfigMap:
    return client.V1ConfigMap(metadata=client.V1ObjectMeta(name=name), data=data)


def test_objects_are_made_listed_and_watched(control_plane: Cluster) -> None:
    core = control_plane.core
    core.create_namespaced_config_map("default", config_map("first", colour="red"))
    listed = core.list_namespaced_config_map("default")
    assert {item.metadata.name: item.data for item in listed.items if item.metadata.name == "first"} == {
        "first": {"colour": "red"}
    }

    core.create_namespaced_config_map("default", config_map("second"))
    core.patch_namespaced_config_map("second", "default", {"data": {"colour": "blue"}})
    core.delete_namespaced_config_map("first", "default")
    seen = []
    make: Any = watch.Watch
    events = make().stream(
        core.list_namespaced_config_map, "default", resource_version=listed.metadata.resource_version, timeout_seconds=30
    )
    for event in events:
        seen.append((event["type"], event["object"].metadata.name))
        if len(seen) == 3:
            break
    assert seen == [("ADDED", "second"), ("MODIFIED", "second"), ("DELETED", "first")]


def test_a_write_from_an_old_version_is_refused(control_plane: Cluster) -> None:
    core = control_plane.core
    old = core.create_namespaced_config_map("default", config_map("versioned", step="1"))
    core.patch_namespaced_config_map("versioned", "default", {"data": {"step": "2"}})
    old.data = {"step": "3"}
    with pytest.raises(client.ApiException) as refused:
        core.replace_namespaced_config_map("versioned", "default", old)
    assert refused.value.status == 409
    assert core.read_namespaced_config_map("versioned", "default").data == {"step": "2"}


def test_the_scale_subresource_is_there_without_controllers(control_plane: Cluster) -> None:
    template = {"metadata": {"labels": {"app": "a"}}, "spec": {"containers": [{"name": "c", "image": "dev.local/answer:v1"}]}}
    body = {"selector": {"matchLabels": {"app": "a"}}, "replicas": 1, "template": template}
    control_plane.apps.create_namespaced_deployment("default", {"metadata": {"name": "still"}, "spec": body})
    control_plane.apps.patch_namespaced_deployment_scale("still", "default", {"spec": {"replicas": 3}})
    assert control_plane.apps.read_namespaced_deployment("still", "default").spec.replicas == 3


def test_account_without_rights_is_refused(control_plane: Cluster) -> None:
    """Roles are in force, so that tests can show what a role lacks."""
    body = {"spec": {"resourceAttributes": {"namespace": "default", "verb": "get", "resource": "secrets"}, "user": "nobody"}}
    authorization: Any = client.AuthorizationV1Api(control_plane.api)
    review = authorization.create_subject_access_review(body)
    assert not review.status.allowed


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


def test_values_are_changed_and_changed_back_even_where_one_cannot_be(own_plane: Cluster, compiled: build.Programs) -> None:
    system = "knative-serving"
    own_plane.core.create_namespace({"metadata": {"name": system}})
    data = {"mesh-compatibility-mode": "disabled", "ingress-class": "theirs"}
    own_plane.core.create_namespaced_config_map(system, {"metadata": {"name": "config-network"}, "data": data})
    own_plane.core.create_namespaced_config_map(system, {"metadata": {"name": "config-domain"}})
    kubectl = Kubectl(compiled.folder / "kubectl", own_plane.kubeconfig)

    def now(name: str) -> dict[str, str]:
        return own_plane.core.read_namespaced_config_map(name, system).data or {}

    wanted = {"config-network": {"ingress-class": "gnomon"}, "config-domain": {"example.com": ""}}
    with configured(kubectl, wanted):
        assert now("config-network") == {**data, "ingress-class": "gnomon"}
        assert now("config-domain") == {"example.com": ""}
    assert (now("config-network"), now("config-domain")) == (data, {})

    with pytest.raises(Trouble, match="config-missing"), configured(kubectl, {**wanted, "config-missing": {"a": "b"}}):
        pass
    assert (now("config-network"), now("config-domain")) == (data, {})

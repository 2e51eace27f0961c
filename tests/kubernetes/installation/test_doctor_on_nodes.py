"""What `gnomon doctor` says of Shadows, of further namespaces and of Knative's classes, on a real API server."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from kubernetes import client

from deploy.test_cluster import build
from deploy.test_cluster.client import Kubectl
from deploy.test_cluster.clusters import Cluster
from tests.kubernetes.installation.forms import DEPLOY
from tests.kubernetes.installation.test_doctor_on_kubernetes import examine

SYSTEM, NODES, SERVING = "openfaas", "gnomon-nodes", "knative-serving"
COORDINATOR = DEPLOY / "openfaas" / "coordinator"
Found = dict[str, dict[str, str]]


@pytest.fixture
def doctor(own_plane: Cluster, compiled: build.Programs) -> Callable[..., Found]:
    """A cluster of the test's own with deploy/openfaas, looked at."""
    Kubectl(compiled.folder / "kubectl", own_plane.kubeconfig)("apply", "-k", str(DEPLOY / "openfaas"))
    return lambda *more, **named: examine(own_plane.kubeconfig, *more, **named)[0]


def levels(found: Found, *checks: str) -> list[str]:
    return [found[check]["level"] for check in checks]


def test_shadows_are_looked_for_from_the_driver_to_each_kubelet(
    own_plane: Cluster, compiled: build.Programs, doctor: Callable[..., Found]
) -> None:
    kubectl = Kubectl(compiled.folder / "kubectl", own_plane.kubeconfig)
    checks = "Shadows' driver", "Shadows' coordinators", "Shadows' nodes"
    found = doctor()
    assert levels(found, *checks) == ["warn", "warn", "ok"]
    assert "without Shadows" in found["Shadows' driver"]["message"]
    assert found["Shadows' driver"]["hint"] == "kubectl apply -k deploy/openfaas/coordinator"

    # Applied, but with no token, on no node and with nobody who registers: each is said, with what to do.
    own_plane.core.create_node({"metadata": {"name": "node-a"}})
    kubectl("apply", "-k", str(COORDINATOR))
    found = doctor()
    assert levels(found, *checks) == ["ok", "fail", "warn"]
    assert "create secret generic coordinator-token" in found["Shadows' coordinators"]["hint"]
    assert "node-a" in found["Shadows' nodes"]["message"]

    own_plane.core.create_namespaced_secret(NODES, {"metadata": {"name": "coordinator-token"}, "stringData": {"token": "long"}})
    assert doctor()["Shadows' coordinators"]["level"] == "fail"
    status = {"desiredNumberScheduled": 1, "currentNumberScheduled": 1, "numberMisscheduled": 0, "numberReady": 1}
    own_plane.apps.patch_namespaced_daemon_set_status("coordinator", NODES, {"status": status})
    storage: Any = client.StorageV1Api(own_plane.api)
    registered = {"metadata": {"name": "node-a"}, "spec": {"drivers": [{"name": "node.gnomon", "nodeID": "node-a"}]}}
    storage.create_csi_node(registered)
    assert levels(doctor(), *checks) == ["ok", "ok", "ok"]

    # Somebody else's driver of that name tells no pod from another.
    storage.delete_csi_driver("node.gnomon")
    storage.create_csi_driver({"metadata": {"name": "node.gnomon"}, "spec": {"podInfoOnMount": False}})
    found = doctor()
    assert found["Shadows' driver"]["level"] == "fail"
    assert "podInfoOnMount is not true" in found["Shadows' driver"]["message"]


def test_the_rights_at_the_nodes_pods_are_asked_for_where_there_are_coordinators(
    own_plane: Cluster, compiled: build.Programs, doctor: Callable[..., Found]
) -> None:
    kubectl = Kubectl(compiled.folder / "kubectl", own_plane.kubeconfig)
    account = "--service-account", "openfaas:gateway"
    before = doctor(*account)["permissions"]
    kubectl("apply", "-k", str(COORDINATOR))
    after = doctor(*account)["permissions"]
    assert before["level"] == after["level"] == "ok"
    assert before["message"] != after["message"]
    kubectl("delete", "role,rolebinding", "gnomon-pools", "-n", NODES)
    without = doctor(*account)["permissions"]
    assert without["level"] == "fail"
    assert f"patch pods/resize in {NODES}" in without["message"]
    assert "deploy/openfaas/coordinator" in without["hint"]


def test_further_namespaces_of_functions_are_looked_after_and_as_strict_and_as_shut_in_or_named(
    own_plane: Cluster, compiled: build.Programs, doctor: Callable[..., Found]
) -> None:
    assert doctor()["function namespaces"]["level"] == "ok"
    own_plane.core.create_namespace({"metadata": {"name": "team-a", "annotations": {"openfaas": "1"}}})
    marked = doctor()["function namespaces"]
    assert marked["level"] == "warn"
    assert "not looked after: team-a" in marked["message"]
    assert "deploy/openfaas/cluster-wide" in marked["hint"]

    argument = [{"op": "add", "path": "/spec/template/spec/containers/0/args/-", "value": "--cluster-wide"}]
    kubectl = Kubectl(compiled.folder / "kubectl", own_plane.kubeconfig)
    kubectl("patch", "deployment", "gateway", "-n", SYSTEM, "--type=json", f"--patch={json.dumps(argument)}")
    found = doctor("--service-account", "openfaas:gateway")
    assert found["function namespaces"]["message"] == "Pod Security is not held to in team-a."
    # What it does say to do is what helps.
    kubectl(*found["function namespaces"]["hint"].split()[1:])
    found_next = doctor()["function namespaces"]
    assert found_next["message"] == "Functions in team-a are under no NetworkPolicy, as those in openfaas-fn are."
    kubectl(*found_next["hint"].replace(" deploy/", f" {DEPLOY}/").split()[1:])
    assert doctor()["function namespaces"] == {
        "check": "function namespaces",
        "level": "ok",
        "message": "Functions are in openfaas-fn, team-a.",
        "hint": "",
    }
    # The roles of one namespace are too few by now.
    assert found["permissions"]["level"] == "fail"
    assert "cluster-wide" in found["permissions"]["hint"]


def test_knatives_classes_are_looked_at_and_what_they_may_do(
    own_plane: Cluster, compiled: build.Programs, doctor: Callable[..., Found]
) -> None:
    kubectl = Kubectl(compiled.folder / "kubectl", own_plane.kubeconfig)
    own_plane.core.create_namespace({"metadata": {"name": SERVING}})
    autoscaler = "--service-account", f"{SERVING}:gnomon-autoscaler"
    found = doctor(*autoscaler, platform="knative")
    checks = "Knative's metrics", "permissions", "autoscaler class", "ingress class", "gateway"
    assert levels(found, *checks) == ["warn", "fail", "fail", "warn", "warn"]
    assert found["gateway"]["hint"] == "kubectl apply -k deploy/knative/gateway"
    assert '"metrics-protocol":"prometheus"' in found["Knative's metrics"]["hint"]
    assert "rollout restart deployment activator" in found["Knative's metrics"]["hint"]
    assert found["autoscaler class"]["hint"] == "kubectl apply -k deploy/knative/autoscaler"

    # Routes of no class are ours, and there is nobody to serve them.
    own_plane.core.create_namespaced_config_map(
        SERVING, {"metadata": {"name": "config-network"}, "data": {"ingress-class": "gnomon"}}
    )
    observability = {"metadata": {"name": "config-observability"}, "data": {"metrics-protocol": "prometheus"}}
    own_plane.core.create_namespaced_config_map(SERVING, observability)
    found = doctor(platform="knative")
    assert levels(found, "Knative's metrics", "ingress class") == ["ok", "fail"]

    kubectl("apply", "-k", str(DEPLOY / "knative"))
    for name, ready in (("gnomon-autoscaler", 2), ("gnomon-ingress", 1), ("gnomon-gateway", 2)):
        status = {"replicas": 2, "readyReplicas": ready, "availableReplicas": ready, "updatedReplicas": 2}
        own_plane.apps.patch_namespaced_deployment_status(name, SERVING, {"status": status})
    for account in ("gnomon-autoscaler", "gnomon-ingress", "gnomon-gateway"):
        found = doctor("--service-account", f"{SERVING}:{account}", platform="knative")
        assert levels(found, *checks) == ["ok", "ok", "ok", "warn", "ok"], found["permissions"]["message"]
    assert found["ingress class"]["hint"] == f"kubectl -n {SERVING} describe pods -l app.kubernetes.io/component=knative-ingress"
    # An ingress that is not ours leads nobody to the gateway.
    kubectl("delete", "-n", SERVING, "deployment", "gnomon-ingress")
    found = doctor(platform="knative")
    assert (levels(found, "gateway"), found["gateway"]["hint"]) == (["warn"], "kubectl apply -k deploy/knative/ingress")
    # Each account has its own rights only.
    assert doctor("--service-account", f"{SERVING}:default", platform="knative")["permissions"]["level"] == "fail"

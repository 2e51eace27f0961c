"""`gnomon doctor` checks Shadows, further namespaces and Knative's classes on a real API server."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client

from gnomon_platforms.knative.autoscaler.objects import Condition
from gnomon_platforms.knative.autoscaler.planning import ShadowPrerequisites, shadows
from tests.cluster import build
from tests.cluster.client import Cluster, Kubectl
from tests.kubernetes.installation.forms import DEPLOY
from tests.kubernetes.installation.test_doctor_on_kubernetes import examine
from tests.kubernetes.kinds import install_kinds
from tests.kubernetes.knative_autoscaler.played_knative import PA

SYSTEM, NODES, SERVING = "openfaas", "gnomon-nodes", "knative-serving"
COORDINATOR = DEPLOY / "openfaas" / "coordinator"
WITH_MODELS = "kubectl apply -k deploy/knative-models"
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

    kubectl = Kubectl(compiled.folder / "kubectl", own_plane.kubeconfig)
    tells("gateway", SYSTEM, "--cluster-wide", kubectl)
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
    checks = "Knative's metrics", "permissions", "autoscaler class", "gateway"
    assert levels(found, *checks) == ["warn", "fail", "fail", "warn"]
    assert found["gateway"]["hint"] == "kubectl apply -k deploy/knative/gateway"
    assert '"metrics-protocol":"prometheus"' in found["Knative's metrics"]["hint"]
    assert "rollout restart deployment activator" in found["Knative's metrics"]["hint"]
    assert found["autoscaler class"]["hint"] == "kubectl apply -k deploy/knative/autoscaler"
    # By Knative's default no service answers from outside.
    assert levels(found, "Knative's domain") == ["warn"]
    assert "patch configmap config-domain" in found["Knative's domain"]["hint"]
    named = {"metadata": {"name": "config-domain"}, "data": {"_example": "x", "knative.example.com": ""}}
    own_plane.core.create_namespaced_config_map(SERVING, named)
    assert levels(doctor(platform="knative"), "Knative's domain") == ["ok"]

    observability = {"metadata": {"name": "config-observability"}, "data": {"metrics-protocol": "prometheus"}}
    own_plane.core.create_namespaced_config_map(SERVING, observability)
    found = doctor(platform="knative")
    assert levels(found, "Knative's metrics") == ["ok"]

    kubectl("apply", "-k", str(DEPLOY / "knative"))
    for name, ready in (("gnomon-autoscaler", 2), ("gnomon-gateway", 1)):
        status = {"replicas": 2, "readyReplicas": ready, "availableReplicas": ready, "updatedReplicas": 2}
        own_plane.apps.patch_namespaced_deployment_status(name, SERVING, {"status": status})
    for account in ("gnomon-autoscaler", "gnomon-gateway"):
        found = doctor("--service-account", f"{SERVING}:{account}", platform="knative")
        assert levels(found, *checks) == ["ok", "ok", "ok", "warn"], found["permissions"]["message"]
    assert found["gateway"]["hint"] == f"kubectl -n {SERVING} describe pods -l app.kubernetes.io/component=knative-gateway"
    # Without the class nobody leads to the gateway.
    kubectl("delete", "-n", SERVING, "deployment", "gnomon-autoscaler")
    found = doctor(platform="knative")
    assert (levels(found, "gateway"), found["gateway"]["hint"]) == (["warn"], "kubectl apply -k deploy/knative/autoscaler")
    # Each account has its own rights only.
    assert doctor("--service-account", f"{SERVING}:default", platform="knative")["permissions"]["level"] == "fail"


def test_shadows_on_knative_are_looked_for_from_the_class_to_the_coordinators(
    own_plane: Cluster, compiled: build.Programs, doctor: Callable[..., Found], tmp_path: Path
) -> None:
    kubectl = Kubectl(compiled.folder / "kubectl", own_plane.kubeconfig)
    core = own_plane.core
    core.create_namespace({"metadata": {"name": SERVING}})
    kubectl("apply", "-k", str(DEPLOY / "knative"))
    autoscaler = "--service-account", f"{SERVING}:gnomon-autoscaler"
    checks = "Shadows' driver", "Shadows' token", "Shadows' network", "permissions"
    found = doctor(*autoscaler, platform="knative")
    assert levels(found, *checks) == ["warn", "ok", "ok", "ok"]
    assert found["Shadows' driver"]["hint"] == WITH_MODELS
    without = found["permissions"]["message"]

    # Coordinators that nobody asks; those of a class with models, which lacks their token.
    kubectl("apply", "-k", str(COORDINATOR))
    found = doctor(platform="knative")
    assert (found["Shadows' token"]["level"], found["Shadows' token"]["hint"]) == ("warn", WITH_MODELS)
    kubectl("apply", "-k", str(DEPLOY / "knative-models"))
    token = {"metadata": {"name": "coordinator-token"}, "stringData": {"token": "of the nodes"}}
    core.create_namespaced_secret(NODES, token)
    found = doctor(*autoscaler, platform="knative")
    assert levels(found, *checks) == ["ok", "fail", "ok", "ok"]
    assert "There is no Secret coordinator-token in knative-serving" in found["Shadows' token"]["message"]
    assert found["permissions"]["message"] != without, "more is asked for"

    # What it does say to do is what helps, also where there are two tokens. kubectl keeps what it learns of a cluster at home.
    tools = {"PATH": f"{compiled.folder}:{os.environ['PATH']}", "KUBECONFIG": str(own_plane.kubeconfig), "HOME": str(tmp_path)}

    def done(hint: str) -> None:
        subprocess.run(["bash", "-ec", hint], env=tools, cwd=DEPLOY.parent, capture_output=True, check=True)

    done(found["Shadows' token"]["hint"])
    assert doctor(platform="knative")["Shadows' token"]["level"] == "ok"
    core.patch_namespaced_secret("coordinator-token", NODES, {"stringData": {"token": "another one"}})
    differs = doctor(platform="knative")["Shadows' token"]
    assert differs["level"] == "fail"
    assert "401 bad_token" in differs["message"]
    done(differs["hint"])
    assert levels(doctor(*autoscaler, platform="knative"), *checks) == ["ok"] * 4

    # Neither the rights nor the way to the nodes come with the coordinators alone.
    kubectl("delete", "-n", NODES, "rolebinding/gnomon-pools-knative", "networkpolicy/coordinator-knative")
    found = doctor(*autoscaler, platform="knative")
    assert levels(found, *checks) == ["ok", "ok", "warn", "fail"]
    assert f"get pods in {NODES}" in found["permissions"]["message"]
    assert "gnomon-autoscaler to port 7468" in found["Shadows' network"]["message"]
    assert (found["permissions"]["hint"], found["Shadows' network"]["hint"]) == (WITH_MODELS, WITH_MODELS)
    done(WITH_MODELS)
    assert levels(doctor(*autoscaler, platform="knative"), *checks) == ["ok"] * 4

    # Bodies of other nodes need a way of their own, where they may come.
    tells("gnomon-autoscaler", SERVING, "--network-gbps=10", kubectl)
    assert doctor(platform="knative")["Shadows' network"]["level"] == "ok"
    kubectl("delete", "-n", NODES, "networkpolicy/coordinator-knative")
    message = doctor(platform="knative")["Shadows' network"]["message"]
    assert "gnomon-autoscaler to port 7468 nor Bodies of other nodes to port 7469" in message

    # Nodes obey one of two: who has not their token is not told to take it.
    assert doctor()["Shadows' token"]["level"] == "ok"
    tells("gateway", SYSTEM, "--coordinator-token=/var/secrets/coordinator/token", kubectl)
    for platform in ("openfaas", "knative"):
        both = doctor(platform=platform)["Shadows' token"]
        assert both["level"] == "fail"
        assert "nodes obey one of them" in both["message"]


def test_revisions_whose_bodies_work_alone_are_named_with_what_they_lack(
    own_plane: Cluster, compiled: build.Programs, doctor: Callable[..., Found]
) -> None:
    assert doctor(platform="knative")["Shadows' Revisions"]["level"] == "ok", "nobody knows of any"
    install_kinds(own_plane, compiled, "serving/300-resources/podautoscaler.yaml")
    own_plane.core.create_namespace({"metadata": {"name": "users"}})

    def revision(name: str, shadows: Condition | None, reachability: str = "Reachable") -> None:
        target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": name}
        spec = {"protocolType": "http1", "scaleTargetRef": target, "reachability": reachability}
        made = {"apiVersion": "/".join(PA), "kind": "PodAutoscaler", "metadata": {"name": name}, "spec": spec}
        said: dict[str, Any] = {"type": "Ready", "status": "True"}
        conditions = [said] if shadows is None else [said, {"type": "Shadows", "severity": "Info", **asdict(shadows)}]
        for condition in conditions:
            condition.pop("since_s", None)
        status = {"serviceName": name, "metricsServiceName": name, "conditions": conditions}
        written: dict[str, Any] = own_plane.custom.create_namespaced_custom_object(*PA, "users", "podautoscalers", made)
        own_plane.custom.replace_namespaced_custom_object_status(
            *PA, "users", "podautoscalers", name, {**written, "status": status}
        )

    revision("counts-00001", None)
    revision("pairs-00001", shadows(ShadowPrerequisites(allowed=True, mounted=True, coordinators=True, pooled=True)))
    # One before it, to which nothing is led any more.
    revision(
        "pairs-00000", shadows(ShadowPrerequisites(allowed=True, mounted=False, coordinators=True, pooled=True)), "Unreachable"
    )
    assert doctor(platform="knative")["Shadows' Revisions"]["level"] == "ok"

    # The command that each lacks: in the order of names the first one's.
    revision("d-00001", shadows(ShadowPrerequisites(allowed=True, mounted=True, coordinators=True, pooled=False)))
    revision("c-00001", shadows(ShadowPrerequisites(allowed=True, mounted=True, coordinators=False, pooled=False)))
    revision("b-00001", shadows(ShadowPrerequisites(allowed=True, mounted=False, coordinators=False, pooled=False)))
    revision("a-00001", shadows(ShadowPrerequisites(allowed=False, mounted=False, coordinators=False, pooled=False)))
    for name, hint in (("a", "podspec-volumes-csi"), ("b", "the volume"), ("c", WITH_MODELS), ("d", "-c pool")):
        found = doctor(platform="knative")["Shadows' Revisions"]
        assert found["level"] == "warn"
        assert f"users/{name}-00001" in found["message"]
        assert hint in found["hint"]
        own_plane.custom.delete_namespaced_custom_object(*PA, "users", "podautoscalers", f"{name}-00001")


def tells(name: str, namespace: str, argument: str, kubectl: Kubectl) -> None:
    """Give a Deployment one more argument."""
    patch = [{"op": "add", "path": "/spec/template/spec/containers/0/args/-", "value": argument}]
    kubectl("patch", "deployment", name, "-n", namespace, "--type=json", f"--patch={json.dumps(patch)}")

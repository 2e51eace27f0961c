"""`gnomon doctor` on a real API server: what is missing is said, what was done about it is seen."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gnomon_cli.main import gnomon
from tests.cluster import build
from tests.cluster.client import Cluster, Kubectl, documents
from tests.kubernetes.installation.forms import DEPLOY
from tests.kubernetes.kinds import install_kinds

SYSTEM, FUNCTIONS = "openfaas", "openfaas-fn"


def examine(kubeconfig: Path, *more: str, platform: str = "openfaas") -> tuple[dict[str, dict[str, str]], int]:
    """The findings by their checks, and the exit code."""
    result = CliRunner().invoke(gnomon, ["doctor", "--json", "--platform", platform, "--kubeconfig", str(kubeconfig), *more])
    return {load["check"]: load for load in json.loads(result.output)}, result.exit_code


@pytest.fixture
def nodes(installed: Cluster) -> Any:
    """Adds nodes that say that they are ready."""
    made = []

    def add(name: str, version: str) -> None:
        made.append(name)
        installed.core.create_node({"metadata": {"name": name}})
        fields = ("kubeletVersion", "machineID", "systemUUID", "bootID", "kernelVersion", "osImage", "containerRuntimeVersion")
        info = {**dict.fromkeys((*fields, "kubeProxyVersion", "operatingSystem", "architecture"), ""), "kubeletVersion": version}
        status = {"conditions": [{"type": "Ready", "status": "True"}], "nodeInfo": info}
        installed.core.patch_node_status(name, {"status": status})

    yield add
    for name in made:
        installed.core.delete_node(name)


def test_an_empty_cluster_lacks_what_an_installation_makes(installed: Cluster) -> None:
    found, code = examine(installed.kubeconfig, "--system-namespace", "nowhere", "--namespace", "nowhere-fn")
    assert code == 1
    assert found["API server"]["level"] == "ok"
    assert "v1.35" in found["API server"]["message"]
    assert found["nodes"]["level"] == "fail"
    assert found["namespaces"]["message"] == "There is no namespace nowhere and no nowhere-fn."
    assert found["namespaces"]["hint"] == "kubectl apply -k deploy/openfaas"
    assert found["gateway"]["level"] == found["login"]["level"] == "fail"
    assert found["metrics"]["level"] == "warn"


def test_doctor_sees_the_remedy(installed: Cluster, nodes: Any) -> None:
    nodes("node-a", "v1.35.4")
    found, code = examine(installed.kubeconfig)
    assert [check for check, row in found.items() if row["level"] == "fail"] == ["login", "gateway"]
    assert found["namespaces"]["level"] == found["in-place resize"]["level"] == "ok"
    assert code == 1

    assert found["replicas"]["level"] == "warn"
    assert "create secret generic gateway-peers" in found["replicas"]["hint"]

    credentials = {"basic-auth-user": "admin", "basic-auth-password": "long"}
    for name, held in (("basic-auth", credentials), ("gateway-peers", {"secret": "of all of them"})):
        installed.core.create_namespaced_secret(SYSTEM, {"metadata": {"name": name}, "stringData": held})
    status = {"replicas": 2, "readyReplicas": 1, "availableReplicas": 1, "updatedReplicas": 2}
    installed.apps.patch_namespaced_deployment_status("gateway", SYSTEM, {"status": status})
    found, code = examine(installed.kubeconfig)
    assert code == 0
    assert found["login"]["level"] == found["replicas"]["level"] == "ok"
    assert found["gateway"]["level"] == "warn"
    assert found["gateway"]["message"] == "1 of 2 replicas are ready."


def test_permissions_are_those_of_the_account_that_is_named(installed: Cluster) -> None:
    found, _ = examine(installed.kubeconfig, "--service-account", "openfaas:gateway")
    assert found["permissions"]["level"] == "ok", found["permissions"]["message"]
    found, code = examine(installed.kubeconfig, "--service-account", "openfaas-fn:default")
    assert code == 1
    assert "list nodes (to see where Shadows have room)" in found["permissions"]["message"]
    assert found["permissions"]["hint"] == "kubectl apply -k deploy/openfaas"


def test_an_old_node_takes_resizing_away(installed: Cluster, nodes: Any) -> None:
    nodes("node-new", "v1.35.4")
    nodes("node-old", "v1.32.1")
    found, _ = examine(installed.kubeconfig)
    assert found["in-place resize"]["level"] == "warn"
    assert "node-old" in found["in-place resize"]["message"]
    assert "node-new" not in found["in-place resize"]["message"]


def test_whether_anybody_is_known_to_enforce_policies_is_said(installed: Cluster) -> None:
    found, _ = examine(installed.kubeconfig)
    assert found["network policies"]["level"] == "warn"
    assert "No known enforcer of NetworkPolicies was found" in found["network policies"]["message"]

    labels = {"k8s-app": "cilium"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "x"}]}}
    daemons = {"metadata": {"name": "cilium"}, "spec": {"selector": {"matchLabels": labels}, "template": template}}
    installed.apps.create_namespaced_daemon_set("kube-system", daemons)
    status = {"desiredNumberScheduled": 2, "currentNumberScheduled": 2, "numberMisscheduled": 0, "numberReady": 1}
    installed.apps.patch_namespaced_daemon_set_status("cilium", "kube-system", {"status": status})
    found, _ = examine(installed.kubeconfig, platform="knative")
    assert found["network policies"]["message"].endswith("enforces NetworkPolicies, and is not ready on 1 of 2 nodes.")
    installed.apps.patch_namespaced_daemon_set_status("cilium", "kube-system", {"status": {**status, "numberReady": 2}})
    found, _ = examine(installed.kubeconfig)
    assert (found["network policies"]["level"], found["network policies"]["hint"]) == ("ok", "")
    installed.apps.delete_namespaced_daemon_set("cilium", "kube-system")


def test_another_autoscaler_of_a_function_is_named(installed: Cluster) -> None:
    labels = {"app": "classify"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "x"}]}}
    function = {
        "metadata": {"name": "classify", "labels": {"gnomon/managed": "true"}},
        "spec": {"replicas": 0, "selector": {"matchLabels": labels}, "template": template},
    }
    installed.apps.create_namespaced_deployment(FUNCTIONS, function)
    assert examine(installed.kubeconfig)[0]["other autoscalers"]["level"] == "ok"
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "classify"}
    scaler = {"metadata": {"name": "by-cpu"}, "spec": {"maxReplicas": 3, "scaleTargetRef": target}}
    body = {"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", **scaler}
    installed.custom.create_namespaced_custom_object("autoscaling", "v2", FUNCTIONS, "horizontalpodautoscalers", body)
    found = examine(installed.kubeconfig)[0]["other autoscalers"]
    assert found["level"] == "warn"
    assert "HorizontalPodAutoscaler by-cpu → classify" in found["message"]


def test_knatives_config_maps_are_read(installed: Cluster, kubectl: Kubectl, compiled: build.Programs) -> None:
    found, code = examine(installed.kubeconfig, platform="knative")
    assert code == 1
    assert found["Knative"]["level"] == "fail"

    serving = compiled.manifests / "serving"
    schemas = [*(serving / "300-resources").glob("*.yaml"), compiled.manifests / "caching" / "image.yaml"]
    schemas += [compiled.manifests / "networking" / f"{name}.yaml" for name in ("certificate", "ingress", "serverlessservice")]
    install_kinds(installed, compiled, *(str(path.relative_to(compiled.manifests)) for path in schemas))
    kubectl.apply(documents(serving / "100-namespace.yaml", *(serving / "configmaps").glob("*.yaml")))
    found, _ = examine(installed.kubeconfig, platform="knative")
    assert found["Knative"]["level"] == "ok"
    assert found["Knative's volumes"]["level"] == "ok"
    assert "is disabled: pods cannot have the volume" in found["Knative's volumes"]["message"]

    # It matters where coordinators are.
    kubectl("apply", "-k", str(DEPLOY / "openfaas" / "coordinator"))
    found, _ = examine(installed.kubeconfig, platform="knative")
    installed.apps.delete_namespaced_daemon_set("coordinator", "gnomon-nodes")
    assert found["Knative's volumes"]["level"] == "warn"
    assert "patch configmap config-features" in found["Knative's volumes"]["hint"]

    enabled = {"data": {"kubernetes.podspec-volumes-csi": "enabled"}}
    installed.core.patch_namespaced_config_map("config-features", "knative-serving", enabled)
    found, _ = examine(installed.kubeconfig, platform="knative")
    assert found["Knative's volumes"]["level"] == "ok"
    assert "is enabled: pods may have the volume" in found["Knative's volumes"]["message"]
    assert found["Knative's scaling"]["level"] == found["Knative's network"]["level"] == "ok"

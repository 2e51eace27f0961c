"""`kubectl apply -k deploy/openfaas-behind` in a cluster with OpenFaaS in it, of which objects are played: names, labels, images.

What is there stays as it is, the gateway is led to us by the patch of the how-to, and all of ours can be taken away again.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gnomon_cli.main import gnomon
from tests.cluster import build
from tests.cluster.client import Cluster, Kubectl, until
from tests.kubernetes.conftest import accounts, plane
from tests.kubernetes.installation.forms import DEPLOY

SYSTEM, FUNCTIONS, OURS = "openfaas", "openfaas-fn", "gnomon"
HOW_TO = DEPLOY.parent / "docs" / "howto" / "adopt-in-openfaas.md"
THEIRS = "namespaces,deployments,services,secrets,networkpolicies"


@pytest.fixture
def cluster(compiled: build.Programs) -> Iterator[Cluster]:
    """With controllers, which end a namespace that is deleted, and the objects of an OpenFaaS of Helm's."""
    del compiled
    with plane(controllers=True) as made:
        for name in (SYSTEM, FUNCTIONS):
            made.core.create_namespace({"metadata": {"name": name}})
            until(lambda: accounts(made, name), "the service account")  # noqa: B023 - it is called here
        labels = {"app": "gateway"}
        containers = [
            {
                "name": "gateway",
                "image": "x/gateway:1",
                "env": [{"name": "functions_provider_url", "value": "http://127.0.0.1:8081/"}],
            },
            {"name": "faas-netes", "image": "x/faas-netes:1", "env": [{"name": "function_namespace", "value": FUNCTIONS}]},
        ]
        made.apps.create_namespaced_deployment(SYSTEM, workload("gateway", labels, containers))
        made.apps.create_namespaced_deployment(
            FUNCTIONS, workload("echo", {"faas_function": "echo"}, [{"name": "echo", "image": "x/echo:1"}])
        )
        service = {"metadata": {"name": "gateway"}, "spec": {"selector": labels, "ports": [{"port": 8080}]}}
        made.core.create_namespaced_service(SYSTEM, service)
        login = {"basic-auth-user": "admin", "basic-auth-password": "theirs"}
        made.core.create_namespaced_secret(SYSTEM, {"metadata": {"name": "basic-auth"}, "stringData": login})
        yield made


def workload(name: str, labels: dict[str, str], containers: list[dict[str, Any]]) -> dict[str, Any]:
    """A Deployment without pods."""
    template = {"metadata": {"labels": labels}, "spec": {"containers": containers}}
    spec = {"replicas": 0, "selector": {"matchLabels": labels}, "template": template}
    return {"metadata": {"name": name, "labels": labels}, "spec": spec}


def specified(kubectl: Kubectl, namespace: str) -> dict[str, Any]:
    """The events of the objects of a namespace, and of the namespace itself."""
    items = json.loads(kubectl("get", THEIRS, "-n", namespace, "-o", "json"))["items"]
    mine = [item for item in items if item["kind"] != "Namespace" or item["metadata"]["name"] == namespace]
    return {
        f"{row['kind']}/{row['metadata']['name']}": (row["metadata"].get("labels"), row.get("spec"), row.get("data"))
        for row in mine
    }


def doctor(cluster: Cluster) -> dict[str, dict[str, str]]:
    """The findings by their checks."""
    words = ["doctor", "--json", "--platform", "openfaas", "--kubeconfig", str(cluster.kubeconfig), "--system-namespace", OURS]
    result = CliRunner().invoke(gnomon, [*words, "--service-account", f"{OURS}:gateway"])
    return {load["check"]: load for load in json.loads(result.output)}


def patch_of_the_how_to() -> str:
    """The file by which a gateway is led to us, as users are given it."""
    [found] = re.findall(r"```yaml\n( *# gnomon-behind\.yaml\n.*?)```", HOW_TO.read_text(), re.DOTALL)
    return textwrap.dedent(found)


def test_existing_openfaas_keeps_running_and_uses_our_provider(
    cluster: Cluster, compiled: build.Programs, tmp_path: Path
) -> None:
    kubectl, folder = Kubectl(compiled.folder / "kubectl", cluster.kubeconfig), str(DEPLOY / "openfaas-behind")
    theirs = {name: specified(kubectl, name) for name in (SYSTEM, FUNCTIONS)}
    namespaces = {namespace.metadata.name for namespace in cluster.core.list_namespace().items}
    kubectl("apply", "--validate=strict", "-k", folder)
    kubectl("diff", "-k", folder)
    assert specified(kubectl, SYSTEM) == theirs[SYSTEM]
    added = specified(kubectl, FUNCTIONS).keys() - theirs[FUNCTIONS].keys()
    assert added == {"NetworkPolicy/gnomon-functions"}
    assert theirs[FUNCTIONS].items() <= specified(kubectl, FUNCTIONS).items()
    policy = json.loads(kubectl("get", "networkpolicy/gnomon-functions", "-n", FUNCTIONS, "-o", "json"))["spec"]
    assert policy["podSelector"] == {"matchExpressions": [{"key": "gnomon/managed", "operator": "Exists"}]}
    gateway = {"matchLabels": {"app": "gateway"}}
    theirs_alone = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": SYSTEM}}, "podSelector": gateway}
    by_its_name = {"to": [theirs_alone], "ports": [{"port": 8080, "protocol": "TCP"}]}
    assert by_its_name in policy["egress"], "functions call others at gateway.openfaas:8080, as they did"

    found = doctor(cluster)
    assert found["permissions"]["level"] == "ok", found["permissions"]["message"]
    assert found["other providers"]["level"] == "warn"
    assert "container faas-netes of Deployment gateway in openfaas" in found["other providers"]["message"]

    patch = tmp_path / "gnomon-behind.yaml"
    patch.write_text(patch_of_the_how_to())
    kubectl("-n", SYSTEM, "patch", "deployment", "gateway", "--patch-file", str(patch))
    assert doctor(cluster)["other providers"]["level"] == "ok"
    [container] = cluster.apps.read_namespaced_deployment("gateway", SYSTEM).spec.template.spec.containers
    environment = {variable.name: variable.value for variable in container.env}
    [port] = cluster.core.read_namespaced_service("gateway", OURS).spec.ports
    url = f"http://gateway.{OURS}.svc.cluster.local:{port.port}/"
    assert (environment["functions_provider_url"], environment["direct_functions"]) == (url, "false")
    arguments = cluster.apps.read_namespaced_deployment("gateway", OURS).spec.template.spec.containers[0].args
    assert {"--behind-gateway", f"--allowed-host=gateway.{OURS}.svc.cluster.local"} <= set(arguments)

    kubectl("delete", "-k", folder, "--timeout=100s")
    until(
        lambda: {namespace.metadata.name for namespace in cluster.core.list_namespace().items} == namespaces,
        "our namespace to go",
    )
    assert specified(kubectl, FUNCTIONS) == theirs[FUNCTIONS]
    assert not kubectl("get", "roles,rolebindings", "-n", FUNCTIONS, "-o", "name")
    assert "gnomon" not in kubectl("get", "clusterroles,clusterrolebindings,priorityclasses", "-o", "name")

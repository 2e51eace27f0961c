"""deploy/openfaas and the chart: accepted by a real API server, as strict as they say, and the same in both forms.

Nothing here enforces NetworkPolicies, so they are read: what they would let through is worked out from their text.
"""

from __future__ import annotations

import copy
import ipaddress
import json
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes import client

from deploy.test_cluster import build
from deploy.test_cluster.client import Kubectl
from deploy.test_cluster.clusters import Cluster
from deploy.test_cluster.settings import DNS_ADDRESS, KUBERNETES_ADDRESS, NODE_ADDRESS, folders
from gnomon_platforms.openfaas.permissions import Scope, asked
from tests.kubernetes.installation.conftest import DEPLOY

SYSTEM, FUNCTIONS = "openfaas", "openfaas-fn"
SCOPES = {SYSTEM: Scope.SYSTEM, FUNCTIONS: Scope.FUNCTIONS}

Manifest = dict[str, Any]
Name = tuple[str, str | None, str]


def by_name(objects: Iterable[Manifest]) -> dict[Name, Manifest]:
    return {(one["kind"], one["metadata"].get("namespace"), one["metadata"]["name"]): one for one in objects}


@pytest.fixture(scope="session")
def manifests(compiled: build.Programs) -> dict[Name, Manifest]:
    """What `kubectl apply -k deploy/openfaas` applies."""
    command = [str(compiled.folder / "kubectl"), "kustomize", str(DEPLOY / "openfaas")]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return by_name(yaml.safe_load_all(text))


def chart(*values: str) -> dict[Name, Manifest]:
    """What the chart makes of these values, without what is for helm alone."""
    helm = build.kept(folders(), build.HELM_SOURCES)
    if helm is None:
        pytest.skip("helm is not compiled: make cluster-build")
    settings = [word for value in values for word in ("--set-json", value)]
    command = [
        str(helm.folder / "helm"),
        "template",
        "gnomon",
        str(DEPLOY / "charts" / "gnomon"),
        "--namespace",
        SYSTEM,
        *settings,
    ]
    done = subprocess.run([*command, "--kube-version", "1.35.0"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = by_name(one for one in yaml.safe_load_all(done.stdout) if one)
    for one in found.values():
        annotations = one["metadata"].get("annotations", {})
        annotations.pop("helm.sh/resource-policy", None)
        if not annotations:
            one["metadata"].pop("annotations", None)
    return found


def test_the_chart_is_what_the_kustomization_is(manifests: dict[Name, Manifest]) -> None:
    rendered = chart()
    assert set(rendered) == set(manifests)
    for name, manifest in manifests.items():
        assert rendered[name] == manifest, name


def test_the_charts_values_reach_what_they_name(kubectl: Kubectl) -> None:
    rendered = chart(
        'image={"repository":"registry.example/gnomon","tag":"7","pullPolicy":"Always","pullSecrets":["login"]}',
        'allowedHosts=["models.example"]',
        'extraArguments=["--models=s3://bucket/models"]',
        'networkPolicies.privateAddresses=["203.0.113.7/32"]',
        "priorityClass.create=false",
        "replicas=3",
    )
    deployment = rendered["Deployment", SYSTEM, "gateway"]
    pod = deployment["spec"]["template"]["spec"]
    [container] = pod["containers"]
    assert container["image"] == "registry.example/gnomon:7"
    assert pod["imagePullSecrets"] == [{"name": "login"}]
    assert {"--allowed-host=models.example", "--models=s3://bucket/models"} <= set(container["args"])
    assert deployment["spec"]["replicas"] == 3
    assert "priorityClassName" not in pod
    assert not any(kind == "PriorityClass" for kind, _, _ in rendered)
    egress = rendered["NetworkPolicy", FUNCTIONS, "functions"]["spec"]["egress"]
    assert egress[-1]["to"][0]["ipBlock"]["except"] == ["203.0.113.7/32"]
    # The API server takes these as well.
    given = list(rendered.values())
    kubectl(
        "apply",
        "--dry-run=server",
        "--validate=strict",
        "-f",
        "-",
        given=json.dumps({"apiVersion": "v1", "kind": "List", "items": given}),
    )


def test_the_roles_are_the_table_of_what_the_platform_asks_for(manifests: dict[Name, Manifest]) -> None:
    """Whoever a binding names gets what its role says; all of it together is the table."""
    given = set()
    for (kind, namespace, _), binding in manifests.items():
        if kind not in ("RoleBinding", "ClusterRoleBinding"):
            continue
        assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "gateway", "namespace": SYSTEM}]
        role = manifests[binding["roleRef"]["kind"], namespace, binding["roleRef"]["name"]]
        scope = Scope.CLUSTER if namespace is None else SCOPES[namespace]
        for rule in role["rules"]:
            assert set(rule) == {"apiGroups", "resources", "verbs"}
            given |= {
                (scope, group, one, verb) for group in rule["apiGroups"] for one in rule["resources"] for verb in rule["verbs"]
            }
    assert given == set(asked())
    assert not any("*" in part for one in given for part in one[1:])


def test_the_gateways_pods_are_restricted_and_admission_agrees(installed: Cluster, manifests: dict[Name, Manifest]) -> None:
    template = manifests["Deployment", SYSTEM, "gateway"]["spec"]["template"]
    pod: Manifest = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "probe", "labels": template["metadata"]["labels"]}}
    pod["spec"] = copy.deepcopy(template["spec"])
    installed.core.create_namespaced_pod(SYSTEM, pod, dry_run="All")
    pod["spec"]["containers"][0]["securityContext"]["allowPrivilegeEscalation"] = True
    # No controller is there to make the account that every namespace has.
    installed.core.create_namespaced_service_account(FUNCTIONS, {"metadata": {"name": "default"}})
    for namespace, account in ((SYSTEM, "gateway"), (FUNCTIONS, "default")):
        pod["spec"]["serviceAccountName"] = account
        with pytest.raises(client.ApiException, match="violates PodSecurity") as refused:
            installed.core.create_namespaced_pod(namespace, pod, dry_run="All")
        assert refused.value.status == 403


def test_the_gateway_has_what_it_takes_to_be_updated_and_drained(manifests: dict[Name, Manifest]) -> None:
    deployment = manifests["Deployment", SYSTEM, "gateway"]["spec"]
    labels = deployment["template"]["metadata"]["labels"]
    [container] = deployment["template"]["spec"]["containers"]
    assert deployment["replicas"] == 2
    budget = manifests["PodDisruptionBudget", SYSTEM, "gateway"]["spec"]
    assert budget["minAvailable"] < deployment["replicas"]
    for selector in (deployment["selector"]["matchLabels"], budget["selector"]["matchLabels"]):
        assert selector.items() <= labels.items()
    service = manifests["Service", SYSTEM, "gateway"]["spec"]
    assert service["selector"].items() <= labels.items()
    assert {"startupProbe", "readinessProbe", "livenessProbe", "lifecycle", "resources"} <= set(container)
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    written = {mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")}
    [state] = [word.partition("=")[2] for word in container["args"] if word.startswith("--state=")]
    assert written == {state, "/tmp"}


def reaches(policy: Manifest, address: str) -> bool:
    """Whether a policy lets traffic out to an address that belongs to no pod that it names."""
    wanted = ipaddress.ip_address(address)
    blocks = [peer["ipBlock"] for rule in policy["spec"]["egress"] for peer in rule["to"] if "ipBlock" in peer]

    def within(cidr: str) -> bool:
        network = ipaddress.ip_network(cidr)
        return network.version == wanted.version and wanted in network

    return any(within(block["cidr"]) and not any(map(within, block.get("except", ()))) for block in blocks)


@pytest.mark.parametrize(
    ("address", "reached"),
    [
        (KUBERNETES_ADDRESS, False),
        (NODE_ADDRESS, False),
        (DNS_ADDRESS, False),  # by its labels, not by its address
        ("10.244.0.17", False),
        ("192.168.1.10", False),
        ("172.20.0.1", False),
        ("169.254.169.254", False),
        ("fd00::1", False),
        ("93.184.215.14", True),
        ("2606:2800:21f:cb07:6820:80da:af6b:8b2c", True),
    ],
)
def test_a_function_reaches_the_world_but_no_node_no_pod_and_no_api_server(
    manifests: dict[Name, Manifest],
    address: str,
    reached: bool,  # noqa: FBT001 - a parameter of the test's table
) -> None:
    assert reaches(manifests["NetworkPolicy", FUNCTIONS, "functions"], address) is reached


def test_a_function_is_spoken_to_by_the_gateway_only(manifests: dict[Name, Manifest]) -> None:
    policy = manifests["NetworkPolicy", FUNCTIONS, "functions"]["spec"]
    assert policy["podSelector"] == {}
    assert set(policy["policyTypes"]) == {"Ingress", "Egress"}
    [rule] = policy["ingress"]
    [peer] = rule["from"]
    assert peer["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": SYSTEM}
    labels = manifests["Deployment", SYSTEM, "gateway"]["spec"]["template"]["metadata"]["labels"]
    assert peer["podSelector"]["matchLabels"].items() <= labels.items()
    assert rule["ports"] == [{"port": 8080, "protocol": "TCP"}]


def test_what_a_docker_file_runs_as_is_what_the_manifest_says(manifests: dict[Name, Manifest]) -> None:
    text = (DEPLOY / "images" / "gateway" / "Dockerfile").read_text()
    context = manifests["Deployment", SYSTEM, "gateway"]["spec"]["template"]["spec"]["securityContext"]
    assert f"USER {context['runAsUser']}:{context['runAsGroup']}" in text


def test_nothing_that_is_applied_is_left_out_of_the_kustomization() -> None:
    listed = yaml.safe_load((DEPLOY / "openfaas" / "kustomization.yaml").read_text())["resources"]
    files = {path.name for path in Path(DEPLOY / "openfaas").glob("*.yaml")} - {"kustomization.yaml"}
    assert set(listed) == files

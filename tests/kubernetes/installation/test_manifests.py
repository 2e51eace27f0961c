"""The manifests in deploy: accepted by a real API server, as strict as it says, with the roles that are used, and removable."""

from __future__ import annotations

import copy
import ipaddress
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from kubernetes import client

from gnomon_platforms.knative.permissions import AUTOSCALER, GATEWAY
from gnomon_platforms.kubernetes import ownership
from gnomon_platforms.kubernetes.objects.names import FUNCTION_LABEL
from gnomon_platforms.kubernetes.resources import Permission, Scope
from gnomon_platforms.nodes.coordinators import POOLS
from gnomon_platforms.openfaas.permissions import PERMISSIONS, all_permissions
from gnomon_server import knative_autoscaler, kubernetes
from tests.cluster import build
from tests.cluster.client import Cluster, Kubectl, documents, until
from tests.cluster.settings import DNS_ADDRESS, KUBERNETES_ADDRESS, NODE_ADDRESS
from tests.kubernetes.access import EVERYWHERE, Use, asked
from tests.kubernetes.conftest import plane
from tests.kubernetes.installation.forms import DEPLOY, Kustomized, Manifest, Name

SYSTEM, FUNCTIONS = "openfaas", "openfaas-fn"
SCOPES = {SYSTEM: Scope.SYSTEM, FUNCTIONS: Scope.FUNCTIONS}


@pytest.fixture(scope="session")
def manifests(kustomized: Kustomized) -> dict[Name, Manifest]:
    """The objects that `kubectl apply -k deploy/openfaas` applies."""
    return kustomized(DEPLOY / "openfaas")


def test_the_roles_are_the_table_of_what_the_platform_asks_for(manifests: dict[Name, Manifest]) -> None:
    """The subjects of a binding get what its role says; all of it together is the table."""
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
                (scope, group, resource, verb)
                for group in rule["apiGroups"]
                for resource in rule["resources"]
                for verb in rule["verbs"]
            }
    assert given == set(all_permissions())
    assert not any("*" in part for rule in given for part in rule[1:])


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
    assert budget["maxUnavailable"] == 1
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
    """True if a policy lets traffic out to an address that belongs to no pod that it names."""
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


def test_functions_of_other_namespaces_are_as_shut_in_and_what_else_is_there_is_left_alone(
    manifests: dict[Name, Manifest], kustomized: Kustomized
) -> None:
    [(name, policy)] = kustomized(DEPLOY / "openfaas" / "function-namespace").items()
    assert name == ("NetworkPolicy", None, "functions"), "it goes where kubectl is told to put it"
    selector = policy["spec"].pop("podSelector")
    assert selector == {"matchExpressions": [{"key": FUNCTION_LABEL, "operator": "Exists"}]}
    first = manifests["NetworkPolicy", FUNCTIONS, "functions"]["spec"]
    assert policy["spec"] == {field: value for field, value in first.items() if field != "podSelector"}


def test_the_port_for_replicas_is_open_to_replicas_only(manifests: dict[Name, Manifest]) -> None:
    labels = manifests["Deployment", SYSTEM, "gateway"]["spec"]["template"]["metadata"]["labels"]
    [container] = manifests["Deployment", SYSTEM, "gateway"]["spec"]["template"]["spec"]["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    rules = manifests["NetworkPolicy", SYSTEM, "gateway"]["spec"]["ingress"]
    [inside] = [rule for rule in rules if any(port["port"] == ports["inside"] for port in rule["ports"])]
    [peer] = inside["from"]
    assert set(peer) == {"podSelector"}, "of its own namespace"
    assert set(peer["podSelector"]["matchLabels"].items()) <= set(labels.items())
    assert "gateway" in peer["podSelector"]["matchLabels"].values()
    service = manifests["Service", SYSTEM, "gateway"]["spec"]
    assert [port["targetPort"] for port in service["ports"]] == ["http"]


def test_manifest_runs_as_the_user_of_the_dockerfile(manifests: dict[Name, Manifest]) -> None:
    text = (DEPLOY / "images" / "gateway" / "Dockerfile").read_text()
    context = manifests["Deployment", SYSTEM, "gateway"]["spec"]["template"]["spec"]["securityContext"]
    assert f"USER {context['runAsUser']}:{context['runAsGroup']}" in text


def test_nothing_that_is_applied_is_left_out_of_the_kustomization() -> None:
    listed = yaml.safe_load((DEPLOY / "openfaas" / "kustomization.yaml").read_text())["resources"]
    files = {path.name for path in Path(DEPLOY / "openfaas").glob("*.yaml")} - {"kustomization.yaml"}
    assert set(listed) == files


KNATIVE, OPENFAAS = DEPLOY / "knative", DEPLOY / "openfaas"


@pytest.mark.parametrize(
    ("folder", "table", "system"),
    [
        (KNATIVE / "autoscaler", AUTOSCALER, "knative-serving"),
        (KNATIVE / "gateway", GATEWAY, "knative-serving"),
        (OPENFAAS / "coordinator", POOLS, "openfaas"),
        (OPENFAAS, PERMISSIONS, "openfaas"),
    ],
)
def test_roles_grant_exactly_what_is_used(folder: Path, table: tuple[Permission, ...], system: str) -> None:
    spaces = {Scope.CLUSTER: EVERYWHERE, Scope.SYSTEM: system, Scope.NODES: "gnomon-nodes", Scope.FUNCTIONS: "openfaas-fn"}
    wanted = {
        Use(spaces[permission.scope], permission.group, permission.resource, verb)
        for permission in table
        for verb in permission.verbs
    }
    assert wanted == asked(folder / "access.yaml")
    assert all(permission.why for permission in table)
    rules = [rule for document in documents(folder / "access.yaml") for rule in document.get("rules", ())]
    named = {
        (group, resource): rule.get("resourceNames", [""])
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }
    assert all(named[permission.group, permission.resource] == [permission.only] for permission in table if permission.only)


GNOMON, SERVING = "openfaas", "knative-serving"
WITHOUT_NAMESPACE = "clusterroles,clusterrolebindings,csidrivers,priorityclasses,namespaces,persistentvolumes"
INSIDE = (
    "deployments,services,roles,rolebindings,poddisruptionbudgets,serviceaccounts,pods,replicasets,networkpolicies,"
    "leases,configmaps,secrets,persistentvolumeclaims"
)
ROOTS = "configmap/kube-root-ca.crt"
"""Kubernetes' own, in every namespace some time after it was made."""
LED = '{"spec":{"holderIdentity":"one","leaseDurationSeconds":15,"leaseTransitions":4}}'
FOLDERS = [
    "openfaas",
    "openfaas/coordinator",
    "openfaas-models",
    "knative",
    "knative/autoscaler",
    "knative/gateway",
    "knative-models",
]


@pytest.fixture(scope="module")
def kubectl_with_controllers(compiled: build.Programs) -> Iterator[Kubectl]:
    """A cluster whose namespaces end once they are empty, with the namespace of Knative's own."""
    with plane(controllers=True) as cluster:
        cluster.core.create_namespace({"metadata": {"name": SERVING}})
        until(lambda: cluster.core.list_namespaced_service_account(SERVING).items, "the service account")
        yield Kubectl(compiled.folder / "kubectl", cluster.kubeconfig)


def there(kubectl: Kubectl) -> set[str]:
    """The names of all that an installation could leave behind."""
    everywhere = kubectl("get", WITHOUT_NAMESPACE, "-o", "name").split()
    return {*everywhere, *kubectl("get", INSIDE, "-n", SERVING, "-o", "name").split()} - {ROOTS}


@pytest.mark.parametrize("folder", FOLDERS)
def test_manifests_are_reapplied_and_deleted(kubectl_with_controllers: Kubectl, folder: str) -> None:
    kubectl, path = kubectl_with_controllers, str(Path(DEPLOY, folder))
    before = there(kubectl)
    kubectl("apply", "--validate=strict", "-k", path)
    made = there(kubectl)
    assert made > before
    leases = sorted(name for name in made - before if name.startswith("lease."))
    for lease in leases:
        kubectl("patch", lease, "-n", SERVING, "--type=merge", "-p", LED)
    # Nothing that is there would be changed by the same again; kubectl fails where there is a difference.
    kubectl("diff", "-k", path)
    assert "created" not in kubectl("apply", "-k", path)
    for lease in leases:
        held = kubectl("get", lease, "-n", SERVING, "-o", "jsonpath={.spec.holderIdentity} {.spec.leaseTransitions}")
        assert held == "one 4", "who leads goes on"
    kubectl("delete", "-k", path, "--timeout=100s")
    until(lambda: there(kubectl) == before, f"nothing of {folder} to be left")


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        ("openfaas", ("Lease", GNOMON, kubernetes.LEASE)),
        ("openfaas", ("ConfigMap", GNOMON, ownership.NAME)),
        ("knative/autoscaler", ("Lease", SERVING, knative_autoscaler.LEASE)),
    ],
)
def test_lease_belongs_to_its_installation(kustomized: Kustomized, folder: str, name: tuple[str, str, str]) -> None:
    """An object that a process made for itself would remain when the rest is deleted."""
    assert name in kustomized(DEPLOY / folder)

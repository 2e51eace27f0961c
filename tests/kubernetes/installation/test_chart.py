"""The chart applies what the kustomizations apply, each by a value of its own, and the API server takes all of it."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path, PurePosixPath

import pytest

from gnomon_platforms.kubernetes.resources import Permission, Scope
from gnomon_platforms.openfaas.permissions import PERMISSIONS, WIDE
from tests.cluster.client import Cluster, Kubectl
from tests.kubernetes.installation.forms import DEPLOY, Kustomized, Manifest, Name, chart, notes

SYSTEM, FUNCTIONS, SERVING = "openfaas", "openfaas-fn", "knative-serving"
OPENFAAS = DEPLOY / "openfaas"
FILES = '{"hostPath":null,"nfs":{"server":"files.example","path":"/models"}}'
PARTS = {
    "coordinator.enabled=true": OPENFAAS / "coordinator",
    "models.enabled=true": DEPLOY / "openfaas-models",
    "knative.autoscaler.enabled=true": DEPLOY / "knative" / "autoscaler",
    "knative.gateway.enabled=true": DEPLOY / "knative" / "gateway",
    "knative.models.enabled=true": DEPLOY / "knative-models",
}


def same(rendered: dict[Name, Manifest], applied: dict[Name, Manifest]) -> None:
    assert set(rendered) == set(applied)
    for name, manifest in applied.items():
        assert rendered[name] == manifest, name


def with_component(name: str, folder: Path) -> Path:
    """deploy/openfaas with one of its components, in a kustomization of a user's."""
    here = folder.resolve()
    parts = {"resources": [OPENFAAS], "components": [OPENFAAS / name]}
    document = {field: [os.path.relpath(path, here) for path in paths] for field, paths in parts.items()}
    (here / "kustomization.yaml").write_text(json.dumps(document))
    return here


@pytest.fixture
def wide(kustomized: Kustomized, tmp_path: Path) -> dict[Name, Manifest]:
    return kustomized(with_component("cluster-wide", tmp_path))


def test_the_chart_is_what_the_kustomization_is(kustomized: Kustomized) -> None:
    same(chart(), kustomized(OPENFAAS))


@pytest.mark.parametrize("value", PARTS)
def test_each_part_of_the_chart_is_what_its_own_kustomization_is(kustomized: Kustomized, value: str) -> None:
    same(chart(value), {**kustomized(OPENFAAS), **kustomized(PARTS[value])})


def test_deploy_knative_is_both_classes_and_the_gateway(kustomized: Kustomized) -> None:
    folders = [path for path in (DEPLOY / "knative").iterdir() if path.is_dir()]
    same(kustomized(DEPLOY / "knative"), {name: manifest for folder in folders for name, manifest in kustomized(folder).items()})


def test_a_cluster_wide_gateway_is_the_same_in_both_forms(wide: dict[Name, Manifest]) -> None:
    same(chart("clusterWide=true"), wide)
    [container] = wide["Deployment", SYSTEM, "gateway"]["spec"]["template"]["spec"]["containers"]
    assert "--cluster-wide" in container["args"]


def test_a_gateway_that_keeps_its_calls_is_one_with_a_volume_in_both_forms(kustomized: Kustomized, tmp_path: Path) -> None:
    rendered = chart("keptCalls.enabled=true")
    same(rendered, kustomized(with_component("kept-calls", tmp_path)))
    deployment = rendered["Deployment", SYSTEM, "gateway"]["spec"]
    assert (deployment["replicas"], deployment["strategy"]) == (1, {"type": "Recreate"}), "two cannot have one volume"
    pod = deployment["template"]["spec"]
    [container] = pod["containers"]
    [state] = [word.removeprefix("--state=") for word in container["args"] if word.startswith("--state=")]
    mounted = {volume_mount["mountPath"]: volume_mount["name"] for volume_mount in container["volumeMounts"]}
    [volume] = [volume for volume in pod["volumes"] if volume["name"] == mounted[state]]
    assert ("PersistentVolumeClaim", SYSTEM, volume["persistentVolumeClaim"]["claimName"]) in rendered


def test_behind_a_gateway_the_chart_is_what_its_kustomization_is(kustomized: Kustomized) -> None:
    same(chart("behindGateway=true", namespace="gnomon"), kustomized(DEPLOY / "openfaas-behind"))


def test_functions_of_other_namespaces_get_the_same_policy_in_both_forms(kustomized: Kustomized, tmp_path: Path) -> None:
    here = tmp_path.resolve()
    document = {"resources": [os.path.relpath(OPENFAAS / "function-namespace", here)], "namespace": "team-a"}
    (here / "kustomization.yaml").write_text(json.dumps(document))
    same(chart('functionNamespaces=["team-a"]'), {**kustomized(OPENFAAS), **kustomized(here)})


def test_a_cluster_wide_gateway_may_do_everywhere_what_it_else_may_in_one_namespace(wide: dict[Name, Manifest]) -> None:
    role = wide["ClusterRole", None, "gnomon-functions"]
    given = {
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }

    def each(permission: Permission) -> set[tuple[str, str, str]]:
        return {(permission.group, permission.resource, verb) for verb in permission.verbs}

    elsewhere = [permission for permission in PERMISSIONS if permission.scope is Scope.FUNCTIONS]
    assert given == set().union(*map(each, [*elsewhere, *WIDE]))
    assert ("Role", FUNCTIONS, "gnomon-functions") not in wide
    binding = wide["ClusterRoleBinding", None, "gnomon-functions"]
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "gateway", "namespace": SYSTEM}]


def test_a_single_replica_of_anything_does_not_keep_its_node_from_being_drained() -> None:
    enabled = '{"enabled":true,"replicas":1}'
    rendered = chart("replicas=1", *(f"knative.{part}={enabled}" for part in ("autoscaler", "gateway")))
    budgets = [each["spec"] for (kind, _, _), each in rendered.items() if kind == "PodDisruptionBudget"]
    assert len(budgets) == 3
    for budget in budgets:
        assert budget["maxUnavailable"] == 1
        assert "minAvailable" not in budget, "one of one would have to stay"


def test_the_charts_values_reach_what_they_name(kubectl: Kubectl) -> None:
    rendered = chart(
        'image={"repository":"registry.example/gnomon","tag":"7","pullPolicy":"Always","pullSecrets":["login"]}',
        'allowedHosts=["models.example"]',
        'extraArguments=["--models=s3://bucket/models"]',
        'networkPolicies.privateAddresses=["203.0.113.7/32"]',
        "priorityClass.create=false",
        "replicas=3",
        'functions={"imagePullPolicy":"Always","pullSecrets":["registry"],"runtimeClass":"gvisor"}',
        "clusterWide=true",
        "models.enabled=true",
        f"coordinator.models={FILES}",
        'coordinator.poolImage={"repository":"registry.example/body","tag":"8"}',
        'coordinator.poolResources={"requests":{"cpu":"500m","memory":"2Gi"}}',
        'knative.autoscaler={"enabled":true,"replicas":3,"resources":{"requests":{"cpu":"1"}},"extraArguments":["--policy=x"]}',
        'knative.gateway={"enabled":true,"replicas":5,"extraArguments":["--policy=y"]}',
    )
    deployment = rendered["Deployment", SYSTEM, "gateway"]
    pod = deployment["spec"]["template"]["spec"]
    [container] = pod["containers"]
    assert container["image"] == "registry.example/gnomon:7"
    assert pod["imagePullSecrets"] == [{"name": "login"}]
    assert {"--allowed-host=models.example", "--models=s3://bucket/models", "--cluster-wide"} <= set(container["args"])
    assert {"--image-pull-policy=Always", "--pull-secret=registry", "--runtime-class=gvisor"} <= set(container["args"])
    assert deployment["spec"]["replicas"] == 3
    assert "priorityClassName" not in pod
    assert not any(kind == "PriorityClass" for kind, _, _ in rendered)
    egress = rendered["NetworkPolicy", FUNCTIONS, "functions"]["spec"]["egress"]
    assert egress[-1]["to"][0]["ipBlock"]["except"] == ["203.0.113.7/32"]

    template = rendered["DaemonSet", "gnomon-nodes", "coordinator"]["spec"]["template"]
    nodes = template["spec"]
    images = {container["name"]: container["image"] for container in nodes["containers"]}
    assert images == {"coordinator": "gnomon-coordinator:0.1.0", "pool": "registry.example/body:8"}
    [pool] = [container for container in nodes["containers"] if container["name"] == "pool"]
    assert pool["resources"]["requests"] == {"cpu": template["metadata"]["annotations"]["gnomon/pool-cores"], "memory": "2Gi"}
    [models] = [volume for volume in nodes["volumes"] if volume["name"] == "models"]
    assert models == {"name": "models", "nfs": {"server": "files.example", "path": "/models"}}

    scaling = rendered["Deployment", SERVING, "gnomon-autoscaler"]["spec"]
    assert scaling["replicas"] == 3
    assert scaling["template"]["spec"]["containers"][0]["image"] == "registry.example/gnomon:7"
    assert scaling["template"]["spec"]["containers"][0]["args"][-1] == "--policy=x"
    assert scaling["template"]["spec"]["containers"][0]["resources"]["requests"]["cpu"] == "1"
    buffer = rendered["Deployment", SERVING, "gnomon-gateway"]["spec"]
    assert (buffer["replicas"], buffer["template"]["spec"]["containers"][0]["image"]) == (5, "registry.example/gnomon:7")
    assert buffer["template"]["spec"]["containers"][0]["args"][-1] == "--policy=y"

    # The API server takes these as well, in namespaces that are there.
    named = {namespace for kind, _, namespace in rendered if kind == "Namespace"} | {SERVING}
    # Those two are installed; applied without their labels, they would lose them.
    missing = [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}} for name in sorted(named - {SYSTEM, FUNCTIONS})
    ]
    kubectl("apply", "--server-side", "-f", "-", given=listed(missing))
    kubectl("apply", "--dry-run=server", "--validate=strict", "-f", "-", given=listed(list(rendered.values())))


def has_what_shadows_need(rendered: dict[Name, Manifest], namespace: str, name: str) -> dict[str, str]:
    """A Deployment with the coordinators' token and the same models as the pools; what its program is told."""
    pod = rendered["Deployment", namespace, name]["spec"]["template"]["spec"]
    [container] = pod["containers"]
    given = dict(word.split("=", 1) for word in container["args"] if "=" in word)
    mounted = {volume_mount["mountPath"]: volume_mount["name"] for volume_mount in container["volumeMounts"]}
    token, models = mounted[str(PurePosixPath(given["--coordinator-token"]).parent)], mounted[given["--models"]]
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    pool = rendered["DaemonSet", "gnomon-nodes", "coordinator"]["spec"]["template"]["spec"]["volumes"]
    assert volumes[token]["secret"]["secretName"] in [row["secret"]["secretName"] for row in pool if "secret" in row]
    # Its group may read the token, and nobody else.
    assert (volumes[token]["secret"]["defaultMode"], pod["securityContext"]["fsGroup"]) == (0o440, 10001)
    claimed(rendered, namespace, volumes[models]["persistentVolumeClaim"]["claimName"])
    return given


def claimed(rendered: dict[Name, Manifest], namespace: str, name: str) -> None:
    """The claim is of what coordinator.models says, all of it."""
    claim = rendered["PersistentVolumeClaim", namespace, name]["spec"]
    volume = rendered["PersistentVolume", None, claim["volumeName"]]["spec"]
    assert volume["claimRef"] == {"namespace": namespace, "name": name}
    assert volume["nfs"] == {"server": "files.example", "path": "/models"}
    assert claim["resources"]["requests"] == volume["capacity"] == {"storage": "500Gi"}
    assert "hostPath" not in volume


def test_the_chart_with_models_has_all_that_shadows_need() -> None:
    """For the gateway, and for functions the models."""
    rendered = chart('models={"enabled":true,"claims":{"size":"500Gi"}}', f"coordinator.models={FILES}")
    given = has_what_shadows_need(rendered, SYSTEM, "gateway")
    claimed(rendered, FUNCTIONS, given["--models-claim"])


def test_the_chart_with_models_on_knative_has_all_that_shadows_need() -> None:
    """For the autoscaler class, by whichever name and network an operator says."""
    claims = 'models.claims={"name":"shared","size":"500Gi"}'
    rendered = chart(
        "knative.models.enabled=true",
        'knative.autoscaler.extraArguments=["--network-gbps=10"]',
        claims,
        f"coordinator.models={FILES}",
    )
    given = has_what_shadows_need(rendered, SERVING, "gnomon-autoscaler")
    assert given["--network-gbps"] == "10"
    assert [namespace for kind, namespace, _ in rendered if kind == "PersistentVolumeClaim"] == [SERVING]
    assert "--coordinator-token" not in str(rendered["Deployment", SYSTEM, "gateway"])


def test_network_options_reach_autoscaler_and_gateway(kustomized: Kustomized, tmp_path: Path) -> None:
    """The kustomization is the one of the how-to."""
    text = (DEPLOY.parent / "docs" / "howto" / "run-on-knative.md").read_text()
    [block] = [
        yaml_block for yaml_block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL) if yaml_block.startswith("resources:")
    ]
    here = tmp_path.resolve()
    (here / "kustomization.yaml").write_text(block.replace("DEPLOY", os.path.relpath(DEPLOY, here)))
    argument = '["--network-gbps=10","--network-rtt-ms=0.2"]'
    arguments = (f"knative.{part}.extraArguments={argument}" for part in ("autoscaler", "gateway"))
    same(chart("knative.models.enabled=true", *arguments), {**kustomized(OPENFAAS), **kustomized(here)})


def test_shadows_are_for_functions_or_for_revisions() -> None:
    with pytest.raises(AssertionError, match="functions of OpenFaaS or for Revisions of Knative, not for both"):
        chart("models.enabled=true", "knative.models.enabled=true")


def test_claims_that_the_operator_makes_are_named_and_not_made() -> None:
    rendered = chart('models={"enabled":true,"claims":{"create":false,"name":"shared"}}')
    assert not any(kind.startswith("PersistentVolume") for kind, _, _ in rendered)
    pod = rendered["Deployment", SYSTEM, "gateway"]["spec"]["template"]["spec"]
    assert "--models-claim=shared" in pod["containers"][0]["args"]
    [models] = [volume for volume in pod["volumes"] if volume["name"] == "models"]
    assert models["persistentVolumeClaim"]["claimName"] == "shared"


def test_install_notes_name_login_and_doctor(installed: Cluster) -> None:
    said = notes(installed.kubeconfig)
    assert "basic-auth-user=admin" in said
    assert "gnomon doctor --platform openfaas\n" in said
    behind = notes(installed.kubeconfig, "behindGateway=true", namespace="gnomon")
    assert "basic-auth-user=admin" not in behind, "the gateway of OpenFaaS would be refused"
    assert "kubectl -n openfaas get secret basic-auth" in behind
    assert "gnomon doctor --platform openfaas --system-namespace gnomon\n" in behind


def listed(objects: list[Manifest]) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})

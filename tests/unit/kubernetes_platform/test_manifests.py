"""Manifests that the platform writes."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest
import yaml

from gnomon_core.errors import GnomonError
from gnomon_core.functions import FunctionKey, read_deployment
from gnomon_platforms.kubernetes.objects.manifests import batch_token, deployment, owned_by, secret, service
from gnomon_platforms.kubernetes.objects.names import check_labels
from gnomon_platforms.kubernetes.objects.placing import read_constraints
from gnomon_platforms.kubernetes.objects.pod_template import PodOptions, pod_digest, pod_template
from gnomon_platforms.kubernetes.objects.quantities import amount_of, cpu_quantity, memory_quantity
from tests.unit.kubernetes_platform.small_cluster import OPTIONS, pod_of, spec_of


def test_the_deployment_is_found_by_the_functions_name_and_label() -> None:
    sent = spec_of(labels={"team": "vision"}, annotations={"gnomon/autoscaler": "kpa"})
    made = deployment(sent, 3, OPTIONS)
    assert (made["metadata"]["name"], made["metadata"]["namespace"]) == ("figlet", "openfaas-fn")
    assert made["metadata"]["labels"] == {
        "team": "vision",
        "faas_function": "figlet",
        "gnomon/managed": "true",
        "gnomon/version": "3",
    }
    assert made["metadata"]["annotations"]["gnomon/autoscaler"] == "kpa"
    pods = made["spec"]["template"]["metadata"]
    assert made["spec"]["selector"]["matchLabels"].items() <= pods["labels"].items()
    assert pods["annotations"] == {"gnomon/autoscaler": "kpa"}
    assert made["spec"]["replicas"] == 0


@pytest.mark.parametrize(
    "fields",
    [
        {"constraints": ["zone=b"]},
        {"requests": {"memory": "1Gi"}},
        {"limits": {"nvidia.com/gpu": "1"}},
        {"readOnlyRootFilesystem": False},
        {"annotations": {"com.openfaas.ready.http.path": "/warm"}},
        {"annotations": {"gnomon/deadline-ms": "600000"}},
    ],
    ids=["constraints", "requests", "devices", "root file system", "probe", "deadline"],
)
def test_settings_of_new_pods_change_the_digest(fields: dict[str, Any]) -> None:
    assert pod_digest(spec_of(**fields), OPTIONS) != pod_digest(spec_of(), OPTIONS)


@pytest.mark.parametrize(
    "fields",
    [
        {"annotations": {"gnomon/autoscaler": "kpa", "gnomon/max-batch": "16", "gnomon/scheduler": "adaptive"}},
        {"labels": {"com.openfaas.scale.max": "7", "team": "vision"}},
    ],
    ids=["policies", "labels"],
)
def test_pods_serve_on_when_a_policy_changes(fields: dict[str, Any]) -> None:
    assert pod_digest(spec_of(**fields), OPTIONS) == pod_digest(spec_of(), OPTIONS)


def test_pods_fit_what_pod_security_calls_restricted() -> None:
    # https://kubernetes.io/docs/concepts/security/pod-security-standards, each row of "restricted".
    pod = pod_of(secrets=["key"])
    [container] = pod["containers"]
    assert not {"hostNetwork", "hostPID", "hostIPC", "initContainers"} & pod.keys()
    assert {kind for volume in pod["volumes"] for kind in volume.keys() - {"name"}} <= {"emptyDir", "projected", "secret", "csi"}
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] > 0
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"]["allowPrivilegeEscalation"] is False
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert "privileged" not in container["securityContext"]
    assert not any("hostPort" in port for port in container["ports"])


def test_pods_have_no_token_and_a_root_that_cannot_be_written_unless_asked_for() -> None:
    assert pod_of()["automountServiceAccountToken"] is False
    [container] = pod_of()["containers"]
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert {"name": "tmp", "mountPath": "/tmp"} in container["volumeMounts"]
    [loose] = pod_of(readOnlyRootFilesystem=False)["containers"]
    assert loose["securityContext"]["readOnlyRootFilesystem"] is False


def test_secrets_and_the_batch_token_are_files_where_openfaas_has_them() -> None:
    pod = pod_of(secrets=["key", "cert"])
    [mount] = [volume_mount for volume_mount in pod["containers"][0]["volumeMounts"] if volume_mount["name"] == "secrets"]
    assert mount == {"name": "secrets", "mountPath": "/var/openfaas/secrets", "readOnly": True}
    [volume] = [volume for volume in pod["volumes"] if volume["name"] == "secrets"]
    assert [source["secret"]["name"] for source in volume["projected"]["sources"]] == ["key", "cert", "figlet.gnomon"]
    token = batch_token(FunctionKey("figlet"), "t0ken")
    assert token["metadata"]["name"] == "figlet.gnomon"
    assert base64.b64decode(token["data"]["gnomon-batch-token"]) == b"t0ken"


def test_a_login_to_a_registry_is_for_the_kubelet_and_no_file() -> None:
    options = PodOptions(pull_secrets=("registry",), image_pull_policy="Always", runtime_class="gvisor")
    pod = deployment(spec_of(secrets=["key", "registry"]), 1, options)["spec"]["template"]["spec"]
    assert pod["imagePullSecrets"] == [{"name": "registry"}]
    [volume] = [volume for volume in pod["volumes"] if volume["name"] == "secrets"]
    assert [source["secret"]["name"] for source in volume["projected"]["sources"]] == ["key", "figlet.gnomon"]
    assert (pod["containers"][0]["imagePullPolicy"], pod["runtimeClassName"]) == ("Always", "gvisor")


def test_a_secret_has_one_entry_of_its_own_name_and_any_bytes() -> None:
    made = secret(FunctionKey("key", "staging"), b"\x00\xff")
    assert (made["metadata"]["name"], made["metadata"]["namespace"]) == ("key", "staging")
    assert base64.b64decode(made["data"]["key"]) == b"\x00\xff"
    with pytest.raises(GnomonError) as refused:
        secret(FunctionKey("key"), b"x" * 2**21)
    assert refused.value.code == "secret_too_large"


def test_probes_follow_the_workload_contract_and_its_annotations() -> None:
    [container] = pod_of()["containers"]
    assert container["startupProbe"]["httpGet"]["path"] == container["livenessProbe"]["httpGet"]["path"] == "/_/health"
    assert container["readinessProbe"]["httpGet"]["path"] == "/_/ready"
    [other] = pod_of(annotations={"com.openfaas.ready.http.path": "/up"})["containers"]
    assert other["readinessProbe"]["httpGet"]["path"] == "/up"
    with pytest.raises(GnomonError, match="begins with"):
        pod_of(annotations={"com.openfaas.ready.http.path": "up"})


def test_probes_have_the_numbers_that_annotations_say() -> None:
    said = {"ready.http.initialDelay": "1500ms", "ready.http.periodSeconds": "1s", "ready.http.successThreshold": "2"}
    said |= {"health.http.initialDelaySeconds": "30", "health.http.timeoutSeconds": "10", "health.http.failureThreshold": "6"}
    [container] = pod_of(annotations={f"com.openfaas.{name}": value for name, value in said.items()})["containers"]
    ready, start, live = (container[f"{which}Probe"] for which in ("readiness", "startup", "liveness"))
    assert (ready["initialDelaySeconds"], ready["periodSeconds"], ready["successThreshold"]) == (2, 1, 2)
    assert (live["initialDelaySeconds"], live["timeoutSeconds"], live["failureThreshold"]) == (30, 10, 6)
    # A slow start is waited for as long as before.
    assert (start["initialDelaySeconds"], start["timeoutSeconds"], start["failureThreshold"]) == (30, 10, 300)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ready.http.periodSeconds", "0"),
        ("ready.http.initialDelay", "soon"),
        ("ready.http.timeoutSeconds", "-1"),
        ("ready.http.failureThreshold", "2s"),
        ("health.http.successThreshold", "2"),
        ("health.http.scheme", "HTTPS"),
    ],
)
def test_a_probe_that_kubernetes_would_not_take_is_refused_with_what_it_takes(name: str, value: str) -> None:
    with pytest.raises(GnomonError) as refused:
        pod_of(annotations={f"com.openfaas.{name}": value})
    assert (refused.value.status, refused.value.code) == (400, "invalid_annotation")
    assert name in refused.value.message


def test_a_deleted_pod_is_told_to_end_when_gateways_have_stopped_sending() -> None:
    assert pod_of()["containers"][0]["lifecycle"] == {"preStop": {"sleep": {"seconds": 2}}}


def test_termination_grace_covers_the_pause_and_requests_in_flight() -> None:
    assert pod_of()["terminationGracePeriodSeconds"] == 37
    assert pod_of(annotations={"gnomon/deadline-ms": "2500"})["terminationGracePeriodSeconds"] == 10
    assert pod_of(envVars={"write_timeout": "2m"})["terminationGracePeriodSeconds"] == 127


def test_the_users_variables_win_and_the_process_has_its_own_field() -> None:
    pod = pod_of(envProcess="python3 index.py", envVars={"fprocess": "cat", "GNOMON_CORES": "9", "mode": "http"})
    variables = {row["name"]: row["value"] for row in pod["containers"][0]["env"]}
    assert variables["fprocess"] == "python3 index.py"
    assert (variables["GNOMON_CORES"], variables["mode"]) == ("9", "http")
    assert variables["GNOMON_FUNCTION"] == "figlet.openfaas-fn"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        pytest.param({}, {"requests": {"cpu": "100m"}}, id="a function without sizes may use what is free"),
        pytest.param(
            {"limits": {"memory": "128Mi", "cpu": "500m"}},
            {"requests": {"cpu": "500m"}, "limits": {"memory": "128Mi", "cpu": "500m"}},
            id="limits stay as written",
        ),
        pytest.param(
            {"requests": {"cpu": "0.5", "memory": "5Mi"}}, {"requests": {"cpu": "0.5", "memory": "5Mi"}}, id="requests too"
        ),
        pytest.param(
            {"annotations": {"gnomon/cores": "2"}},
            {"requests": {"cpu": "2"}, "limits": {"cpu": "2"}},
            id="cores are had and kept",
        ),
        pytest.param(
            {"limits": {"memory": "128MB"}}, {"requests": {"cpu": "100m"}, "limits": {"memory": "125000Ki"}}, id="128MB"
        ),
        pytest.param(
            {"limits": {"nvidia.com/gpu": "1"}}, {"requests": {"cpu": "100m"}, "limits": {"nvidia.com/gpu": "1"}}, id="a device"
        ),
    ],
)
def test_requests_and_limits(fields: dict[str, Any], expected: dict[str, Any]) -> None:
    assert pod_of(**fields)["containers"][0]["resources"] == expected


@pytest.mark.parametrize(
    ("quantity", "amount"),
    [
        ("2", 2.0), ("1500m", 1.5), ("0.5", 0.5), (".5", 0.5), ("2.", 2.0), ("100u", 1e-4), ("1e9", 1e9), ("1E3", 1e3),
        ("2e-3", 2e-3), ("1E", 1e18), ("128Mi", 2**27), ("1Ei", 2**60), ("0.5G", 5e8), ("128974848000m", 128974848.0), (4, 4.0),
        ("+1", 1.0), ("", 0.0), ("-1", 0.0), ("1Xi", 0.0), ("one", 0.0), (None, 0.0), ("1e999", 0.0), ("1" * 99, 0.0),
    ],
)  # fmt: skip
def test_a_quantity_is_read_in_every_form_that_kubernetes_knows(quantity: object, amount: float) -> None:
    assert amount_of(quantity) == pytest.approx(amount)


def test_quantities_are_exact_in_the_largest_unit() -> None:
    assert [cpu_quantity(cores) for cores in (2.0, 0.1, 1.25, 0.00001)] == ["2", "100m", "1250m", "1m"]
    assert [memory_quantity(amount) for amount in (2**27, 5 * 2**30, 1000, 0)] == ["128Mi", "5Gi", "1000", "0"]


def test_constraints_become_selectors_affinity_and_tolerations() -> None:
    fields = read_constraints(
        ["zone=a", "disk == ssd", "arch!=arm64", "tolerate:gpu:NoSchedule", "tolerate:team=vision"]
    ).fields()
    assert fields["nodeSelector"] == {"zone": "a", "disk": "ssd"}
    terms = fields["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert terms == [{"matchExpressions": [{"key": "arch", "operator": "NotIn", "values": ["arm64"]}]}]
    assert fields["tolerations"] == [
        {"key": "gpu", "operator": "Exists", "effect": "NoSchedule"},
        {"key": "team", "operator": "Equal", "value": "vision"},
    ]


@pytest.mark.parametrize("text", ["", "zone", "=a", "zone=", "not a key=1", "tolerate:", "tolerate:gpu:Sometimes"])
def test_a_constraint_that_cannot_be_read_is_refused_with_the_forms(text: str) -> None:
    with pytest.raises(GnomonError) as refused:
        read_constraints([text])
    assert (refused.value.status, refused.value.code) == (400, "invalid_constraint")
    assert "label=value" in refused.value.hint


def test_kubernetes_places_the_pods() -> None:
    assert {"schedulingGates", "readinessGates", "affinity", "nodeName"}.isdisjoint(pod_of())


def test_an_old_pod_serves_until_its_successor_is_ready() -> None:
    made = deployment(spec_of(), 1, OPTIONS)["spec"]
    assert made["strategy"]["rollingUpdate"]["maxUnavailable"] == 0
    assert made["minReadySeconds"] > 0, "in this time the gateway drains the old instance"


def test_a_body_prefers_nodes_with_a_coordinator_beside_the_constraints_of_its_function() -> None:
    body = {"annotations": {"gnomon/model": "line@1"}, "constraints": ["arch!=arm64"]}
    coordinated = PodOptions(coordinated=True)
    affinity = deployment(spec_of(**body), 1, coordinated)["spec"]["template"]["spec"]["affinity"]
    assert set(affinity) == {"nodeAffinity", "podAffinity"}
    [preferred] = affinity["podAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    daemonset = yaml.safe_load((DEPLOY / "openfaas" / "coordinator" / "daemonset.yaml").read_text())
    wanted = preferred["podAffinityTerm"]["labelSelector"]["matchLabels"]
    assert wanted.items() <= daemonset["spec"]["template"]["metadata"]["labels"].items()
    assert preferred["podAffinityTerm"]["namespaces"] == [daemonset["metadata"]["namespace"]]
    # One that makes no Shadows is anywhere.
    assert "affinity" not in deployment(spec_of(), 1, coordinated)["spec"]["template"]["spec"]


@pytest.mark.parametrize(
    "labels",
    [{"team": "a b"}, {"team": "x" * 64}, {"no key!": "a"}, {"gnomon/version": "1"}],
    ids=["space", "long", "key", "ours"],
)
def test_labels_that_kubernetes_would_refuse_are_refused_with_their_name(labels: dict[str, str]) -> None:
    with pytest.raises(GnomonError) as refused:
        check_labels(labels)
    assert refused.value.status == 400
    assert next(iter(labels)) in refused.value.message


def test_a_name_that_no_service_may_have_is_refused() -> None:
    with pytest.raises(GnomonError) as refused:
        deployment(spec_of(service="3d-resnet"), 1, OPTIONS)
    assert (refused.value.status, refused.value.code) == (400, "invalid_name")
    assert deployment(spec_of(service="resnet-3d"), 1, OPTIONS)["metadata"]["name"] == "resnet-3d"


def test_more_annotations_than_kubernetes_keeps_are_refused() -> None:
    with pytest.raises(GnomonError) as refused:
        deployment(spec_of(annotations={"note": "x" * 200_000}), 1, OPTIONS)
    assert refused.value.code == "deployment_too_large"


def test_the_service_leads_to_the_functions_pods() -> None:
    made, pods = service(spec_of()), deployment(spec_of(), 1, OPTIONS)["spec"]["template"]
    assert made["spec"]["selector"].items() <= pods["metadata"]["labels"].items()
    assert made["spec"]["ports"][0]["targetPort"] == pods["spec"]["containers"][0]["ports"][0]["name"]


def test_owned_objects_go_with_their_deployment() -> None:
    owner = deployment(spec_of(), 1, OPTIONS)
    owner["metadata"]["uid"] = "u-1"
    reference = owned_by(service(spec_of()), owner)["metadata"]["ownerReferences"]
    assert reference == [
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "name": "figlet",
            "uid": "u-1",
            "controller": False,
            "blockOwnerDeletion": False,
        }
    ]


DEPLOY = Path(__file__).parents[3] / "deploy"
START_S = 300


def containers() -> list[Any]:
    """All that have a liveness probe, which kills."""
    found = []
    for path in sorted(DEPLOY.rglob("*.yaml")):
        if DEPLOY / "charts" in path.parents:
            continue  # templates; a test on a cluster compares them with these
        for document in yaml.safe_load_all(path.read_text()):
            if document and document.get("kind") in ("Deployment", "DaemonSet"):
                listed = document["spec"]["template"]["spec"]["containers"]
                found += [pytest.param(row, id=f"{path.stem}-{row['name']}") for row in listed if "livenessProbe" in row]
    return found


@pytest.mark.parametrize("container", containers())
def test_a_container_that_may_be_killed_has_five_minutes_to_start(container: Any) -> None:
    probe = container["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] >= START_S
    # It is seen soon, too.
    assert probe["periodSeconds"] == 1


def test_probes_of_every_container_are_checked() -> None:
    assert len(containers()) == 4


COORDINATED = PodOptions(coordinated=True, models_claim="models")
BODY: dict[str, Any] = {"service": "resnet", "image": "gnomon/body", "annotations": {"gnomon/model": "resnet50@1"}}


def spec(deployment: dict[str, Any], options: PodOptions) -> dict[str, Any]:
    pod: dict[str, Any] = pod_template(read_deployment(deployment), 1, options)["spec"]
    return pod


def mounts(pod: dict[str, Any]) -> dict[str, str]:
    return {volume_mount["name"]: volume_mount["mountPath"] for volume_mount in pod["containers"][0]["volumeMounts"]}


def test_a_body_has_its_coordinators_volume_and_the_models() -> None:
    pod = spec(BODY, COORDINATED)
    volumes = {volume["name"]: volume for volume in pod["volumes"]}

    assert volumes["coordinator"]["csi"] == {
        "driver": "node.gnomon",
        "readOnly": True,
        "volumeAttributes": {"gnomon/function": "resnet"},
    }
    assert volumes["models"]["persistentVolumeClaim"] == {"claimName": "models", "readOnly": True}
    assert (mounts(pod)["coordinator"], mounts(pod)["models"]) == ("/run/gnomon", "/models")
    # As strict as any other: no host path, no token, nobody's rights.
    assert not any("hostPath" in volume for volume in pod["volumes"])
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"]


def test_pod_without_a_model_has_no_volume() -> None:
    for pod in (spec({"service": "echo", "image": "echo"}, COORDINATED), spec(BODY, PodOptions())):
        assert {volume["name"] for volume in pod["volumes"]} == {"tmp", "secrets"}
        assert set(mounts(pod)) == {"tmp", "secrets"}

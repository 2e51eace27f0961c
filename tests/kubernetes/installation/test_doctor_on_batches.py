"""`gnomon doctor` of batches on Knative, on a real API server: what is missing from Services to Bodies, and what to do."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from kubernetes import client

from tests.cluster import build
from tests.cluster.client import Cluster, Kubectl
from tests.kubernetes.installation.forms import DEPLOY
from tests.kubernetes.installation.test_doctor_on_kubernetes import examine
from tests.kubernetes.kinds import install_kinds

SERVING, USERS, NAME = "knative-serving", "users", "f-00001"
KINDS = "serving/300-resources/revision.yaml", "networking/ingress.yaml"
REVISIONS, INGRESSES = ("serving.knative.dev", "v1"), ("networking.internal.knative.dev", "v1alpha1")
REVISION = "serving.knative.dev/revision"
TOKEN = "gnomon-batch-token"
OURS = {"autoscaling.knative.dev/class": "gnomon", "gnomon/max-batch": "8"}
ENV = [{"name": "GNOMON_BATCH_TOKEN", "valueFrom": {"secretKeyRef": {"name": TOKEN, "key": TOKEN}}}]
GATEWAY = {"app.kubernetes.io/name": "gnomon", "app.kubernetes.io/component": "knative-gateway"}
SHUT = {"metadata": {"name": "nobody"}, "spec": {"podSelector": {}, "policyTypes": ["Ingress"]}}
Says = Callable[[str], dict[str, str]]


@pytest.fixture
def kubectl(own_plane: Cluster, compiled: build.Programs) -> Kubectl:
    """Of a cluster with deploy/knative, and users."""
    install_kinds(own_plane, compiled, *KINDS)
    for name in (SERVING, USERS):
        own_plane.core.create_namespace({"metadata": {"name": name}})
        own_plane.core.create_namespaced_service_account(name, {"metadata": {"name": "default"}})
    made = Kubectl(compiled.folder / "kubectl", own_plane.kubeconfig)
    made("apply", "-k", str(DEPLOY / "knative"))
    return made


@pytest.fixture
def says(own_plane: Cluster, kubectl: Kubectl) -> Says:
    """Doctor's finding of one check."""
    del kubectl
    return lambda check: examine(own_plane.kubeconfig, platform="knative")[0][check]


def pod(cluster: Cluster, namespace: str, name: str, labels: dict[str, str], **status: Any) -> None:
    spec = {"containers": [{"name": "c", "image": "dev.local/answer:v1"}]}
    cluster.core.create_namespaced_pod(namespace, {"metadata": {"name": name, "labels": labels}, "spec": spec})
    cluster.core.patch_namespaced_pod_status(name, namespace, {"status": status})


def test_services_must_lead_to_gateways_that_are_ready(own_plane: Cluster, kubectl: Kubectl, says: Says) -> None:
    def way() -> tuple[str, str, str]:
        found = says("batches' way")
        return found["level"], found["message"], found["hint"]

    level, message, hint = way()
    assert (level, "No pod of gnomon-gateway is ready" in message, "get pods" in hint) == ("warn", True, True)
    condition = [{"type": "Ready", "status": "True"}]
    pod(
        own_plane,
        SERVING,
        "gateway",
        GATEWAY,
        phase="Running",
        podIP="10.1.0.1",
        podIPs=[{"ip": "10.1.0.1"}],
        conditions=condition,
    )
    assert way()[0] == "ok", "no Revision batches"

    # One that batches, and whose Service the class does not lead anywhere.
    revision(own_plane)
    route(own_plane)
    level, message, hint = way()
    assert (level, f"Service {NAME} in {USERS} does not lead to a ready gateway" in message) == ("warn", True)
    assert "gnomon-autoscaler" in hint
    labels = {"kubernetes.io/service-name": NAME, "endpointslice.kubernetes.io/managed-by": "gnomon"}
    endpoints = [{"addresses": ["10.1.0.1"], "conditions": {"ready": True}}]
    led = {
        "metadata": {"name": "led", "labels": labels},
        "addressType": "IPv4",
        "ports": [{"port": 8012}],
        "endpoints": endpoints,
    }
    client.DiscoveryV1Api(own_plane.api).create_namespaced_endpoint_slice(USERS, led)
    assert way()[0] == "ok"

    # A gateway of before it was among the endpoints of Services.
    deployment = json.loads(kubectl("get", "deployment", "gnomon-gateway", "-n", SERVING, "-o", "json"))
    arguments = deployment["spec"]["template"]["spec"]["containers"][0]["args"]
    arguments = ["--port=8080" if argument.startswith("--port") else argument for argument in arguments]
    patch = [{"op": "replace", "path": "/spec/template/spec/containers/0/args", "value": arguments}]
    kubectl("patch", "deployment", "gnomon-gateway", "-n", SERVING, "--type=json", f"--patch={json.dumps(patch)}")
    level, message, _ = way()
    assert (level, "listens on 8080" in message) == ("warn", True)


def test_network_policies_must_let_batches_through_to_the_pods(own_plane: Cluster, kubectl: Kubectl, says: Says) -> None:
    def network() -> dict[str, str]:
        return says("batches' network")

    networking: Any = client.NetworkingV1Api(own_plane.api)
    assert network()["level"] == "ok", network()["message"]
    kubectl("delete", "networkpolicy", "gnomon-gateway", "-n", SERVING)
    assert network()["level"] == "ok", "no policy shuts nobody out"
    networking.create_namespaced_network_policy(SERVING, SHUT)
    found = network()
    assert found["level"] == "warn"
    assert "ingresses to port 8012 of gnomon-gateway nor gnomon-autoscaler to port 9090" in found["message"]
    kubectl(*found["hint"].replace(" deploy/", f" {DEPLOY}/").split()[1:])
    assert network()["level"] == "ok"

    # A namespace of users that is shut: its Revisions' pods get nothing from another one.
    revision(own_plane)
    route(own_plane)
    networking.create_namespaced_network_policy(USERS, SHUT)
    found = network()
    assert (found["level"], f"gnomon-gateway to port 8012 of {NAME}" in found["message"]) == ("warn", True)
    assert "app.kubernetes.io/component: knative-gateway" in found["hint"]
    assert "kubernetes.io/metadata.name: knative-serving" in found["hint"]
    peer = {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": SERVING}},
        "podSelector": {"matchLabels": GATEWAY},
    }
    opened = {"podSelector": {}, "ingress": [{"from": [peer], "ports": [{"port": "queue-port"}]}]}
    networking.create_namespaced_network_policy(USERS, {"metadata": {"name": "batches"}, "spec": opened})
    assert network()["level"] == "ok", network()["message"]


def revision(cluster: Cluster, annotations: dict[str, str] | None = None, **container: Any) -> None:
    """A Revision, as Knative makes it, and its Deployment."""
    given = {"name": "user-container", "image": "dev.local/answer:v1", "env": ENV, **container}
    labels, metadata = {REVISION: NAME}, {"name": NAME, "annotations": OURS if annotations is None else annotations}
    document = {"apiVersion": "/".join(REVISIONS), "kind": "Revision", "metadata": metadata, "spec": {"containers": [given]}}
    cluster.custom.create_namespaced_custom_object(*REVISIONS, USERS, "revisions", document)
    proxy = {"name": "queue-proxy", "image": "dev.local/queue:v1", "ports": [{"name": "queue-port", "containerPort": 8012}]}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [given, proxy]}}
    spec = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}
    cluster.apps.create_namespaced_deployment(USERS, {"metadata": {"name": f"{NAME}-deployment", "labels": labels}, "spec": spec})


def route(cluster: Cluster, of_class: str = "gnomon") -> None:
    """Let an Ingress of a class lead to it."""
    splits = [{"serviceNamespace": USERS, "serviceName": NAME, "servicePort": 80, "percent": 100}]
    rules = [{"hosts": ["f.users.example.com"], "visibility": "ExternalIP", "http": {"paths": [{"splits": splits}]}}]
    metadata = {"name": "f", "annotations": {"networking.knative.dev/ingress-class": of_class}}
    body = {"apiVersion": "/".join(INGRESSES), "kind": "Ingress", "metadata": metadata, "spec": {"rules": rules}}
    cluster.custom.create_namespaced_custom_object(*INGRESSES, USERS, "ingresses", body)


def typed(command: str, compiled: build.Programs, cluster: Cluster) -> None:
    """Run kubectl as an operator does. Its discovery cache is kept with the cluster."""
    environment = {"PATH": f"{compiled.folder}:{os.environ['PATH']}", "KUBECONFIG": str(cluster.kubeconfig)}
    subprocess.run(["bash", "-c", command], env={**environment, "HOME": str(cluster.kubeconfig.parent)}, check=True)


def runs(since: str) -> dict[str, Any]:
    """The status of a pod whose container began then."""
    state = {"running": {"startedAt": since}}
    fields = {"image": "i", "imageID": "i", "ready": True, "restartCount": 0, "state": state}
    return {"containerStatuses": [{"name": "user-container", **fields}]}


def test_revisions_that_get_no_batches_are_named_with_what_they_lack(
    own_plane: Cluster, compiled: build.Programs, says: Says
) -> None:
    core, custom = own_plane.core, own_plane.custom

    def lack() -> tuple[str, str, str]:
        found = says("batches' Revisions")
        return found["level"], found["message"], found["hint"]

    def change(annotations: dict[str, str | None], **container: Any) -> None:
        containers = [{"name": "user-container", "image": "dev.local/answer:v1", **container}]
        patch = {"metadata": {"annotations": annotations}, "spec": {"containers": containers}}
        custom.patch_namespaced_custom_object(*REVISIONS, USERS, "revisions", NAME, patch)

    stock = "kpa.autoscaling.knative.dev"
    revision(own_plane, {**OURS, "autoscaling.knative.dev/class": stock}, env=[])
    assert lack() == ("ok", "None of 0 Revisions that ask for batches lacks anything.", ""), "nobody leads to it"
    route(own_plane, "istio.ingress.networking.knative.dev")
    level, message, hint = lack()
    assert (level, f"{USERS}/{NAME}" in message, f"is {stock}, not gnomon" in message) == ("warn", True, True)
    assert "run-on-knative.md" in hint

    change({"autoscaling.knative.dev/class": "gnomon"}, ports=[{"name": "h2c", "containerPort": 8080}])
    assert "h2c" in lack()[1]
    change({}, ports=[{"name": "http1", "containerPort": 8080}])
    assert f"was not given the Secret {TOKEN}" in lack()[1]
    change({"gnomon/max-batch": "1"})
    assert lack()[0] == "ok", "of one request each, as it came, nothing is to be given"

    change({"gnomon/max-batch": "many"})
    level, message, hint = lack()
    assert (level, "its settings are left out" in message, "gnomon/max-batch" in message) == ("warn", True, True)
    assert hint == f"kubectl -n {USERS} annotate revision {NAME} … --overwrite, and the same in the template of its service."

    change({"gnomon/max-batch": "8"}, env=ENV)
    level, message, hint = lack()
    assert (level, "its pods wait for it" in message) == ("warn", True)
    assert f"kubectl -n {USERS} create secret generic {TOKEN} --from-literal={TOKEN}=" in hint
    core.create_namespaced_secret(USERS, {"metadata": {"name": TOKEN}, "stringData": {"another": "x"}})
    level, message, hint = lack()
    assert f"has no key {TOKEN}" in message
    typed(hint, compiled, own_plane)
    data: Any = core.read_namespaced_secret(TOKEN, USERS).data
    assert (set(data), len(base64.b64decode(data[TOKEN]))) == ({"another", TOKEN}, 64), "its neighbour keeps its own"
    assert lack()[0] == "ok", "no pod is there yet"

    since = datetime.now(UTC) + timedelta(seconds=1)
    pod(own_plane, USERS, "since", {REVISION: NAME}, **runs(since.strftime("%Y-%m-%dT%H:%M:%SZ")))
    assert lack()[0] == "ok"
    time.sleep(2.0)
    core.patch_namespaced_secret(TOKEN, USERS, {"stringData": {"third": "y"}}, field_manager="somebody")
    assert lack()[0] == "ok", "another service was given its own"
    pod(own_plane, USERS, "before", {REVISION: NAME}, **runs("2001-01-01T00:00:00Z"))
    level, message, hint = lack()
    assert (level, "started before the Secret" in message, hint) == (
        "warn",
        True,
        f"kubectl -n {USERS} delete pods -l {REVISION}={NAME}",
    )

"""An application's image (INFaaS) in real pods: behind Gnomon's gateway on Kubernetes, and as a service of Knative's own class.

`make images NAMES=gnomon-application` builds the image, with PyTorch, of the template and two small models; where it was not
built from the sources as they are, or the cluster is another than ours and GNOMON_TEST_APPLICATION_IMAGE names none, these tests
are skipped.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import urllib3

from tests.cluster import images, models, settings
from tests.cluster.client import Cluster
from tests.cluster.knative import SERVING, answer_for_ingress, condition
from tests.cluster.phases import Phases
from tests.cluster.settings import folders
from tests.kubernetes.openfaas.gateways import Gateway
from tests.waiting import eventually

pytestmark = pytest.mark.timeout(900)
PATIENCE_S = 300.0
QUERY = json.dumps({"inputs": [{"name": "input", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}]}).encode()
CONTROL = "http://127.0.0.1:8081"
"""The gateway's own routes, in a replica."""
LIMITS = {"cpu": "1", "memory": "1536Mi"}
REQUESTS = {"cpu": "100m", "memory": "256Mi"}


@pytest.fixture(scope="module")
def image(cluster: Cluster) -> str:
    if named := os.environ.get("GNOMON_TEST_APPLICATION_IMAGE"):
        return named
    running = models.ours(cluster)
    archive = None if running is None else images.kept(folders(), Phases(silent=True), "gnomon-application")
    if running is None or archive is None:
        pytest.skip("no image of an application: make images NAMES=gnomon-application, or GNOMON_TEST_APPLICATION_IMAGE")
    models.put(running, archive)
    return settings.image("gnomon-application")


@pytest.fixture(autouse=True)
def restricted(cluster: Cluster, namespace: str) -> None:
    """Pods of the test's namespace have neither root nor capabilities."""
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    cluster.core.patch_namespace(namespace, {"metadata": {"annotations": {"openfaas": "1"}, "labels": labels}})


@pytest.fixture
def gateway(cluster: Cluster, namespace: str, tmp_path: Path) -> Iterator[Gateway]:
    gateway_process = Gateway(cluster.kubeconfig, tmp_path / "state", environment={"POD_NAMESPACE": namespace})
    gateway_process.start("--cluster-wide")
    yield gateway_process
    assert gateway_process.end() == 0


def ask(url: str, **headers: str) -> urllib3.BaseHTTPResponse:
    named = {"Content-Type": "application/json"} | {name.replace("_", "-"): value for name, value in headers.items()}
    return urllib3.request("POST", url, body=QUERY, headers=named, timeout=60, retries=False)


def check(url: str, **headers: str) -> None:
    """Queries get variants that satisfy them; an impossible one is refused with the nearest, or gets it."""
    answer = ask(url, X_Gnomon_Accuracy="0.8", **headers)
    assert answer.status == 200, answer.data
    assert answer.headers["X-Gnomon-Variant"].startswith("exact@1/")
    assert answer.json()["outputs"][0]["shape"] == [1, 2]
    refusal = ask(url, X_Gnomon_Accuracy="0.95", **headers)
    assert (refusal.status, refusal.headers["X-Gnomon-Nearest"][:8]) == (422, "exact@1/")
    served = ask(url, X_Gnomon_Accuracy="0.95", X_Gnomon_Nearest="serve", **headers)
    assert (served.status, served.headers["X-Gnomon-Variant"][:8]) == (200, "exact@1/")
    assert ask(url, X_Gnomon_Model="quick", **headers).headers["X-Gnomon-Variant"].startswith("quick@1/")


def test_pods_behind_the_gateway_answer_by_variants_and_more_of_them_are_workers(
    gateway: Gateway, cluster: Cluster, namespace: str, image: str
) -> None:
    function: dict[str, Any] = {
        "service": "numbers",
        "namespace": namespace,
        "image": image,
        "labels": {"com.openfaas.scale.min": "1"},
        "annotations": {"gnomon/autoscaler": "fixed", "gnomon/concurrency": "8"},
        "limits": LIMITS,
        "requests": REQUESTS,
    }
    named = {**function, "annotations": {"gnomon/autoscaler": "fixed", "gnomon/model": "app:numbers"}}
    refusal = gateway.call("POST", "/system/functions", named)
    assert refusal.status == 400
    assert b"the template gnomon-application" in refusal.data
    assert gateway.call("POST", "/system/functions", function).status == 202
    name = f"numbers.{namespace}"
    eventually(lambda: gateway.status(name).get("availableReplicas") == 1, "no pod serves", PATIENCE_S)
    check(f"{gateway.url}/function/{name}")
    check(f"{gateway.url}/function/{name}/v2/models/numbers/infer")

    gateway.call("POST", f"/system/scale-function/{name}", {"serviceName": "numbers", "namespace": namespace, "replicas": 2})
    eventually(lambda: gateway.status(name).get("availableReplicas") == 2, "no second pod serves", PATIENCE_S)
    pods = cluster.core.list_namespaced_pod(namespace).items
    assert [pod.status.container_statuses[0].restart_count for pod in pods] == [0, 0]
    running = models.ours(cluster)
    for pod in pods:
        if running is not None:
            command = ("exec", pod.metadata.name, "-n", namespace, "--", "gnomon", "app", "describe", "numbers", "-g", CONTROL)
            assert "exact@1/program/fp32/1" in running.kubectl(*command)
        check(f"http://{pod.status.pod_ip}:8080/")
        # The gateway's own routes are for who is in the pod.
        with pytest.raises(urllib3.exceptions.HTTPError):
            urllib3.request("GET", f"http://{pod.status.pod_ip}:8081/system/functions", timeout=5, retries=False)


def test_service_of_knative_gets_ready_and_answers_through_its_activator(cluster: Cluster, namespace: str, image: str) -> None:
    if "knative-serving" not in models.namespaces(cluster):
        pytest.skip("this cluster has no Knative")
    activator = cluster.core.read_namespaced_service("activator-service", "knative-serving").spec.cluster_ip
    container = {
        "image": image,
        "readinessProbe": {"httpGet": {"path": "/_/ready"}, "periodSeconds": 1},
        "resources": {"limits": LIMITS, "requests": REQUESTS},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "runAsNonRoot": True,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }
    body = {
        "apiVersion": "/".join(SERVING),
        "kind": "Service",
        "metadata": {"name": "numbers"},
        "spec": {"template": {"spec": {"containerConcurrency": 8, "containers": [container]}}},
    }
    cluster.custom.create_namespaced_custom_object(*SERVING, namespace, "services", body)
    answer_for_ingress(cluster, namespace, "numbers")

    def service() -> dict[str, Any]:
        found: dict[str, Any] = cluster.custom.get_namespaced_custom_object(*SERVING, namespace, "services", "numbers")
        return found

    eventually(lambda: condition(service()) == "True", "the service is not Ready", PATIENCE_S)
    revision = service()["status"]["latestReadyRevisionName"]
    named = {"Knative-Serving-Namespace": namespace, "Knative-Serving-Revision": revision}
    check(f"http://{activator}/", **named)
    check(f"http://{activator}/v2/models/numbers/infer", **named)

"""`gnomon serve --platform openfaas` with real pods: kubelet, containers, and what they write.

The function's image is built of the template, without torch, where the cluster is ours; for another one
GNOMON_TEST_FUNCTION_IMAGE names an image that echoes.
The gateway must reach pods at their addresses, as it does on the node itself.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster import images, models, settings
from tests.cluster.client import Cluster
from tests.cluster.phases import CannotBeHad, Phases
from tests.cluster.settings import folders
from tests.kubernetes.openfaas.gateways import GNOMON, Gateway, Load
from tests.waiting import eventually

pytestmark = pytest.mark.timeout(600)
PATIENCE_S = 240.0
FEW = {"cpu": "50m"}


@pytest.fixture
def image(cluster: Cluster) -> str:
    if named := os.environ.get("GNOMON_TEST_FUNCTION_IMAGE"):
        return named
    running = models.ours(cluster)
    if running is None:
        pytest.skip("this cluster has no image of ours: GNOMON_TEST_FUNCTION_IMAGE")
    try:
        [archive] = images.archives(folders(), Phases(silent=True), ["gnomon-echo"])
        models.put(running, archive)
    except CannotBeHad as reason:
        pytest.skip(str(reason))
    return settings.image("gnomon-echo")


@pytest.fixture
def gateway(cluster: Cluster, namespace: str, tmp_path: Path) -> Iterator[Gateway]:
    """A gateway that looks after a namespace of the test's own, with its Lease in there."""
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    cluster.core.patch_namespace(namespace, {"metadata": {"annotations": {"openfaas": "1"}, "labels": labels}})
    gateway_process = Gateway(cluster.kubeconfig, tmp_path / "state", environment={"POD_NAMESPACE": namespace})
    gateway_process.start("--cluster-wide")
    yield gateway_process
    if gateway_process.process is not None and gateway_process.process.poll() is None:
        assert gateway_process.end() == 0


def deploy(gateway: Gateway, namespace: str, image: str, method: str = "POST", policy: str = "fixed", **variables: str) -> None:
    document = {
        "service": "echo",
        "namespace": namespace,
        "image": image,
        "labels": {"com.openfaas.scale.min": "2"},
        "annotations": {"gnomon/autoscaler": policy},
        "requests": FEW,
        "envVars": {"GNOMON_HANDLER_FOLDER": "/home/app/function", **variables},
    }
    answer = gateway.call(method, "/system/functions", document)
    assert answer.status == 202, answer.data


def available(gateway: Gateway, name: str) -> None:
    eventually(lambda: gateway.status(name).get("availableReplicas") == 2, "two pods never served", PATIENCE_S)


def uids(cluster: Cluster, namespace: str) -> set[str]:
    return {pod.metadata.uid for pod in cluster.core.list_namespaced_pod(namespace).items if not pod.metadata.deletion_timestamp}


def test_pods_serve_log_and_are_switched_and_outlive_the_gateway(
    gateway: Gateway, cluster: Cluster, namespace: str, image: str
) -> None:
    name = f"echo.{namespace}"
    deploy(gateway, namespace, image)
    available(gateway, name)
    lines: list[dict[str, Any]] = []
    following = threading.Thread(target=follow, args=(gateway.url, namespace, lines))
    following.start()
    load = Load(f"{gateway.url}/function/{name}", threads=4, each=550)
    eventually(lambda: load.count > 300, limit_s=PATIENCE_S)
    deploy(gateway, namespace, image, "PUT", "openfaas")
    eventually(lambda: load.count > 900, limit_s=PATIENCE_S)
    old = uids(cluster, namespace)
    deploy(gateway, namespace, image, "PUT", NEWER="1")
    assert load.join() == {"right": 2200}
    # Between its steps a rolling update has two pods as well: the end is that no old one is left.
    eventually(lambda: not old & uids(cluster, namespace), "old pods stayed", PATIENCE_S)
    available(gateway, name)
    pods = {pod.metadata.name for pod in cluster.core.list_namespaced_pod(namespace).items}
    kept = gateway.call("GET", f"/system/logs?name=echo&namespace={namespace}&tail=5").data.splitlines()
    assert {json.loads(line)["instance"] for line in kept} & pods, "an instance is named by its pod"
    assert lines, "who follows hears what pods write"
    eventually(lambda: len(uids(cluster, namespace)) == 2, "more pods than are wanted stayed", PATIENCE_S)
    before = uids(cluster, namespace)
    assert gateway.end() == 0
    following.join()
    assert uids(cluster, namespace) == before
    gateway.start("--cluster-wide")
    available(gateway, name)
    assert gateway.call("POST", f"/function/{name}", b"again").data == b"again"
    assert uids(cluster, namespace) == before
    gateway.call("DELETE", "/system/functions", {"functionName": "echo", "namespace": namespace})
    eventually(lambda: not cluster.apps.list_namespaced_deployment(namespace).items, "it was not removed", PATIENCE_S)


def test_an_image_that_cannot_be_pulled_is_named(gateway: Gateway, namespace: str) -> None:
    deploy(gateway, namespace, "dev.local/missing:v1")
    waiting = ["ready", f"echo.{namespace}", "--gateway", gateway.url, "--attempts", "1000", "--timeout", "5s"]

    def said() -> str:
        return subprocess.run([*GNOMON, *waiting], capture_output=True, text=True, check=False).stderr

    eventually(lambda: "ErrImagePull" in (text := said()) or "ImagePullBackOff" in text, "it did not say why", PATIENCE_S)
    gateway.call("DELETE", "/system/functions", {"functionName": "echo", "namespace": namespace})


def follow(url: str, namespace: str, lines: list[dict[str, Any]]) -> None:
    """Until the gateway ends."""
    import urllib3  # noqa: PLC0415 - a connection of its own, in a thread

    pool = urllib3.PoolManager(retries=False)
    answer = pool.request("GET", f"{url}/system/logs?name=echo&namespace={namespace}&follow=true", preload_content=False)
    try:
        for part in answer.stream():
            lines += [json.loads(line) for line in part.splitlines() if line.endswith(b"}")]
    except (urllib3.exceptions.HTTPError, ValueError):
        pass  # its last line broke off with the gateway
    finally:
        answer.close()
        pool.clear()

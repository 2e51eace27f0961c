"""The DaemonSet as it is installed, on a real node: both containers with the rights that the manifest gives them and no others.

No registry has its images here, so that the containers see this machine's Python and packages, read-only, in place of an image's.
"""

from __future__ import annotations

import http.client
import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gnomon_coordinator.node import volumes
from gnomon_coordinator.node.pod_sockets import SOCKET
from tests.cluster import build
from tests.cluster.client import Cluster, Kubectl, until
from tests.cluster.models import end_coordinators
from tests.integration.coordinator_node.node import TOKEN, Body, Node
from tests.kubernetes.conftest import accounts
from tests.kubernetes.coordinator_node.test_driver_on_the_cluster import (
    KUBELET,
    MANIFESTS,
    MOUNTED,
    RESTRICTED,
    inside,
    pod_with_volume,
)

NODES = "gnomon-nodes"
DRAIN_S = 12
"""Long after a driver that does not wait would have gone."""
ROOT = Path(__file__).parents[3]
pytestmark = [pytest.mark.root, pytest.mark.torch, pytest.mark.timeout(600)]


def own_folders() -> dict[str, str]:
    """Where a Python with our packages is on this machine, by the path at which a container has it."""
    python = str(Path(sys.base_prefix).resolve())
    return {"/usr": "/usr", "/lib": "/usr/lib", "/lib64": "/usr/lib64", str(ROOT): str(ROOT), python: python}


def as_installed(image: str, models: Path) -> list[dict[str, Any]]:
    """The manifests of `kubectl apply -k`, with images replaced by this machine's folders and models by the test's."""
    kustomization = yaml.safe_load((MANIFESTS / "kustomization.yaml").read_text())
    documents = [
        document
        for name in kustomization["resources"]
        for document in yaml.safe_load_all((MANIFESTS / name).read_text())
        if document
    ]
    [daemons] = [document for document in documents if document["kind"] == "DaemonSet"]
    pod = daemons["spec"]["template"]["spec"]
    for number, (path, source) in enumerate(own_folders().items()):
        pod["volumes"].append({"name": f"own-{number}", "hostPath": {"path": source, "type": "Directory"}})
        for container in pod["containers"]:
            container["volumeMounts"].append({"name": f"own-{number}", "mountPath": path, "readOnly": True})
    for container in pod["containers"]:
        container["image"] = image
        container["command"][0] = sys.executable
    [volume] = [volume for volume in pod["volumes"] if volume["name"] == "models"]
    volume["hostPath"]["path"] = str(models)
    return [document for document in documents if document["kind"] not in ("Role", "RoleBinding")]


@pytest.fixture
def installed(cluster: Cluster, compiled: build.Programs, answer_image: str) -> Iterator[Node]:
    """The DaemonSet on the cluster's node; what a test of a node's processes asks it goes to its pod."""
    if os.geteuid() != 0 or not (KUBELET / "plugins_registry").is_dir():
        pytest.skip("the cluster's node is not this machine, or this is not root")
    folder = Path(tempfile.mkdtemp(prefix="gnomon-"))
    # The pool runs as nobody.
    folder.chmod(0o755)
    made = Node(folder, kubelet=KUBELET, name=cluster.core.list_node().items[0].metadata.name, begin=False)
    kubectl = Kubectl(compiled.folder / "kubectl", cluster.kubeconfig)
    text = yaml.safe_dump_all(as_installed(answer_image, made.models))
    kubectl("apply", "-f", "-", given=text)
    secret = {"metadata": {"name": "coordinator-token"}, "stringData": {"token": TOKEN}}
    cluster.core.create_namespaced_secret(NODES, secret)
    try:
        until(lambda: ready(cluster, made), "the DaemonSet's pod", 240.0)
        yield made
    finally:
        made.close()
        end_coordinators(kubectl)
        kubectl("delete", "--ignore-not-found", "--timeout=60s", "-f", "-", given=text)
        shutil.rmtree(folder)
        shutil.rmtree(KUBELET / "plugins" / volumes.NAME, ignore_errors=True)


def ready(cluster: Cluster, node: Node) -> bool:
    """True if its pod serves; its address is the node's from then on."""
    for pod in cluster.core.list_namespaced_pod(NODES).items:
        conditions = {condition.type: condition.status for condition in pod.status.conditions or ()}
        if conditions.get("Ready") == "True":
            node.host, node.port = pod.status.pod_ip, 7468
            return True
    return False


def test_a_body_gets_its_shadow_from_the_daemonsets_pool(
    cluster: Cluster, namespace: str, answer_image: str, installed: Node
) -> None:
    node = installed
    cluster.core.patch_namespace(namespace, {"metadata": {"labels": RESTRICTED}})
    pod = pod_with_volume(cluster, namespace, "body", answer_image)
    try:
        node.warm()
    except (OSError, http.client.HTTPException, AssertionError) as error:
        [daemon] = cluster.core.list_namespaced_pod(NODES).items
        logs = {name: cluster.core.read_namespaced_pod_log(daemon.metadata.name, NODES, container=name)
                for name in ("coordinator", "pool")}  # fmt: skip
        raise AssertionError(logs) from error
    body = Body(node.folder, pod.metadata.uid, Path(str(inside(pod)) + MOUNTED, SOCKET), node.models, node.head)
    node.started.append(body)
    node.has_come(pod.metadata.uid)
    given = node.batch(2)
    halves = [answer for row in given for answer in body.ask(row[None])[0]]

    assert node.request_shadow("s-1", pod.metadata.uid, node.blocks, [0, 1])[0] == 200
    node.paired("s-1")
    assert body.ask(given) == (halves, 1)
    [daemon] = cluster.core.list_namespaced_pod(NODES).items
    assert [container.restart_count for container in daemon.status.container_statuses] == [0, 0]
    # The pod is taken away: its volume goes, and with it the Shadow.
    cluster.core.delete_namespaced_pod("body", namespace)
    until(lambda: not cluster.core.list_namespaced_pod(namespace).items, "the pod to end")
    until(lambda: node.shadow("s-1")["state"] == "gone", "the Shadow to end")
    assert not (KUBELET / "pods" / pod.metadata.uid / "volumes" / "kubernetes.io~csi" / "coordinator").exists()


def draining(name: str, image: str) -> dict[str, Any]:
    """A pod with the volume that answers for a while when it is told to end."""
    container = {
        "name": "answer",
        "image": image,
        "volumeMounts": [{"name": "gnomon", "mountPath": MOUNTED, "readOnly": True}],
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}},
        "lifecycle": {"preStop": {"sleep": {"seconds": DRAIN_S}}},
    }
    spec = {
        "containers": [container],
        "volumes": [{"name": "gnomon", "csi": {"driver": volumes.NAME, "readOnly": True}}],
        "automountServiceAccountToken": False,
        "securityContext": {"runAsNonRoot": True, "runAsUser": 12000, "seccompProfile": {"type": "RuntimeDefault"}},
        "terminationGracePeriodSeconds": DRAIN_S + 3,
    }
    return {"metadata": {"name": name}, "spec": spec}


def test_deleted_together_with_pods_that_drain_it_goes_after_them(
    cluster: Cluster, compiled: build.Programs, answer_image: str, installed: Node
) -> None:
    """`kubectl delete -k deploy/openfaas-models`: a kubelet cannot end a pod whose volume's driver has gone."""
    functions = f"test-{secrets.token_hex(4)}"
    cluster.core.create_namespace({"metadata": {"name": functions, "labels": RESTRICTED}})
    until(lambda: accounts(cluster, functions), "the namespace's account")
    try:
        cluster.core.create_namespaced_pod(functions, draining("body", answer_image))
        until(lambda: cluster.core.read_namespaced_pod("body", functions).status.phase == "Running", "the pod")
        theirs = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": functions}}
        text = yaml.safe_dump_all([*as_installed(answer_image, installed.models), theirs])
        Kubectl(compiled.folder / "kubectl", cluster.kubeconfig)("delete", "--timeout=100s", "-f", "-", given=text, limit_s=110.0)
        assert {NODES, functions}.isdisjoint(namespace.metadata.name for namespace in cluster.core.list_namespace().items)
    finally:
        # A pod that stays for want of its driver would keep the cluster from its end.
        cluster.core.delete_collection_namespaced_pod(functions, grace_period_seconds=0)

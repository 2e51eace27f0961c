"""The node plugin under a real kubelet: registered, asked for the volumes of real pods that are held to the level "restricted".

The kubelet has to be this machine's, because the plugin's process is: then its folders are ours to see.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes import client

from gnomon_coordinator.node import volumes
from gnomon_coordinator.node.pod_sockets import SOCKET
from tests.cluster import build
from tests.cluster.client import Cluster, Kubectl, until
from tests.integration.coordinator_node.node import Body, Node

MANIFESTS = Path(__file__).parents[3] / "deploy" / "openfaas" / "coordinator"
KUBELET = Path("/var/lib/kubelet")
RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}
MOUNTED = "/run/gnomon"
pytestmark = [pytest.mark.root, pytest.mark.timeout(300)]


@pytest.fixture
def plugin(cluster: Cluster) -> Iterator[Node]:
    """The agent and its pool on this machine, registered with its kubelet, and the driver's object as we install it."""
    if os.geteuid() != 0 or not (KUBELET / "plugins_registry").is_dir():
        pytest.skip("the cluster's kubelet is not this machine's, or this is not root: the plugin cannot be beside it")
    [driver] = [document for document in yaml.safe_load_all((MANIFESTS / "driver.yaml").read_text()) if document]
    storage = client.StorageV1Api(cluster.api)
    storage.create_csi_driver(driver)
    folder = Path(tempfile.mkdtemp(prefix="gnomon-"))
    made = Node(folder, kubelet=KUBELET, name=cluster.core.list_node().items[0].metadata.name)
    yield made
    made.close()
    storage.delete_csi_driver(volumes.NAME)
    shutil.rmtree(folder)
    shutil.rmtree(KUBELET / "plugins" / volumes.NAME)


def pod_with_volume(cluster: Cluster, namespace: str, name: str, image: str) -> Any:
    """A pod as strict as a function's, with the volume. Returns it once it runs."""
    volume = {"driver": volumes.NAME, "readOnly": True, "volumeAttributes": {volumes.FUNCTION_KEY: "line"}}
    container = {
        "name": "answer",
        "image": image,
        "volumeMounts": [{"name": "gnomon", "mountPath": MOUNTED, "readOnly": True}],
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}, "readOnlyRootFilesystem": True},
        "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}},
    }
    spec = {
        "containers": [container],
        "volumes": [{"name": "gnomon", "csi": volume}],
        "automountServiceAccountToken": False,
        "securityContext": {"runAsNonRoot": True, "runAsUser": 12000, "seccompProfile": {"type": "RuntimeDefault"}},
        "terminationGracePeriodSeconds": 1,
    }
    cluster.core.create_namespaced_pod(namespace, {"metadata": {"name": name}, "spec": spec})

    def running() -> Any:
        found = cluster.core.read_namespaced_pod(name, namespace)
        return found if found.status.phase == "Running" else None

    return until(running, f"pod {name} to run")


def inside(pod: Any, container: str = "") -> Path:
    """The pod's container's own view of the file system, through its first process on this machine; of several, this one's."""
    ids = [status.container_id for status in pod.status.container_statuses or () if status.name == container]
    wanted = ids[0].rpartition("/")[2] if ids else pod.metadata.uid

    def process() -> Path | None:
        for group in Path("/proc").glob("[0-9]*/cgroup"):
            try:
                mine = re.search(wanted.replace("-", "[-_]"), group.read_text())
                if mine and (group.parent / "comm").read_text().strip() != "pause" and is_first(group.parent):
                    return group.parent / "root"
            except OSError:
                continue
        return None

    return until(process, "the container's process")


def is_first(process: Path) -> bool:
    """True if a container ends with this process of its."""
    return re.search(r"^NSpid:.*\t1$", (process / "status").read_text(), re.MULTILINE) is not None


def test_a_restricted_pods_volume_is_a_socket_of_its_own(
    cluster: Cluster, namespace: str, answer_image: str, plugin: Node
) -> None:
    cluster.core.patch_namespace(namespace, {"metadata": {"labels": RESTRICTED}})
    storage = client.StorageV1Api(cluster.api)
    node = plugin.name

    def registered() -> bool:
        # The client refuses the answer while there is no driver: `drivers` is null then.
        answer: Any = storage.read_csi_node(node, _preload_content=False)
        found = json.loads(answer.data)["spec"]["drivers"] or ()
        return any(row["name"] == volumes.NAME and row["nodeID"] == node for row in found)

    until(registered, "the kubelet to register the driver")
    first, other = (pod_with_volume(cluster, namespace, name, answer_image) for name in ("first", "other"))
    sockets = [Path(str(inside(pod)) + MOUNTED, SOCKET) for pod in (first, other)]
    for pod, path in zip((first, other), sockets, strict=True):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
            connection.connect(str(path))
            plugin.has_come(pod.metadata.uid)
            [row] = plugin.state()["bodies"]
            assert row == {"pod_uid": pod.metadata.uid, "namespace": namespace, "name": pod.metadata.name, "function": "line"}
        until(lambda: not plugin.state()["bodies"], "it to go")

    # The agent's container is started again: the same folders, the same pods.
    plugin.agent.kill(signal.SIGKILL)
    plugin.begin_agent()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.connect(str(sockets[0]))
        plugin.has_come(first.metadata.uid)

    for pod in (first, other):
        cluster.core.delete_namespaced_pod(pod.metadata.name, namespace)
    until(lambda: not cluster.core.list_namespaced_pod(namespace).items, "the pods to end")
    for pod in (first, other):
        assert not (KUBELET / "pods" / pod.metadata.uid / "volumes" / "kubernetes.io~csi" / "gnomon").exists()
    assert not list((KUBELET / "plugins" / volumes.NAME / "volumes").iterdir())


@pytest.mark.torch
def test_a_body_behind_a_pods_volume_has_its_shadow_from_the_nodes_pool(
    cluster: Cluster, namespace: str, answer_image: str, plugin: Node
) -> None:
    """The Body's process is this machine's: the cluster has no image with torch. It comes through the pod's own mount."""
    cluster.core.patch_namespace(namespace, {"metadata": {"labels": RESTRICTED}})
    pod = pod_with_volume(cluster, namespace, "body", answer_image)
    plugin.warm()
    body = Body(plugin.folder, pod.metadata.uid, Path(str(inside(pod)) + MOUNTED, SOCKET), plugin.models, plugin.head)
    plugin.started.append(body)
    plugin.has_come(pod.metadata.uid)
    split = [0, 1]
    given = plugin.batch(2)
    halves = [answer for row in given for answer in body.ask(row[None])[0]]
    assert plugin.request_shadow("s-1", pod.metadata.uid, plugin.blocks, split)[0] == 200
    plugin.paired("s-1")
    assert body.ask(given) == (halves, 1)
    # The pod is taken away: its volume goes, and with it the Shadow.
    cluster.core.delete_namespaced_pod("body", namespace)
    until(lambda: plugin.shadow("s-1")["state"] == "gone", "the Shadow to end")
    assert body.ask(given)[1] == 0


def test_the_api_server_takes_what_we_install(cluster: Cluster, compiled: build.Programs) -> None:
    """All of deploy/openfaas/coordinator, as it would be applied."""
    kustomization = yaml.safe_load((MANIFESTS / "kustomization.yaml").read_text())
    documents = [
        document
        for name in kustomization["resources"]
        for document in yaml.safe_load_all((MANIFESTS / name).read_text())
        if document
    ]
    # A dry run makes no namespace for the others to be in.
    text = yaml.safe_dump_all([document for document in documents if document["kind"] != "Namespace"])
    kubectl = Kubectl(compiled.folder / "kubectl", cluster.kubeconfig)
    kubectl("apply", "--dry-run=server", "-f", "-", given=text.replace("namespace: gnomon-nodes", "namespace: default"))

"""A node whose pods hold a model: each pod is a real Body's process at the pod's address, with the socket of its own volume.

    control plane ─▶ played kubelet ─▶ Body ─ its volume's socket ─▶ coordinator ─▶ pool ─▶ Shadow

The coordinator and its pool are processes as well; a pod of their DaemonSet bears their address.
"""

from __future__ import annotations

import contextlib
import io
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from gnomon_coordinator.node.pod_sockets import SOCKET
from gnomon_profiler.extractor import Description, capture
from tests.cluster.client import Cluster
from tests.integration.coordinator_node.node import Body, Node
from tests.kubernetes.measured import SIDE, network, put_profiled
from tests.kubernetes.openfaas.kubelet import PORT, WORKER, Kubelet, condition

MODEL = "shot"
LABELS = ["red", "green", "blue"]
PREPROCESS = {"size": SIDE, "crop_fraction": 1.0, "interpolation": "bicubic", "mean": [0, 0, 0], "std": [255, 255, 255]}
NODES = "gnomon-nodes"
COORDINATOR_LABELS = {"app.kubernetes.io/name": "gnomon", "app.kubernetes.io/component": "coordinator"}


@contextlib.contextmanager
def node_at(address: str, name: str = "node-a") -> Iterator[Node]:
    """A node's processes at an address, in a folder of their own with a short name: there are sockets in it."""
    folder = Path(tempfile.mkdtemp(prefix="gnomon-"))
    node = Node(folder, name=name, at=f"{address}:7468")
    try:
        yield node
    finally:
        node.close()
        shutil.rmtree(folder)


@contextlib.contextmanager
def two_nodes(first: int) -> Iterator[dict[str, Node]]:
    """At two addresses of their own from 127.0.9.`first` on; each process of tests that run side by side has other ones."""
    first += 2 * WORKER
    with node_at(f"127.0.9.{first}", "node-a") as first_node, node_at(f"127.0.9.{first + 1}", "node-b") as other:
        yield {node.name: node for node in (first_node, other)}


def put_models(nodes: Mapping[str, Node]) -> float:
    """Store the model on every node. How long a sample takes by the profile of the first."""
    sample_s, *_ = [put_model(node.models) for node in nodes.values()]
    return sample_s


def put_model(models: Path) -> float:
    """Store a classifier of photographs, with a profile of it. How long a sample takes by that, in seconds."""
    details = {"labels": LABELS, "preprocess": PREPROCESS}
    description = Description(MODEL, "1", "image-classification", details, ("image",), ("logits",))
    return put_profiled(models, MODEL, capture(network(), (torch.ones(2, 3, SIDE, SIDE),), description))


def photograph() -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", (SIDE, SIDE), (40, 200, 90)).save(stream, "PNG")
    return stream.getvalue()


class PodBody:
    """A pod's Body until its pod ends."""

    def __init__(self, node: Node, pod: Mapping[str, Any], address: str, token: str) -> None:
        self._node, uid = node, pod["metadata"]["uid"]
        self._pod = node.pod(uid)
        named = {"GNOMON_MODEL": f"{MODEL}@1", "GNOMON_BATCH_TOKEN": token}
        socket = self._pod.target / SOCKET
        self._body = Body(node.folder, uid, socket, node.models, b"", at=f"{address}:{PORT}", **named)
        node.started.append(self._body)

    def end(self) -> None:
        self._body.kill()
        self._node.kubelet.unpublish(self._pod)


class BodyKubelet(Kubelet):
    """A kubelet whose pods are Bodies."""

    def __init__(self, api: Any, node: Node, *, cores: int = 8, second_octet: int = 1) -> None:
        super().__init__(api, node.name, Path(), cores=cores, second_octet=second_octet)
        self._node = node

    def serve(self, pod: Mapping[str, Any], address: str, token: str) -> PodBody:
        return PodBody(self._node, pod, address, token)


@contextlib.contextmanager
def coordinator_pod(cluster: Cluster, node: Node) -> Iterator[None]:
    """The DaemonSet's pod on the node, ready at the coordinator's address."""
    core = cluster.core
    if NODES not in {namespace.metadata.name for namespace in core.list_namespace().items}:
        core.create_namespace({"metadata": {"name": NODES}})
    requests = {"coordinator": {"cpu": "20m"}, "pool": {"cpu": "100m"}}
    containers = [{"name": name, "image": "x", "resources": {"requests": given}} for name, given in requests.items()]
    spec = {"nodeName": node.name, "containers": containers, "automountServiceAccountToken": False}
    name = f"coordinator-{node.name}"
    core.create_namespaced_pod(NODES, {"metadata": {"name": name, "labels": COORDINATOR_LABELS}, "spec": spec})
    status = {"phase": "Running", "podIP": node.host, "podIPs": [{"ip": node.host}], "conditions": [condition("Ready", met=True)]}
    core.patch_namespaced_pod_status(name, NODES, {"status": status})
    try:
        yield
    finally:
        core.delete_namespaced_pod(name, NODES, grace_period_seconds=0)

"""The needs of functions with models on a cluster of tests: images of ours, the models as a volume, the nodes' coordinators.

    images ▶ of this cluster by GNOMON_TEST_BODY_IMAGE and GNOMON_TEST_COORDINATOR_IMAGE, else what `make images` has built here
    volume ▶ a folder of the node as a claim `models`, in a function's namespace
    coordinators ▶ deploy/openfaas/coordinator as it is installed, with these images and the same folder

A Body's image holds torch, and takes minutes and gigabytes to build: it is used where it was built from the sources as they are
now, and never built here.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.cluster import cluster as clusters
from tests.cluster import requirements
from tests.cluster.client import Cluster, Kubectl, documents, until
from tests.cluster.images import archives, kept
from tests.cluster.phases import CannotBeHad, Phases
from tests.cluster.settings import HERE, folders, image

COORDINATOR = HERE.parents[1] / "deploy" / "openfaas" / "coordinator"
NODES = "gnomon-nodes"
CLAIM = "models"
SIZE = "20Gi"
READY_LIMIT_S = 240.0
UNPACKED = 2.2
"""An image takes its archive's size twice on a node: as it came, and as files."""


@dataclass(frozen=True)
class Images:
    """By which names the cluster has them."""

    body: str
    coordinator: str


def ours(cluster: Cluster) -> clusters.Running | None:
    """The cluster that was booted here, if it is this one."""
    running = clusters.runs(folders())
    same = running is not None and running.folders.kubeconfig.resolve() == cluster.kubeconfig.resolve()
    return running if same else None


def images(cluster: Cluster) -> Images:
    """The images, known to the cluster.

    Raises:
        CannotBeHad: they are not to be had, and why.

    """
    named = [os.environ.get(f"GNOMON_TEST_{name}_IMAGE", "") for name in ("BODY", "COORDINATOR")]
    if all(named):
        return Images(*named)
    running = ours(cluster)
    if running is None:
        raise CannotBeHad(
            "this cluster has no image of a Body: GNOMON_TEST_BODY_IMAGE and GNOMON_TEST_COORDINATOR_IMAGE name them"
        )
    body = kept(folders(), Phases(silent=True), "gnomon-body")
    if body is None:
        raise CannotBeHad("the image of a Body was not built from these sources: make images NAMES=gnomon-body")
    [coordinator] = archives(folders(), Phases(silent=True), ["gnomon-coordinator"])
    for archive in (body, coordinator):
        put(running, archive)
    return Images(image("gnomon-body"), image("gnomon-coordinator"))


def small(cluster: Cluster, name: str, variable: str) -> str:
    """An image of ours that takes seconds to build: the name by which the cluster has it. `variable` names another cluster's.

    Raises:
        CannotBeHad: it is not to be had, and why.

    """
    if named := os.environ.get(variable):
        return named
    running = ours(cluster)
    if running is None:
        raise CannotBeHad(f"this cluster has no image of ours: {variable} names it")
    [archive] = archives(folders(), Phases(silent=True), [name])
    put(running, archive)
    return image(name)


def put(running: clusters.Running, archive: Path) -> None:
    """Make an image known to the cluster, once."""
    known = running.folders.state / f"has-{archive.name}"
    if not known.exists():
        requirements.check_disk_space(running.folders.cache, UNPACKED * archive.stat().st_size / 1e9)
        running.node.import_image(archive)
        known.touch()


@contextlib.contextmanager
def volume(cluster: Cluster, namespace: str, models: Path) -> Iterator[dict[str, Any]]:
    """A folder of the node, and the claim by which this namespace may have it. The node must be this machine, or have the same.

    The namespace, with its claim, is to be made after it and to go before it: a claim whose volume has gone is long in going.
    """
    name = f"models-{namespace}"
    bound = {"accessModes": ["ReadOnlyMany"], "storageClassName": ""}
    cluster.core.create_persistent_volume(
        {
            "metadata": {"name": name},
            "spec": {
                **bound,
                "capacity": {"storage": SIZE},
                "persistentVolumeReclaimPolicy": "Retain",
                "claimRef": {"namespace": namespace, "name": CLAIM},
                "hostPath": {"path": str(models), "type": "Directory"},
            },
        }
    )
    try:
        claim = {**bound, "volumeName": name, "resources": {"requests": {"storage": SIZE}}}
        yield {"metadata": {"name": CLAIM}, "spec": claim}
    finally:
        cluster.core.delete_persistent_volume(name)


@contextlib.contextmanager
def coordinators(cluster: Cluster, kubectl: Kubectl, given: Images, models: Path) -> Iterator[str]:
    """The DaemonSet as it is installed, ready on every node; the token of its coordinators.

    Raises:
        CannotBeHad: the cluster has one already, which is somebody else's.

    """
    if NODES in namespaces(cluster):
        raise CannotBeHad(f"the namespace {NODES} is there already: this cluster has coordinators of its own")
    token = secrets.token_hex(16)
    text = yaml.safe_dump_all(as_installed(given, models))
    try:
        kubectl("apply", "-f", "-", given=text)
        secret = {"metadata": {"name": "coordinator-token"}, "stringData": {"token": token}}
        cluster.core.create_namespaced_secret(NODES, secret)
        until(lambda: _ready(cluster), "the nodes' coordinators", READY_LIMIT_S)
        yield token
    finally:
        end_coordinators(kubectl)
        kubectl("delete", "--ignore-not-found", "--timeout=100s", "-f", "-", given=text)


def end_coordinators(kubectl: Kubectl) -> None:
    """Before their namespace: Kubernetes looks again at one with pods in it when half of the grace is over that they have."""
    words = ("delete", "daemonset/coordinator", "-n", NODES, "--ignore-not-found", "--cascade=foreground", "--timeout=100s")
    kubectl(*words)


def as_installed(given: Images, models: Path) -> list[dict[str, Any]]:
    """The objects that `kubectl apply -k deploy/openfaas/coordinator` makes, with these images and this folder of models."""
    kustomization = yaml.safe_load((COORDINATOR / "kustomization.yaml").read_text())
    found = documents(*(COORDINATOR / name for name in kustomization["resources"]))
    [daemons] = [row for row in found if row["kind"] == "DaemonSet"]
    pod = daemons["spec"]["template"]["spec"]
    names = {"gnomon-body": given.body, "gnomon-coordinator": given.coordinator}
    for container in pod["containers"]:
        container["image"] = names[container["image"]]
    [volume_of_models] = [volume for volume in pod["volumes"] if volume["name"] == "models"]
    volume_of_models["hostPath"]["path"] = str(models)
    return found


def _ready(cluster: Cluster) -> bool:
    status = cluster.apps.read_namespaced_daemon_set("coordinator", NODES).status
    return bool(status.desired_number_scheduled) and status.number_ready == status.desired_number_scheduled


def namespaces(cluster: Cluster) -> set[str]:
    """The namespaces that are there, or about to go."""
    return {namespace.metadata.name for namespace in cluster.core.list_namespace().items}


def furnish_namespace(cluster: Cluster, name: str) -> None:
    """A namespace of functions, as strict as ours, with the account that pods need."""
    metadata = {
        "name": name,
        "annotations": {"openfaas": "1"},
        "labels": {"pod-security.kubernetes.io/enforce": "restricted"},
    }
    cluster.core.create_namespace({"metadata": metadata})
    accounts = cluster.core.list_namespaced_service_account
    until(lambda: any(account.metadata.name == "default" for account in accounts(name).items), "the namespace's account")

"""Body and Shadow on nodes: is the driver known, does a coordinator run on each node, and has its kubelet registered it?

Without coordinators nothing fails: Bodies run without Shadows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gnomon_cli.doctor.findings import Level, Look
from gnomon_cli.doctor.looking import Cluster
from gnomon_core.coordination import NODES_NAMESPACE
from gnomon_platforms.kubernetes.client import Document
from gnomon_platforms.kubernetes.objects.pod_template import CSI_DRIVER
from gnomon_platforms.kubernetes.resources import NODES, SECRETS, Resource

DAEMONS, TOKEN = "coordinator", "coordinator-token"
INSTALL = "kubectl apply -k deploy/openfaas/coordinator"
PROFILE_LABEL = "security.kubernetes.io/csi-ephemeral-volume-profile"
DAEMON_SETS = Resource("apps/v1", "daemonsets", "DaemonSet")
DRIVERS = Resource("storage.k8s.io/v1", "csidrivers", "CSIDriver", namespaced=False)
NODE_DRIVERS = Resource("storage.k8s.io/v1", "csinodes", "CSINode", namespaced=False)


def shadow_checks(cluster: Cluster, install: str = INSTALL) -> Iterator[tuple[str, Look]]:
    """The checks of deploy/openfaas/coordinator, which the command `install` makes."""
    yield "Shadows' driver", lambda: driver(cluster, install)
    yield "Shadows' coordinators", lambda: coordinators(cluster, install)
    yield "Shadows' nodes", lambda: registered(cluster)


def daemons(cluster: Cluster) -> Document | None:
    """The DaemonSet of coordinators; None where Shadows were never asked for.

    Raises:
        Refused, Unreachable: it cannot be looked at.

    """
    return cluster.one(DAEMON_SETS, NODES_NAMESPACE, DAEMONS)


def driver(cluster: Cluster, install: str) -> tuple[Level, str, str]:
    """Whether pods may have the volume by which their Body reaches its node's coordinator.

    Raises:
        Refused, Unreachable: it cannot be looked at.

    """
    found = cluster.one(DRIVERS, None, CSI_DRIVER)
    if found is None:
        return Level.WARN, f"There is no CSIDriver {CSI_DRIVER}: Bodies run without Shadows.", install
    spec, labels = found.get("spec") or {}, found["metadata"].get("labels") or {}
    wrong = []
    if not spec.get("podInfoOnMount"):
        wrong.append("podInfoOnMount is not true")
    if "Ephemeral" not in (spec.get("volumeLifecycleModes") or ()):
        wrong.append("volumeLifecycleModes has no Ephemeral")
    if labels.get(PROFILE_LABEL) != "restricted":
        wrong.append(f"the label {PROFILE_LABEL} is not restricted")
    if wrong:
        hint = f"kubectl delete csidriver {CSI_DRIVER} && {install}"
        return Level.FAIL, f"CSIDriver {CSI_DRIVER} is not ours: {', '.join(wrong)}.", hint
    return Level.OK, f"CSIDriver {CSI_DRIVER} is there, and restricted pods may use it.", ""


def coordinators(cluster: Cluster, install: str) -> tuple[Level, str, str]:
    """Whether each node has one that is ready.

    Raises:
        Refused, Unreachable: it cannot be looked at.

    """
    found = daemons(cluster)
    if found is None:
        return Level.WARN, f"There is no DaemonSet {DAEMONS} in {NODES_NAMESPACE}: Bodies run without Shadows.", install
    if cluster.one(SECRETS, NODES_NAMESPACE, TOKEN) is None:
        make = f"kubectl -n {NODES_NAMESPACE} create secret generic {TOKEN} --from-literal=token=…"
        return Level.FAIL, f"There is no Secret {TOKEN} in {NODES_NAMESPACE}: its pods wait.", make
    status = found.get("status") or {}
    wanted, ready = int(status.get("desiredNumberScheduled", 0)), int(status.get("numberReady", 0))
    said = f"{ready} of {wanted} nodes have a coordinator that is ready."
    if ready >= wanted > 0:
        return Level.OK, said, ""
    return Level.WARN if ready else Level.FAIL, said, f"kubectl -n {NODES_NAMESPACE} describe pods"


def registered(cluster: Cluster) -> tuple[Level, str, str]:
    """Whether each node's kubelet knows the driver: on a node where it does not, pods with the volume wait.

    Raises:
        Refused, Unreachable: it cannot be looked at.

    """
    if daemons(cluster) is None:
        return Level.OK, "Nothing is to be registered.", ""
    knowing = {one["metadata"]["name"] for one in cluster.items(NODE_DRIVERS.path()) if knows(one)}
    lacking = sorted({one["metadata"]["name"] for one in cluster.items(NODES.path()) if runs_linux(one)} - knowing)
    if not lacking:
        return Level.OK, f"The kubelets of all {len(knowing)} nodes know {CSI_DRIVER}.", ""
    hint = f"kubectl -n {NODES_NAMESPACE} logs -l app.kubernetes.io/component=coordinator -c coordinator"
    return Level.WARN, f"Pods with Shadows' volume would wait on {', '.join(lacking)}.", hint


def runs_linux(node: dict[str, Any]) -> bool:
    """Whether a coordinator would be put on a node. One that does not say what it runs may be one that is only played."""
    return bool((node["metadata"].get("labels") or {}).get("kubernetes.io/os", "linux") == "linux")


def knows(node: dict[str, Any]) -> bool:
    """Whether a CSINode has our driver."""
    return any(one.get("name") == CSI_DRIVER for one in (node.get("spec") or {}).get("drivers") or ())

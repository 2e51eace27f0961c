"""A cluster: can it be reached, is it new enough, are there nodes that take pods?"""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from gnomon_cli.doctor.findings import Level, Look
from gnomon_cli.doctor.looking import Cluster
from gnomon_platforms.kubernetes.resources import NODES

API_SERVER = "API server"
OLDEST = (1, 30)
"""Scheduling gates, by which pods are placed, and a pause before a container's end."""
RESIZING_SINCE = (1, 33)
"""In-place resize is on by default; before, it needs a feature gate on every node."""


def cluster_checks(cluster: Cluster) -> Iterator[tuple[str, Look]]:
    """The checks of any cluster. Nothing can be looked at where the first fails."""
    yield API_SERVER, lambda: api_server(cluster)
    yield "nodes", lambda: nodes(cluster)
    yield "in-place resize", lambda: resize(cluster)
    yield "metrics", lambda: metrics(cluster)


def api_server(cluster: Cluster) -> tuple[Level, str, str]:
    """Reachable, and of which version.

    Raises:
        Refused, Unreachable: it is not.

    """
    said = str((cluster.get("/version") or {}).get("gitVersion", ""))
    found = minor(said)
    if found is None or found < OLDEST:
        return Level.FAIL, f"Kubernetes {said or 'of no version'}.", f"Gnomon needs {OLDEST[0]}.{OLDEST[1]} or newer."
    return Level.OK, f"Kubernetes {said} answers; our client is {client_version()}.", ""


def nodes(cluster: Cluster) -> tuple[Level, str, str]:
    """How many take pods.

    Raises:
        Refused, Unreachable: it cannot be looked at.

    """
    found = cluster.items(NODES.path())
    ready = [node for node in found if is_ready(node) and not node["spec"].get("unschedulable")]
    if not ready:
        return Level.FAIL, f"None of {len(found)} nodes takes pods.", "kubectl get nodes"
    level = Level.OK if len(ready) == len(found) else Level.WARN
    return level, f"{len(ready)} of {len(found)} take pods.", "" if level is Level.OK else "kubectl get nodes"


def resize(cluster: Cluster) -> tuple[Level, str, str]:
    """Whether pods can be given other cores while they run.

    Raises:
        Refused, Unreachable: it cannot be looked at.

    """
    known = {one["name"] for one in (cluster.get("/api/v1") or {}).get("resources", ())}
    if "pods/resize" not in known:
        hint = "Policies that choose an instance's cores are refused; use Kubernetes 1.33 or newer."
        return Level.WARN, "The API server does not offer it.", hint
    old = sorted(node["metadata"]["name"] for node in cluster.items(NODES.path()) if kubelet(node) < RESIZING_SINCE)
    if old:
        hint = "Instances there never get cores other than their deployment's; keep functions that need it away, or update them."
        return Level.WARN, f"These nodes are too old for it: {', '.join(old)}.", hint
    return Level.OK, "Pods can be given other cores while they run.", ""


def metrics(cluster: Cluster) -> tuple[Level, str, str]:
    """Whether the cluster tells what pods use.

    Raises:
        Refused, Unreachable: it cannot be looked at.

    """
    if cluster.get("/apis/metrics.k8s.io/v1beta1") is None:
        return (
            Level.WARN,
            "No metrics server: what functions use is not shown.",
            "Install metrics-server; scaling does not need it.",
        )
    return Level.OK, "A metrics server answers.", ""


def minor(text: str) -> tuple[int, int] | None:
    """`v1.35.4+k3s1` → (1, 35)."""
    found = re.match(r"v?(\d+)\.(\d+)", text)
    return None if found is None else (int(found[1]), int(found[2]))


def kubelet(node: dict[str, Any]) -> tuple[int, int]:
    """The version of a node's kubelet; the newest for one that says none, as nodes that are only played."""
    said = ((node.get("status") or {}).get("nodeInfo") or {}).get("kubeletVersion", "")
    return minor(said) or RESIZING_SINCE


def is_ready(node: dict[str, Any]) -> bool:
    """Whether its kubelet is heard of."""
    conditions = (node.get("status") or {}).get("conditions") or ()
    return any(one.get("type") == "Ready" and one.get("status") == "True" for one in conditions)


def client_version() -> str:
    """The version of the Python client."""
    try:
        return version("kubernetes")
    except PackageNotFoundError:  # pragma: no cover - then nothing here runs
        return "not installed"

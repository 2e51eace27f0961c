"""Deployments of ours: whether their pods are ready, and how to see what they say if not."""

from __future__ import annotations

from gnomon_cli.doctor.findings import Level
from gnomon_cli.doctor.looking import Cluster
from gnomon_platforms.kubernetes.client import Document
from gnomon_platforms.kubernetes.resources import DEPLOYMENTS


def ready(cluster: Cluster, namespace: str, name: str, install: str) -> tuple[Level, str, str]:
    """Whether a Deployment's pods are. `install` is the command that makes it.

    Raises:
        Refused, Unreachable: it cannot be looked at.

    """
    found = cluster.one(DEPLOYMENTS, namespace, name)
    if found is None:
        return Level.FAIL, f"There is no Deployment {name} in {namespace}.", install
    wanted, serving = int(found["spec"].get("replicas", 1)), int((found.get("status") or {}).get("readyReplicas", 0))
    said = f"{serving} of {wanted} replicas are ready."
    if serving >= wanted > 0:
        return Level.OK, said, ""
    component = (found["metadata"].get("labels") or {}).get("app.kubernetes.io/component", name)
    hint = f"kubectl -n {namespace} describe pods -l app.kubernetes.io/component={component}"
    return Level.WARN if serving else Level.FAIL, said, hint


def arguments(deployment: Document | None) -> list[str]:
    """What its first container is told."""
    if deployment is None:
        return []
    containers = deployment["spec"]["template"]["spec"].get("containers") or [{}]
    return list(containers[0].get("args") or ())


def option(deployment: Document | None, name: str) -> str | None:
    """What an option of it is given, in the same word or in the next one; None where it is not told this."""
    given = arguments(deployment)
    for word, following in zip(given, [*given[1:], ""], strict=True):
        named, said, value = word.partition("=")
        if named == name:
            return value if said else following
    return None


def pod_labels(workload: Document | None) -> dict[str, str]:
    """Those of the pods that a Deployment or DaemonSet makes."""
    return {} if workload is None else dict(workload["spec"]["template"]["metadata"].get("labels") or {})


def named_ports(workload: Document | None) -> dict[str, int]:
    """Which ports of these pods the names stand for that their containers give them."""
    containers = [] if workload is None else workload["spec"]["template"]["spec"].get("containers") or []
    ports = [port for container in containers for port in container.get("ports") or ()]
    return {port["name"]: int(port["containerPort"]) for port in ports if port.get("name")}

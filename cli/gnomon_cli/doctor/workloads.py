"""Deployments of ours: whether their pods are ready, and how to see what they say if not."""

from __future__ import annotations

from gnomon_cli.doctor.findings import Level
from gnomon_cli.doctor.looking import Cluster
from gnomon_platforms.kubernetes.api import Document
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

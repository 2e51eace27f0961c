"""Who else sets the number of our functions' pods: a HorizontalPodAutoscaler, or KEDA. Two who set one number never rest."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gnomon_cli.doctor.findings import Level
from gnomon_cli.doctor.looking import Cluster
from gnomon_platforms.kubernetes.objects.names import MANAGED, MANAGED_LABEL
from gnomon_platforms.kubernetes.resources import AUTOSCALERS, DEPLOYMENTS, SCALED_OBJECTS, Resource


def rivals(cluster: Cluster, namespace: str) -> tuple[Level, str, str]:
    """Look for them in the namespace of functions.

    Raises:
        Refused, Unreachable: it cannot be looked at.

    """
    query = {"labelSelector": f"{MANAGED_LABEL}={MANAGED}"}
    ours = {item["metadata"]["name"] for item in cluster.items(DEPLOYMENTS.path(namespace), query)}
    others = [
        one
        for resource in (AUTOSCALERS, SCALED_OBJECTS)
        for one in targeting(resource, cluster.items(resource.path(namespace)), ours)
    ]
    if not others:
        return Level.OK, f"Nobody else scales the {len(ours)} functions in {namespace}.", ""
    return (
        Level.WARN,
        f"Others count the pods of functions, which Gnomon then leaves alone: {', '.join(others)}.",
        "Remove them, and these functions' own policies scale them again.",
    )


def targeting(resource: Resource, items: Iterable[dict[str, Any]], ours: set[str]) -> list[str]:
    """Those of a kind of autoscaler that target one of our Deployments, each as `Kind name → function`."""
    found = []
    for item in items:
        target = (item.get("spec") or {}).get("scaleTargetRef") or {}
        if target.get("kind", DEPLOYMENTS.kind) == DEPLOYMENTS.kind and target.get("name") in ours:
            found.append(f"{resource.kind} {item['metadata']['name']} → {target['name']}")
    return sorted(found)

"""Whether faas-netes looks after functions of ours: it takes each Deployment with OpenFaaS's label for one of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gnomon_cli.doctor.findings import Level
from gnomon_cli.doctor.looking import Cluster
from gnomon_platforms.kubernetes.resources import DEPLOYMENTS

PROVIDER, NAMESPACE_VARIABLE = "faas-netes", "function_namespace"


def providers(cluster: Cluster, functions: str) -> tuple[Level, str, str]:
    """Look in all namespaces for who manages that of functions.

    Raises:
        Refused, Unreachable: it cannot be looked at.

    """
    found = [name for one in cluster.items(DEPLOYMENTS.path()) for name in managing(one, functions)]
    if not found:
        return Level.OK, f"No other provider manages the functions in {functions}.", ""
    return (
        Level.WARN,
        f"{PROVIDER} manages {functions} as well, and keeps each function between 1 and 5 replicas: {', '.join(found)}.",
        'Take it out of the gateway\'s pod: docs/howto/adopt-in-openfaas.md, "Behind the gateway on Kubernetes".',
    )


def managing(deployment: dict[str, Any], functions: str) -> Iterator[str]:
    """The containers of a Deployment that are faas-netes for this namespace, or do not say for which."""
    metadata, pod = deployment["metadata"], deployment["spec"]["template"]["spec"]
    for container in pod.get("containers") or ():
        if image_name(container.get("image", "")) != PROVIDER:
            continue
        said = {one["name"]: one.get("value") for one in container.get("env") or ()}
        if said.get(NAMESPACE_VARIABLE) in (None, "", functions):
            yield f"container {container['name']} of Deployment {metadata['name']} in {metadata['namespace']}"


def image_name(reference: str) -> str:
    """`registry.example:5000/openfaas/faas-netes:1@sha256:…` → `faas-netes`."""
    return reference.partition("@")[0].rpartition("/")[2].partition(":")[0]

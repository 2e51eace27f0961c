"""Events on a function's Deployment: what `kubectl describe deployment` shows of what we do, and leave alone."""

from __future__ import annotations

from datetime import UTC, datetime

from gnomon_platforms.kubernetes.api import Document
from gnomon_platforms.kubernetes.objects.functions import DeployedFunction
from gnomon_platforms.kubernetes.resources import DEPLOYMENTS, EVENTS
from gnomon_platforms.kubernetes.writes import Create, Target, Writer


async def warn(writer: Writer, deployed: DeployedFunction, about: str, reason: str, text: str) -> None:
    """Put a warning on the Deployment, unless there is one `about` the same, a name, that the cluster still keeps.

    Raises:
        GnomonError: what the API server refuses.

    """
    key = deployed.spec.key
    name = f"{key.name[:200]}.{about}"
    stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    event: Document = {
        "apiVersion": EVENTS.api_version,
        "kind": EVENTS.kind,
        "metadata": {"name": name, "namespace": key.namespace},
        "involvedObject": {
            "apiVersion": DEPLOYMENTS.api_version,
            "kind": DEPLOYMENTS.kind,
            "name": key.name,
            "namespace": key.namespace,
            "uid": deployed.uid,
        },
        "reason": reason,
        "message": text,
        "type": "Warning",
        "source": {"component": "gnomon"},
        "reportingComponent": "gnomon",
        "firstTimestamp": stamp,
        "lastTimestamp": stamp,
        "count": 1,
    }
    target = Target(EVENTS, key.namespace, name)
    await writer.settle(target, lambda seen: Create(event) if seen is None else None, f"say {reason}")

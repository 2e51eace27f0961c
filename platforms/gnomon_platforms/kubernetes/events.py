"""Events on a Deployment, as `kubectl describe deployment` shows them."""

from __future__ import annotations

from gnomon_core.clock import rfc3339, utc_now_s
from gnomon_core.functions import FunctionKey
from gnomon_platforms.kubernetes.client import Document
from gnomon_platforms.kubernetes.resources import DEPLOYMENTS, EVENTS
from gnomon_platforms.kubernetes.writes import Create, Target, Writer

LONGEST_NAME = 200


async def warn(writer: Writer, key: FunctionKey, uid: str, *, about: str, reason: str, text: str) -> None:
    """Create a Warning Event on the Deployment with this name and `uid`.

    `about` is part of the Event's name, so there is one for each `about` while the cluster keeps Events: an hour by default.

    Raises:
        GnomonError: what the API server refuses.

    """
    stamp = rfc3339(utc_now_s(), "seconds")
    event: Document = {
        "apiVersion": EVENTS.api_version,
        "kind": EVENTS.kind,
        "metadata": {"name": f"{key.name[:LONGEST_NAME]}.{about}", "namespace": key.namespace},
        "involvedObject": {
            "apiVersion": DEPLOYMENTS.api_version,
            "kind": DEPLOYMENTS.kind,
            "name": key.name,
            "namespace": key.namespace,
            "uid": uid,
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
    target = Target(EVENTS, key.namespace, event["metadata"]["name"])
    await writer.settle(target, lambda seen: Create(event) if seen is None else None, f"say {reason}")

"""Events on a Deployment: what `kubectl describe deployment` shows of what we do, and leave alone."""

from __future__ import annotations

from gnomon_core.clock import rfc3339, utc_now_s
from gnomon_core.functions import FunctionKey
from gnomon_platforms.kubernetes.client import Document
from gnomon_platforms.kubernetes.resources import DEPLOYMENTS, EVENTS
from gnomon_platforms.kubernetes.writes import Create, Target, Writer

LONGEST_NAME = 200


async def warn(writer: Writer, key: FunctionKey, uid: str, *, about: str, reason: str, text: str) -> None:
    """Put a warning on the Deployment of this name, whose `uid` this is.

    There is one `about` the same, a name, for as long as the cluster keeps Events: an hour, unless it says otherwise.

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

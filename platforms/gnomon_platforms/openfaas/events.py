"""Events on a function's Deployment: what `kubectl describe deployment` shows of what we do, and leave alone.

    ForeignAutoscaler  somebody else counts its pods (`rivals`)
    BodiesAlone        no node can make Shadows now
    NoCapacity         no node has room for an instance
    FailedCreate       Kubernetes makes no pod: a quota, a LimitRange, a webhook
    StartFailed        an instance did not become ready, with why
    ResizePending      a node has put off, or refused, to give a pod other cores

Of each there is one on a Deployment for as long as the cluster keeps Events, an hour by default, however often it happens. Who
asks for one each second makes one request a minute.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

from gnomon_core.clock import Clock
from gnomon_core.functions import FunctionKey
from gnomon_platforms.kubernetes.api import Document
from gnomon_platforms.kubernetes.objects.functions import DeployedFunction
from gnomon_platforms.kubernetes.resources import DEPLOYMENTS, EVENTS
from gnomon_platforms.kubernetes.writes import Create, Target, Writer
from gnomon_platforms.openfaas.behind import Behind

AGAIN_S = 60.0
NO_CAPACITY, FAILED_CREATE, START_FAILED, RESIZE_PENDING = "NoCapacity", "FailedCreate", "StartFailed", "ResizePending"


class Warnings:
    """Those of a fleet's functions. `find` gives a function's Deployment, None where there is none to put an Event on."""

    def __init__(
        self, writer: Writer, clock: Clock, behind: Behind, find: Callable[[FunctionKey], Awaitable[DeployedFunction | None]]
    ) -> None:
        self._writer, self._clock, self._behind, self._find = writer, clock, behind, find
        self._said_s: dict[tuple[FunctionKey, str], float] = {}

    def say(self, key: FunctionKey, reason: str, text: str) -> None:
        """Put a warning on the function's Deployment, behind whoever asks for it."""
        now_s = self._clock.now_s()
        self._said_s = {about: said_s for about, said_s in self._said_s.items() if now_s - said_s < AGAIN_S}
        if (key, reason) not in self._said_s:
            self._said_s[key, reason] = now_s
            self._behind.begin(self._write(key, reason, text))

    async def _write(self, key: FunctionKey, reason: str, text: str) -> None:
        deployed = await self._find(key)
        if deployed is not None:
            await warn(self._writer, deployed, f"{deployed.uid}-{reason.lower()}", reason, text)


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

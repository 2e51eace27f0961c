"""Events on a function's Deployment, as `kubectl describe deployment` shows them.

    ForeignAutoscaler  another autoscaler targets the Deployment (`kubernetes.conflicting_autoscalers`)
    BodiesAlone        no node can make Shadows now
    NoCapacity         no node has enough free capacity for an instance
    FailedCreate       Kubernetes creates no pod: a quota, a LimitRange, a webhook
    StartFailed        an instance did not become ready, with the reason
    ScaleReverted      a user has set the number of replicas, which the scaling policy decides
    ResizePending      a node has deferred a pod's resize, or the node or the API server has refused it

There is one Event of each reason on a Deployment while the cluster keeps it, an hour by default, however often it happens.
Repeated calls make at most one request a minute.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from gnomon_core.background import Background
from gnomon_core.clock import Clock
from gnomon_core.functions import FunctionKey
from gnomon_platforms.kubernetes.events import warn
from gnomon_platforms.kubernetes.objects.functions import DeployedFunction
from gnomon_platforms.kubernetes.writes import Writer

AGAIN_S = 60.0
SCALE_REVERTED = "ScaleReverted"
NO_CAPACITY, FAILED_CREATE, START_FAILED, RESIZE_PENDING = "NoCapacity", "FailedCreate", "StartFailed", "ResizePending"


class Warnings:
    """Warning Events for a fleet's functions. `find` returns a function's Deployment, None if there is none."""

    def __init__(
        self, writer: Writer, clock: Clock, behind: Background, find: Callable[[FunctionKey], Awaitable[DeployedFunction | None]]
    ) -> None:
        self._writer, self._clock, self._behind, self._find = writer, clock, behind, find
        self._said_s: dict[tuple[FunctionKey, str], float] = {}

    def say(self, key: FunctionKey, reason: str, text: str) -> None:
        """Create a Warning Event on the function's Deployment, in the background."""
        now_s = self._clock.now_s()
        self._said_s = {about: said_s for about, said_s in self._said_s.items() if now_s - said_s < AGAIN_S}
        if (key, reason) not in self._said_s:
            self._said_s[key, reason] = now_s
            self._behind.begin(self._write(key, reason, text))

    async def _write(self, key: FunctionKey, reason: str, text: str) -> None:
        deployed = await self._find(key)
        if deployed is not None:
            about = f"{deployed.uid}-{reason.lower()}"
            await warn(self._writer, key, deployed.uid, about=about, reason=reason, text=text)

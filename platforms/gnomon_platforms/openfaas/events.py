"""Events on a function's Deployment: what `kubectl describe deployment` shows of what we do, and leave alone.

    ForeignAutoscaler  somebody else counts its pods (`kubernetes.rivals`)
    BodiesAlone        no node can make Shadows now
    NoCapacity         no node has room for an instance
    FailedCreate       Kubernetes makes no pod: a quota, a LimitRange, a webhook
    StartFailed        an instance did not become ready, with why
    ScaleReverted      somebody has set the number of its pods, which its scaling policy decides
    ResizePending      a node has put off to give a pod other cores, or it or Kubernetes has refused to

Of each there is one on a Deployment for as long as the cluster keeps Events, an hour by default, however often it happens. Who
asks for one each second makes one request a minute.
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
    """Those of a fleet's functions. `find` gives a function's Deployment, None where there is none to put an Event on."""

    def __init__(
        self, writer: Writer, clock: Clock, behind: Background, find: Callable[[FunctionKey], Awaitable[DeployedFunction | None]]
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
            about = f"{deployed.uid}-{reason.lower()}"
            await warn(self._writer, key, deployed.uid, about=about, reason=reason, text=text)

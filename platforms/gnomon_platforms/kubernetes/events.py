"""Warning Events on Deployments, as `kubectl describe deployment` shows them.

There is one Event for each Deployment, reason and case while the cluster keeps Events, an hour by default, however often it is
recorded. Repeated calls make at most one request a minute, so a plan may record its Events each time that it is made.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from gnomon_core.background import Background
from gnomon_core.clock import Clock, rfc3339, utc_now_s
from gnomon_core.functions import FunctionKey
from gnomon_platforms.kubernetes.client import Document
from gnomon_platforms.kubernetes.resources import DEPLOYMENTS, EVENTS
from gnomon_platforms.kubernetes.writes import Create, Target, Writer

AGAIN_S = 60.0
LONGEST_NAME = 150
"""The most characters of a Deployment's name in an Event's name, which also holds up to two uids and a reason, of 253 in all."""


class EventRecorder:
    """Records Events in `background`. `uid_of` finds a Deployment's uid; None if there is none, or another process leads."""

    def __init__(
        self, writer: Writer, clock: Clock, background: Background, uid_of: Callable[[FunctionKey], Awaitable[str | None]]
    ) -> None:
        self._writer, self._clock, self._background, self._uid_of = writer, clock, background, uid_of
        self._recorded_s: dict[tuple[FunctionKey, str, str], float] = {}

    def warn(self, deployment: FunctionKey, reason: str, text: str, case: str = "") -> None:
        """Record a Warning Event on the Deployment of this name; `case` distinguishes Events of one reason."""
        now_s, event = self._clock.now_s(), (deployment, reason, case)
        self._recorded_s = {recorded: at_s for recorded, at_s in self._recorded_s.items() if now_s - at_s < AGAIN_S}
        if event not in self._recorded_s:
            self._recorded_s[event] = now_s
            self._background.begin(self._create(deployment, reason, text, case))

    async def _create(self, deployment: FunctionKey, reason: str, text: str, case: str) -> None:
        uid = await self._uid_of(deployment)
        if uid is not None:
            name_suffix = "-".join(part for part in (uid, reason, case) if part).lower()
            event = event_on(deployment, uid, name_suffix, reason, text)
            target = Target(EVENTS, deployment.namespace, event["metadata"]["name"])
            await self._writer.settle(target, lambda current: Create(event) if current is None else None, f"record {reason}")


def event_on(deployment: FunctionKey, uid: str, name_suffix: str, reason: str, text: str) -> Document:
    """The manifest of a Warning Event on the Deployment with this name and `uid`."""
    stamp = rfc3339(utc_now_s(), "seconds")
    return {
        "apiVersion": EVENTS.api_version,
        "kind": EVENTS.kind,
        "metadata": {"name": f"{deployment.name[:LONGEST_NAME]}.{name_suffix}", "namespace": deployment.namespace},
        "involvedObject": {
            "apiVersion": DEPLOYMENTS.api_version,
            "kind": DEPLOYMENTS.kind,
            "name": deployment.name,
            "namespace": deployment.namespace,
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

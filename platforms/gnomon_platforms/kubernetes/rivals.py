"""Who else sets the number of a Deployment's pods: a HorizontalPodAutoscaler, or KEDA's ScaledObject, that targets it.

Two who set one number undo each other's work for ever. Whoever made such an object has said what they want, so it is we who
leave the Deployment's pods alone: what there is serves on, nothing is added, resized or removed, and an Event on the Deployment,
the log and the list of decisions say why. When the object goes, the Deployment is ours again.

A cluster that does not let us see such objects, or has no KEDA, is one without them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gnomon_core.errors import GnomonError, conflict
from gnomon_core.functions import FunctionKey
from gnomon_platforms.kubernetes.api import Api, Document
from gnomon_platforms.kubernetes.cache import Change
from gnomon_platforms.kubernetes.errors import Refused, Unreachable
from gnomon_platforms.kubernetes.events import warn
from gnomon_platforms.kubernetes.informer import Informer
from gnomon_platforms.kubernetes.resources import AUTOSCALERS, DEPLOYMENTS, SCALED_OBJECTS, Resource
from gnomon_platforms.kubernetes.watching import Source
from gnomon_platforms.kubernetes.writes import Writer

REASON = "ForeignAutoscaler"
_LOG = logging.getLogger("gnomon.kubernetes")


@dataclass(frozen=True, slots=True)
class Rival:
    """An object that sets the number of pods of the Deployment `target`, in its own namespace."""

    kind: str
    namespace: str
    name: str
    uid: str
    target: str

    @property
    def says(self) -> str:
        return f"{self.kind} {self.name} sets the number of this Deployment's pods: Gnomon leaves them alone."


def rival(kind: str) -> Callable[[Document], Rival | None]:
    """Reads objects of this kind; None for one that targets no Deployment."""

    def read(document: Document) -> Rival | None:
        target: dict[str, Any] = (document.get("spec") or {}).get("scaleTargetRef") or {}
        metadata = document["metadata"]
        if target.get("kind", DEPLOYMENTS.kind) != DEPLOYMENTS.kind or not target.get("name"):
            return None
        return Rival(kind, metadata.get("namespace", ""), metadata["name"], metadata["uid"], target["name"])

    return read


class Rivals:
    """Those of one namespace, or of all. `changed` is called with the name of each Deployment that has one more, or one fewer."""

    def __init__(self, api: Api, namespace: str | None, changed: Callable[[FunctionKey], None]) -> None:
        self._api, self._namespace, self._changed = api, namespace, changed
        self._informers: list[Informer[Rival | None]] = []
        self._by_target: dict[FunctionKey, dict[str, Rival]] = {}

    async def start(self) -> None:
        """See those there are, of the kinds that can be seen."""
        for resource in (AUTOSCALERS, SCALED_OBJECTS):
            if await asyncio.to_thread(self._visible, resource):
                informer: Informer[Rival | None] = Informer(self._api, Source(resource, self._namespace), rival(resource.kind))
                await informer.start()
                informer.listen(self._seen)
                self._informers.append(informer)

    async def stop(self) -> None:
        """Look no longer."""
        await asyncio.gather(*(informer.stop() for informer in self._informers))

    def of(self, key: FunctionKey) -> Rival | None:
        """One that targets the Deployment of this name."""
        return next(iter(self._by_target.get(key, {}).values()), None)

    def hindrance(self, key: FunctionKey) -> GnomonError | None:
        """Why the pods of the Deployment of this name are not ours to count; None where they are."""
        found = self.of(key)
        if found is None:
            return None
        return conflict("foreign_autoscaler", found.says, f"kubectl delete -n {found.namespace} {found.kind} {found.name}")

    def _visible(self, resource: Resource) -> bool:
        try:
            self._api.call("GET", resource.path(self._namespace), query={"limit": "1"})
        except Refused as refusal:
            level = logging.INFO if refusal.missing else logging.WARNING
            _LOG.log(level, "%ss are not looked at: %s", resource.kind, refusal)
            return False
        except Unreachable:
            # The informer goes on asking, and tells why it cannot.
            return True
        return True

    def _seen(self, change: Change[Rival | None]) -> None:
        for held in (change.old, change.new):
            if held is not None:
                mine = self._by_target.setdefault(FunctionKey(held.target, held.namespace), {})
                mine.pop(held.uid, None)
        if change.new is not None:
            self._by_target[FunctionKey(change.new.target, change.new.namespace)][change.new.uid] = change.new
        for key in {FunctionKey(held.target, held.namespace) for held in (change.old, change.new) if held is not None}:
            if not self._by_target[key]:
                del self._by_target[key]
            self._changed(key)


async def tell(writer: Writer, uid: str, found: Rival) -> None:
    """Put an Event on the Deployment, whose `uid` this is, once for each such object.

    Raises:
        GnomonError: what the API server refuses.

    """
    await warn(writer, FunctionKey(found.target, found.namespace), uid, about=found.uid, reason=REASON, text=found.says)

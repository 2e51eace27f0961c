"""Who else sets the number of a Deployment's pods: a HorizontalPodAutoscaler, or KEDA's ScaledObject, that targets it.

Two who set one number undo each other's work for ever. Whoever made such an object has said what they want, so it is we who
leave the Deployment's pods alone: what there is serves on, nothing is added, resized or removed, and an Event on the Deployment,
the log and the list of decisions say why. When the object goes, the Deployment is ours again.

A cluster that does not let us see such objects, or has no KEDA, is one without them until it does, or has: it is asked again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gnomon_core.clock import Clock, WallClock
from gnomon_core.errors import GnomonError, conflict
from gnomon_core.functions import FunctionKey
from gnomon_platforms.kubernetes.client import Api, Document, Refused, Unreachable
from gnomon_platforms.kubernetes.events import warn
from gnomon_platforms.kubernetes.informer import Change, Informer, Source
from gnomon_platforms.kubernetes.resources import AUTOSCALERS, DEPLOYMENTS, SCALED_OBJECTS, Resource
from gnomon_platforms.kubernetes.writes import Writer

REASON = "ForeignAutoscaler"
KINDS = (AUTOSCALERS, SCALED_OBJECTS)
ASK_AGAIN_S = 60.0
"""How soon a kind is asked for again that could not be seen: KEDA may be installed, or a role mended, while we run."""
REMIND_S = 600.0
"""How often it is told again of those that are still there: a cluster keeps Events for an hour, and then one is due anew."""

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
    """Those of one namespace, or of all.

    `changed` is called with the name of each Deployment that has one more, or one fewer, and now and then of each that has one.
    """

    def __init__(
        self, api: Api, namespace: str | None, changed: Callable[[FunctionKey], None], clock: Clock | None = None
    ) -> None:
        self._api, self._namespace, self._changed = api, namespace, changed
        self._clock = clock or WallClock()
        self._informers: dict[Resource, Informer[Rival | None]] = {}
        self._unseen: dict[Resource, str] = {}
        """Why a kind is not looked at."""
        self._by_target: dict[FunctionKey, dict[str, Rival]] = {}
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """See those there are, of the kinds that can be seen.

        Raises:
            GnomonError: 503 `kubernetes_…`.

        """
        for resource in KINDS:
            await self._look_at(resource)
        self._task = asyncio.get_running_loop().create_task(self._go_on())

    async def stop(self) -> None:
        """Look no longer."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await asyncio.gather(*(informer.stop() for informer in self._informers.values()))

    def of(self, key: FunctionKey) -> Rival | None:
        """One that targets the Deployment of this name."""
        return next(iter(self._by_target.get(key, {}).values()), None)

    def hindrance(self, key: FunctionKey) -> GnomonError | None:
        """Why the pods of the Deployment of this name are not ours to count; None where they are."""
        found = self.of(key)
        if found is None:
            return None
        return conflict("foreign_autoscaler", found.says, f"kubectl delete -n {found.namespace} {found.kind} {found.name}")

    async def _go_on(self) -> None:
        """Look at what can be seen by now, leave what has gone, and remind of those that are still there."""
        reminded_s = self._clock.now_s()
        while True:
            await self._clock.sleep(ASK_AGAIN_S)
            for resource in KINDS:
                try:
                    await self._look_again(resource)
                except Exception as error:  # noqa: BLE001 - whatever it is, it is asked again
                    _LOG.warning("%ss are not looked at: %r", resource.kind, error)
            if self._clock.now_s() - reminded_s >= REMIND_S:
                reminded_s = self._clock.now_s()
                for key in tuple(self._by_target):
                    self._changed(key)

    async def _look_again(self, resource: Resource) -> None:
        informer = self._informers.get(resource)
        if informer is None:
            await self._look_at(resource)
        elif isinstance(informer.trouble, Refused) and informer.trouble.missing:
            # The kind itself was removed, and with it all of its objects, of which nobody may have told us.
            self._unseen[resource] = str(informer.trouble)
            del self._informers[resource]
            await informer.stop()
            for held in filter(None, informer.values()):
                self._seen(Change((held.namespace, held.name), held, None))

    async def _look_at(self, resource: Resource) -> None:
        """Follow the objects of a kind, if it can be seen."""
        refusal = await asyncio.to_thread(self._hidden, resource)
        if refusal is not None:
            why = str(refusal)
            if self._unseen.get(resource) != why:
                _LOG.log(logging.INFO if refusal.missing else logging.WARNING, "%ss are not looked at: %s", resource.kind, why)
            self._unseen[resource] = why
            return
        informer: Informer[Rival | None] = Informer(self._api, Source(resource, self._namespace), rival(resource.kind))
        self._informers[resource] = informer
        try:
            await informer.start()
        except GnomonError:
            del self._informers[resource]
            raise
        if self._unseen.pop(resource, ""):
            _LOG.info("%ss are looked at from now on", resource.kind)
        informer.listen(self._seen)

    def _hidden(self, resource: Resource) -> Refused | None:
        """Why a kind cannot be seen now; None where it can."""
        try:
            self._api.call("GET", resource.path(self._namespace), query={"limit": "1"})
        except Refused as refusal:
            return refusal
        except Unreachable:
            # The informer goes on asking, and tells why it cannot.
            return None
        return None

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

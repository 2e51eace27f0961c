"""Detection of conflicting autoscalers: a HorizontalPodAutoscaler, or KEDA's ScaledObject, that targets a Deployment of ours.

Two autoscalers of one Deployment revert each other's changes for ever. The user has created such an object on purpose, so Gnomon
stops scaling: existing pods go on serving, none is added, resized or removed, and an Event on the Deployment, the log and the
list of decisions give the reason. When the object is deleted, Gnomon scales the Deployment again.

If RBAC denies access to a kind, or KEDA is not installed, no such objects are assumed; access is tried again every minute.
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
from gnomon_platforms.kubernetes.informer import Change, Informer, Source
from gnomon_platforms.kubernetes.resources import AUTOSCALERS, DEPLOYMENTS, SCALED_OBJECTS, Resource

REASON = "ForeignAutoscaler"
KINDS = (AUTOSCALERS, SCALED_OBJECTS)
ASK_AGAIN_S = 60.0
"""Seconds until a kind that could not be listed is tried again: KEDA may be installed, or RBAC corrected, meanwhile."""
REMIND_S = 600.0
"""Seconds between reports of an existing conflict: a cluster keeps Events for an hour, then a new one is due."""

_LOG = logging.getLogger("gnomon.kubernetes")


@dataclass(frozen=True, slots=True)
class ConflictingAutoscaler:
    """An object that sets the number of pods of the Deployment `target`, in its own namespace."""

    kind: str
    namespace: str
    name: str
    uid: str
    target: str

    @property
    def says(self) -> str:
        return f"{self.kind} {self.name} also scales this Deployment: Gnomon does not scale it meanwhile."


def conflict_reader(kind: str) -> Callable[[Document], ConflictingAutoscaler | None]:
    """A reader for objects of this kind, which returns None for one that targets no Deployment."""

    def read(document: Document) -> ConflictingAutoscaler | None:
        target: dict[str, Any] = (document.get("spec") or {}).get("scaleTargetRef") or {}
        metadata = document["metadata"]
        if target.get("kind", DEPLOYMENTS.kind) != DEPLOYMENTS.kind or not target.get("name"):
            return None
        return ConflictingAutoscaler(kind, metadata.get("namespace", ""), metadata["name"], metadata["uid"], target["name"])

    return read


class ConflictingAutoscalers:
    """The conflicting autoscalers of one namespace, or of all.

    `changed` is called with a Deployment's name when it gets or loses one, and periodically while it has one.
    """

    def __init__(
        self, api: Api, namespace: str | None, changed: Callable[[FunctionKey], None], clock: Clock | None = None
    ) -> None:
        self._api, self._namespace, self._changed = api, namespace, changed
        self._clock = clock or WallClock()
        self._informers: dict[Resource, Informer[ConflictingAutoscaler | None]] = {}
        self._unobserved: dict[Resource, str] = {}
        """The kinds that are not watched, with the reasons."""
        self._by_target: dict[FunctionKey, dict[str, ConflictingAutoscaler]] = {}
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """List the existing objects of the kinds that may be listed, and begin to watch.

        Raises:
            GnomonError: 503 `kubernetes_…`.

        """
        for resource in KINDS:
            await self._look_at(resource)
        self._task = asyncio.get_running_loop().create_task(self._go_on())

    async def stop(self) -> None:
        """End all watches."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await asyncio.gather(*(informer.stop() for informer in self._informers.values()))

    def of(self, key: FunctionKey) -> ConflictingAutoscaler | None:
        """An autoscaler that targets the Deployment of this name; None without one."""
        return next(iter(self._by_target.get(key, {}).values()), None)

    def scaling_conflict(self, key: FunctionKey) -> GnomonError | None:
        """The error if another autoscaler targets the Deployment of this name; None if Gnomon may scale it."""
        found = self.of(key)
        if found is None:
            return None
        return conflict("foreign_autoscaler", found.says, f"kubectl delete -n {found.namespace} {found.kind} {found.name}")

    async def _go_on(self) -> None:
        """Every minute, watch kinds that have become accessible and drop removed ones; report existing conflicts again."""
        reminded_s = self._clock.now_s()
        while True:
            await self._clock.sleep(ASK_AGAIN_S)
            for resource in KINDS:
                try:
                    await self._look_again(resource)
                except Exception as error:  # noqa: BLE001 - whatever the error, it is retried
                    _LOG.warning("%ss cannot be watched, retry in %g s: %r", resource.kind, ASK_AGAIN_S, error)
            if self._clock.now_s() - reminded_s >= REMIND_S:
                reminded_s = self._clock.now_s()
                for key in tuple(self._by_target):
                    self._changed(key)

    async def _look_again(self, resource: Resource) -> None:
        informer = self._informers.get(resource)
        if informer is None:
            await self._look_at(resource)
        elif isinstance(informer.trouble, Refused) and informer.trouble.missing:
            # The CRD was deleted, and its objects with it; the watch may have reported no deletions.
            self._unobserved[resource] = str(informer.trouble)
            del self._informers[resource]
            await informer.stop()
            for held in filter(None, informer.values()):
                self._seen(Change((held.namespace, held.name), held, None))

    async def _look_at(self, resource: Resource) -> None:
        """Start an informer for a kind, if it may be listed."""
        refusal = await asyncio.to_thread(self._hidden, resource)
        if refusal is not None:
            why = str(refusal)
            if self._unobserved.get(resource) != why:
                _LOG.log(logging.INFO if refusal.missing else logging.WARNING, "%ss cannot be watched: %s", resource.kind, why)
            self._unobserved[resource] = why
            return
        source = Source(resource, self._namespace)
        informer: Informer[ConflictingAutoscaler | None] = Informer(self._api, source, conflict_reader(resource.kind))
        self._informers[resource] = informer
        try:
            await informer.start()
        except GnomonError:
            del self._informers[resource]
            raise
        if self._unobserved.pop(resource, ""):
            _LOG.info("%ss are watched now", resource.kind)
        informer.listen(self._seen)

    def _hidden(self, resource: Resource) -> Refused | None:
        """The refusal of a list of this kind; None if it may be listed."""
        try:
            self._api.call("GET", resource.path(self._namespace), query={"limit": "1"})
        except Refused as refusal:
            return refusal
        except Unreachable:
            # The informer retries, and reports the error itself.
            return None
        return None

    def _seen(self, change: Change[ConflictingAutoscaler | None]) -> None:
        for scaler in (change.old, change.new):
            if scaler is not None:
                of_target = self._by_target.setdefault(FunctionKey(scaler.target, scaler.namespace), {})
                of_target.pop(scaler.uid, None)
        if change.new is not None:
            self._by_target[FunctionKey(change.new.target, change.new.namespace)][change.new.uid] = change.new
        for key in {FunctionKey(scaler.target, scaler.namespace) for scaler in (change.old, change.new) if scaler is not None}:
            if not self._by_target[key]:
                del self._by_target[key]
            self._changed(key)

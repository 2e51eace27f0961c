"""Functions in the cluster: each is its Deployment, which says in annotations what was deployed, and when.

    put ▶ the Deployment, with no pods yet, or the annotations and labels of the one that is there ▶ its Service and its token
    delete ▶ a mark: it is listed no more ▶ the platform lets its pods answer what they have, and removes the Deployment

A Deployment with 0 pods is a function as well, so nothing is lost by scaling to zero. What is written here is metadata: how many
pods there are, and when their template changes, is the platform's. A call returns when the change has been seen in the cluster,
so that what is read next holds it.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence

from gnomon_core.errors import GnomonError, conflict
from gnomon_core.functions import FunctionKey
from gnomon_core.seam_values import StoredFunction
from gnomon_platforms.kubernetes.api import Api, Document
from gnomon_platforms.kubernetes.cache import Change
from gnomon_platforms.kubernetes.informer import Informer
from gnomon_platforms.kubernetes.objects.functions import DeployedFunction, deployed_function
from gnomon_platforms.kubernetes.objects.manifests import changed_metadata, deployment, with_creation
from gnomon_platforms.kubernetes.objects.names import MANAGED_LABEL, REMOVED_ANNOTATION, VERSION_LABEL
from gnomon_platforms.kubernetes.objects.pod_template import PodOptions
from gnomon_platforms.kubernetes.objects.pods import whole
from gnomon_platforms.kubernetes.resources import DEPLOYMENTS
from gnomon_platforms.kubernetes.watching import Source
from gnomon_platforms.kubernetes.writes import Create, Delete, Replace, Target, Write, Writer
from gnomon_platforms.openfaas.furnishing import furnish
from gnomon_platforms.openfaas.pull_secrets import with_pull_secrets

SEEN_S = 10.0
FURNISH_S = 3.0


class StoredFunctions:
    """The functions of one namespace, or of all. Everything but `all` is called on the loop that it was started on.

    `told` is called after each change, with whose it was.
    """

    def __init__(
        self, api: Api, writer: Writer, namespace: str | None, pods: PodOptions, told: Callable[[FunctionKey], None]
    ) -> None:
        self._writer, self._pods, self._told = writer, pods, told
        ours = Source(DEPLOYMENTS, namespace, labels=MANAGED_LABEL)
        self._informer: Informer[DeployedFunction | None] = Informer(api, ours, deployed_function)
        self._lock = threading.Lock()
        self._held: dict[FunctionKey, StoredFunction] = {}

    async def start(self) -> None:
        """See all there are.

        Raises:
            GnomonError: 503 `kubernetes_…`.

        """
        await self._informer.start()
        self._informer.listen(self._changed)

    async def catch_up(self) -> None:
        """Return when all is known that was there when this was called.

        Raises:
            GnomonError: 503 `kubernetes_…`.

        """
        await self._informer.resync()

    async def stop(self) -> None:
        """Look no longer."""
        await self._informer.stop()

    def all(self) -> Sequence[StoredFunction]:
        """The functions as they were seen last, by namespace and name. Any thread may ask."""
        with self._lock:
            return [self._held[key] for key in sorted(self._held, key=lambda key: (key.namespace, key.name))]

    async def put(self, stored: StoredFunction) -> None:
        """Keep a function, or what has changed of it.

        Raises:
            GnomonError: 409 `foreign_deployment` where its name is somebody else's; what the API server refuses.

        """
        spec, target = stored.spec, self._target(stored.spec.key)
        wanted = deployment(spec, stored.version, await with_pull_secrets(self._writer, spec, self._pods))
        wanted["metadata"] = with_creation(wanted["metadata"], stored.created_at)
        made = False

        def decide(seen: Document | None) -> Write | None:
            nonlocal made
            if seen is None:
                made = True
                return Create(wanted)
            _require_ours(seen, spec.key)
            return Replace({**seen, "metadata": changed_metadata(seen["metadata"], wanted["metadata"])})

        await self._clear(target, stored.version)
        written = await self._writer.settle(target, decide, f"store {spec.key}")
        assert written is not None
        if made:
            # What is not there yet is made with the first instance at the latest.
            with contextlib.suppress(GnomonError):
                await furnish(self._writer, spec, written, patience_s=FURNISH_S)
        await self._until_seen(spec.key, written)

    async def delete(self, key: FunctionKey) -> bool:
        """Let a function be listed no more; whether it was.

        Raises:
            GnomonError: what the API server refuses.

        """
        there = False

        def decide(seen: Document | None) -> Write | None:
            nonlocal there
            if seen is None or MANAGED_LABEL not in (seen["metadata"].get("labels") or {}) or _removed(seen):
                return None
            there = True
            annotations = {**(seen["metadata"].get("annotations") or {}), REMOVED_ANNOTATION: "true"}
            return Replace({**seen, "metadata": {**seen["metadata"], "annotations": annotations}})

        written = await self._writer.settle(self._target(key), decide, f"remove {key}")
        if there and written is not None:
            await self._until_seen(key, written)
        return there

    async def _clear(self, target: Target, version: int) -> None:
        """Remove what is left of a removed function of this name, if its pods could be taken for those of the new one."""

        def decide(seen: Document | None) -> Write | None:
            return Delete() if seen is not None and _removed(seen) and _version(seen) >= version else None

        await self._writer.settle(target, decide, f"remove what is left of {target.name}")

    async def _until_seen(self, key: FunctionKey, written: Document) -> None:
        """Return when the informer holds this, or something later; or after a while, for it is written all the same."""
        metadata = written["metadata"]

        def seen() -> bool:
            held = self._informer.get(key.namespace, key.name)
            return held is None or held.uid != metadata["uid"] or _reached(held.resource_version, metadata["resourceVersion"])

        def known() -> bool:
            return self._informer.get(key.namespace, key.name) is not None and seen()

        with contextlib.suppress(TimeoutError):
            await self._informer.until(known if not _removed(written) else seen, SEEN_S)

    def _changed(self, change: Change[DeployedFunction | None]) -> None:
        namespace, name = change.name
        key, new = FunctionKey(name, namespace), _stored(change.new)
        with self._lock:
            old = self._held.pop(key, None)
            if new is not None:
                self._held[key] = new
        if not _same(old, new):
            self._told(key)

    def _target(self, key: FunctionKey) -> Target:
        return Target(DEPLOYMENTS, key.namespace, key.name)


def _require_ours(seen: Document, key: FunctionKey) -> None:
    if MANAGED_LABEL not in (seen["metadata"].get("labels") or {}):
        raise conflict(
            "foreign_deployment",
            f"{key.namespace} has a Deployment {key.name} that is not Gnomon's.",
            "Choose another name, or remove it: kubectl delete deployment.",
        )


def _stored(deployed: DeployedFunction | None) -> StoredFunction | None:
    if deployed is None or deployed.removed:
        return None
    return StoredFunction(deployed.spec, deployed.version, deployed.created_at)


def _same(one: StoredFunction | None, other: StoredFunction | None) -> bool:
    """Whether nothing of the function has changed; its Deployment changes whenever one of its pods does."""
    if one is None or other is None:
        return one is other
    return (one.version, one.created_at, one.spec.raw) == (other.version, other.created_at, other.spec.raw)


def _removed(document: Document) -> bool:
    return REMOVED_ANNOTATION in (document["metadata"].get("annotations") or {})


def _version(document: Document) -> int:
    return whole((document["metadata"].get("labels") or {}).get(VERSION_LABEL))


def _reached(seen: str, written: str) -> bool:
    """Whether one resource version is another, or later. They count up (KEP-5504); what is no number is compared as it is."""
    return int(seen) >= int(written) if seen.isdigit() and written.isdigit() else seen == written

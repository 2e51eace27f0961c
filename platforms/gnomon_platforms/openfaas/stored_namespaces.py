"""Namespaces of functions: Kubernetes' own, with the annotation `openfaas: "1"`.

A namespace holds more than functions and belongs to whoever made it: one that is deleted here only loses its mark, and the labels
and annotations that users gave it by OpenFaaS's API are taken away; `kubectl delete namespace` is the owner's. One that is made
here takes only pods that are "restricted".
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence

from gnomon_core.errors import GnomonError
from gnomon_core.functions import DEFAULT_NAMESPACE
from gnomon_core.seam_values import StoredNamespace
from gnomon_platforms.kubernetes.api import Api, Document
from gnomon_platforms.kubernetes.cache import Change
from gnomon_platforms.kubernetes.informer import Informer
from gnomon_platforms.kubernetes.objects.names import NAMESPACE_ANNOTATION, NAMESPACE_MARK, check_annotations, check_labels
from gnomon_platforms.kubernetes.resources import NAMESPACES
from gnomon_platforms.kubernetes.watching import Source
from gnomon_platforms.kubernetes.writes import Create, Patch, Target, Write, Writer

RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}
SEEN_S = 10.0


def stored_namespace(document: Document) -> StoredNamespace | None:
    """Read a namespace; None for one that holds no functions. What Kubernetes itself has put there is left out."""
    metadata = document["metadata"]
    annotations = metadata.get("annotations") or {}
    if annotations.get(NAMESPACE_ANNOTATION) != NAMESPACE_MARK or "deletionTimestamp" in metadata:
        return None
    return StoredNamespace(metadata["name"], _users(metadata.get("labels")), _users(annotations))


class StoredNamespaces:
    """The marked namespaces. Without `all_` there is only the default one, and the cluster is not asked."""

    def __init__(self, api: Api, writer: Writer, told: Callable[[], None], *, all_: bool) -> None:
        self._writer, self._told, self._all = writer, told, all_
        self._informer: Informer[StoredNamespace | None] = Informer(api, Source(NAMESPACES), stored_namespace)
        self._lock = threading.Lock()
        self._held: dict[str, StoredNamespace] = {}

    async def start(self) -> None:
        """See all there are.

        Raises:
            GnomonError: 503 `kubernetes_…`.

        """
        if self._all:
            await self._informer.start()
            self._informer.listen(self._changed)

    async def stop(self) -> None:
        """Look no longer."""
        if self._all:
            await self._informer.stop()

    def all(self) -> Sequence[StoredNamespace]:
        """The namespaces as they were seen last, but for the default one. Any thread may ask."""
        with self._lock:
            return [self._held[name] for name in sorted(self._held)]

    async def put(self, stored: StoredNamespace) -> None:
        """Make a namespace, or mark the one that is there; it has these labels and annotations beside those of others.

        Raises:
            GnomonError: 400 `invalid_label`, `invalid_annotation`, `one_namespace`; what the API server refuses.

        """
        self._require_all()
        check_labels(stored.labels)
        check_annotations(stored.annotations)
        annotations = {**stored.annotations, NAMESPACE_ANNOTATION: NAMESPACE_MARK}

        def decide(seen: Document | None) -> Write | None:
            if seen is None:
                labels = {**stored.labels, **RESTRICTED}
                return Create(_manifest(stored.name, {"labels": labels, "annotations": annotations}))
            metadata = seen["metadata"]
            given = {"labels": _users(metadata.get("labels")), "annotations": _users(metadata.get("annotations"))}
            wanted = {"labels": stored.labels, "annotations": annotations}
            changes = {field: {**dict.fromkeys(given[field]), **wanted[field]} for field in wanted}
            return Patch({"metadata": changes})

        await self._write(stored.name, decide, f"make the namespace {stored.name}")
        await self._until(lambda: self._held.get(stored.name) == stored)

    async def delete(self, name: str) -> bool:
        """Take the mark away; whether it was there.

        Raises:
            GnomonError: what the API server refuses.

        """
        self._require_all()
        there = False

        def decide(seen: Document | None) -> Write | None:
            nonlocal there
            if seen is None or stored_namespace(seen) is None:
                return None
            there = True
            metadata = seen["metadata"]
            annotations = {**_users(metadata.get("annotations")), NAMESPACE_ANNOTATION: ""}
            return Patch(
                {"metadata": {"labels": dict.fromkeys(_users(metadata.get("labels"))), "annotations": dict.fromkeys(annotations)}}
            )

        await self._write(name, decide, f"unmark the namespace {name}")
        await self._until(lambda: name not in self._held)
        return there

    def _require_all(self) -> None:
        if not self._all:
            raise GnomonError(
                400, "one_namespace", f"This gateway looks after {DEFAULT_NAMESPACE} alone.", "Start it with --cluster-wide."
            )

    async def _write(self, name: str, decide: Callable[[Document | None], Write | None], doing: str) -> None:
        await self._writer.settle(Target(NAMESPACES, "", name), decide, doing)

    async def _until(self, condition: Callable[[], bool]) -> None:
        with contextlib.suppress(TimeoutError):
            await self._informer.until(condition, SEEN_S)

    def _changed(self, change: Change[StoredNamespace | None]) -> None:
        name = change.name[1]
        new = None if name == DEFAULT_NAMESPACE else change.new
        with self._lock:
            old = self._held.pop(name, None)
            if new is not None:
                self._held[name] = new
        if old != new:
            self._told()


async def require_namespace(writer: Writer, name: str = DEFAULT_NAMESPACE) -> None:
    """Make a namespace for functions if it is not there, marked and restricted; one that is there is left as it is.

    Raises:
        GnomonError: what the API server refuses.

    """

    def decide(seen: Document | None) -> Write | None:
        mark = {"labels": dict(RESTRICTED), "annotations": {NAMESPACE_ANNOTATION: NAMESPACE_MARK}}
        return Create(_manifest(name, mark)) if seen is None else None

    await writer.settle(Target(NAMESPACES, "", name), decide, f"make the namespace {name}")


def _manifest(name: str, metadata: Document) -> Document:
    return {"apiVersion": NAMESPACES.api_version, "kind": NAMESPACES.kind, "metadata": {"name": name, **metadata}}


def _users(given: dict[str, str] | None) -> dict[str, str]:
    """The labels or annotations that are neither Kubernetes' nor the mark."""
    return {key: value for key, value in (given or {}).items() if not _is_kubernetes(key) and key != NAMESPACE_ANNOTATION}


def _is_kubernetes(key: str) -> bool:
    prefix = key.partition("/")[0] if "/" in key else ""
    return prefix == "kubernetes.io" or prefix.endswith(".kubernetes.io")

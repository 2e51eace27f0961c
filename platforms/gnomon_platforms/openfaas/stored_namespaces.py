"""Namespaces of functions: Kubernetes' own, with the annotation `openfaas: "1"`.

A namespace holds more than functions and belongs to whoever made it: one that is deleted here only loses its mark, and the labels
and annotations that users gave it by OpenFaaS's API, whose keys an annotation of ours lists; those of its owner are neither shown
nor touched, and `kubectl delete namespace` is the owner's. One that is made here takes only pods that are "restricted", and
nobody loosens that here.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from gnomon_core.errors import GnomonError, bad_request
from gnomon_core.functions import DEFAULT_NAMESPACE
from gnomon_core.seam_values import StoredNamespace
from gnomon_platforms.kubernetes.api import Api, Document
from gnomon_platforms.kubernetes.cache import Change
from gnomon_platforms.kubernetes.informer import Informer
from gnomon_platforms.kubernetes.objects.names import (
    NAMESPACE_ANNOTATION,
    NAMESPACE_KEYS_ANNOTATION,
    NAMESPACE_MARK,
    check_annotations,
    check_labels,
)
from gnomon_platforms.kubernetes.resources import NAMESPACES
from gnomon_platforms.kubernetes.watching import Source
from gnomon_platforms.kubernetes.writes import Create, Patch, Target, Write, Writer

RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}
FIELDS = ("labels", "annotations")
SEEN_S = 10.0


def stored_namespace(document: Document) -> StoredNamespace | None:
    """Read a namespace, with what was set here; None for one that holds no functions."""
    metadata = document["metadata"]
    annotations = metadata.get("annotations") or {}
    if annotations.get(NAMESPACE_ANNOTATION) != NAMESPACE_MARK or "deletionTimestamp" in metadata:
        return None
    return StoredNamespace(metadata["name"], _set_here(metadata, "labels"), _set_here(metadata, "annotations"))


def marked(stored: StoredNamespace, seen: Document | None) -> Write:
    """What makes a namespace of functions, or of one that is there; it has these labels and annotations beside its owner's."""
    keys = {field: sorted(getattr(stored, field)) for field in FIELDS}
    ours = {NAMESPACE_ANNOTATION: NAMESPACE_MARK, NAMESPACE_KEYS_ANNOTATION: json.dumps(keys)}
    wanted = {"labels": stored.labels, "annotations": {**stored.annotations, **ours}}
    if seen is None:
        return Create(_manifest(stored.name, {**wanted, "labels": {**stored.labels, **RESTRICTED}}))
    metadata = seen["metadata"]
    return Patch({"metadata": {field: {**dict.fromkeys(_set_here(metadata, field)), **wanted[field]} for field in FIELDS}})


def unmarked(seen: Document | None) -> Write | None:
    """What takes the mark away, and what was set here; None where there is no mark."""
    if seen is None or stored_namespace(seen) is None:
        return None
    ours = {"labels": (), "annotations": (NAMESPACE_ANNOTATION, NAMESPACE_KEYS_ANNOTATION)}
    return Patch({"metadata": {field: dict.fromkeys([*_set_here(seen["metadata"], field), *ours[field]]) for field in FIELDS}})


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

    async def catch_up(self) -> None:
        """Return when all is known that was there when this was called.

        Raises:
            GnomonError: 503 `kubernetes_…`.

        """
        if self._all:
            await self._informer.resync()

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
        for key in stored.labels:
            if _is_kubernetes_own(key):
                raise bad_request("invalid_label", f"Label {key} is set by whoever runs the cluster.", "Leave it out.")
        stored = replace(stored, annotations={key: one for key, one in stored.annotations.items() if key != NAMESPACE_ANNOTATION})
        await self._write(stored.name, lambda seen: marked(stored, seen), f"make the namespace {stored.name}")
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
            write = unmarked(seen)
            there = there or write is not None
            return write

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


def _set_here(metadata: Document, field: str) -> dict[str, str]:
    """The labels or annotations that were set by OpenFaaS's API, and are there still."""
    keys: Any = None
    with contextlib.suppress(ValueError, RecursionError):
        keys = json.loads((metadata.get("annotations") or {}).get(NAMESPACE_KEYS_ANNOTATION, "{}"))
    listed = keys.get(field) if isinstance(keys, dict) else None
    found = listed if isinstance(listed, list) else []
    return {key: value for key, value in (metadata.get(field) or {}).items() if key in found}


def _is_kubernetes_own(key: str) -> bool:
    """Whether a label of a namespace says what its pods may do, or who it is."""
    return key.startswith("pod-security.kubernetes.io/") or key == "kubernetes.io/metadata.name"

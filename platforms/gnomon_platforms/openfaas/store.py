"""The function store on Kubernetes: functions, secrets and namespaces are stored in the cluster itself.

There is no other database: a gateway on another machine sees and serves the same functions. Calls block. Informers and writer run
on their own thread with an event loop; watchers are called on that thread, and may read functions and namespaces, but must not
write.

`StoredFunctions`: a function is its Deployment, whose annotations hold the deployed document and the time of its creation.

    put ▶ the Deployment, with no pods yet, or the annotations and labels of the one that is there ▶ its Service and its token
    delete ▶ a mark: it is listed no more ▶ the platform lets its pods answer what they have, and removes the Deployment

A Deployment with 0 pods is still a function, so scaling to zero loses nothing. The store only writes metadata: the platform sets
replicas and changes the template. A call returns when the informer has observed the change, so that the next read contains it.

`StoredNamespaces`: namespaces of functions are Kubernetes' namespaces with the annotation `openfaas: "1"`. A namespace holds more
than functions and belongs to its creator: deleting it here only removes the mark, and the labels and annotations that users set
by OpenFaaS's API, whose keys an annotation of ours lists. Other labels and annotations are neither shown nor changed. A namespace
that is created here enforces the Pod Security Standard "restricted", which this API cannot loosen.

`StoredSecrets`: users' secrets as in faas-netes: a Secret of the function's namespace with one entry of the same name. Secrets
that are created here have the label `app.kubernetes.io/managed-by: openfaas`, and only those are listed, changed and removed. A
function may also name another Secret (`kubectl create secret`), unless it holds credentials of the cluster or the token of
another function's batch route.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import random
import threading
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

from gnomon_core.clock import Clock, WallClock
from gnomon_core.errors import GnomonError, bad_request, conflict
from gnomon_core.functions import DEFAULT_NAMESPACE, FunctionKey
from gnomon_core.interfaces import StoredFunction, StoredNamespace
from gnomon_platforms.kubernetes.client import Api, Document, Fence, Refused, Unreachable, to_gnomon_error
from gnomon_platforms.kubernetes.informer import Change, Informer, Source
from gnomon_platforms.kubernetes.objects.functions import DeployedFunction, deployed_function
from gnomon_platforms.kubernetes.objects.manifests import changed_metadata, deployment, secret, with_creation
from gnomon_platforms.kubernetes.objects.names import (
    MANAGED_LABEL,
    NAMESPACE_ANNOTATION,
    NAMESPACE_KEYS_ANNOTATION,
    NAMESPACE_MARK,
    REMOVED_ANNOTATION,
    SECRET_LABEL,
    SECRET_OWNER,
    VERSION_LABEL,
    check_annotations,
    check_labels,
)
from gnomon_platforms.kubernetes.objects.pod_template import PodOptions
from gnomon_platforms.kubernetes.objects.pods import whole
from gnomon_platforms.kubernetes.resources import DEPLOYMENTS, NAMESPACES, SECRETS
from gnomon_platforms.kubernetes.writes import Create, Delete, Patch, Replace, Target, Write, Writer
from gnomon_platforms.openfaas.steps import furnish, with_pull_secrets

SEEN_S = 10.0
FURNISH_S = 3.0


class StoredFunctions:
    """The functions of one namespace, or of all. All methods but `all` must be called on the loop of `start`.

    `on_change` is called with the function's key after each change.
    """

    def __init__(
        self, api: Api, writer: Writer, namespace: str | None, pods: PodOptions, on_change: Callable[[FunctionKey], None]
    ) -> None:
        self._writer, self._pods, self._on_change = writer, pods, on_change
        ours = Source(DEPLOYMENTS, namespace, labels=MANAGED_LABEL)
        self._informer: Informer[DeployedFunction | None] = Informer(api, ours, deployed_function)
        self._lock = threading.Lock()
        self._held: dict[FunctionKey, StoredFunction] = {}

    async def start(self) -> None:
        """Start the informer.

        Raises:
            GnomonError: 503 `kubernetes_…`.

        """
        await self._informer.start()
        self._informer.listen(self._changed)

    async def catch_up(self) -> None:
        """Return when the cache has everything that was stored before this call.

        Raises:
            GnomonError: 503 `kubernetes_…`.

        """
        await self._informer.resync()

    async def stop(self) -> None:
        """Stop the informer."""
        await self._informer.stop()

    def all(self) -> Sequence[StoredFunction]:
        """The functions as last observed, by namespace and name. Thread-safe."""
        with self._lock:
            return [self._held[key] for key in sorted(self._held, key=lambda key: (key.namespace, key.name))]

    async def put(self, stored: StoredFunction) -> None:
        """Keep a function, or what has changed of it.

        Raises:
            GnomonError: 409 `foreign_deployment` where another Deployment has its name; what the API server refuses.

        """
        spec, target = stored.spec, self._target(stored.spec.key)
        desired = deployment(spec, stored.version, await with_pull_secrets(self._writer, spec, self._pods))
        desired["metadata"] = with_creation(desired["metadata"], stored.created_at)
        created = False

        def decide(current: Document | None) -> Write | None:
            nonlocal created
            if current is None:
                created = True
                return Create(desired)
            _require_ours(current, spec.key)
            return Replace({**current, "metadata": changed_metadata(current["metadata"], desired["metadata"])})

        await self._clear(target, stored.version)
        written = await self._writer.settle(target, decide, f"store {spec.key}")
        assert written is not None
        if created:
            # What is not there yet is made with the first instance at the latest.
            with contextlib.suppress(GnomonError):
                await furnish(self._writer, spec, written, timeout_s=FURNISH_S)
        await self._until_seen(spec.key, written)

    async def delete(self, key: FunctionKey) -> bool:
        """Mark a function as removed, so that it is no longer listed. Returns whether it was listed.

        Raises:
            GnomonError: what the API server refuses.

        """
        removed = False

        def decide(current: Document | None) -> Write | None:
            nonlocal removed
            if current is None or MANAGED_LABEL not in (current["metadata"].get("labels") or {}) or _removed(current):
                return None
            removed = True
            annotations = {**(current["metadata"].get("annotations") or {}), REMOVED_ANNOTATION: "true"}
            return Replace({**current, "metadata": {**current["metadata"], "annotations": annotations}})

        written = await self._writer.settle(self._target(key), decide, f"remove {key}")
        if removed and written is not None:
            await self._until_seen(key, written)
        return removed

    async def _clear(self, target: Target, version: int) -> None:
        """Delete the Deployment of a removed function of this name, if its pods could be taken for the new function's."""

        def decide(current: Document | None) -> Write | None:
            return Delete() if current is not None and _removed(current) and _version(current) >= version else None

        await self._writer.settle(target, decide, f"remove what is left of {target.name}")

    async def _until_seen(self, key: FunctionKey, written: Document) -> None:
        """Wait until the informer has this version or a later one; also return after a timeout, as the write has succeeded."""
        metadata = written["metadata"]

        def caught_up() -> bool:
            held = self._informer.get(key.namespace, key.name)
            return held is None or held.uid != metadata["uid"] or _reached(held.resource_version, metadata["resourceVersion"])

        def exists() -> bool:
            return self._informer.get(key.namespace, key.name) is not None and caught_up()

        with contextlib.suppress(TimeoutError):
            await self._informer.until(exists if not _removed(written) else caught_up, SEEN_S)

    def _changed(self, change: Change[DeployedFunction | None]) -> None:
        namespace, name = change.name
        key, new = FunctionKey(name, namespace), _stored(change.new)
        with self._lock:
            old = self._held.pop(key, None)
            if new is not None:
                self._held[key] = new
        if not _is_unchanged(old, new):
            self._on_change(key)

    def _target(self, key: FunctionKey) -> Target:
        return Target(DEPLOYMENTS, key.namespace, key.name)


def _require_ours(current: Document, key: FunctionKey) -> None:
    if MANAGED_LABEL not in (current["metadata"].get("labels") or {}):
        raise conflict(
            "foreign_deployment",
            f"{key.namespace} has a Deployment {key.name} that is not Gnomon's.",
            "Choose another name, or remove it: kubectl delete deployment.",
        )


def _stored(deployed: DeployedFunction | None) -> StoredFunction | None:
    if deployed is None or deployed.removed:
        return None
    return StoredFunction(deployed.spec, deployed.version, deployed.created_at)


def _is_unchanged(old: StoredFunction | None, new: StoredFunction | None) -> bool:
    """True if nothing of the function has changed; its Deployment changes whenever one of its pods does."""
    if old is None or new is None:
        return old is new
    return (old.version, old.created_at, old.spec.raw) == (new.version, new.created_at, new.spec.raw)


def _removed(document: Document) -> bool:
    return REMOVED_ANNOTATION in (document["metadata"].get("annotations") or {})


def _version(document: Document) -> int:
    return whole((document["metadata"].get("labels") or {}).get(VERSION_LABEL))


def _reached(cached: str, written: str) -> bool:
    """True if the cache has the written resource version or a later one. Versions are ordered numbers (KEP-5504)."""
    return int(cached) >= int(written) if cached.isdigit() and written.isdigit() else cached == written


RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}
FIELDS = ("labels", "annotations")


def stored_namespace(document: Document) -> StoredNamespace | None:
    """Read a namespace, with what was set here; None for one that holds no functions."""
    metadata = document["metadata"]
    annotations = metadata.get("annotations") or {}
    if annotations.get(NAMESPACE_ANNOTATION) != NAMESPACE_MARK or "deletionTimestamp" in metadata:
        return None
    return StoredNamespace(metadata["name"], _set_here(metadata, "labels"), _set_here(metadata, "annotations"))


def marked(stored: StoredNamespace, current: Document | None) -> Write:
    """The write that creates a namespace of functions, or marks an existing one, with these labels and annotations."""
    keys = {field: sorted(getattr(stored, field)) for field in FIELDS}
    ours = {NAMESPACE_ANNOTATION: NAMESPACE_MARK, NAMESPACE_KEYS_ANNOTATION: json.dumps(keys)}
    wanted = {"labels": stored.labels, "annotations": {**stored.annotations, **ours}}
    if current is None:
        return Create(_manifest(stored.name, {**wanted, "labels": {**stored.labels, **RESTRICTED}}))
    metadata = current["metadata"]
    return Patch({"metadata": {field: {**dict.fromkeys(_set_here(metadata, field)), **wanted[field]} for field in FIELDS}})


def unmarked(current: Document | None) -> Write | None:
    """The write that removes the mark and the keys that were set here; None if there is no mark."""
    if current is None or stored_namespace(current) is None:
        return None
    ours = {"labels": (), "annotations": (NAMESPACE_ANNOTATION, NAMESPACE_KEYS_ANNOTATION)}
    return Patch({"metadata": {field: dict.fromkeys([*_set_here(current["metadata"], field), *ours[field]]) for field in FIELDS}})


class StoredNamespaces:
    """The marked namespaces. Without `all_` there is only the default one, and the cluster is not asked."""

    def __init__(self, api: Api, writer: Writer, on_change: Callable[[], None], *, all_: bool) -> None:
        self._writer, self._on_change, self._all = writer, on_change, all_
        self._informer: Informer[StoredNamespace | None] = Informer(api, Source(NAMESPACES), stored_namespace)
        self._lock = threading.Lock()
        self._held: dict[str, StoredNamespace] = {}

    async def start(self) -> None:
        """Start the informer.

        Raises:
            GnomonError: 503 `kubernetes_…`.

        """
        if self._all:
            await self._informer.start()
            self._informer.listen(self._changed)

    async def catch_up(self) -> None:
        """Return when the cache has everything that was stored before this call.

        Raises:
            GnomonError: 503 `kubernetes_…`.

        """
        if self._all:
            await self._informer.resync()

    async def stop(self) -> None:
        """Stop the informer."""
        if self._all:
            await self._informer.stop()

    def all(self) -> Sequence[StoredNamespace]:
        """The namespaces as last observed, without the default one. Thread-safe."""
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
                raise bad_request("invalid_label", f"Label {key} is set by the cluster's operator.", "Leave it out.")
        stored = replace(
            stored, annotations={key: value for key, value in stored.annotations.items() if key != NAMESPACE_ANNOTATION}
        )
        await self._write(stored.name, lambda current: marked(stored, current), f"make the namespace {stored.name}")
        await self._until(lambda: self._held.get(stored.name) == stored)

    async def delete(self, name: str) -> bool:
        """Remove the mark. Returns whether it was there.

        Raises:
            GnomonError: what the API server refuses.

        """
        self._require_all()
        removed = False

        def decide(current: Document | None) -> Write | None:
            nonlocal removed
            write = unmarked(current)
            removed = removed or write is not None
            return write

        await self._write(name, decide, f"unmark the namespace {name}")
        await self._until(lambda: name not in self._held)
        return removed

    def _require_all(self) -> None:
        if not self._all:
            raise GnomonError(
                400,
                "one_namespace",
                f"This gateway serves only the namespace {DEFAULT_NAMESPACE}.",
                "Start it with --cluster-wide.",
            )

    async def _write(self, name: str, decide: Callable[[Document | None], Write | None], action: str) -> None:
        await self._writer.settle(Target(NAMESPACES, "", name), decide, action)

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
            self._on_change()


async def require_namespace(writer: Writer, name: str = DEFAULT_NAMESPACE) -> None:
    """Make a namespace for functions if it is not there, marked and restricted; one that is there is left as it is.

    Raises:
        GnomonError: what the API server refuses.

    """

    def decide(current: Document | None) -> Write | None:
        mark = {"labels": dict(RESTRICTED), "annotations": {NAMESPACE_ANNOTATION: NAMESPACE_MARK}}
        return Create(_manifest(name, mark)) if current is None else None

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
    """True if a label of a namespace says what its pods may do, or who it is."""
    return key.startswith("pod-security.kubernetes.io/") or key == "kubernetes.io/metadata.name"


CREDENTIALS = frozenset({"kubernetes.io/service-account-token", "bootstrap.kubernetes.io/token"})


class StoredSecrets:
    """The secrets of every namespace that we may look into."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer

    async def put(self, key: FunctionKey, value: bytes) -> None:
        """Keep a secret, or another value of it.

        Raises:
            GnomonError: 409 `foreign_secret`; what the API server refuses.

        """
        desired = secret(key, value)

        def decide(current: Document | None) -> Write | None:
            if current is None:
                return Create(desired)
            _require_our_secret(current, key)
            return None if current.get("data") == desired["data"] else Replace({**current, "data": desired["data"]})

        await self._writer.settle(self._target(key), decide, f"store the secret {key.name}")

    async def get(self, key: FunctionKey) -> bytes | None:
        """A secret's value; None where there is none that a function may have.

        Raises:
            GnomonError: the API server cannot be asked.

        """
        found = await self._writer.settle(self._target(key), lambda _: None, f"read the secret {key.name}")
        return None if found is None or _is_private(found) else _value(found, key.name)

    async def delete(self, key: FunctionKey) -> bool:
        """Remove a secret. Returns whether it was there.

        Raises:
            GnomonError: 409 `foreign_secret`; what the API server refuses.

        """
        removed = False

        def decide(current: Document | None) -> Write | None:
            nonlocal removed
            if current is None or _is_private(current):
                return None
            _require_our_secret(current, key)
            removed = True
            return Delete()

        await self._writer.settle(self._target(key), decide, f"remove the secret {key.name}")
        return removed

    async def names(self, namespace: str) -> Sequence[str]:
        """The names of a namespace's secrets that were made through OpenFaaS's API, sorted.

        Raises:
            GnomonError: the API server cannot be asked.

        """
        try:
            found = await self._writer.listed(SECRETS, namespace, f"{SECRET_LABEL}={SECRET_OWNER}")
        except (Refused, Unreachable) as error:
            raise to_gnomon_error(error, f"list the secrets of {namespace}") from error
        return sorted(secret["metadata"]["name"] for secret in found)

    def _target(self, key: FunctionKey) -> Target:
        return Target(SECRETS, key.namespace, key.name)


def _is_private(document: Document) -> bool:
    """True if no function may name it."""
    return document.get("type") in CREDENTIALS or MANAGED_LABEL in (document["metadata"].get("labels") or {})


def _value(document: Document, name: str) -> bytes:
    """The entry with the secret's name; of a Secret that was made otherwise, its only entry, or all of them."""
    data = {entry: base64.b64decode(value) for entry, value in (document.get("data") or {}).items()}
    if name in data:
        return data[name]
    if len(data) == 1:
        return next(iter(data.values()))
    return json.dumps(document.get("data") or {}, sort_keys=True).encode()


def _require_our_secret(current: Document, key: FunctionKey) -> None:
    if (current["metadata"].get("labels") or {}).get(SECRET_LABEL) != SECRET_OWNER:
        raise conflict(
            "foreign_secret",
            f"{key.namespace} has a Secret {key.name} that was not made through OpenFaaS's API.",
            f"Label it {SECRET_LABEL}={SECRET_OWNER} to have it looked after here, or choose another name.",
        )


class KubernetesStore:
    """The `FunctionStore` (`gnomon_core.interfaces`) in the cluster's objects.

    `namespace` None serves every namespace that is marked. `fence` is called right before each write; `rng` draws pauses.
    """

    def __init__(
        self,
        api: Api,
        *,
        namespace: str | None = None,
        pods: PodOptions | None = None,
        fence: Fence | None = None,
        clock: Clock | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self._watchers: list[Callable[[FunctionKey], None]] = []
        self._namespace_watchers: list[Callable[[], None]] = []
        self._lock = threading.Lock()
        self._writer = Writer(api, clock or WallClock(), rng or random.SystemRandom(), fence)
        self._functions = StoredFunctions(api, self._writer, namespace, pods or PodOptions(), self._tell)
        self._secrets = StoredSecrets(self._writer)
        self._namespaces = StoredNamespaces(api, self._writer, self._tell_of_namespaces, all_=namespace is None)
        self._thread = LoopThread("functions")
        try:
            self._thread.call(self._start())
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Stop the informers and the thread. Everything stays in the cluster."""
        with suppress(RuntimeError):  # it was closed before
            self._thread.call(self._stop())
        self._thread.close()
        self._writer.close()

    def catch_up(self) -> None:
        """Return when the caches have everything that was stored before this call.

        Raises:
            GnomonError: 503 `kubernetes_…`: the API server did not answer in time.

        """
        self._thread.call(self._catch_up())

    def put_function(self, stored: StoredFunction) -> None:
        self._thread.call(self._functions.put(stored))

    def delete_function(self, key: FunctionKey) -> bool:
        return self._thread.call(self._functions.delete(key))

    def functions(self) -> Sequence[StoredFunction]:
        return self._functions.all()

    def put_secret(self, key: FunctionKey, value: bytes) -> None:
        self._thread.call(self._secrets.put(key, value))

    def secret(self, key: FunctionKey) -> bytes | None:
        return self._thread.call(self._secrets.get(key))

    def delete_secret(self, key: FunctionKey) -> bool:
        return self._thread.call(self._secrets.delete(key))

    def secrets(self, namespace: str) -> Sequence[str]:
        return self._thread.call(self._secrets.names(namespace))

    def put_namespace(self, stored: StoredNamespace) -> None:
        self._thread.call(self._namespaces.put(stored))

    def delete_namespace(self, name: str) -> bool:
        return self._thread.call(self._namespaces.delete(name))

    def namespaces(self) -> Sequence[StoredNamespace]:
        return self._namespaces.all()

    def watch(self, changed: Callable[[FunctionKey], None]) -> Callable[[], None]:
        return self._watch(self._watchers, changed)

    def watch_namespaces(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Call `changed` after each change of the namespaces, until the returned function is called."""
        return self._watch(self._namespace_watchers, changed)

    async def _start(self) -> None:
        await self._functions.start()
        await self._namespaces.start()

    async def _catch_up(self) -> None:
        await asyncio.gather(self._functions.catch_up(), self._namespaces.catch_up())

    async def _stop(self) -> None:
        await self._functions.stop()
        await self._namespaces.stop()

    def _watch(self, watchers: list[Callable[..., None]], changed: Callable[..., None]) -> Callable[[], None]:
        with self._lock:
            watchers.append(changed)

        def stop() -> None:
            with self._lock, suppress(ValueError):
                watchers.remove(changed)

        return stop

    def _tell(self, key: FunctionKey) -> None:
        with self._lock:
            watchers = tuple(self._watchers)
        for changed in watchers:
            changed(key)

    def _tell_of_namespaces(self) -> None:
        with self._lock:
            watchers = tuple(self._namespace_watchers)
        for changed in watchers:
            changed()


T = TypeVar("T")


class LoopThread:
    """An event loop's thread. Any other thread may call it, until it is closed."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run this on the loop and wait for what it returns or raises."""
        if self._loop.is_closed() or threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError("the loop was closed, or its own thread would wait for itself")
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def close(self) -> None:
        """End the loop. May be called again."""
        if self._loop.is_closed():
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

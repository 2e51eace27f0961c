"""Writes to the cluster: each carries the uid and resourceVersion of the object that it was decided from.

    read ▶ decide ▶ fence: may we still write? ▶ send ─┬─ done
          ▲                                            ├─ conflict, exists already, no answer, busy ▶ back-off ─────────┐
          └────────────────────────────────────────────┼───────────────────────────────────────────────────────────────┘
                                                       └─ refused ▶ GnomonError with a hint

Without an answer it is uncertain whether the change was made. As the write has preconditions, reading and deciding again is right
in both cases. A decision is a function of the object alone and may be called several times.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from gnomon_core.clock import Clock
from gnomon_platforms.kubernetes.client import (
    JSON_TYPE,
    MERGE_PATCH,
    READ_TIMEOUT_S,
    Api,
    Document,
    Fence,
    Refused,
    Unreachable,
    to_gnomon_error,
)
from gnomon_platforms.kubernetes.informer import PAGE
from gnomon_platforms.kubernetes.resources import Resource

THREADS = 8
PATIENCE_S = 20.0
FIRST_PAUSE_S = 0.02
LONGEST_PAUSE_S = 2.0


@dataclass(frozen=True, slots=True)
class Target:
    """The object to write."""

    resource: Resource
    namespace: str
    name: str

    def path(self, subresource: str = "") -> str:
        return self.resource.path(self.namespace, self.name, subresource)

    def __str__(self) -> str:
        return f"{self.resource.kind} {self.namespace}/{self.name}".replace(" /", " ")


@dataclass(frozen=True, slots=True)
class Create:
    """Create the object."""

    manifest: Document


@dataclass(frozen=True, slots=True)
class Replace:
    """Replace the object by this manifest. A status is replaced by the subresource `status`."""

    manifest: Document
    subresource: str = ""


@dataclass(frozen=True, slots=True)
class Patch:
    """Change these fields. A merge patch replaces whole lists; a strategic merge patch merges entries by name."""

    changes: Document
    subresource: str = ""
    content_type: str = MERGE_PATCH


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete the object. `grace_s` None keeps the pods' own grace period."""

    grace_s: int | None = None
    propagation: str = "Background"


Write: TypeAlias = Create | Replace | Patch | Delete
Decide: TypeAlias = Callable[[Document | None], Write | None]
"""A decision: takes the object as it is, None if it does not exist, and returns the write, None for no change."""


class Writer:
    """Reads and writes objects in a thread pool. `fence` is called right before each write is sent."""

    def __init__(self, api: Api, clock: Clock, rng: random.Random, fence: Fence | None = None) -> None:
        self._api, self._clock, self._rng, self._fence = api, clock, rng, fence
        self._threads = ThreadPoolExecutor(THREADS, "kubernetes")

    def close(self) -> None:
        """Shut the threads down without waiting for requests in flight."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def read(self, target: Target, *, timeout_s: float = READ_TIMEOUT_S) -> Document | None:
        """Read an object; None if it does not exist.

        Raises:
            Refused, Unreachable.

        """
        try:
            return await self._send("GET", target.path(), timeout_s=timeout_s)
        except Refused as refusal:
            if refusal.missing:
                return None
            raise

    async def listed(self, resource: Resource, namespace: str, labels: str) -> list[Document]:
        """List the objects of a namespace with these labels.

        Raises:
            Refused, Unreachable.

        """
        found: list[Document] = []
        following = ""
        while True:
            query = {"labelSelector": labels, "limit": PAGE} | ({"continue": following} if following else {})
            page = await self._send("GET", resource.path(namespace), query=query)
            found += page.get("items") or ()
            following = (page.get("metadata") or {}).get("continue") or ""
            if not following:
                return found

    async def settle(
        self, target: Target, decide: Decide, action: str, *, timeout_s: float = PATIENCE_S, cached: Document | None = None
    ) -> Document | None:
        """Read, decide and write, with retries; the object as last answered, None if it does not exist.

        `action` completes "Kubernetes does not let Gnomon …". `cached` is the object as the caller knows it, with uid,
        resourceVersion and the fields that `decide` reads. It saves the first read: if it is stale, the write conflicts.

        Raises:
            GnomonError: what the API server refuses; 409 `kubernetes_conflict` or 503 after `timeout_s`.

        """
        give_up_s = self._clock.now_s() + timeout_s
        pause_s = FIRST_PAUSE_S
        while True:
            current, cached = cached, None
            try:
                current = current or await self.read(target)
                write = decide(current)
                return current if write is None else await self.write(target, write, current)
            except (Refused, Unreachable) as error:
                again = (
                    isinstance(error, Unreachable)
                    or error.conflict
                    or error.is_transient
                    or (error.missing and current is not None)
                )
                retry_after_s = error.retry_after_s if isinstance(error, Refused) else None
                wait_s = max(retry_after_s or 0.0, pause_s * self._rng.uniform(0.5, 1.0))
                if not again or self._clock.now_s() + wait_s > give_up_s:
                    raise to_gnomon_error(error, action) from error
            await self._clock.sleep(wait_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    async def write(
        self,
        target: Target,
        write: Write,
        current: Document | None,
        *,
        fence: Fence | None = None,
        timeout_s: float = READ_TIMEOUT_S,
    ) -> Document | None:
        """Send one write with `current` as its precondition; None after a deletion. `fence` replaces the writer's own.

        Raises:
            Refused: with `conflict` if the object has changed meanwhile.
            Unreachable: it is uncertain whether the write was executed.

        """
        send = partial(self._send, fence=fence or self._fence, timeout_s=timeout_s)
        if isinstance(write, Create):
            return await send("POST", target.resource.path(target.namespace), write.manifest)
        if current is None:
            msg = f"{type(write).__name__} of {target}, which is not there"
            raise ValueError(msg)
        bound = {name: current["metadata"][name] for name in ("uid", "resourceVersion")}
        if isinstance(write, Delete):
            options: Document = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": bound}
            options["propagationPolicy"] = write.propagation
            if write.grace_s is not None:
                options["gracePeriodSeconds"] = write.grace_s
            await send("DELETE", target.path(), options)
            return None
        if isinstance(write, Patch):
            changes = {**write.changes, "metadata": {**write.changes.get("metadata", {}), **bound}}
            return await send("PATCH", target.path(write.subresource), changes, content_type=write.content_type)
        manifest = {**write.manifest, "metadata": {**write.manifest["metadata"], **bound}}
        return await send("PUT", target.path(write.subresource), manifest)

    async def write_version(self, target: Target, write: Patch | Replace, uid: str, version: str, action: str) -> None:
        """Send a write that was decided from this version of an object, without reading it again and without retries.

        Raises:
            GnomonError: 409 `kubernetes_conflict` if the object has another version, 404 `kubernetes_missing` if it is gone; what
                the API server refuses.

        """
        try:
            await self.write(target, write, {"metadata": {"uid": uid, "resourceVersion": version}})
        except (Refused, Unreachable) as error:
            raise to_gnomon_error(error, action) from error

    async def _send(
        self,
        method: str,
        path: str,
        body: Document | None = None,
        *,
        content_type: str = JSON_TYPE,
        fence: Fence | None = None,
        query: Mapping[str, str] | None = None,
        timeout_s: float = READ_TIMEOUT_S,
    ) -> Document:
        call = partial(
            self._api.call,
            method,
            path,
            query=query,
            body=body,
            content_type=content_type,
            timeout_s=timeout_s,
            fence=fence,
        )
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)

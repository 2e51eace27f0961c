"""The store of functions that is Knative's: every Revision that is buffered, by an informer.

A Revision is a function from when it asks to be buffered until it is deleted. One that asks no longer is served on by the
gateway, request by request: an ingress may still lead there for a moment, and nobody is to be refused meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from gnomon_core.errors import GnomonError
from gnomon_core.functions import FunctionKey
from gnomon_core.interfaces import StoredFunction, StoredNamespace
from gnomon_core.settings import Settings
from gnomon_platforms.knative.batching.revisions import RevisionFacts, RevisionReader
from gnomon_platforms.knative.resources import REVISIONS
from gnomon_platforms.kubernetes.client import Api
from gnomon_platforms.kubernetes.informer import Change, Informer, Source

VERSION = 1
"""A Revision never changes but in its annotations, which need no other pods."""


class RevisionStore:
    """See `gnomon_core.interfaces.FunctionStore`. `namespace` None looks at all; `check` is `RevisionReader`'s."""

    def __init__(self, api: Api, namespace: str | None, check: Callable[[Settings], object]) -> None:
        self._informer: Informer[RevisionFacts] = Informer(api, Source(REVISIONS, namespace), RevisionReader(check))
        self._held: dict[FunctionKey, RevisionFacts] = {}
        self._watchers: list[Callable[[FunctionKey], None]] = []

    async def start(self) -> None:
        """Start the informer.

        Raises:
            GnomonError: 503 `kubernetes_…`.

        """
        await self._informer.start()
        self._informer.listen(self._changed)

    async def stop(self) -> None:
        """Stop the informer."""
        await self._informer.stop()

    @property
    def silent_s(self) -> float:
        """How long nothing was heard of the API server."""
        return self._informer.silent_s

    def of(self, key: FunctionKey) -> RevisionFacts | None:
        """A Revision that is buffered, or was; None for any other."""
        return self._held.get(key)

    def functions(self) -> Sequence[StoredFunction]:
        return [StoredFunction(facts.spec, VERSION, facts.created_at) for facts in list(self._held.values())]

    def watch(self, changed: Callable[[FunctionKey], None]) -> Callable[[], None]:
        self._watchers.append(changed)

        def stop() -> None:
            with suppress(ValueError):
                self._watchers.remove(changed)

        return stop

    def watch_namespaces(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Nothing happens to namespaces here."""
        del changed
        return lambda: None

    def secret(self, key: FunctionKey) -> bytes | None:
        """None: what a Revision's pods are given is Knative's to know."""
        del key
        return None

    def secrets(self, namespace: str) -> Sequence[str]:
        del namespace
        return ()

    def namespaces(self) -> Sequence[StoredNamespace]:
        return ()

    def put_function(self, stored: StoredFunction) -> None:
        """Refused, as is every other change: Knative keeps its Revisions."""
        raise _knatives(str(stored.spec.key))

    def delete_function(self, key: FunctionKey) -> bool:
        raise _knatives(str(key))

    def put_secret(self, key: FunctionKey, value: bytes) -> None:
        del value
        raise _knatives(str(key))

    def delete_secret(self, key: FunctionKey) -> bool:
        raise _knatives(str(key))

    def put_namespace(self, stored: StoredNamespace) -> None:
        raise _knatives(stored.name)

    def delete_namespace(self, name: str) -> bool:
        raise _knatives(name)

    def _changed(self, change: Change[RevisionFacts]) -> None:
        namespace, name = change.name
        key = FunctionKey(name, namespace)
        before, new = self._held.get(key), change.new
        if new is not None and (new.buffered or before is not None):
            self._held[key] = new
        else:
            self._held.pop(key, None)
        after = self._held.get(key)
        if (before and before.spec.raw) != (after and after.spec.raw):
            for changed in tuple(self._watchers):
                changed(key)


def _knatives(name: str) -> GnomonError:
    return GnomonError(405, "kept_by_knative", f"{name} is Knative's to keep.", "Change it with kubectl.")

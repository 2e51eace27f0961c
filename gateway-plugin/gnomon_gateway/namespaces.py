"""The namespaces that functions and secrets live in.

The default one is always there. They are held in memory, because every deployment and list asks whether its namespace exists;
a change is on disk before it is told.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager

from gnomon_core.errors import GnomonError, bad_request, conflict, not_found
from gnomon_core.functions import DEFAULT_NAMESPACE
from gnomon_core.interfaces import FunctionStore, StoredNamespace

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


class Namespaces:
    """What the store knows, with the rules of changing it."""

    def __init__(self, store: FunctionStore) -> None:
        self._store = store
        self._known = {stored.name: stored for stored in store.namespaces()}
        self._known[DEFAULT_NAMESPACE] = StoredNamespace(DEFAULT_NAMESPACE)
        self._changing = asyncio.Lock()
        self._users: Counter[str] = Counter()

    async def refresh(self) -> None:
        """Look again at what the store knows, where others may change it."""
        async with self._changing:
            known = {stored.name: stored for stored in await asyncio.to_thread(self._store.namespaces)}
            self._known = {**known, DEFAULT_NAMESPACE: StoredNamespace(DEFAULT_NAMESPACE)}

    def names(self) -> list[str]:
        return sorted(self._known)

    def get(self, name: str) -> StoredNamespace:
        """The namespace.

        Raises:
            GnomonError: 404 `namespace_not_found`.

        """
        try:
            return self._known[name]
        except KeyError:
            known = ", ".join(self.names())
            raise not_found(
                "namespace_not_found", f"There is no namespace {name[:100]!r}.", f"Known ones: {known}. Create it first."
            ) from None

    @contextmanager
    def using(self, name: str) -> Iterator[None]:
        """Keep a namespace from being deleted while something is put into it."""
        self.get(name)
        self._users[name] += 1
        try:
            yield
        finally:
            self._users[name] -= 1

    async def ensure(self, names: Sequence[str]) -> None:
        """Create those that are not there yet."""
        for name in names:
            if name not in self._known:
                await self.create(StoredNamespace(name))

    async def create(self, wanted: StoredNamespace) -> None:
        if not _NAME.fullmatch(wanted.name):
            raise bad_request(
                "invalid_name",
                f"{wanted.name[:100]!r} is not a namespace.",
                "Use 1 to 63 lower-case letters, digits and '-', beginning and ending with a letter or digit.",
            )
        async with self._changing:
            if wanted.name in self._known:
                raise conflict("namespace_exists", f"The namespace {wanted.name!r} exists.", "Change it with PUT.")
            await self._put(wanted)

    async def update(self, wanted: StoredNamespace) -> None:
        async with self._changing:
            self.get(wanted.name)
            _refuse_default(wanted.name)
            await self._put(wanted)

    async def delete(self, name: str, contents: Callable[[], Awaitable[Sequence[str]]]) -> None:
        """Forget a namespace. `contents` says what is in it, and is asked when nothing can be added any more."""
        async with self._changing:
            self.get(name)
            _refuse_default(name)
            if self._users[name]:
                raise conflict("namespace_in_use", f"Something is being put into {name!r}.", "Try again.")
            removed = self._known.pop(name)
            try:
                _refuse_contents(name, await contents())
                await asyncio.to_thread(self._store.delete_namespace, name)
            except BaseException:
                self._known[name] = removed
                raise

    async def _put(self, wanted: StoredNamespace) -> None:
        await asyncio.to_thread(self._store.put_namespace, wanted)
        self._known[wanted.name] = wanted


def _refuse_contents(name: str, contents: Sequence[str]) -> None:
    if contents:
        listed = ", ".join(contents[:10])
        raise conflict("namespace_not_empty", f"The namespace {name!r} holds {listed}.", "Remove them first.")


def _refuse_default(name: str) -> None:
    if name == DEFAULT_NAMESPACE:
        raise GnomonError(
            400, "default_namespace", f"The default namespace {name!r} cannot be changed or deleted.", "Use another one."
        )

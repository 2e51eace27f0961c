"""Namespaces: the rules of changing them, and the routes `/system/namespaces` and `/system/namespace/{name}`.

`Namespaces` caches the store, because every deployment and list checks whether its namespace exists; a change is on disk before
the response. The default namespace always exists. The Go SDK creates at `/system/namespace/` with the name in the body.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gnomon_core.errors import GnomonError, bad_request, conflict, not_found
from gnomon_core.functions import DEFAULT_NAMESPACE
from gnomon_core.interfaces import FunctionStore, StoredNamespace
from gnomon_gateway.api.requests import Handlers, read_object, text_field, texts_field

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


class Namespaces:
    """The namespaces in the store, with the rules of changing them."""

    def __init__(self, store: FunctionStore) -> None:
        self._store = store
        self._known = {stored.name: stored for stored in store.namespaces()}
        self._known[DEFAULT_NAMESPACE] = StoredNamespace(DEFAULT_NAMESPACE)
        self._changing = asyncio.Lock()
        self._users: Counter[str] = Counter()

    async def refresh(self) -> None:
        """Read the namespaces again, if others may have changed the store."""
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
        """Prevent a namespace's deletion while a resource is added to it."""
        self.get(name)
        self._users[name] += 1
        try:
            yield
        finally:
            self._users[name] -= 1

    async def ensure(self, names: Sequence[str]) -> None:
        """Create the namespaces that do not exist yet."""
        for name in names:
            if name not in self._known:
                await self.create(StoredNamespace(name))

    async def create(self, namespace: StoredNamespace) -> None:
        if not _NAME.fullmatch(namespace.name):
            raise bad_request(
                "invalid_name",
                f"{namespace.name[:100]!r} is not a namespace.",
                "Use 1 to 63 lower-case letters, digits and '-', beginning and ending with a letter or digit.",
            )
        async with self._changing:
            if namespace.name in self._known:
                raise conflict("namespace_exists", f"The namespace {namespace.name!r} exists.", "Change it with PUT.")
            await self._put(namespace)

    async def update(self, namespace: StoredNamespace) -> None:
        async with self._changing:
            self.get(namespace.name)
            _refuse_default(namespace.name)
            await self._put(namespace)

    async def delete(self, name: str, contents: Callable[[], Awaitable[Sequence[str]]]) -> None:
        """Delete an empty namespace. `contents` lists its resources; it is called once none can be added any more."""
        async with self._changing:
            self.get(name)
            _refuse_default(name)
            if self._users[name]:
                raise conflict("namespace_in_use", f"Something is being put into {name!r}.", "Try again.")
            # Out of the list first, so that nothing can be added while its contents are listed.
            removed = self._known.pop(name)
            try:
                _refuse_contents(name, await contents())
                await asyncio.to_thread(self._store.delete_namespace, name)
            except BaseException:
                self._known[name] = removed
                raise

    async def _put(self, namespace: StoredNamespace) -> None:
        await asyncio.to_thread(self._store.put_namespace, namespace)
        self._known[namespace.name] = namespace


def _refuse_contents(name: str, contents: Sequence[str]) -> None:
    if contents:
        listed = ", ".join(contents[:10])
        raise conflict("namespace_not_empty", f"The namespace {name!r} holds {listed}.", "Remove them first.")


def _refuse_default(name: str) -> None:
    if name == DEFAULT_NAMESPACE:
        raise GnomonError(
            400, "default_namespace", f"The default namespace {name!r} cannot be changed or deleted.", "Use another one."
        )


class NamespaceRoutes:
    """The HTTP handlers of namespaces."""

    def __init__(self, namespaces: Namespaces, contents: Callable[[str], Awaitable[Sequence[str]]]) -> None:
        """`contents` lists what a namespace holds; a namespace that holds something is not deleted."""
        self._namespaces = namespaces
        self._contents = contents

    def handlers(self) -> Handlers:
        return {
            "/system/namespaces": {"GET": self.list},
            "/system/namespace/": {"POST": self.create},
            "/system/namespace/{name}": {"GET": self.get, "POST": self.create, "PUT": self.update, "DELETE": self.delete},
        }

    async def list(self, _: Request) -> Response:
        return JSONResponse(self._namespaces.names())

    async def get(self, request: Request) -> Response:
        return JSONResponse(_document(self._namespaces.get(request.path_params["name"])))

    async def create(self, request: Request) -> Response:
        await self._namespaces.create(await _read(request))
        return Response(status_code=202)

    async def update(self, request: Request) -> Response:
        await self._namespaces.update(await _read(request))
        return Response(status_code=202)

    async def delete(self, request: Request) -> Response:
        name = request.path_params["name"]
        await self._namespaces.delete(name, partial(self._contents, name))
        return Response(status_code=202)


async def _read(request: Request) -> StoredNamespace:
    document = await read_object(request)
    in_path, in_body = request.path_params.get("name", ""), text_field(document, "name")
    if in_path and in_body and in_path != in_body:
        raise bad_request(
            "invalid_field", f"The path names {in_path[:100]!r}, the body {in_body[:100]!r}.", "Name one namespace."
        )
    return StoredNamespace(in_path or in_body, texts_field(document, "labels"), texts_field(document, "annotations"))


def _document(stored: StoredNamespace) -> dict[str, Any]:
    document: dict[str, Any] = {"name": stored.name}
    if stored.labels:
        document["labels"] = dict(stored.labels)
    if stored.annotations:
        document["annotations"] = dict(stored.annotations)
    return document

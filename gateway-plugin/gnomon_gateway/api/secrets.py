"""The secrets of functions: written once, listed by name, never read back over HTTP; and their route, `/system/secrets`.

A secret's value reaches the instances that start after it was written.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Mapping, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gnomon_core.errors import GnomonError, bad_request, conflict, not_found
from gnomon_core.functions import FunctionKey, check_secret_name
from gnomon_core.interfaces import FunctionStore
from gnomon_gateway.api.namespaces import Namespaces
from gnomon_gateway.api.requests import Handlers, namespace_in_query, read_object, text_field

MAX_SECRET_BYTES = 256 * 1024


class Secrets:
    """The secrets in the store, with the rules of changing them."""

    def __init__(self, store: FunctionStore) -> None:
        self._store = store
        # Check and write are two calls of the store: the lock makes them one.
        self._changing = asyncio.Lock()

    async def names(self, namespace: str) -> Sequence[str]:
        return await asyncio.to_thread(self._store.secrets, namespace)

    async def create(self, key: FunctionKey, value: bytes) -> None:
        _check(key.name, value)
        async with self._changing:
            if await self._exists(key):
                raise conflict("secret_exists", f"The secret {key.name!r} exists in {key.namespace}.", "Change it with PUT.")
            await asyncio.to_thread(self._store.put_secret, key, value)

    async def update(self, key: FunctionKey, value: bytes) -> None:
        _check(key.name, value)
        async with self._changing:
            if not await self._exists(key):
                raise _unknown(key)
            await asyncio.to_thread(self._store.put_secret, key, value)

    async def delete(self, key: FunctionKey) -> None:
        check_secret_name(key.name)
        async with self._changing:
            if not await asyncio.to_thread(self._store.delete_secret, key):
                raise _unknown(key)

    async def _exists(self, key: FunctionKey) -> bool:
        return await asyncio.to_thread(self._store.secret, key) is not None


def _check(name: str, value: bytes) -> None:
    check_secret_name(name)
    if len(value) > MAX_SECRET_BYTES:
        raise GnomonError(
            413,
            "secret_too_large",
            f"The value has {len(value)} bytes; a secret may have {MAX_SECRET_BYTES}.",
            "Put large files into the image or the handler's folder.",
        )


def _unknown(key: FunctionKey) -> GnomonError:
    return not_found(
        "secret_not_found",
        f"There is no secret {key.name[:100]!r} in {key.namespace}.",
        "Create it with POST, or list them with GET.",
    )


class SecretRoutes:
    """The HTTP handlers of secrets."""

    def __init__(self, namespaces: Namespaces, secrets: Secrets) -> None:
        self._namespaces = namespaces
        self._secrets = secrets

    def handlers(self) -> Handlers:
        return {"/system/secrets": {"GET": self.list, "POST": self.create, "PUT": self.update, "DELETE": self.delete}}

    async def list(self, request: Request) -> Response:
        namespace = self._namespaces.get(namespace_in_query(request)).name
        names = await self._secrets.names(namespace)
        return JSONResponse([{"name": name, "namespace": namespace} for name in names])

    async def create(self, request: Request) -> Response:
        key, document = await _read(request)
        with self._namespaces.using(key.namespace):
            await self._secrets.create(key, _value(document))
        return Response(status_code=202)

    async def update(self, request: Request) -> Response:
        key, document = await _read(request)
        with self._namespaces.using(key.namespace):
            await self._secrets.update(key, _value(document))
        return Response(status_code=202)

    async def delete(self, request: Request) -> Response:
        key, _ = await _read(request)
        self._namespaces.get(key.namespace)
        await self._secrets.delete(key)
        return Response(status_code=202)


async def _read(request: Request) -> tuple[FunctionKey, Mapping[str, Any]]:
    document = await read_object(request)
    return FunctionKey(text_field(document, "name"), text_field(document, "namespace") or namespace_in_query(request)), document


def _value(document: Mapping[str, Any]) -> bytes:
    """`rawValue` if it is there: faas-cli sends a file as both, and only base64 keeps every byte."""
    try:
        raw = base64.b64decode(text_field(document, "rawValue"), validate=True)
    except (binascii.Error, ValueError):
        raise bad_request("invalid_field", "rawValue is not base64.", "Send bytes as base64, or a text as value.") from None
    value = raw or text_field(document, "value").encode()
    if not value:
        raise bad_request("invalid_field", "The secret has no value.", "Send value (a text) or rawValue (bytes as base64).")
    return value

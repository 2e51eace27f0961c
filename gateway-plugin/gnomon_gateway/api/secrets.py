"""`/system/secrets`: create, replace, delete, and list by name. A value never comes back."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gnomon_core.errors import bad_request
from gnomon_core.functions import FunctionKey
from gnomon_gateway.api.control import Control, Handlers
from gnomon_gateway.api.documents import namespace_in_query, read_object, text_field


class SecretRoutes:
    """The handlers of secrets."""

    def __init__(self, control: Control) -> None:
        self._namespaces = control.namespaces
        self._secrets = control.secrets

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
    """`rawValue` where there is one, for faas-cli sends a file as both and only base64 keeps every byte."""
    try:
        raw = base64.b64decode(text_field(document, "rawValue"), validate=True)
    except (binascii.Error, ValueError):
        raise bad_request("invalid_field", "rawValue is not base64.", "Send bytes as base64, or a text as value.") from None
    value = raw or text_field(document, "value").encode()
    if not value:
        raise bad_request("invalid_field", "The secret has no value.", "Send value (a text) or rawValue (bytes as base64).")
    return value

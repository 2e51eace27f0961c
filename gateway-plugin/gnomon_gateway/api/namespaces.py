"""`/system/namespaces` and `/system/namespace/{name}`; the Go SDK creates at `/system/namespace/` with the name in the body."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gnomon_core.errors import bad_request
from gnomon_core.interfaces import StoredNamespace
from gnomon_gateway.api.control import Control, Handlers
from gnomon_gateway.api.documents import read_object, text_field, texts_field


class NamespaceRoutes:
    """The handlers of namespaces."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self._namespaces = control.namespaces

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

        async def contents() -> Sequence[str]:
            functions = [f"function {status.spec.key.name}" for status in self._control.functions.list(name)]
            return functions + [f"secret {secret}" for secret in await self._control.secrets.names(name)]

        await self._namespaces.delete(name, contents)
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

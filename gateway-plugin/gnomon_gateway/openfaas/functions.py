"""`/system/functions`, `/system/function/{name}` and `/system/scale-function/{name}`: deploy, list, describe, scale and remove.

An answer holds the fields that were sent, as they were sent, and no others: the certifier compares them one by one.
"""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gnomon_core.dates import rfc3339
from gnomon_core.errors import bad_request
from gnomon_core.functions import PROBLEM, FunctionKey, FunctionSpec, read_deployment
from gnomon_core.settings import refuse_misspelt
from gnomon_gateway.asynchronous.retries import read_retry_rule
from gnomon_gateway.openfaas.control import Control, Handlers, unknown_function
from gnomon_gateway.openfaas.documents import flag_in_query, key_in_path, namespace_in_query, read_object, text_field
from gnomon_gateway.openfaas.outer import OuterScaling
from gnomon_gateway.openfaas.usage import UsageMeter
from gnomon_gateway.service import FunctionStatus

MAX_REPLICAS = 10_000
_ECHOED = (
    "envProcess", "envVars", "constraints", "secrets", "labels", "annotations", "limits", "requests", "readOnlyRootFilesystem",
)  # fmt: skip


async def _read_spec(request: Request) -> FunctionSpec:
    spec = read_deployment(await read_object(request))
    refuse_misspelt(spec.labels, spec.annotations)
    read_retry_rule(spec.annotations)
    return spec


class Functions:
    """The handlers of functions."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self._meter = UsageMeter(control.now_s)
        self._outer = OuterScaling(control.logs.append) if control.behind and not control.provided else None

    def handlers(self) -> Handlers:
        return {
            "/system/functions": {"GET": self.list, "POST": self.deploy, "PUT": self.update, "DELETE": self.remove},
            "/system/function/{name}": {"GET": self.describe},
            "/system/scale-function/{name}": {"POST": self.scale},
        }

    async def list(self, request: Request) -> Response:
        namespace = self._control.namespaces.get(namespace_in_query(request)).name
        return JSONResponse([self._document(status) for status in self._control.functions.list(namespace)])

    async def deploy(self, request: Request) -> Response:
        spec = await _read_spec(request)
        with self._control.namespaces.using(spec.key.namespace):
            await self._control.functions.deploy(spec)
        return self._accepted(spec)

    async def update(self, request: Request) -> Response:
        spec = await _read_spec(request)
        with self._control.namespaces.using(spec.key.namespace):
            await self._control.functions.update(spec)
        return self._accepted(spec)

    async def remove(self, request: Request) -> Response:
        document = await read_object(request)
        name = text_field(document, "functionName")
        if not name:
            raise bad_request("invalid_field", "functionName is empty.", 'Send {"functionName": "name", "namespace": "…"}.')
        namespace = text_field(document, "namespace") or namespace_in_query(request)
        key = FunctionKey(name, namespace)
        await self._control.functions.remove(key)
        self._meter.forget(key)
        if self._outer is not None:
            self._outer.forget(key)
        return Response(status_code=202)

    async def describe(self, request: Request) -> Response:
        usage = flag_in_query(request, "usage")
        key = key_in_path(request)
        status = self._control.functions.status(key, usage=usage)
        if status is None:
            raise unknown_function(key)
        document = self._document(status)
        if status.problem is not None:
            # faas-cli shows annotations.
            document["annotations"] = {**document.get("annotations", {}), PROBLEM: status.problem.message}
        return JSONResponse(document)

    async def scale(self, request: Request) -> Response:
        document = await read_object(request)
        text_field(document, "serviceName")
        replicas = document.get("replicas")
        if not isinstance(replicas, int) or isinstance(replicas, bool) or not 0 <= replicas <= MAX_REPLICAS:
            raise bad_request(
                "invalid_field",
                f"replicas is {str(replicas)[:50]!r}.",
                f'Send {{"replicas": n}} with a whole number from 0 to {MAX_REPLICAS}.',
            )
        key = key_in_path(request, text_field(document, "namespace"))
        status = self._control.functions.status(key)
        # Behind a stock gateway and in front of a provider the number is theirs: an AlertManager repeats what is refused.
        if status is not None and not self._control.behind and not self._control.provided:
            _refuse_above_maximum(status, replicas)
        if self._outer is None or status is None or self._outer.heeds(status, replicas):
            await self._control.functions.scale(key, replicas)
        return Response(status_code=202)

    def _accepted(self, spec: FunctionSpec) -> Response:
        """202: it is stored. `Location` names where it is told how its instances start.

        In front of a provider that is not known: replicas are the provider's, and instances here are rights to call them.
        """
        where = {} if self._control.provided else {"Location": f"/gnomon/functions/{spec.key}"}
        return Response(status_code=202, headers=where)

    def _document(self, status: FunctionStatus) -> dict[str, Any]:
        """A FunctionStatus as OpenFaaS writes it."""
        spec = status.spec
        document: dict[str, Any] = {"name": spec.key.name, "image": spec.image, "namespace": spec.key.namespace}
        document |= {field: spec.raw[field] for field in _ECHOED if field in spec.raw}
        document["labels"] = {**spec.labels, "faas_function": spec.key.name}
        document |= {
            "invocationCount": status.invocation_count,
            "replicas": status.replicas,
            "availableReplicas": status.available_replicas,
            "createdAt": rfc3339(status.created_at),
        }
        if status.usage is not None:
            document["usage"] = self._meter.document(spec.key, status.usage)
        return document


def _refuse_above_maximum(status: FunctionStatus, replicas: int) -> None:
    most = status.spec.settings.scale.max
    if replicas > most:
        raise bad_request(
            "above_maximum",
            f"replicas is {replicas}; {status.spec.key.name} may have at most {most}.",
            "Raise its label com.openfaas.scale.max and deploy it again, or ask for fewer.",
        )

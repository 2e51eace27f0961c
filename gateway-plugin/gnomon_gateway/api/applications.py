"""The routes of applications: registered models, and the variants that answer an application's queries.

    GET    /system/applications                        all applications, in the namespace of the query
    GET    /system/applications/{app}                  one: its models and variants (INFaaS's model_info)
    DELETE /system/applications/{app}                  it, with its models and its endpoint
    PUT    /system/applications/{app}/models/{model}   register a model: {"accuracy": 0.76, "variants": {"ID": 0.75}}
    DELETE /system/applications/{app}/models/{model}   remove a model

`{model}` is `name` or `name@version` of the model repository. Changes answer 202: their variants are made and measured in the
background, which the state of each variant shows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gnomon_core.applications import WHERE_SERVED, RegisteredModel, read_accuracy
from gnomon_core.clock import rfc3339
from gnomon_core.errors import bad_request, not_found
from gnomon_core.functions import FunctionKey
from gnomon_core.interfaces import StoreHealth
from gnomon_gateway.api.control import Control
from gnomon_gateway.api.requests import Handlers, namespace_in_query, read_object
from gnomon_gateway.applications.service import Applications, ApplicationStatus, VariantStatus

_FIELDS = ("accuracy", "variants")


class ApplicationRoutes:
    """The handlers of applications."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self._namespaces = control.namespaces

    @property
    def _applications(self) -> Applications:
        if self._control.applications is None:
            raise not_found("applications_unavailable", "This platform has no applications.", WHERE_SERVED)
        return self._control.applications

    def handlers(self) -> Handlers:
        return {
            "/system/applications": {"GET": self.list},
            "/system/applications/{app}": {"GET": self.describe, "DELETE": self.remove},
            "/system/applications/{app}/models/{model}": {"PUT": self.register, "DELETE": self.unregister},
        }

    async def list(self, request: Request) -> Response:
        namespace = self._namespaces.get(namespace_in_query(request)).name
        return JSONResponse([_summary(status) for status in self._applications.applications(namespace)])

    async def describe(self, request: Request) -> Response:
        found = self._applications.application(_key(request))
        return JSONResponse(_document(found) | {"store": _store(self._applications.store_health())})

    async def register(self, request: Request) -> Response:
        document = await read_object(request)
        unknown = sorted(document.keys() - set(_FIELDS))
        if unknown:
            raise bad_request("invalid_field", f"{unknown[0][:100]!r} is not known.", f"Known: {', '.join(_FIELDS)}.")
        accuracy = document.get("accuracy")
        key = _key(request)
        with self._namespaces.using(key.namespace):
            registered = await self._applications.register(
                key,
                request.path_params["model"],
                None if accuracy is None else read_accuracy(accuracy),
                _variants(document.get("variants")),
            )
        where = {"Location": f"/system/applications/{key.name}"}
        return JSONResponse(_model(registered), status_code=202, headers=where)

    async def unregister(self, request: Request) -> Response:
        await self._applications.unregister(_key(request), request.path_params["model"])
        return Response(status_code=202)

    async def remove(self, request: Request) -> Response:
        await self._applications.forget(_key(request))
        return Response(status_code=202)


def _key(request: Request) -> FunctionKey:
    return FunctionKey(request.path_params["app"], namespace_in_query(request))


def _variants(value: object) -> Mapping[str, float]:
    """The measured accuracy of variants in a document.

    Raises:
        GnomonError: 400 `invalid_field`, `invalid_accuracy`.

    """
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise bad_request("invalid_field", "variants is not an object.", 'Send it as {"variants": {"ID": 0.75}}.')
    return {name: read_accuracy(share, f"the accuracy of {name[:100]}") for name, share in value.items()}


def _summary(status: ApplicationStatus) -> dict[str, Any]:
    return {
        "name": status.key.name,
        "namespace": status.key.namespace,
        "endpoint": status.endpoint.name if status.endpoint is not None else None,
        "models": [model.model for model in status.models],
        "variants": len(status.variants),
        "active_variants": sum(variant.available_replicas > 0 for variant in status.variants),
    }


def _document(status: ApplicationStatus) -> dict[str, Any]:
    return _summary(status) | {
        "models": [_model(model) for model in status.models],
        "variants": [_variant(variant) for variant in status.variants],
        "problems": dict(status.problems),
        "workers": {"add": len(status.workers.add), "remove": list(status.workers.remove), "reason": status.workers.reason},
        "progress": dict(status.progress),
    }


def _store(health: StoreHealth) -> dict[str, Any]:
    """The health of the store of registered models, as JSON."""
    document: dict[str, Any] = {"kind": health.kind, "available": health.available, "unsent": health.unsent}
    return document if health.available else document | {"since": rfc3339(health.since_s), "problem": health.problem}


def _model(registered: RegisteredModel) -> dict[str, Any]:
    return {"model": registered.model, "accuracy": registered.accuracy, "registered_at": rfc3339(registered.registered_at)}


def _variant(status: VariantStatus) -> dict[str, Any]:
    candidate, variant = status.candidate, status.variant
    document: dict[str, Any] = {
        "id": candidate.id,
        "function": status.member.name,
        "model": candidate.model,
        "engine": candidate.engine,
        "precision": candidate.precision,
        "cores": candidate.cores,
        "state": _state(status),
        "replicas": status.replicas,
        "available_replicas": status.available_replicas,
        "answered": status.answered,
        "problem": status.problem,
    }
    if variant is not None:
        document |= {
            "accuracy": variant.accuracy,
            "max_batch": variant.max_batch,
            "latency_ms": {str(size): round(1e3 * seconds, 3) for size, seconds in sorted(variant.latency_s.items())},
            "load_ms": round(1e3 * variant.load_s, 1),
            "memory_bytes": variant.memory_bytes,
            "saturation_rps": round(variant.saturation_rps, 3),
            "cost_per_s": variant.cost_per_s,
        }
    return document


def _state(status: VariantStatus) -> str:
    if status.variant is None:
        return "failed" if status.problem else "measuring"
    return "active" if status.available_replicas else "inactive"

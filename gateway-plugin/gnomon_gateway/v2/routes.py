"""The routes of the Open Inference Protocol (V2).

    GET  /v2                                   the server's metadata
    GET  /v2/health/live                       200
    GET  /v2/health/ready                      200; 503 while it drains, or a function still waits for its first instance
    GET  /v2/models/{m}[/versions/{v}]         the model's metadata
    GET  /v2/models/{m}[/versions/{v}]/ready   200 if an instance is ready or one is started by the first request
    POST /v2/models/{m}[/versions/{v}]/infer

`{m}` is the name of a function that serves a model or is the endpoint of an application, optionally with its namespace. An
application has no versions; its constraints are `parameters` of the infer request or headers (`applications.queries`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any

from gnomon_core.errors import GnomonError, bad_request, not_found
from gnomon_core.signature import ModelSignature, TensorSpec
from gnomon_gateway.api.control import this_version
from gnomon_gateway.applications.application import Application
from gnomon_gateway.functions.function_runtime import FunctionDirectory, FunctionRuntime
from gnomon_gateway.http.exchange import Exchange
from gnomon_gateway.v2 import messages
from gnomon_gateway.v2.inference import ApplicationInference, Inference
from gnomon_gateway.v2.reading import carries_tensors

PREFIX = b"/v2"
READY = b"/v2/health/ready"
READ_METHODS = frozenset({b"GET", b"HEAD"})
_JSON = b"content-type: application/json\r\n"


class InferenceRoutes:
    """`/v2`, for all functions of a directory."""

    def __init__(self, directory: FunctionDirectory, max_body_bytes: int, ready: Callable[[], bool] = lambda: True) -> None:
        self._directory = directory
        self._max_body_bytes = max_body_bytes
        self._ready = ready
        self._server = {"name": "gnomon", "version": this_version().release, "extensions": ["binary_tensor_data"]}

    def begin(self, exchange: Exchange) -> None:
        """Begin a request below `/v2`, whose headers have been received."""
        try:
            if exchange.path[len(PREFIX) :][:1] not in (b"", b"/"):
                raise _no_route()
            self._begin(exchange, [part.decode("latin-1") for part in exchange.path.split(b"/")[2:] if part])
        except GnomonError as error:
            refuse(exchange, error)

    def take_tensors(self, exchange: Exchange, runtime: FunctionRuntime) -> bool:
        """Take a request at `/function/{name}` if it carries tensors for a model; returns whether it was taken."""
        signature = runtime.signature
        if signature is None or not carries_tensors(exchange.method, dict(exchange.headers)):
            return False
        Inference(exchange, runtime, signature, self._max_body_bytes).begin()
        return True

    def take_query(self, exchange: Exchange, application: Application) -> bool:
        """Take a request at `/function/{name}` of an application if it carries tensors; returns whether it was taken."""
        if not carries_tensors(exchange.method, dict(exchange.headers)):
            return False
        try:
            self._infer(exchange, application)
        except GnomonError as error:
            refuse(exchange, error)
        return True

    def _begin(self, exchange: Exchange, parts: list[str]) -> None:
        match parts:
            case []:
                _read(exchange, self._server)
            case ["health", "live"]:
                _read(exchange, {"live": True})
            case ["health", "ready"]:
                ready = self._ready()
                _read(exchange, {"ready": ready}, 200 if ready else 503)
            case ["models", name, *rest]:
                runtime = self._directory.lookup(name)
                if runtime is None and (application := self._directory.application(name)) is not None:
                    self._application(exchange, application, rest)
                    return
                # A function that is not restored yet after a restart is unavailable (503), not absent.
                if runtime is None and (refusal := self._directory.refusal(name)).status != HTTPStatus.NOT_FOUND:
                    raise refusal
                if runtime is None or runtime.signature is None:
                    raise not_found("model_not_found", f"There is no model {name[:200]!r}.", "List functions with: gnomon list")
                self._model(exchange, runtime, runtime.signature, rest)
            case _:
                raise _no_route()

    def _model(self, exchange: Exchange, runtime: FunctionRuntime, signature: ModelSignature, parts: list[str]) -> None:
        match parts:
            case ["versions", version, *rest]:
                if version != signature.version:
                    raise not_found("version_not_found", f"The model's version is {signature.version}, not {version[:100]!r}.")
                parts = rest
        match parts:
            case []:
                _read(exchange, _metadata(runtime, signature))
            case ["ready"]:
                # A function that scales to zero is ready without an instance: its first request starts one.
                scale = runtime.settings.scale
                ready = runtime.ready > 0 or ((scale.min == 0 or scale.zero) and runtime.refusal() is None)
                _read(exchange, {"ready": ready}, 200 if ready else 503)
            case ["infer"]:
                if exchange.method != b"POST":
                    raise _wrong_method("POST")
                Inference(exchange, runtime, signature, self._max_body_bytes).begin()
            case _:
                raise _no_route()

    def _application(self, exchange: Exchange, application: Application, parts: list[str]) -> None:
        match parts:
            case ["versions", *_]:
                hint = "Name a registered model by the parameter model, or a variant by the parameter variant."
                raise not_found("version_not_found", f"The application {application.key.name} has no versions.", hint)
            case []:
                _read(exchange, _application_metadata(application))
            case ["ready"]:
                members = application.members.values()
                ready = any(member.runtime.ready > 0 or member.runtime.refusal() is None for member in members)
                _read(exchange, {"ready": ready}, 200 if ready else 503)
            case ["infer"]:
                if exchange.method != b"POST":
                    raise _wrong_method("POST")
                self._infer(exchange, application)
            case _:
                raise _no_route()

    def _infer(self, exchange: Exchange, application: Application) -> None:
        """Begin an infer request to an application.

        Raises:
            GnomonError: it has no members, or its models take different tensors.

        """
        if not application.members:
            raise application.nothing_to_choose()
        if application.signature is None:
            raise bad_request(
                "tensors_differ",
                f"The models of the application {application.key.name} take different tensors.",
                f"Send the image itself to /function/{application.key.name}.",
            )
        ApplicationInference(exchange, application, application.signature, self._max_body_bytes).begin()


def refuse(exchange: Exchange, error: GnomonError) -> None:
    """Respond with an error of the gateway in V2's format."""
    exchange.respond(*messages.refusal(error))


def _read(exchange: Exchange, document: Mapping[str, Any], status: int = 200) -> None:
    if exchange.method not in READ_METHODS:
        raise _wrong_method("GET")
    exchange.respond(status, _JSON, json.dumps(document).encode())


def _metadata(runtime: FunctionRuntime, signature: ModelSignature) -> dict[str, Any]:
    return {
        "name": runtime.key.name,
        "versions": [signature.version],
        "platform": "gnomon_layer_program",
        **_tensors(signature),
    }


def _application_metadata(application: Application) -> dict[str, Any]:
    signature = application.signature
    return {
        "name": application.key.name,
        "platform": "gnomon_application",
        **(_tensors(signature) if signature is not None else {"inputs": [], "outputs": []}),
        "parameters": {"variants": sorted(application.members)},
    }


def _tensors(signature: ModelSignature) -> dict[str, Any]:
    padding = signature.padding
    sequences = (*padding.inputs, *padding.outputs) if padding is not None else ()
    return {
        "inputs": [_tensor(spec, any_length=spec.name in sequences) for spec in signature.inputs],
        "outputs": [_tensor(spec, any_length=spec.name in sequences) for spec in signature.outputs],
    }


def _tensor(spec: TensorSpec, *, any_length: bool) -> dict[str, Any]:
    shape = (-1, *spec.shape[1:]) if any_length else spec.shape
    return {"name": spec.name, "datatype": spec.datatype, "shape": [-1, *shape]}


def _no_route() -> GnomonError:
    return not_found("route_not_found", "There is no such route.", "The open inference protocol lists the routes.")


def _wrong_method(right: str) -> GnomonError:
    return GnomonError(405, "method_not_allowed", "This path does not support this method.", f"Use {right}.")

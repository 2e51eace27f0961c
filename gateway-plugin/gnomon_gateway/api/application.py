"""The control application: every resource's handlers behind the guard, as one ASGI application.

A path's methods are one endpoint, so that a wrong method gets a 405 that names the right ones.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from http import HTTPStatus

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gnomon_core.errors import GnomonError, not_found, stopping
from gnomon_gateway.api.access import Guard, Guarded, error_response, pattern, unexpected
from gnomon_gateway.api.applications import ApplicationRoutes
from gnomon_gateway.api.control import Control, SystemRoutes
from gnomon_gateway.api.functions import DecisionRoutes, DetailRoutes, Functions
from gnomon_gateway.api.logs import LogRoutes
from gnomon_gateway.api.namespaces import NamespaceRoutes
from gnomon_gateway.api.requests import Handler, Handlers
from gnomon_gateway.api.secrets import SecretRoutes
from gnomon_gateway.metrics import ControlCounters


def control_application(
    control: Control,
    guard: Guard,
    counters: ControlCounters,
    more: Iterable[Handlers | BaseRoute] = (),
) -> ASGIApp:
    """The ASGI application of all routes outside the hot path.

    `more` is what other parts offer: asynchronous invocation, the builder.
    """

    async def contents(namespace: str) -> Sequence[str]:
        functions = [f"function {status.spec.key.name}" for status in control.functions.list(namespace)]
        return functions + [f"secret {secret}" for secret in await control.secrets.names(namespace)]

    resources = (
        *(
            resource(control)
            for resource in (Functions, ApplicationRoutes, SystemRoutes, LogRoutes, DecisionRoutes, DetailRoutes)
        ),
        NamespaceRoutes(control.namespaces, contents),
        SecretRoutes(control.namespaces, control.secrets),
    )
    handlers: dict[str, Mapping[str, Handler]] = {}
    routes: list[BaseRoute] = []
    for offered in (*(resource.handlers() for resource in resources), *more):
        if isinstance(offered, BaseRoute):
            routes.append(offered)
        else:
            handlers |= offered
    routes += [Route(path, _Endpoint(by_method)) for path, by_method in handlers.items()]
    application = Starlette(routes=routes, exception_handlers={HTTPException: _from_starlette})
    application.router.redirect_slashes = False
    return Measured(Guarded(application, guard), counters)


class _Endpoint:
    """An ASGI endpoint for one path: calls the handler of the method, and turns its errors into responses."""

    def __init__(self, by_method: Mapping[str, Handler]) -> None:
        self._by_method = by_method

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        handler = self._by_method.get(scope["method"])
        if handler is None:
            response = _wrong_method(", ".join(sorted(self._by_method)))
        else:
            response = await _answer(handler, Request(scope, receive))
        await response(scope, receive, send)


async def _answer(handler: Handler, request: Request) -> Response:
    try:
        return await handler(request)
    except GnomonError as error:
        return error_response(error)
    except asyncio.CancelledError:  # by the server, when the time to answer before its end is over
        return error_response(stopping())
    except Exception as error:  # noqa: BLE001 - whatever it is, the client gets our JSON and the log the traceback
        return error_response(unexpected(error))


def _wrong_method(allowed: str) -> Response:
    response = error_response(
        GnomonError(405, "method_not_allowed", "This path does not support this method.", f"Use {allowed}.")
    )
    response.headers["Allow"] = allowed
    return response


async def _from_starlette(request: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException) and error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        return _wrong_method((error.headers or {}).get("Allow", ""))
    path = request.url.path
    return error_response(not_found("route_not_found", f"There is no route {path[:200]!r}.", "GET / lists the routes."))


class Measured:
    """An ASGI middleware that counts responses."""

    def __init__(self, application: ASGIApp, counters: ControlCounters) -> None:
        self._application = application
        self._counters = counters

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        begin_s = time.monotonic()
        status = 0

        async def watch(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        await self._application(scope, receive, watch)
        method = scope["method"]
        self._counters.observe(method, pattern(scope["path"], method), status, time.monotonic() - begin_s)

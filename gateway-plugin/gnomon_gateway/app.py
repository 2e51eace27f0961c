"""The gateway's application: two hot prefixes, and everything else as ASGI.

/function/…  invoke.py     /v2…  v2/     everything else  the control application (openfaas/)
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from gnomon_gateway.invoke import PREFIX as FUNCTION_PREFIX
from gnomon_gateway.invoke import Functions
from gnomon_gateway.server.exchange import Exchange
from gnomon_gateway.serving.directory import FunctionDirectory
from gnomon_gateway.v2.routes import PREFIX as V2_PREFIX
from gnomon_gateway.v2.routes import InferenceRoutes

MAX_BODY_BYTES = 64 << 20

ControlApp = Callable[[Any, Any, Any], Awaitable[None]]


class GatewayApp:
    """What a `GatewayServer` serves: the functions of a directory, and a control application for all other paths."""

    prefixes = (FUNCTION_PREFIX, V2_PREFIX)

    def __init__(self, directory: FunctionDirectory, control_app: ControlApp, *, max_body_bytes: int = MAX_BODY_BYTES) -> None:
        self._control_app = control_app
        self._inference = InferenceRoutes(directory, max_body_bytes)
        self._functions = Functions(directory, max_body_bytes, self._inference.take_tensors)

    def begin(self, exchange: Exchange) -> None:
        """A hot request's headers are here."""
        if exchange.path.startswith(FUNCTION_PREFIX):
            self._functions.begin(exchange)
        else:
            self._inference.begin(exchange)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self._control_app(scope, receive, send)

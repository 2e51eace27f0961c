"""The gateway's application: two hot prefixes, and everything else as ASGI.

/function/…  invoke.py     /v2…  v2/     everything else  the control application (api/)

While the gateway drains, admitted requests are answered and new requests to functions are refused with a retry hint; all other
paths are served, so that health checks report the draining.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from gnomon_core.errors import GnomonError
from gnomon_gateway.functions.function_runtime import FunctionDirectory
from gnomon_gateway.http.exchange import Exchange
from gnomon_gateway.invoke import PREFIX as FUNCTION_PREFIX
from gnomon_gateway.invoke import Functions
from gnomon_gateway.v2.routes import PREFIX as V2_PREFIX
from gnomon_gateway.v2.routes import READ, READY, InferenceRoutes, refuse

MAX_BODY_BYTES = 64 << 20
"""The default limit of a request's body."""

ControlApp = Callable[[Any, Any, Any], Awaitable[None]]


class GatewayApp:
    """The application of a `GatewayServer`: the functions of a directory, and a control application for all other paths.

    While `draining` is set, no function gets a new request. `behind` says that a stock OpenFaaS gateway is in front of this one.
    `ready` returns whether functions can be reached, which `/v2/health/ready` reports.
    """

    prefixes = (FUNCTION_PREFIX, V2_PREFIX)

    def __init__(
        self,
        directory: FunctionDirectory,
        control_app: ControlApp,
        *,
        max_body_bytes: int = MAX_BODY_BYTES,
        behind: bool = False,
        ready: Callable[[], bool] = lambda: True,
    ) -> None:
        self.draining = False
        self.max_body_bytes = max_body_bytes
        self._control_app = control_app
        self._inference = InferenceRoutes(directory, max_body_bytes, ready)
        self._functions = Functions(directory, max_body_bytes, self._inference.take_tensors, behind=behind)

    def begin(self, exchange: Exchange) -> None:
        """Begin a request on a hot route, whose headers have been received."""
        if self.draining:
            self._turn_away(exchange)
        elif exchange.path.startswith(FUNCTION_PREFIX):
            self._functions.begin(exchange)
        else:
            self._inference.begin(exchange)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self._control_app(scope, receive, send)

    def _turn_away(self, exchange: Exchange) -> None:
        error = GnomonError(
            503, "stopping", "The gateway is stopping and takes no new requests.", "Try again.", retry_after_s=1.0
        )
        if exchange.path.startswith(FUNCTION_PREFIX):
            exchange.fail(error, close=True)
        elif exchange.path == READY or exchange.method not in READ:
            refuse(exchange, error)
        else:
            self._inference.begin(exchange)

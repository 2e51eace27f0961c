"""Where Bodies of other nodes come to this node's Shadows: one port for all of them, and a token for each.

    Body ── GET /gnomon/pair, its Shadow's token, Upgrade: gnomon-pair/1 ──▶ here ── the connection, as a descriptor ──▶ Shadow
    Body ◀────────── 101 Switching Protocols, and whatever comes then, until one of the two ends ───────────────────── Shadow

A Shadow of the pool listens nowhere and knows no HTTP: it is forked in milliseconds, and a pool of processes with ports of their
own would need as many holes in every NetworkPolicy. It gets the connection as it would get a pair's buffers, answers the upgrade
itself, and nothing of what follows passes through here.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable

from aiohttp import web

from gnomon_coordinator.node.shadows import Shadows
from gnomon_core.coordination import PAIR_PATH, PAIR_PROTOCOL
from gnomon_core.errors import GnomonError

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Arrivals:
    """The route."""

    def __init__(self, shadows: Shadows) -> None:
        self._shadows = shadows

    def application(self) -> web.Application:
        """Nothing is open: whoever has no Shadow's token is refused."""

        @web.middleware
        async def refusing(request: web.Request, handler: Handler) -> web.StreamResponse:
            try:
                return await handler(request)
            except GnomonError as error:
                return web.Response(body=error.body(), status=error.status, headers=dict(error.headers()))

        app = web.Application(middlewares=[refusing], client_max_size=1)
        app.router.add_get(PAIR_PATH, self._come)
        return app

    async def _come(self, request: web.Request) -> web.Response:
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        shadow = self._shadows.of_token(token) if scheme == "Bearer" else None
        if shadow is None:
            raise GnomonError(401, "bad_token", "This is for the Bodies of this node's Shadows.", "Send your Shadow's token.")
        if request.headers.get("Upgrade", "") != PAIR_PROTOCOL:
            raise GnomonError(426, "upgrade_required", f"This is for Bodies: it needs an upgrade to {PAIR_PROTOCOL}.")
        transport = request.transport
        if transport is None:
            raise GnomonError(408, "gone", "Whoever asked has gone.")
        connection = os.dup(transport.get_extra_info("socket").fileno())
        try:
            self._shadows.reached(shadow, connection)
        finally:
            os.close(connection)
        # The server lets go of it, and says nothing: the Shadow has it open.
        transport.abort()
        return web.Response(status=101)

"""The door of the control application: every request passes here before any handler sees it.

The table of `routes` decides what a request must bring; what is not in the table must bring everything. Where nobody needs
credentials, because only this machine can reach us, the functions on it still may not come in: they run code that we were given,
and one that could deploy another could ask for that one's secrets.
"""

from __future__ import annotations

import asyncio
import logging

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from gnomon_core.errors import GnomonError
from gnomon_gateway.auth import DENIED_BODY, DENIED_HEADERS, BasicAuth
from gnomon_gateway.origin import HostRule
from gnomon_gateway.peers import user_of
from gnomon_gateway.routes import Access, access
from gnomon_gateway.server.refusals import internal_error

# A build brings its own signature, which its handler checks.
_WITHOUT_CREDENTIALS = (Access.OPEN, Access.HMAC)

_log = logging.getLogger(__name__)


class Guard:
    """Lets a request in, or answers 401 or 403. `function_users` are the user ids that functions of this machine run under."""

    def __init__(self, application: ASGIApp, hosts: HostRule, auth: BasicAuth | None, function_users: range) -> None:
        self._application = application
        self._hosts = hosts
        self._auth = auth
        self._function_users = function_users

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"the control routes speak HTTP, not {scope['type']}")
        if access(scope["path"], scope["method"]) not in _WITHOUT_CREDENTIALS:
            refusal = self._refusal(Headers(scope=scope)) or await self._refusal_of_functions(scope)
            if refusal is not None:
                await refusal(scope, receive, send)
                return
        await self._application(scope, receive, send)

    def _refusal(self, headers: Headers) -> Response | None:
        try:
            # A header that comes twice means different things to different readers: joined, it is nobody's name.
            said = (headers.getlist(name) for name in ("host", "origin", "sec-fetch-site", "x-forwarded-host"))
            self._hosts.check(*(",".join(values) if values else None for values in said))
        except GnomonError as error:
            return error_response(error)
        credentials = headers.getlist("authorization")
        if self._auth is not None and not self._auth.allows(credentials[0] if len(credentials) == 1 else None):
            return Response(DENIED_BODY, 401, dict(DENIED_HEADERS))
        return None

    async def _refusal_of_functions(self, scope: Scope) -> Response | None:
        client, server = scope["client"], scope["server"]
        if self._auth is not None or not self._function_users or client is None or server is None:
            return None
        if await asyncio.to_thread(user_of, client, server) not in self._function_users:
            return None
        return error_response(
            GnomonError(
                403,
                "function_refused",
                "A function may not use this gateway's control routes without credentials.",
                "Start it with --basic-auth and give the function the credentials as a secret.",
            )
        )


def error_response(error: GnomonError) -> Response:
    """The answer of an error."""
    return Response(error.body(), error.status, error.headers())


def unexpected(error: Exception) -> GnomonError:
    """A fault of ours: told to the log, not to the caller."""
    _log.error("A control route failed.", exc_info=error)
    return internal_error()

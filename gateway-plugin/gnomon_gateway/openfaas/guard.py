"""The door of the control application: every request passes here before any handler sees it.

The table of `routes` decides what a request must bring; what is not in the table must bring everything.
"""

from __future__ import annotations

import logging

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from gnomon_core.errors import GnomonError
from gnomon_gateway.auth import DENIED_BODY, DENIED_HEADERS, BasicAuth
from gnomon_gateway.origin import HostRule
from gnomon_gateway.routes import Access, access

# A build brings its own signature, which its handler checks.
_WITHOUT_CREDENTIALS = (Access.OPEN, Access.HMAC)

_log = logging.getLogger(__name__)


class Guard:
    """Lets a request in, or answers 401 or 403."""

    def __init__(self, application: ASGIApp, hosts: HostRule, auth: BasicAuth | None) -> None:
        self._application = application
        self._hosts = hosts
        self._auth = auth

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"the control routes speak HTTP, not {scope['type']}")
        if access(scope["path"], scope["method"]) not in _WITHOUT_CREDENTIALS:
            refusal = self._refusal(Headers(scope=scope))
            if refusal is not None:
                await refusal(scope, receive, send)
                return
        await self._application(scope, receive, send)

    def _refusal(self, headers: Headers) -> Response | None:
        hosts, origins, sites = headers.getlist("host"), headers.getlist("origin"), headers.getlist("sec-fetch-site")
        try:
            # A header that comes twice means different things to different readers: joined, it is nobody's name.
            self._hosts.check(",".join(hosts), ",".join(origins) if origins else None, ",".join(sites) if sites else None)
        except GnomonError as error:
            return error_response(error)
        credentials = headers.getlist("authorization")
        if self._auth is not None and not self._auth.allows(credentials[0] if len(credentials) == 1 else None):
            return Response(DENIED_BODY, 401, dict(DENIED_HEADERS))
        return None


def error_response(error: GnomonError) -> Response:
    """The answer of an error."""
    return Response(error.body(), error.status, error.headers())


def unexpected(error: Exception) -> GnomonError:
    """A fault of ours: told to the log, not to the caller."""
    _log.error("A control route failed.", exc_info=error)
    return GnomonError(500, "internal_error", "The gateway failed at this request.", "Its log says why.")

"""The access control of the control application, which every request passes before its handler.

The table of `routes` decides which credentials a request needs; a path that is not in the table needs all of them.

A gateway without a login listens on the loopback interface only, but functions, builds, other users and proxies run on the same
machine. Its control routes serve only connections whose owner, by the kernel, is root or the server's user (docs/decisions/0043):

    the kernel shows no owner of the connection           refused
    another user's: a function, a build, a proxy          refused
    the server's, and functions have their own users      allowed
    the server's, and functions run as it (not root)      allowed if a process holds it that is neither function nor build
    a header that proxies add                             refused for any owner: the proxy would let every client in

With several replicas, the one that a client is connected to checks this before it forwards the request to the leader, because
only its kernel knows the connection. The leader's internal listener marks requests of replicas that have shown the secret.
"""

from __future__ import annotations

import asyncio
import logging
import os

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from gnomon_core.errors import GnomonError
from gnomon_gateway.api.auth import DENIED_BODY, DENIED_HEADERS, BasicAuth
from gnomon_gateway.api.origin import HostRule
from gnomon_gateway.api.routes import Access, access
from gnomon_gateway.api.socket_owner import is_held_by_a_user, owner_of
from gnomon_gateway.http.exchange import internal_error

# A build brings its own signature, which its handler checks.
_WITHOUT_CREDENTIALS = (Access.OPEN, Access.HMAC)
_ROOT = 0
FROM_PEER = "gnomon.from_peer"
"""A key that only the internal listener sets in an ASGI scope: a replica forwarded the request and checked its connection."""
_OF_PROXIES = frozenset(
    {
        "cdn-loop",
        "cf-connecting-ip",
        "client-ip",
        "forwarded",
        "true-client-ip",
        "via",
        "x-client-ip",
        "x-cluster-client-ip",
        "x-real-ip",
    }
)
_OF_PROXIES_PREFIXES = ("x-forwarded", "x-envoy-")

_log = logging.getLogger(__name__)


class Guard:
    """Access control of the control routes. `function_users` are the user ids that functions run under, if their own."""

    def __init__(self, hosts: HostRule, auth: BasicAuth | None, function_users: range = range(0)) -> None:
        self._hosts = hosts
        self._auth = auth
        self._function_users = function_users

    async def refusal(self, scope: Scope) -> Response | None:
        """The response 401 or 403 to an HTTP request; None if it is allowed."""
        if access(scope["path"], scope["method"]) in _WITHOUT_CREDENTIALS:
            return None
        headers = Headers(scope=scope)
        return self._refusal(headers) or await self._refusal_without_login(scope, headers)

    def _refusal(self, headers: Headers) -> Response | None:
        try:
            # Parsers disagree on a repeated header: some take the first, some the last. Joined, it matches no allowed host.
            said = (headers.getlist(name) for name in ("host", "origin", "sec-fetch-site", "x-forwarded-host"))
            self._hosts.check(*(",".join(values) if values else None for values in said))
        except GnomonError as error:
            return error_response(error)
        credentials = headers.getlist("authorization")
        if self._auth is not None and not self._auth.allows(credentials[0] if len(credentials) == 1 else None):
            return Response(DENIED_BODY, 401, dict(DENIED_HEADERS))
        return None

    async def _refusal_without_login(self, scope: Scope, headers: Headers) -> Response | None:
        if self._auth is not None or scope.get(FROM_PEER) is True:
            return None
        error = await self._stranger(scope["client"], scope["server"])
        if error is None and any(name in _OF_PROXIES or name.startswith(_OF_PROXIES_PREFIXES) for name in headers):
            error = _refused("proxy_refused", "This request came through a proxy, which would let everybody in who reaches it")
        return None if error is None else error_response(error)

    async def _stranger(self, client: tuple[str, int] | None, server: tuple[str, int | None] | None) -> GnomonError | None:
        port = None if server is None else server[1]
        owner = None if client is None or server is None or port is None else owner_of(client, (server[0], port))
        if owner is None:
            return _refused("login_required", "The kernel does not show whose connection this is")
        if owner.uid in self._function_users:
            return GnomonError(
                403,
                "function_refused",
                "A function may not use this gateway's control routes without credentials.",
                "Start it with --basic-auth and give the function the credentials as a secret.",
            )
        own = os.geteuid()
        if owner.uid not in (_ROOT, own):
            return _refused("login_required", "This connection is of another user than the one who runs the gateway")
        if owner.uid != _ROOT and not await asyncio.to_thread(is_held_by_a_user, owner.inode):
            return _refused(
                "login_required", "This connection is of a function or a build, or of a process that cannot be looked into"
            )
        return None


class Guarded:
    """An application behind its guard."""

    def __init__(self, application: ASGIApp, guard: Guard) -> None:
        self._application, self._guard = application, guard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"the control routes speak HTTP, not {scope['type']}")
        await (await self._guard.refusal(scope) or self._application)(scope, receive, send)


def _refused(code: str, reason: str) -> GnomonError:
    return GnomonError(
        403,
        code,
        f"{reason}. Without a login the control routes answer only the user who runs the gateway, and root.",
        "Call it as that user, or start it with --basic-auth and log in.",
    )


def error_response(error: GnomonError) -> Response:
    """The answer of an error."""
    return Response(error.body(), error.status, error.headers())


def unexpected(error: Exception) -> GnomonError:
    """500: an internal error. The details are only in the log."""
    _log.error("A control route failed.", exc_info=error)
    return internal_error()

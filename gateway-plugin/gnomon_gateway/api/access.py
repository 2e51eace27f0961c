"""Access to the routes: which credentials each needs, and who may use the control routes.

`ROUTES` is the table of all routes with the credentials that they require. A name in braces is one segment; with `…` after it,
all segments below. A path that is not in the table does not exist; a route that is not `OPEN` needs credentials if the gateway
has any. `HMAC` routes check a signature of their own.

Every control request passes the `Guard` before its handler:

    Host, Origin, Sec-Fetch-Site   this gateway's names and pages only: protection against cross-site requests and DNS rebinding
    basic authentication           OpenFaaS's, with the same variables and files, if it is on
    the connection's owner         if authentication is off

A browser sends to 127.0.0.1 any request that a page makes. Three headers that a page cannot forge identify such a request: `Host`
(a rebound name is not the gateway's), `Origin` (that of a foreign page), and `Sec-Fetch-Site`. Other clients send neither of the
last two. Behind another gateway, whose pages are trusted too, `X-Forwarded-Host` is the name by which that gateway was called; no
page can set that either.

`basic_auth=true` turns authentication on; the files `basic-auth-user` and `basic-auth-password` in `secret_mount_path` hold the
credentials. Both are compared whole and in constant time, whatever the caller sent, so that no answer is quicker than another.

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
import base64
import binascii
import hashlib
import hmac
import ipaddress
import logging
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from gnomon_core.errors import INTERNAL_HEADER, INTERNAL_NAME, GnomonError, bad_request
from gnomon_gateway.api.socket_owner import is_held_by_a_user, owner_of
from gnomon_gateway.http.exchange import internal_error


class Access(StrEnum):
    """The credentials that a route requires."""

    OPEN = "open"
    AUTH = "auth"
    HMAC = "hmac"


ANY = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
_READ = ("GET", "HEAD")


@dataclass(frozen=True, slots=True)
class Route:
    """A path pattern, its methods, and who may use it."""

    path: str
    methods: tuple[str, ...]
    access: Access


ROUTES: tuple[Route, ...] = (
    Route("/function/{name}", ANY, Access.OPEN),
    Route("/function/{name}/{rest}…", ANY, Access.OPEN),
    Route("/async-function/{name}", ("POST",), Access.OPEN),
    Route("/async-function/{name}/{rest}…", ("POST",), Access.OPEN),
    Route("/v2", _READ, Access.OPEN),
    Route("/v2/health/live", _READ, Access.OPEN),
    Route("/v2/health/ready", _READ, Access.OPEN),
    Route("/v2/models/{model}", _READ, Access.OPEN),
    Route("/v2/models/{model}/ready", _READ, Access.OPEN),
    Route("/v2/models/{model}/infer", ("POST",), Access.OPEN),
    Route("/v2/models/{model}/versions/{version}", _READ, Access.OPEN),
    Route("/v2/models/{model}/versions/{version}/ready", _READ, Access.OPEN),
    Route("/v2/models/{model}/versions/{version}/infer", ("POST",), Access.OPEN),
    Route("/", _READ, Access.OPEN),
    Route("/healthz", _READ, Access.OPEN),
    Route("/metrics", _READ, Access.OPEN),
    Route("/system/functions", ("GET", "POST", "PUT", "DELETE"), Access.AUTH),
    Route("/system/function/{name}", ("GET",), Access.AUTH),
    Route("/system/scale-function/{name}", ("POST",), Access.AUTH),
    Route("/system/info", ("GET",), Access.AUTH),
    Route("/system/namespaces", ("GET",), Access.AUTH),
    Route("/system/namespace/", ("POST",), Access.AUTH),
    Route("/system/namespace/{name}", ("GET", "POST", "PUT", "DELETE"), Access.AUTH),
    Route("/system/applications", ("GET",), Access.AUTH),
    Route("/system/applications/{app}", ("GET", "DELETE"), Access.AUTH),
    Route("/system/applications/{app}/models/{model}", ("PUT", "DELETE"), Access.AUTH),
    Route("/system/secrets", ("GET", "POST", "PUT", "DELETE"), Access.AUTH),
    Route("/system/logs", ("GET",), Access.AUTH),
    Route("/gnomon/functions/{name}", ("GET",), Access.AUTH),
    Route("/gnomon/functions/{name}/decisions", ("GET",), Access.AUTH),
    Route("/gnomon/models", ("GET",), Access.AUTH),
    Route("/gnomon/models/{reference}", ("GET",), Access.AUTH),
    Route("/gnomon/models/{name}/{version}", ("PUT",), Access.AUTH),
    Route("/gnomon/policies", ("GET",), Access.AUTH),
    Route("/build", ("POST",), Access.HMAC),
)


def access(path: str, method: str) -> Access | None:
    """The access rule of this path and method; None where there is no such route. Unknown routes are never open."""
    route = _find(path, method)
    return route.access if route is not None else None


def pattern(path: str, method: str) -> str | None:
    """The pattern of the route that serves this path and method; None where there is none."""
    route = _find(path, method)
    return route.path if route is not None else None


def _find(path: str, method: str) -> Route | None:
    return next((route for route, expression in _EXPRESSIONS if method in route.methods and expression.fullmatch(path)), None)


def _expression(pattern: str) -> str:
    return "".join(_segment(part) for part in re.split(r"(\{\w+\}…?)", pattern))


def _segment(part: str) -> str:
    if part.endswith("…"):
        return ".*"
    return "[^/]+" if part.startswith("{") else re.escape(part)


_EXPRESSIONS = tuple((route, re.compile(_expression(route.path))) for route in ROUTES)


# A build brings its own signature, which its handler checks.
_WITHOUT_CREDENTIALS = (Access.OPEN, Access.HMAC)
_ROOT = 0
FROM_PEER = "gnomon.from_peer"
"""A key that only the internal listener sets in an ASGI scope: a replica forwarded the request and checked its connection."""
_OF_PROXIES = frozenset(
    {
        "cdn-loop",
        "cf-connecting-ip",
        "cf-ray",
        "client-ip",
        "fastly-client-ip",
        "forwarded",
        "true-client-ip",
        "via",
        "x-amzn-trace-id",
        "x-client-ip",
        "x-cloud-trace-context",
        "x-cluster-client-ip",
        "x-proxyuser-ip",
        "x-real-ip",
    }
)
_OF_PROXIES_PREFIXES = ("x-forwarded", "x-envoy-", "x-original-")

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
        error = await self._refusal_by_owner(scope["client"], scope["server"])
        if error is None and any(name in _OF_PROXIES or name.startswith(_OF_PROXIES_PREFIXES) for name in headers):
            error = _refused("proxy_refused", "This request came through a proxy, which would give each of its clients access")
        return None if error is None else error_response(error)

    async def _refusal_by_owner(
        self, client: tuple[str, int] | None, server: tuple[str, int | None] | None
    ) -> GnomonError | None:
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
    _log.error("Internal error in a control route", exc_info=error)
    return internal_error()


DEFAULT_SECRET_FOLDER = "/run/secrets/"  # noqa: S105 - a folder, as OpenFaaS names it
DENIED_BODY = b"invalid credentials"
DENIED_HEADERS: Mapping[str, str] = {
    "WWW-Authenticate": 'Basic realm="Restricted"',
    "Content-Type": "text/plain; charset=utf-8",
    INTERNAL_HEADER: INTERNAL_NAME,
}
_TRUE = ("true", "1", "yes")


class BasicAuth:
    """A user and password. Only their digests are kept, so that neither appears in a traceback or a dump of this object."""

    def __init__(self, user: str, password: str) -> None:
        self._user = _digest(user.encode())
        self._password = _digest(password.encode())

    def allows(self, authorization: str | None) -> bool:
        """Return whether an `Authorization` header carries the credentials."""
        user, password = _read_header(authorization or "")
        same_user = hmac.compare_digest(_digest(user), self._user)
        same_password = hmac.compare_digest(_digest(password), self._password)
        return same_user & same_password


def read_basic_auth(environment: Mapping[str, str]) -> BasicAuth | None:
    """The credentials that the environment names; None where authentication is off.

    Raises:
        GnomonError: 500 `credentials_missing`, where it is on and a file is missing or empty.

    """
    if environment.get("basic_auth", "").strip().lower() not in _TRUE:
        return None
    folder = Path(environment.get("secret_mount_path") or DEFAULT_SECRET_FOLDER)
    return BasicAuth(_read_file(folder / "basic-auth-user"), _read_file(folder / "basic-auth-password"))


def require_safe_binding(host: str, auth: BasicAuth | None) -> None:
    """Refuse to listen where others can reach us while anyone may deploy code.

    Raises:
        GnomonError: 500 `unsafe_binding`.

    """
    if auth is None and not is_loopback(host):
        raise GnomonError(
            500,
            "unsafe_binding",
            f"Listening on {host or 'every address'} without authentication would let anyone who reaches it run code here.",
            "Set basic_auth=true and secret_mount_path (with basic-auth-user and basic-auth-password), or use 127.0.0.1.",
        )


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach this address."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _read_header(authorization: str) -> tuple[bytes, bytes]:
    scheme, _, encoded = authorization.partition(" ")
    if scheme.lower() != "basic":
        return b"", b""
    try:
        user, colon, password = base64.b64decode(encoded.strip(), validate=True).partition(b":")
    except (binascii.Error, ValueError):
        return b"", b""
    return (user, password) if colon else (b"", b"")


def _read_file(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise _missing(path, str(error)) from None
    if not text:
        raise _missing(path, "it is empty")
    return text


def _missing(path: Path, reason: str) -> GnomonError:
    return GnomonError(
        500,
        "credentials_missing",
        f"basic_auth is on and {path} cannot be used: {reason}.",
        "Write the user and the password there, or set secret_mount_path to their folder.",
    )


def _digest(text: bytes) -> bytes:
    return hashlib.sha256(text).digest()


LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")
_OWN_SITES = ("same-origin", "none")
_HOST_NAME = re.compile(r"[a-z0-9_.:-]+")


@dataclass(frozen=True, slots=True)
class HostRule:
    """The names that this gateway answers to.

    `any_address` also accepts every IP address: a listener on all interfaces has many, and an address cannot be rebound.
    `behind` takes pages of the host that a gateway in front was called by for ours.
    """

    names: frozenset[str]
    any_address: bool = False
    behind: bool = False

    def check(self, host: str | None, origin: str | None, fetch_site: str | None, forwarded_host: str | None = None) -> None:
        """Let our own requests pass.

        Raises:
            GnomonError: 403 `foreign_host` or `foreign_origin`.

        """
        if not self._is_ours(host):
            raise GnomonError(
                403,
                "foreign_host",
                f"This gateway does not answer to the host {(host or '')[:100]!r}.",
                f"Use one of {', '.join(sorted(self.names))}, or start it with this name among its allowed hosts.",
            )
        if fetch_site is not None and fetch_site.strip().lower() not in _OWN_SITES:
            raise _foreign_page()
        ours = [host] if forwarded_host is None or not self.behind else [host, forwarded_host]
        if origin is not None and _authority(origin) not in [(name or "").strip().lower() for name in ours]:
            raise _foreign_page()

    def _is_ours(self, host: str | None) -> bool:
        name = _host_name(host or "")
        return name is not None and (name in self.names or (self.any_address and _is_address(name)))


def host_rule(bound_host: str, allowed: Iterable[str] = (), *, behind: bool = False) -> HostRule:
    """The rule of a gateway that listens on `bound_host`; `allowed` are more names, as a proxy in front may use.

    Raises:
        GnomonError: 400 `invalid_setting` for an allowed name that no Host header can have, such as a URL.

    """
    names = {*LOOPBACK_NAMES, *map(_allowed_name, filter(None, allowed))}
    everywhere = _is_address(bound_host) and ipaddress.ip_address(bound_host).is_unspecified
    if bound_host and not everywhere:
        names.add(bound_host.strip("[]").lower())
    any_address = everywhere or not (bound_host and is_loopback(bound_host))
    return HostRule(frozenset(names - {""}), any_address=any_address, behind=behind)


def _allowed_name(allowed: str) -> str:
    text = allowed.strip().lower()
    name = text if _is_address(text) else _host_name(text)
    if name is None or not _HOST_NAME.fullmatch(name):
        raise bad_request("invalid_setting", f"--allowed-host has {allowed[:100]!r}.", "Name a host alone, as gateway.example.")
    return name


def _host_name(host: str) -> str | None:
    """The name in a Host header without its port; None for anything malformed."""
    try:
        parts = urlsplit(f"//{host.strip()}")
        _ = parts.port
    except ValueError:
        return None
    if parts.path or parts.query or parts.fragment or "@" in parts.netloc or not parts.hostname:
        return None
    return parts.hostname


def _authority(origin: str) -> str | None:
    """host:port of an Origin; None for `null` and for schemes that are not the web's."""
    try:
        parts = urlsplit(origin.strip().lower())
    except ValueError:
        return None
    return parts.netloc if parts.scheme in ("http", "https") and not parts.path else None


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _foreign_page() -> GnomonError:
    return GnomonError(
        403,
        "foreign_origin",
        "A page of another site may not use this gateway's control routes.",
        "Call it with gnomon, faas-cli or curl, or from a page that this gateway served.",
    )

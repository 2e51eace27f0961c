"""The table of all routes with the credentials that they require, for the guard of the control routes and for tests.

A name in braces is one segment; with `…` after it, all segments below. A path that is not in the table does not exist; a route
that is not `OPEN` needs credentials if the gateway has any. `HMAC` routes check a signature of their own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum


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

    def matches(self, path: str) -> bool:
        """Whether a request path is this route's."""
        return re.fullmatch(_expression(self.path), path) is not None


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
    Route("/system/secrets", ("GET", "POST", "PUT", "DELETE"), Access.AUTH),
    Route("/system/logs", ("GET",), Access.AUTH),
    Route("/gnomon/functions/{name}", ("GET",), Access.AUTH),
    Route("/gnomon/functions/{name}/decisions", ("GET",), Access.AUTH),
    Route("/gnomon/policies", ("GET",), Access.AUTH),
    Route("/build", ("POST",), Access.HMAC),
)


def find(path: str) -> Iterator[Route]:
    """The routes whose pattern fits this path."""
    return (route for route in ROUTES if route.matches(path))


def access(path: str, method: str) -> Access | None:
    """The access rule of this path and method; None where there is no such route. Unknown routes are never open."""
    return next((route.access for route in find(path) if method in route.methods), None)


def _expression(pattern: str) -> str:
    return "".join(_segment(part) for part in re.split(r"(\{\w+\}…?)", pattern))


def _segment(part: str) -> str:
    if part.endswith("…"):
        return ".*"
    return "[^/]+" if part.startswith("{") else re.escape(part)

"""Who may call what: every route of the gateway in one table, which the guard reads and tests walk.

A path or method that is not in the table is a control route: closed unless it is opened here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum


class Access(StrEnum):
    """What a caller must bring."""

    OPEN = "open"
    """Nothing: inference and health."""
    SIGNED = "signed"
    """The builder's HMAC over the body, which its handler checks."""
    CONTROL = "control"
    """Credentials where authentication is on, our own Host, and no foreign Origin."""


@dataclass(frozen=True, slots=True)
class Route:
    """A path, its methods, and who may use them. `{name}` is one segment, `{rest:path}` any number of them."""

    pattern: str
    methods: tuple[str, ...]
    access: Access


ANY_METHOD = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")

ROUTES: tuple[Route, ...] = (
    Route("/function/{name}", ANY_METHOD, Access.OPEN),
    Route("/function/{name}/{rest:path}", ANY_METHOD, Access.OPEN),
    Route("/async-function/{name}", ("POST",), Access.OPEN),
    Route("/async-function/{name}/{rest:path}", ("POST",), Access.OPEN),
    Route("/v2", ("GET",), Access.OPEN),
    Route("/v2/health/live", ("GET",), Access.OPEN),
    Route("/v2/health/ready", ("GET",), Access.OPEN),
    Route("/v2/models/{name}", ("GET",), Access.OPEN),
    Route("/v2/models/{name}/ready", ("GET",), Access.OPEN),
    Route("/v2/models/{name}/infer", ("POST",), Access.OPEN),
    Route("/v2/models/{name}/versions/{version}", ("GET",), Access.OPEN),
    Route("/v2/models/{name}/versions/{version}/ready", ("GET",), Access.OPEN),
    Route("/v2/models/{name}/versions/{version}/infer", ("POST",), Access.OPEN),
    Route("/healthz", ("GET", "HEAD"), Access.OPEN),
    Route("/metrics", ("GET", "HEAD"), Access.OPEN),
    Route("/build", ("POST",), Access.SIGNED),
    Route("/system/functions", ("GET", "POST", "PUT", "DELETE"), Access.CONTROL),
    Route("/system/function/{name}", ("GET",), Access.CONTROL),
    Route("/system/scale-function/{name}", ("POST",), Access.CONTROL),
    Route("/system/info", ("GET",), Access.CONTROL),
    Route("/system/namespaces", ("GET",), Access.CONTROL),
    Route("/system/namespace/", ("POST",), Access.CONTROL),
    Route("/system/namespace/{name}", ("GET", "POST", "PUT", "DELETE"), Access.CONTROL),
    Route("/system/secrets", ("GET", "POST", "PUT", "DELETE"), Access.CONTROL),
    Route("/system/logs", ("GET",), Access.CONTROL),
    Route("/gnomon/functions/{name}/decisions", ("GET",), Access.CONTROL),
    Route("/gnomon/policies", ("GET",), Access.CONTROL),
)


def find_route(path: str) -> Route | None:
    """The route of a path, whatever the method."""
    return next((route for expression, route in _COMPILED if expression.fullmatch(path)), None)


def access_of(method: str, path: str) -> Access:
    """What a request must bring; control, if the table does not know it."""
    route = find_route(path)
    return route.access if route is not None and method in route.methods else Access.CONTROL


def _expression(pattern: str) -> re.Pattern[str]:
    text = re.escape(pattern).replace(r"\{rest:path\}", ".*")
    return re.compile(re.sub(r"\\\{[a-z]+\\\}", "[^/]+", text), re.DOTALL)


_COMPILED = tuple((_expression(route.pattern), route) for route in ROUTES)

"""The context of the control routes: everything that they may use, in one value that the composition root makes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from starlette.requests import Request
from starlette.responses import Response

from gnomon_core.errors import GnomonError, not_found
from gnomon_core.functions import FunctionKey
from gnomon_gateway.api.namespaces import Namespaces
from gnomon_gateway.api.secrets import Secrets
from gnomon_gateway.logs import LogBook, LogReader
from gnomon_gateway.service import FunctionService
from gnomon_gateway.version import Version

Handler: TypeAlias = Callable[[Request], Awaitable[Response]]
Handlers: TypeAlias = Mapping[str, Mapping[str, Handler]]
"""Path → method → handler."""


@dataclass(frozen=True, slots=True)
class Control:
    """The parts behind the control routes.

    `metrics` renders the Prometheus page; `healthy` is False while the gateway cannot take requests; `now_s` is a clock that
    never goes back. `kept_logs` reads instances' logs that the platform stores, None where `logs` hold them. `behind` says that a
    stock OpenFaaS gateway is in front, whose provider this gateway is; `provided` says that a provider behind this gateway counts
    replicas, and gets every requested number.
    """

    functions: FunctionService
    namespaces: Namespaces
    secrets: Secrets
    logs: LogBook
    metrics: Callable[[], Awaitable[bytes]]
    version: Version
    now_s: Callable[[], float]
    healthy: Callable[[], bool] = lambda: True
    orchestration: str = "local"
    kept_logs: LogReader | None = None
    behind: bool = False
    provided: bool = False


def unknown_function(key: FunctionKey) -> GnomonError:
    """404 for a function that is not deployed."""
    return not_found(
        "function_not_found", f"There is no function {str(key)[:200]!r}.", "List them with `gnomon list`, or deploy it first."
    )

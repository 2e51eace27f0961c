"""The parts behind the control routes, and the routes of the gateway itself: version, health and metrics."""

from __future__ import annotations

import platform
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from gnomon_core.errors import GnomonError
from gnomon_gateway.api.namespaces import Namespaces
from gnomon_gateway.api.requests import Handlers
from gnomon_gateway.api.secrets import Secrets
from gnomon_gateway.applications.service import Applications
from gnomon_gateway.functions.logs import LogBook, LogReader
from gnomon_gateway.functions.service import FunctionService

UNKNOWN = "unknown"
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
WELCOME = """\
Gnomon {release} serves functions here.

  POST /function/NAME               call a function
  POST /async-function/NAME         call it later; the answer goes to X-Callback-Url
  GET  /v2/models/NAME              what a model takes and answers (open inference protocol)
  POST /v2/models/NAME/infer        tensors in, tensors out
  GET  /system/functions            what is deployed (OpenFaaS's API: faas-cli and gnomon are its clients)
  GET  /system/applications         applications, whose queries name a goal instead of a model
  GET  /gnomon/functions/NAME       a function with its instances, and why it was scaled: …/decisions
  GET  /gnomon/models               the model repository: gnomon models list, show and add with -g
  GET  /healthz, /metrics           for probes and Prometheus

List the functions with `gnomon list` or `faas-cli list`; deploy with `gnomon deploy -f stack.yml`.
"""


@dataclass(frozen=True, slots=True)
class Version:
    """A release and the commit that it was made from; neither is ever empty."""

    release: str
    sha: str


@dataclass(frozen=True, slots=True)
class Control:
    """The parts behind the control routes.

    `metrics` renders the Prometheus page; `healthy` is False while the gateway cannot take requests; `now_s` is a clock that
    never goes back. `kept_logs` reads instances' logs that the platform stores, None where `logs` hold them. `applications` is
    None on a platform that has none. `behind` says that a stock OpenFaaS gateway is in front, whose provider this gateway is;
    `provided` says that a provider behind this gateway counts replicas, and gets every requested number.
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
    applications: Applications | None = None
    behind: bool = False
    provided: bool = False


class SystemRoutes:
    """The handlers of the gateway itself."""

    def __init__(self, control: Control) -> None:
        self._control = control

    def handlers(self) -> Handlers:
        return {
            "/": {"GET": self.welcome, "HEAD": self.welcome},
            "/system/info": {"GET": self.info},
            "/healthz": {"GET": self.health, "HEAD": self.health},
            "/metrics": {"GET": self.metrics, "HEAD": self.metrics},
        }

    async def welcome(self, _: Request) -> Response:
        """The page for a browser or a first curl: a list of the main routes."""
        return PlainTextResponse(WELCOME.format(release=self._control.version.release))

    async def info(self, _: Request) -> Response:
        """Version information in the form of OpenFaaS's gateway; behind a stock gateway, in the form of a provider."""
        version = {
            "release": self._control.version.release,
            "sha": self._control.version.sha,
            "commit_message": f"gnomon {self._control.version.release}",
        }
        provider = {"name": "gnomon", "provider": "gnomon", "version": version, "orchestration": self._control.orchestration}
        if self._control.behind:
            return JSONResponse(provider)
        return JSONResponse({"provider": provider, "version": version, "arch": platform.machine()})

    async def health(self, _: Request) -> Response:
        if not self._control.healthy():
            raise GnomonError(503, "not_healthy", "The gateway is starting or stopping.", "Try again.", retry_after_s=1)
        return PlainTextResponse("OK")

    async def metrics(self, _: Request) -> Response:
        return Response(await self._control.metrics(), headers={"Content-Type": METRICS_TYPE})


def this_version() -> Version:
    """The version that is running."""
    try:
        release = version("gnomon")
    except PackageNotFoundError:
        release = UNKNOWN
    return Version(release, _commit(Path(__file__).resolve().parents[2]) or UNKNOWN)


def _commit(root: Path) -> str:
    """The commit of a source tree, read from its files so that no git need be installed; "" where there is none."""
    git = root / ".git"
    try:
        head = (git / "HEAD").read_text(encoding="ascii").strip()
        reference = head.removeprefix("ref: ")
        if reference == head:
            return head
        loose = git / reference
        if loose.is_file():
            return loose.read_text(encoding="ascii").strip()
        packed = (git / "packed-refs").read_text(encoding="ascii").splitlines()
    except (OSError, ValueError):
        return ""
    return next((line.split()[0] for line in packed if line.endswith(f" {reference}")), "")

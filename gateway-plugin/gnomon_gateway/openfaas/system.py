"""`/system/info`, `/healthz` and `/metrics`: who we are, whether we serve, and what we counted."""

from __future__ import annotations

import platform

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from gnomon_core.errors import GnomonError
from gnomon_gateway.openfaas.control import Control, Handlers

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


WELCOME = """\
Gnomon {release} serves functions here.

  POST /function/NAME               call a function
  POST /async-function/NAME         call it later; the answer goes to X-Callback-Url
  GET  /v2/models/NAME              what a model takes and answers (open inference protocol)
  POST /v2/models/NAME/infer        tensors in, tensors out
  GET  /system/functions            what is deployed (OpenFaaS's API: faas-cli and gnomon are its clients)
  GET  /gnomon/functions/NAME       a function with its instances, and why it was scaled: …/decisions
  GET  /healthz, /metrics           for probes and Prometheus

List the functions with `gnomon list` or `faas-cli list`; deploy with `gnomon deploy -f stack.yml`.
"""


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
        """What a browser or a newcomer's curl meets first: where things are."""
        return PlainTextResponse(WELCOME.format(release=self._control.version.release))

    async def info(self, _: Request) -> Response:
        """The shape of OpenFaaS's gateway, which wraps what its provider says; or a provider's, where one wraps ours."""
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

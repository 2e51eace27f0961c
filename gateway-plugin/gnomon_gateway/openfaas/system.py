"""`/system/info`, `/healthz` and `/metrics`: who we are, whether we serve, and what we counted."""

from __future__ import annotations

import platform

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from gnomon_core.errors import GnomonError
from gnomon_gateway.openfaas.control import Control, Handlers

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class SystemRoutes:
    """The handlers of the gateway itself."""

    def __init__(self, control: Control) -> None:
        self._control = control

    def handlers(self) -> Handlers:
        return {
            "/system/info": {"GET": self.info},
            "/healthz": {"GET": self.health, "HEAD": self.health},
            "/metrics": {"GET": self.metrics, "HEAD": self.metrics},
        }

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

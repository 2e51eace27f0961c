"""The node's HTTP port, for the platform: who is there, what is wished for, what has become of it. JSON both ways, with a token.

    GET    /v1/state?incarnation=I&version=V&wait_s=S    the state; where it is the one that was seen, when it is not any more
                    &epoch=E   asked by the leader of this epoch: from here on nobody older is obeyed, or answered
    PUT    /v1/shadows/ID      {"epoch", "pod_uid", "function", "program", "weights", "layers", "weight_mode", "max_batch",
                                "memory_bytes", "cores", "blocks", "split", "expected_ms"}     a Shadow for the Body in that pod
                                with "afar" that pod is on another node: the state then has a "token" with which its Body comes to
                                the Shadow, at the node's "pair_port"; with "url" and "token" the Shadow is on another node, and
                                the Body in that pod is told to go there
    PATCH  /v1/shadows/ID      {"epoch", "memory_bytes", "cores", "blocks", "split", "expected_ms"}
    DELETE /v1/shadows/ID?epoch=E       end it; forget it where it has gone
    GET    /healthz            open: this process answers
    GET    /metrics            open: the state as numbers, for Prometheus

Errors are those of every other part of Gnomon: a status, a stable code, what to do.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from aiohttp import web

from gnomon_coordinator import protocol
from gnomon_coordinator.node import metrics
from gnomon_coordinator.node.pod_sockets import Epochs, News
from gnomon_coordinator.node.shadows import Shadows
from gnomon_coordinator.node.wishes import Wish
from gnomon_coordinator.protocol import BadMessageError
from gnomon_core.errors import GnomonError

MAX_WAIT_S = 60.0
MAX_BODY_BYTES = 1 << 20
OPEN = ("/healthz", "/metrics")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Control:
    """The routes. `state` describes the node as it is now."""

    def __init__(
        self, shadows: Shadows, news: News, epochs: Epochs, state: Callable[[], Mapping[str, Any]], token: str | None
    ) -> None:
        self._shadows = shadows
        self._news = news
        self._epochs = epochs
        self._state = state
        self._token = token

    def application(self) -> web.Application:
        """Everything but what is `OPEN` needs the token, where there is one."""

        @web.middleware
        async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
            try:
                if request.path not in OPEN:
                    self._authorize(request.headers.get("Authorization", ""))
                return await handler(request)
            except GnomonError as error:
                return web.Response(body=error.body(), status=error.status, headers=dict(error.headers()))
            except BadMessageError as error:
                refusal = GnomonError(400, "bad_request", f"This cannot be read: {error}.")
                return web.Response(body=refusal.body(), status=400, headers=dict(refusal.headers()))

        app = web.Application(middlewares=[guarded], client_max_size=MAX_BODY_BYTES)
        app.router.add_get("/healthz", _healthz)
        app.router.add_get("/metrics", self._measure)
        app.router.add_get("/v1/state", self._tell)
        app.router.add_put("/v1/shadows/{id}", self._create)
        app.router.add_patch("/v1/shadows/{id}", self._change)
        app.router.add_delete("/v1/shadows/{id}", self._destroy)
        return app

    def _authorize(self, header: str) -> None:
        if self._token is not None and not hmac.compare_digest(
            header.encode("utf-8", "surrogateescape"), f"Bearer {self._token}".encode()
        ):
            raise GnomonError(401, "bad_token", "This is for Gnomon's controller.", "Send its token.")

    async def _tell(self, request: web.Request) -> web.Response:
        seen = request.query.get("incarnation", ""), _whole(request.query.get("version", "0"))
        wait_s = min(MAX_WAIT_S, float(_whole(request.query.get("wait_s", "0"))))
        epoch = request.query.get("epoch")
        if epoch is not None:
            # What a new leader goes on from is all that was obeyed before it: an older one's wish is refused from here on.
            self._epochs.obey(_whole(epoch))
        await self._news.later_than(*seen, wait_s)
        if epoch is not None:
            self._epochs.obey(_whole(epoch))
        return web.json_response({"incarnation": self._news.incarnation, "version": self._news.version, **self._state()})

    async def _measure(self, _request: web.Request) -> web.Response:
        return web.Response(text=metrics.page(self._state()), headers={"Content-Type": metrics.CONTENT_TYPE})

    async def _create(self, request: web.Request) -> web.Response:
        document = await self._document(request)
        row = self._shadows.create(Wish.read(request.match_info["id"], document)).row()
        # A state that is older than this one does not know of it.
        return web.json_response({**row, "incarnation": self._news.incarnation, "version": self._news.version})

    async def _change(self, request: web.Request) -> web.Response:
        document = await self._document(request)
        self._shadows.change(request.match_info["id"], document)
        return web.json_response({})

    async def _destroy(self, request: web.Request) -> web.Response:
        self._epochs.obey(_whole(request.query.get("epoch", "")))
        self._shadows.destroy(request.match_info["id"])
        return web.json_response({})

    async def _document(self, request: web.Request) -> dict[str, Any]:
        try:
            document = json.loads(await request.read())
        except (ValueError, RecursionError):
            raise BadMessageError("it is not JSON") from None
        if not isinstance(document, dict):
            raise BadMessageError("it is no object")
        self._epochs.obey(protocol.read_integer(document, "epoch", 0, protocol.MAX_BYTES))
        return document


async def _healthz(_request: web.Request) -> web.Response:
    return web.Response(text="ok\n")


def _whole(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or len(text) > len(str(protocol.MAX_BYTES)):
        raise BadMessageError(f"{text[:40]!r} is no whole number")
    return int(text)

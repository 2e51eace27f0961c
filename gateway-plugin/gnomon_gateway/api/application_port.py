"""An application at a port of its own, as the container of a function has it: no other route of the gateway is there.

    /_/health, /_/ready    200, or 503 while the process ends; ready once all variants are measured: before, a query could be
                           refused that one of them satisfies
    /v2…                   the open inference protocol (v2/)
    POST /gnomon/batch     queries that a gateway of ours in front sends together (`BatchRoute`)
    everything else        a query, as at /function/{application}

A gateway or ingress in front takes the container for any function of OpenFaaS or Knative: it calls `/`, and asks for health and
readiness. SIGTERM comes while it still sends requests: they are answered, each on a connection that closes then, until none has
come for half a second.

    BATCH frame ─▶ each member is a query of its own, with its own variant, queue and batch ─▶ RESULT frame, once all are answered

`POST /gnomon/batch` is that of a Body's image (`gnomon_runtime.http_app`), with its token and its epochs: a batch of an older
epoch than was seen is not run. Answers do not stream.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from gnomon_core.background import Background
from gnomon_core.errors import GnomonError
from gnomon_core.functions import FunctionKey
from gnomon_core.launch import check_batch_token
from gnomon_core.wire import Frame, Kind, Member, encode, read_batch, stale_result
from gnomon_gateway.api.invocation import FUNCTION_PREFIX, GatewayApp
from gnomon_gateway.asynchronous.calls import FunctionAnswer, Invocation, Invoke
from gnomon_gateway.http.exchange import Exchange
from gnomon_gateway.http.server import GatewayServer
from gnomon_gateway.v2.routes import PREFIX as V2_PREFIX

BATCH_PATH = b"/gnomon/batch"
MAX_BYTES = 256 << 20
"""The largest batch, as a Body's image takes it."""
_FRAME = b"content-type: application/octet-stream\r\n"


class ApplicationPort:
    """Listens at `port` on all addresses for the application `key` of a gateway.

    `batches` answers `/gnomon/batch`. From the first time that `ready` returns True, the container is ready until it ends.
    """

    prefixes = (b"/",)

    def __init__(self, app: GatewayApp, key: FunctionKey, batches: BatchRoute, ready: Callable[[], bool], port: int) -> None:
        self._app, self._batches, self._settled = app, batches, ready
        self._function = FUNCTION_PREFIX + str(key).encode()
        self._server = GatewayServer(self, HOST, port)
        self._been_ready = self._ending = False
        self._last_s = 0.0

    @property
    def port(self) -> int:
        return self._server.port

    async def start(self) -> None:
        """Listen.

        Raises:
            GnomonError: 503 `port_in_use` or `cannot_listen`.

        """
        await self._server.start()

    async def stop(self) -> None:
        """Be not ready, answer what still comes, and stop listening."""
        loop = asyncio.get_running_loop()
        self._ending = True
        self._last_s = begin_s = loop.time()
        self._server.announce_end()
        while loop.time() < min(self._last_s + QUIET_S, begin_s + LATEST_S):  # noqa: ASYNC110 - an event would cost each request
            await asyncio.sleep(_LOOK_S)
        await self._server.stop()

    def begin(self, exchange: Exchange) -> None:
        """Begin a request, whose headers have been received."""
        path = exchange.path
        if path in (HEALTH, READY):
            self._probe(exchange, ready=path == HEALTH or self._ready())
            return
        self._last_s = asyncio.get_running_loop().time()
        if path == BATCH_PATH:
            self._batches.begin(exchange)
            return
        if path != V2_PREFIX and not path.startswith(V2_PREFIX + b"/"):
            exchange.path = self._function + path
        self._app.begin(exchange)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Refuse what is no path: `OPTIONS *`."""
        del scope, receive
        await send({"type": "http.response.start", "status": 404, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    def _ready(self) -> bool:
        self._been_ready = self._been_ready or self._settled()
        return self._been_ready

    def _probe(self, exchange: Exchange, *, ready: bool) -> None:
        if self._ending:
            exchange.respond(503, _TEXT, b"draining\n")
        else:
            exchange.respond(*((200, _TEXT, b"ok\n") if ready else (503, _TEXT, b"starting\n")))


class BatchRoute:
    """Calls the function `key` for each member of a batch. `token` is the image's; without one the route takes no batches."""

    def __init__(self, invoke: Invoke, key: FunctionKey, token: str | None) -> None:
        self._invoke, self._key, self._token = invoke, key, token
        self._newest = 0
        self._background = Background()

    def begin(self, exchange: Exchange) -> None:
        """Begin a request to this route."""
        header = next((value for name, value in exchange.headers if name == b"authorization"), b"")
        if exchange.method != b"POST":
            exchange.fail(GnomonError(405, "method_not_allowed", "This path does not support this method.", "Use POST."))
            return
        try:
            check_batch_token(self._token, header.decode("latin-1"))
        except GnomonError as error:
            exchange.fail(error)
            return
        exchange.accept(_Received(exchange, self), MAX_BYTES)

    def run(self, exchange: Exchange, body: bytes | memoryview) -> asyncio.Task[None]:
        """Answer the batch in a request's body."""
        return self._background.begin(self._run(exchange, body))

    async def _run(self, exchange: Exchange, body: bytes | memoryview) -> None:
        try:
            batch = read_batch(body)
        except GnomonError as error:
            exchange.fail(error)
            return
        self._newest = max(self._newest, batch.epoch)
        if batch.epoch < self._newest:
            result = stale_result(batch, self._newest)
        else:
            members = await asyncio.gather(*(self._member(member, batch.budget_s) for member in batch.members))
            result = Frame(Kind.RESULT, batch.batch_id, members=members)
        exchange.respond(HTTPStatus.OK, _FRAME, encode(result))

    async def _member(self, member: Member, budget_s: float) -> Member:
        method, path, query, *lines = member.meta.decode("latin-1").split("\n")
        headers = tuple((name, value) for name, separator, value in (line.partition(": ") for line in lines) if separator)
        deadline_s = budget_s if budget_s > 0 else None
        call = Invocation(self._key, method, path, query, headers, bytes(member.body), deadline_s)
        return _result(await self._invoke(call))


def _result(answer: FunctionAnswer) -> Member:
    meta = "\n".join(f"{name}: {value}" for name, value in answer.headers).encode("latin-1", "replace")
    return Member(answer.status, 1, meta, answer.body)


class _Received:
    """The owner of a batch's exchange: a caller that leaves gets no answer, and its queries are withdrawn."""

    __slots__ = ("_exchange", "_route", "_task")

    def __init__(self, exchange: Exchange, route: BatchRoute) -> None:
        self._exchange, self._route = exchange, route
        self._task: asyncio.Task[None] | None = None

    def received(self, body: bytes | memoryview) -> None:
        self._task = self._route.run(self._exchange, body)

    def left(self) -> None:
        if self._task is not None:
            self._task.cancel()


HOST = "0.0.0.0"  # noqa: S104 - every client that reaches the container may call it
HEALTH, READY = b"/_/health", b"/_/ready"
QUIET_S = 0.5
"""A container stops to listen once no request has come for so long."""
LATEST_S = 15.0
"""The longest wait for that: half of the time in which a pod must end."""
_LOOK_S = 0.02
_TEXT = b"content-type: text/plain\r\n"

"""`POST /gnomon/batch` of an application's container: a gateway of ours in front sends a function's requests as batches.

    BATCH frame ─▶ each member is a query of its own, with its own variant, queue and batch ─▶ RESULT frame, once all are answered

The route is that of a Body's image (`gnomon_runtime.http_app`), with its token and its epochs: a batch of an older epoch than was
seen is not run. Answers do not stream.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus

from gnomon_core.background import Background
from gnomon_core.errors import GnomonError
from gnomon_core.functions import FunctionKey
from gnomon_core.launch import check_batch_token
from gnomon_core.wire import Frame, Kind, Member, encode, read_batch, stale_result
from gnomon_gateway.asynchronous.calls import FunctionAnswer, Invocation, Invoke
from gnomon_gateway.http.exchange import Exchange

PATH = b"/gnomon/batch"
MAX_BYTES = 256 << 20
"""The largest batch, as a Body's image takes it."""
_FRAME = b"content-type: application/octet-stream\r\n"


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

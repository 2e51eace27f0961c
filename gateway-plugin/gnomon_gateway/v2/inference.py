"""An infer request in flight: owner of the exchange, responder of the request, answering as V2 does."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from gnomon_core.errors import GnomonError
from gnomon_core.signature import ModelSignature
from gnomon_core.wire import Frame, Member
from gnomon_gateway.dispatch.dispatcher import QUEUE_MOVED
from gnomon_gateway.functions.function_runtime import FunctionRuntime
from gnomon_gateway.http.exchange import Exchange
from gnomon_gateway.http.headers import DEADLINE_HEADER, call_id_of, lines_of, read_deadline_s
from gnomon_gateway.queueing.queue import Request
from gnomon_gateway.v2 import messages as answers
from gnomon_gateway.v2.messages import Infer
from gnomon_gateway.v2.reading import Reading
from gnomon_gateway.v2.splitting import MakeRequest, most_samples, submit

_T = TypeVar("_T")


class Inference:
    """An infer request to a model's function."""

    __slots__ = (
        "_began_ns",
        "_began_s",
        "_call_id",
        "_exchange",
        "_headers",
        "_infer",
        "_reading",
        "_requests",
        "_runtime",
        "_signature",
        "_work",
    )

    def __init__(self, exchange: Exchange, runtime: FunctionRuntime, signature: ModelSignature, max_body_bytes: int) -> None:
        self._began_s = exchange.arrived_s
        self._began_ns = time.time_ns()
        self._exchange = exchange
        self._runtime = runtime
        self._signature = signature
        self._headers = dict(exchange.headers)
        self._reading = Reading(signature, self._headers, most_samples(signature, runtime.settings.max_batch), max_body_bytes)
        self._call_id = call_id_of(self._headers)
        self._infer: Infer | None = None
        self._requests: list[Request] = []
        self._work: Future[Any] | None = None

    def begin(self) -> None:
        """Refuse a body that is too large by its headers, or receive it."""
        try:
            self._reading.bound(int(self._headers.get(b"content-length", b"0")))
        except GnomonError as error:
            self._refuse_unsubmitted(error)
        else:
            self._exchange.accept(self, self._reading.most_bytes)

    # Owner of the exchange

    def received(self, body: bytes | memoryview) -> None:
        try:
            unpacking = self._reading.unpack(body)
        except GnomonError as error:
            self._refuse_unsubmitted(error)
            return
        if unpacking is None:
            self._submit(body)
        else:
            self._then(unpacking, self._was_unpacked)

    def _then(self, work: Future[_T], go_on: Callable[[Future[_T]], None]) -> None:
        """Call `go_on` with the result of work in a thread or process, unless the client has disconnected by then."""
        loop = asyncio.get_running_loop()
        self._work = work

        def come_back(done: Future[_T]) -> None:
            # The future refers to its callback, and thereby to this object. If this object kept the future, the cycle with a
            # result of up to 64 MiB would wait for the garbage collector.
            self._work = None
            if not self._exchange.disconnected:
                try:
                    go_on(done)
                except Exception:  # noqa: BLE001 - whatever it is, the client waits
                    self._exchange.break_off()

        work.add_done_callback(lambda done: loop.call_soon_threadsafe(come_back, done))

    def _was_unpacked(self, future: Future[bytes]) -> None:
        try:
            body = future.result()
            self._reading.bound(len(body))
        except GnomonError as error:
            self._refuse_unsubmitted(error)
        else:
            self._submit(body)

    def _submit(self, body: bytes | memoryview) -> None:
        try:
            infer = self._reading.read(body)
            if isinstance(infer, Future):
                self._then(infer, self._was_read)
            else:
                self._let_in(infer)
        except GnomonError as error:
            self._refuse_unsubmitted(error)

    def _was_read(self, future: Future[Infer]) -> None:
        try:
            self._let_in(future.result())
        except GnomonError as error:
            self._refuse_unsubmitted(error)

    def _let_in(self, infer: Infer) -> None:
        self._infer = infer
        self._requests = submit(self._runtime, self._signature, infer, self._request_with(), self)

    def left(self) -> None:
        if self._work is not None:
            self._work.cancel()
        for request in self._requests:
            if request.responder is not None:
                self._runtime.left(request)

    # Responder of the request

    def answer(self, member: Member, head: bytes) -> None:
        del head
        assert self._infer is not None
        self._respond(*answers.answer(self._infer, self._signature, self._runtime.key.name, member))

    def refuse(self, error: GnomonError) -> None:
        if error.code == QUEUE_MOVED and self._exchange.move_on():
            return
        self._respond(*answers.refusal(error))

    def stream(self, frame: Frame) -> None:
        """Do nothing: models do not stream, and the request did not allow it."""

    def broken(self) -> None:
        self._exchange.abort()

    # Ours

    def _request_with(self) -> MakeRequest:
        budget_s = self._runtime.settings.deadline_s
        asked = self._headers.get(DEADLINE_HEADER)
        if asked is not None:
            budget_s = min(budget_s, read_deadline_s(asked))
        lane, arrived_s, deadline_s = self._runtime.tensor_lane, time.monotonic(), self._began_s + budget_s
        return lambda samples, body, responder: Request(
            lane,
            arrived_s,
            deadline_s,
            size=samples,
            body=body,
            responder=responder,
            client=self._exchange,
            replay_safe=True,
        )

    def _refuse_unsubmitted(self, error: GnomonError) -> None:
        self._runtime.metrics.started += 1
        self._runtime.metrics.refused(error, time.monotonic() - self._began_s)
        self.refuse(error)

    def _respond(self, status: int, lines: bytes, body: bytes | memoryview) -> None:
        self._exchange.respond(status, lines + self._own_lines(), body)

    def _own_lines(self) -> bytes:
        return lines_of(self._call_id, self._began_ns, self._began_s)

"""An infer request in flight: it owns the HTTP exchange, and answers in the format of the Open Inference Protocol (V2).

A request of more samples than a batch holds is split into requests of at most `gnomon/max-batch` samples, whose answers are
joined:

    5 samples, max-batch 2 ─▶ 2 │ 2 │ 1 ─▶ one answer of 5 samples, or the first failure of any part

The parts are requests like all others: they are admitted, batched with those of other clients and executed on any instance. The
first failure is the response; the other parts are then withdrawn, because their results would not be used.

A request to an application is parsed like one to a model. Its constraints then choose the member function that gets the request.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from http import HTTPStatus
from typing import Any, Protocol, TypeVar

from gnomon_core.errors import GnomonError
from gnomon_core.functions import FunctionKey
from gnomon_core.settings import Settings
from gnomon_core.signature import ModelSignature, TensorSpec
from gnomon_core.wire import Frame, Member
from gnomon_gateway.applications.application import Application, refusal_lines
from gnomon_gateway.applications.queries import read_constraints
from gnomon_gateway.dispatch.dispatcher import QUEUE_MOVED
from gnomon_gateway.functions.function_runtime import FunctionRuntime
from gnomon_gateway.http.exchange import Exchange
from gnomon_gateway.http.headers import DEADLINE_HEADER, call_id_of, lines_of, read_deadline_s
from gnomon_gateway.metrics import FunctionMetrics
from gnomon_gateway.queueing.queue import Request, Responder
from gnomon_gateway.v2 import messages
from gnomon_gateway.v2.messages import Infer
from gnomon_gateway.v2.reading import BodyReader

_T = TypeVar("_T")


class Endpoint(Protocol):
    """The target of an infer request: a model's function or an application."""

    @property
    def key(self) -> FunctionKey: ...

    @property
    def settings(self) -> Settings: ...

    @property
    def metrics(self) -> FunctionMetrics: ...


class Inference:
    """An infer request to a model's function."""

    __slots__ = (
        "_began_ns",
        "_began_s",
        "_body_reader",
        "_call_id",
        "_choice_lines",
        "_endpoint",
        "_exchange",
        "_headers",
        "_infer",
        "_max_body_bytes",
        "_requests",
        "_runtime",
        "_signature",
        "_work",
    )

    def __init__(self, exchange: Exchange, endpoint: Endpoint, signature: ModelSignature, max_body_bytes: int) -> None:
        self._began_s = exchange.arrived_s
        self._began_ns = time.time_ns()
        self._exchange = exchange
        self._endpoint = endpoint
        self._runtime: FunctionRuntime | None = None
        self._signature = signature
        self._headers = dict(exchange.headers)
        self._choice_lines = b""
        """Header lines that say which member function an application chose."""
        self._max_body_bytes = max_body_bytes
        self._body_reader = self._new_body_reader()
        self._call_id = call_id_of(self._headers)
        self._infer: Infer | None = None
        self._requests: list[Request] = []
        self._work: Future[Any] | None = None

    def begin(self) -> None:
        """Receive the body, or refuse it at once if its Content-Length is too large."""
        try:
            self._body_reader.check_size(int(self._headers.get(b"content-length", b"0")))
        except GnomonError as error:
            self._refuse_unsubmitted(error)
        else:
            self._exchange.accept(self, self._body_reader.most_bytes)

    # Owner of the exchange

    def received(self, body: bytes | memoryview) -> None:
        self._follow_update()
        try:
            decompressed = self._body_reader.decompress(body)
        except GnomonError as error:
            self._refuse_unsubmitted(error)
            return
        if decompressed is None:
            self._parse(body)
        else:
            self._when_done(decompressed, self._decompressed)

    def _follow_update(self) -> None:
        """Check the body against the model that the function has now, if it was updated since the headers came."""
        latest = self._endpoint
        while isinstance(latest, FunctionRuntime) and latest.successor is not None:
            latest = latest.successor
        if isinstance(latest, FunctionRuntime) and latest is not self._endpoint and latest.signature is not None:
            self._endpoint, self._signature = latest, latest.signature
            self._body_reader = self._new_body_reader()

    def _new_body_reader(self) -> BodyReader:
        most = most_samples(self._signature, self._endpoint.settings.max_batch)
        return BodyReader(self._signature, self._headers, most, self._max_body_bytes)

    def _when_done(self, work: Future[_T], resume: Callable[[Future[_T]], None]) -> None:
        """Call `resume` with the result of work in a thread or process, unless the client has disconnected by then."""
        loop = asyncio.get_running_loop()
        self._work = work

        def continue_on_loop(done: Future[_T]) -> None:
            # The future refers to its callback, and thereby to this object. If this object kept the future, the cycle with a
            # result of up to 64 MiB would wait for the garbage collector.
            self._work = None
            if not self._exchange.disconnected:
                try:
                    resume(done)
                except Exception:  # noqa: BLE001 - whatever it is, the client waits
                    self._exchange.respond_internal_error()

        work.add_done_callback(lambda done: loop.call_soon_threadsafe(continue_on_loop, done))

    def _decompressed(self, future: Future[bytes]) -> None:
        try:
            body = future.result()
            self._body_reader.check_size(len(body))
        except GnomonError as error:
            self._refuse_unsubmitted(error)
        else:
            self._parse(body)

    def _parse(self, body: bytes | memoryview) -> None:
        try:
            infer = self._body_reader.parse(body)
            if isinstance(infer, Future):
                self._when_done(infer, self._parsed)
            else:
                self._submit_infer(infer)
        except GnomonError as error:
            self._refuse_unsubmitted(error)

    def _parsed(self, future: Future[Infer]) -> None:
        try:
            self._submit_infer(future.result())
        except GnomonError as error:
            self._refuse_unsubmitted(error)

    def _function(self, infer: Infer) -> FunctionRuntime:
        """The function that answers the parsed request.

        Raises:
            GnomonError: no function can answer it.

        """
        del infer  # only an application chooses by the request
        assert isinstance(self._endpoint, FunctionRuntime)
        return self._endpoint

    def _submit_infer(self, infer: Infer) -> None:
        runtime = self._runtime = self._function(infer)
        self._infer = infer
        self._requests = submit(runtime, self._signature, infer, self._request_factory(runtime), self)

    def left(self) -> None:
        if self._work is not None:
            self._work.cancel()
        for request in self._requests:
            if request.responder is not None and self._runtime is not None:
                self._runtime.left(request)

    # Responder of the request

    def answer(self, member: Member, head: bytes) -> None:
        del head
        assert self._infer is not None
        self._respond(*messages.answer(self._infer, self._signature, self._endpoint.key.name, member))

    def refuse(self, error: GnomonError) -> None:
        if error.code == QUEUE_MOVED and self._exchange.hand_over():
            return
        self._respond(*messages.refusal(error))

    def stream(self, frame: Frame) -> None:
        """Do nothing: models do not stream, and the request did not allow it."""

    def broken(self) -> None:
        self._exchange.abort()

    def _request_factory(self, runtime: FunctionRuntime) -> RequestFactory:
        budget_s = runtime.settings.deadline_s
        header = self._headers.get(DEADLINE_HEADER)
        if header is not None:
            budget_s = min(budget_s, read_deadline_s(header))
        # The client has waited since the headers came; the request joins the queue after its body was received and parsed.
        lane, arrived_s, deadline_s = runtime.tensor_lane, time.monotonic(), self._began_s + budget_s

        def request(samples: int, body: bytes | memoryview, responder: Responder) -> Request:
            made = Request(lane, arrived_s, deadline_s, samples, b"", body, responder, self._exchange)
            made.replay_safe = True
            return made

        return request

    def _refuse_unsubmitted(self, error: GnomonError) -> None:
        self._endpoint.metrics.started += 1
        self._endpoint.metrics.refused(error, time.monotonic() - self._began_s)
        self.refuse(error)

    def _respond(self, status: int, lines: bytes, body: bytes | memoryview) -> None:
        lines += lines_of(self._call_id, self._began_ns, self._began_s) + self._choice_lines
        self._exchange.respond(status, lines, body)


class ApplicationInference(Inference):
    """An infer request to an application, whose constraints are in its headers or parameters."""

    __slots__ = ("_application",)

    def __init__(self, exchange: Exchange, application: Application, signature: ModelSignature, max_body_bytes: int) -> None:
        super().__init__(exchange, application, signature, max_body_bytes)
        self._application = application

    def _function(self, infer: Infer) -> FunctionRuntime:
        chosen = self._application.choose(read_constraints(self._headers, infer.parameters), infer.samples)
        self._choice_lines = chosen.lines
        runtime = chosen.member.runtime
        if runtime.signature is not None:
            self._signature = runtime.signature  # the same tensors, and the model's own version
        return runtime

    def refuse(self, error: GnomonError) -> None:
        self._choice_lines = refusal_lines(error) or self._choice_lines
        super().refuse(error)


MOST_SAMPLES, FEW_SAMPLES, MOST_BYTES = 256, 8, 8 << 20
"""Limits of a request that is larger than a batch: at most MOST_SAMPLES samples in MOST_BYTES bytes, but always FEW_SAMPLES. They
bound the cost of parsing a request."""

RequestFactory = Callable[[int, bytes | memoryview, Responder], Request]
"""Makes a request from its number of samples, its body, and the responder that gets the answer."""


def most_samples(signature: ModelSignature, max_batch: int) -> int:
    """The most samples that one request may have. A request that fits into a batch of `max_batch` is always allowed."""
    sample_bytes = max(1, sum(spec.sample_bytes for spec in signature.inputs))
    return max(max_batch, min(MOST_SAMPLES, max(FEW_SAMPLES, MOST_BYTES // sample_bytes)))


def submit(
    runtime: FunctionRuntime, signature: ModelSignature, infer: Infer, make: RequestFactory, responder: Responder
) -> list[Request]:
    """Submit an infer request in as many parts as needed; returns the parts. `responder` gets one answer."""
    max_batch = runtime.settings.max_batch
    if infer.samples <= max_batch:
        requests = [make(infer.samples, infer.body, responder)]
    else:
        requests = Split(runtime, signature.outputs, responder).parts_of(infer, signature.inputs, max_batch, make)
    for request in requests:
        runtime.submit(request)
    return requests


class Split:
    """Collects the answers to the parts of one request for its responder."""

    def __init__(self, runtime: FunctionRuntime, outputs: Sequence[TensorSpec], responder: Responder) -> None:
        self._runtime = runtime
        self._outputs = outputs
        self._responder: Responder | None = responder
        self._requests: list[Request] = []
        self._members: dict[int, Member] = {}

    def parts_of(self, infer: Infer, inputs: Sequence[TensorSpec], max_batch: int, make: RequestFactory) -> list[Request]:
        """The requests, in the order of their samples, that the infer request is split into."""
        bodies = split([spec.sample_bytes for spec in inputs], memoryview(infer.body), infer.samples, max_batch)
        self._requests = [make(samples, body, _Part(self, index)) for index, (samples, body) in enumerate(bodies)]
        return list(self._requests)

    def answered(self, index: int, member: Member) -> None:
        """Take the model's answer to a part. The responder gets the first failure, or all parts joined."""
        if self._responder is None:
            return
        if member.code != HTTPStatus.OK:
            self._end().answer(member, b"")
            return
        # A copy: a view would keep the whole frame, with the bodies of all its members, until the last part is answered.
        self._members[index] = member._replace(body=bytes(member.body))
        if len(self._members) < len(self._requests):
            return
        sizes = [request.size for request in self._requests]
        bodies = [self._members[part].body for part in range(len(sizes))]
        try:
            body = join([spec.sample_bytes for spec in self._outputs], bodies, sizes)
        except ValueError as error:
            self._end().refuse(GnomonError(502, "invalid_result", f"A part of the request was answered by {error}."))
            return
        self._end().answer(Member(HTTPStatus.OK, sum(sizes), member.meta, body), b"")

    def refused(self, error: GnomonError) -> None:
        """Refuse the whole request, because a part was refused."""
        if self._responder is not None:
            self._end().refuse(error)

    def broken(self) -> None:
        if self._responder is not None:
            self._end().broken()

    def _end(self) -> Responder:
        """Withdraw the remaining parts, and return the responder of the whole request."""
        responder, self._responder = self._responder, None
        assert responder is not None
        for request in self._requests:
            if request.responder is not None and request.is_open:
                self._runtime.left(request)
            request.responder = None  # already answered in this turn of the loop: drop the answer that is about to come
        self._members.clear()
        return responder


class _Part:
    """The responder of one part."""

    __slots__ = ("_index", "_whole")

    def __init__(self, whole: Split, index: int) -> None:
        self._whole = whole
        self._index = index

    def answer(self, member: Member, head: bytes) -> None:
        del head
        self._whole.answered(self._index, member)

    def refuse(self, error: GnomonError) -> None:
        self._whole.refused(error)

    def stream(self, frame: Frame) -> None:
        """Do nothing: models do not stream, and the request did not allow it."""

    def broken(self) -> None:
        self._whole.broken()


def split(sample_bytes: Sequence[int], body: memoryview, samples: int, max_batch: int) -> list[tuple[int, bytes | memoryview]]:
    """Split a body into parts of at most `max_batch` samples; returns the number of samples and the bytes of each part.

    `body` holds the tensors one after the other: tensor i takes `samples` × `sample_bytes[i]` bytes. A part has the same layout.
    """
    tensors: list[tuple[int, memoryview]] = []
    offset = 0
    for size in sample_bytes:
        tensors.append((size, body[offset : offset + samples * size]))
        offset += samples * size
    parts: list[tuple[int, bytes | memoryview]] = []
    for first in range(0, samples, max_batch):
        last = min(samples, first + max_batch)
        rows = [data[first * size : last * size] for size, data in tensors]
        parts.append((last - first, rows[0] if len(rows) == 1 else b"".join(rows)))
    return parts


def join(sample_bytes: Sequence[int], bodies: Sequence[bytes | memoryview], samples: Sequence[int]) -> bytes:
    """The inverse of `split`: one body with the tensors of all parts.

    Raises:
        ValueError: a part's body has another length than its samples take.

    """
    columns: list[list[memoryview]] = [[] for _ in sample_bytes]
    for body, count in zip(bodies, samples, strict=True):
        data, offset = memoryview(body), 0
        if len(data) != count * sum(sample_bytes):
            raise ValueError(f"{len(data)} bytes for {count} samples")
        for column, size in zip(columns, sample_bytes, strict=True):
            column.append(data[offset : offset + count * size])
            offset += count * size
    return b"".join([rows for column in columns for rows in column])

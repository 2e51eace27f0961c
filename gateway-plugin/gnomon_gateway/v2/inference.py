"""One infer request on its way: owner of the exchange, responder of the request, answering as V2 does.

Errors are `{"error": "…"}` with the same status codes and headers as elsewhere.
"""

from __future__ import annotations

import asyncio
import json
import time
import zlib
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from gnomon_core.errors import GnomonError, bad_request
from gnomon_core.signature import ModelSignature
from gnomon_core.wire import Frame, Member
from gnomon_gateway.call_id import call_id_of, lines_of
from gnomon_gateway.dispatch.refusals import QUEUE_MOVED
from gnomon_gateway.invoke import DEADLINE_HEADER, read_deadline_s
from gnomon_gateway.queueing.request import Request
from gnomon_gateway.server.exchange import Exchange
from gnomon_gateway.server.refusals import error_lines, too_large
from gnomon_gateway.serving.function_runtime import FunctionRuntime
from gnomon_gateway.v2.beside import LARGE_BYTES, READER
from gnomon_gateway.v2.infer import Infer, document_bytes, most_body_bytes, read_request, write_answer

_T = TypeVar("_T")
_OK = 200
_WINDOWS = {b"gzip": 31, b"deflate": 15}
# Unpacking frees the interpreter meanwhile. One at a time: the packed bodies that wait are small.
_UNPACKER = ThreadPoolExecutor(1, "unpack")


class Inference:
    """An infer request to a model's function."""

    __slots__ = (
        "_began_ns",
        "_began_s",
        "_call_id",
        "_exchange",
        "_headers",
        "_infer",
        "_max_body_bytes",
        "_name",
        "_request",
        "_runtime",
        "_signature",
        "_work",
    )

    def __init__(self, exchange: Exchange, runtime: FunctionRuntime, signature: ModelSignature, max_body_bytes: int) -> None:
        self._began_s = time.monotonic()
        self._began_ns = time.time_ns()
        self._exchange = exchange
        self._runtime = runtime
        self._signature = signature
        self._max_body_bytes = min(max_body_bytes, most_body_bytes(signature, runtime.settings.max_batch))
        self._headers = dict(exchange.headers)
        self._call_id = call_id_of(self._headers)
        self._infer: Infer | None = None
        self._request: Request | None = None
        self._work: Future[Any] | None = None

    def begin(self) -> None:
        """The headers are here: refuse what is too large, else receive the body."""
        stated = self._headers.get(b"content-length", b"0")
        if int(stated) > self._max_body_bytes:
            self._refuse_unsubmitted(self._too_large())
        else:
            self._exchange.accept(self, self._max_body_bytes)

    # Owner of the exchange

    def received(self, body: bytes | memoryview) -> None:
        encoding = self._headers.get(b"content-encoding", b"identity")
        if encoding == b"identity":
            self._submit(body)
        elif encoding not in _WINDOWS:
            unknown = GnomonError(
                415, "unknown_encoding", "The body has an unknown content encoding.", "Use gzip, deflate or none."
            )
            self._refuse_unsubmitted(unknown)
        else:
            self._then(_UNPACKER.submit(_unpacked, body, encoding, self._max_body_bytes + 1), self._was_unpacked)

    def _then(self, work: Future[_T], go_on: Callable[[Future[_T]], None]) -> None:
        """Go on with what is done beside the loop, unless the client has left by then."""
        loop = asyncio.get_running_loop()
        self._work = work

        def come_back(done: Future[_T]) -> None:
            if not self._exchange.disconnected:
                try:
                    go_on(done)
                except Exception:  # noqa: BLE001 - whatever it is, the client waits
                    self._exchange.break_off()

        work.add_done_callback(lambda done: loop.call_soon_threadsafe(come_back, done))

    def _was_unpacked(self, future: Future[bytes]) -> None:
        try:
            body = future.result()
            if len(body) > self._max_body_bytes:
                raise self._too_large()
        except GnomonError as error:
            self._refuse_unsubmitted(error)
        else:
            self._submit(body)

    def _submit(self, body: bytes | memoryview) -> None:
        length, max_batch = self._headers.get(b"inference-header-content-length"), self._runtime.settings.max_batch
        try:
            if document_bytes(len(body), length) > LARGE_BYTES:
                self._then(READER.read(self._signature, body, length, max_batch), self._was_read)
            else:
                self._let_in(read_request(self._signature, memoryview(body), length, max_batch))
        except GnomonError as error:
            self._refuse_unsubmitted(error)

    def _was_read(self, future: Future[Infer]) -> None:
        try:
            self._let_in(future.result())
        except GnomonError as error:
            self._refuse_unsubmitted(error)

    def _let_in(self, infer: Infer) -> None:
        self._infer = infer
        self._request = self._request_of(infer)
        self._runtime.submit(self._request)

    def left(self) -> None:
        if self._work is not None:
            self._work.cancel()
        if self._request is not None:
            self._runtime.left(self._request)

    # Responder of the request

    def answer(self, member: Member, head: bytes) -> None:
        del head
        if member.code != _OK:
            self._fail(member.code, _error_text(bytes(member.body)), b"content-type: application/json\r\n")
            return
        assert self._infer is not None
        try:
            answer = write_answer(self._infer, self._signature, self._runtime.key.name, memoryview(member.body))
        except GnomonError as error:
            self.refuse(error)
            return
        lines = b"content-type: application/json\r\n"
        if answer.header_bytes is not None:
            lines = b"content-type: application/octet-stream\r\ninference-header-content-length: %d\r\n" % answer.header_bytes
        body = answer.parts[0] if len(answer.parts) == 1 else b"".join(answer.parts)
        self._exchange.respond(_OK, lines + self._own_lines(), body)

    def refuse(self, error: GnomonError) -> None:
        if error.code == QUEUE_MOVED and self._exchange.move_on():
            return
        self._fail(error.status, str(error), error_lines(error))

    def stream(self, frame: Frame) -> None:
        """Models do not stream: nothing was asked to."""

    def broken(self) -> None:
        self._exchange.abort()

    # Ours

    def _request_of(self, infer: Infer) -> Request:
        budget_s = self._runtime.settings.deadline_s
        asked = self._headers.get(DEADLINE_HEADER)
        if asked is not None:
            budget_s = min(budget_s, read_deadline_s(asked))
        return Request(
            self._runtime.tensor_lane,
            time.monotonic(),
            self._began_s + budget_s,
            size=infer.samples,
            body=infer.body,
            responder=self,
            client=self._exchange,
            replay_safe=True,
        )

    def _too_large(self) -> GnomonError:
        error = too_large(self._max_body_bytes)
        error.hint = f"Send fewer samples: the function takes {self._runtime.settings.max_batch} at once (gnomon/max-batch)."
        return error

    def _refuse_unsubmitted(self, error: GnomonError) -> None:
        self._runtime.metrics.started += 1
        self._runtime.metrics.refused(error, time.monotonic() - self._began_s)
        self.refuse(error)

    def _fail(self, status: int, text: str, lines: bytes) -> None:
        self._exchange.respond(status, lines + self._own_lines(), error_body(text))

    def _own_lines(self) -> bytes:
        return lines_of(self._call_id, self._began_ns, self._began_s)


def _unpacked(body: bytes | memoryview, encoding: bytes, most_bytes: int) -> bytes:
    """The body without its content encoding, up to so many bytes."""
    try:
        return zlib.decompressobj(_WINDOWS[encoding]).decompress(body, most_bytes)
    except zlib.error:
        raise bad_request("invalid_request", f"The body is not {encoding.decode()}.") from None


def error_body(text: str) -> bytes:
    """V2's error document. What cannot be written, which a function's own error may hold, is a question mark."""
    return json.dumps({"error": text}, ensure_ascii=False).encode(errors="replace")


def _error_text(body: bytes) -> str:
    """What a member's own error says: the sentence of a Gnomon error document, or the text as it is."""
    try:
        error = json.loads(body)["error"]
        return f"{error['message']} {error.get('hint', '')}".strip() if isinstance(error, dict) else str(error)
    except (ValueError, KeyError, TypeError):
        return body.decode("utf-8", "replace")

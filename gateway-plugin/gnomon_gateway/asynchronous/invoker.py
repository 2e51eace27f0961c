"""A call of a function from inside the gateway, for asynchronous invocation: the same queue, policy and answer as over HTTP.

A request that `/function/{name}` would parse as tensors of a model is parsed so here too.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from gnomon_core.errors import GnomonError
from gnomon_core.signature import ModelSignature
from gnomon_core.wire import Frame, Kind, Member
from gnomon_gateway.applications.application import Application, refusal_lines
from gnomon_gateway.applications.queries import read_constraints
from gnomon_gateway.asynchronous.calls import FunctionAnswer, Headers, Invocation, answer_of
from gnomon_gateway.functions.function_runtime import FunctionDirectory, FunctionRuntime
from gnomon_gateway.http.headers import UnfitHeadersError, member_lines
from gnomon_gateway.queueing.queue import Request, Responder
from gnomon_gateway.v2 import messages
from gnomon_gateway.v2.inference import most_samples, submit
from gnomon_gateway.v2.messages import Infer
from gnomon_gateway.v2.reading import BodyReader, carries_tensors


class Invoker:
    """An `Invoke` over the functions of a directory."""

    def __init__(self, directory: FunctionDirectory) -> None:
        self._directory = directory

    async def __call__(self, invocation: Invocation) -> FunctionAnswer:
        function, headers = str(invocation.function), _by_name(invocation.headers)
        runtime = self._directory.lookup(function)
        if runtime is None and (application := self._directory.application(function)) is not None:
            return await self._query(application, headers, invocation)
        if runtime is None:
            return answer_of(self._directory.refusal(function))
        return await self._call(runtime, headers, invocation, runtime.key.name)

    async def _query(self, application: Application, headers: Mapping[bytes, bytes], invocation: Invocation) -> FunctionAnswer:
        """Call the member of an application that the constraints select. Tensors may have constraints: they are parsed first."""
        parameters: Mapping[str, Any] = {}
        samples = 1
        tensors = carries_tensors(invocation.method.encode(), headers)
        try:
            if application.signature is not None and tensors:
                most = most_samples(application.signature, application.settings.max_batch)
                infer = await BodyReader(application.signature, headers, most).read(invocation.body)
                parameters, samples = infer.parameters, infer.samples
            chosen = application.choose(read_constraints(headers, parameters), samples)
        except GnomonError as error:
            application.metrics.started += 1
            application.metrics.refused(error, 0.0)
            refusal = _with_lines(*messages.refusal(error)) if tensors else answer_of(error)
            return _and_lines(refusal, refusal_lines(error))
        return _and_lines(await self._call(chosen.member.runtime, headers, invocation, application.key.name), chosen.lines)

    async def _call(
        self, runtime: FunctionRuntime, headers: Mapping[bytes, bytes], invocation: Invocation, name: str
    ) -> FunctionAnswer:
        """Call a function that answers by this name."""
        signature = runtime.signature
        if signature is not None and carries_tensors(invocation.method.encode(), headers):
            return await _infer(runtime, signature, headers, invocation, name)
        waiting, now_s = _Waiting(), time.monotonic()
        request = Request(
            runtime.event_lane,
            now_s,
            now_s + _budget_s(runtime, invocation),
            meta=_meta(invocation),
            body=invocation.body,
            responder=waiting,
            replay_safe=runtime.replay_safe,
        )
        runtime.submit(request)
        return await _answered(runtime, [request], waiting)


class _Waiting:
    """The responder of one call, which passes the answer to the waiting coroutine."""

    def __init__(self) -> None:
        self.answered: asyncio.Future[FunctionAnswer] = asyncio.get_running_loop().create_future()

    def answer(self, member: Member, head: bytes) -> None:
        del head
        try:
            lines = member_lines(member)
        except UnfitHeadersError as error:
            self.refuse(GnomonError(502, "invalid_headers", f"The function answered with a header that cannot be kept: {error}."))
            return
        self._set(_with_lines(member.code, lines, member.body))

    def refuse(self, error: GnomonError) -> None:
        self._set(answer_of(error))

    def stream(self, frame: Frame) -> None:
        # The request does not allow a stream, so only the end of a broken answer can arrive here.
        if frame.kind == Kind.STREAM_END:
            self.broken()

    def broken(self) -> None:
        self.refuse(GnomonError(502, "answer_broken", "The function's answer broke off."))

    def _set(self, answer: FunctionAnswer) -> None:
        if not self.answered.done():
            self.answered.set_result(answer)


class _WaitingForTensors(_Waiting):
    """The responder of an infer request, whose answer is in V2's format."""

    def __init__(self, infer: Infer, signature: ModelSignature, name: str) -> None:
        super().__init__()
        self._infer, self._signature, self._name = infer, signature, name

    def answer(self, member: Member, head: bytes) -> None:
        del head
        self._set(_with_lines(*messages.answer(self._infer, self._signature, self._name, member)))

    def refuse(self, error: GnomonError) -> None:
        self._set(_with_lines(*messages.refusal(error)))


async def _infer(
    runtime: FunctionRuntime, signature: ModelSignature, headers: Mapping[bytes, bytes], invocation: Invocation, name: str
) -> FunctionAnswer:
    began_s = time.monotonic()
    try:
        infer = await BodyReader(signature, headers, most_samples(signature, runtime.settings.max_batch)).read(invocation.body)
    except GnomonError as error:
        runtime.metrics.started += 1
        runtime.metrics.refused(error, time.monotonic() - began_s)
        return _with_lines(*messages.refusal(error))
    waiting = _WaitingForTensors(infer, signature, name)
    lane, arrived_s, deadline_s = runtime.tensor_lane, time.monotonic(), began_s + _budget_s(runtime, invocation)

    def make(samples: int, body: bytes | memoryview, responder: Responder) -> Request:
        return Request(lane, arrived_s, deadline_s, size=samples, body=body, responder=responder, replay_safe=True)

    return await _answered(runtime, submit(runtime, signature, infer, make, waiting), waiting)


async def _answered(runtime: FunctionRuntime, requests: Sequence[Request], waiting: _Waiting) -> FunctionAnswer:
    """The answer to the submitted requests. If the call is cancelled, they are withdrawn."""
    try:
        return await waiting.answered
    except asyncio.CancelledError:
        # Cancelled when the gateway stops: without it the requests would occupy the queue with no one to take their answers.
        for request in requests:
            if request.responder is not None:
                runtime.left(request)
        raise


def _budget_s(runtime: FunctionRuntime, invocation: Invocation) -> float:
    own_s = runtime.settings.deadline_s
    return own_s if invocation.deadline_s is None else min(own_s, invocation.deadline_s)


def _with_lines(status: int, lines: bytes, body: bytes | memoryview) -> FunctionAnswer:
    """An answer with these header lines, each ending in CRLF."""
    named = (line.partition(":") for line in lines.decode("latin-1").split("\r\n") if line)
    return FunctionAnswer(status, tuple((name, value.strip()) for name, _, value in named), bytes(body))


def _and_lines(answer: FunctionAnswer, lines: bytes) -> FunctionAnswer:
    """The answer with further header lines."""
    further = _with_lines(answer.status, lines, answer.body)
    return replace(answer, headers=(*answer.headers, *further.headers))


def _by_name(headers: Headers) -> dict[bytes, bytes]:
    return {name.lower().encode("latin-1", "replace"): value.encode("latin-1", "replace") for name, value in headers}


def _meta(invocation: Invocation) -> bytes:
    lines = [invocation.method, invocation.path, invocation.query]
    lines += [f"{name}: {value}" for name, value in invocation.headers]
    return "\n".join(lines).encode("latin-1", "replace")

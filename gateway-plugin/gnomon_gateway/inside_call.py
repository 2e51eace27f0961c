"""A call of a function from inside the gateway, for asynchronous invocation: the same queue, policy and answer as over HTTP."""

from __future__ import annotations

import asyncio
import time

from gnomon_core.errors import GnomonError
from gnomon_core.wire import Frame, Kind, Member
from gnomon_gateway.asynchronous.invocation import FunctionAnswer, Invocation, answer_of
from gnomon_gateway.headers import UnfitHeadersError, response_lines
from gnomon_gateway.queueing.request import Request
from gnomon_gateway.serving.directory import FunctionDirectory


class Invoker:
    """An `Invoke` over the functions of a directory."""

    def __init__(self, directory: FunctionDirectory) -> None:
        self._directory = directory

    async def __call__(self, invocation: Invocation) -> FunctionAnswer:
        runtime = self._directory.lookup(str(invocation.function))
        if runtime is None:
            return answer_of(self._directory.refusal(str(invocation.function)))
        now_s = time.monotonic()
        budget_s = runtime.settings.deadline_s
        if invocation.deadline_s is not None:
            budget_s = min(budget_s, invocation.deadline_s)
        waiting = _Waiting()
        request = Request(
            runtime.event_lane, now_s, now_s + budget_s, meta=_meta(invocation), body=invocation.body, responder=waiting
        )
        runtime.submit(request)
        try:
            return await waiting.answered
        except asyncio.CancelledError:
            runtime.left(request)
            raise


class _Waiting:
    """The responder of one call: keeps the answer for the coroutine that waits."""

    def __init__(self) -> None:
        self.answered: asyncio.Future[FunctionAnswer] = asyncio.get_running_loop().create_future()

    def answer(self, member: Member, head: bytes) -> None:
        del head
        try:
            lines = response_lines(member.meta).decode("latin-1").split("\r\n")
        except UnfitHeadersError as error:
            self.refuse(GnomonError(502, "invalid_headers", f"The function answered with a header that cannot be kept: {error}."))
            return
        headers = tuple((name, value.strip()) for name, _, value in (line.partition(":") for line in lines if line))
        self._set(FunctionAnswer(member.code, headers, bytes(member.body)))

    def refuse(self, error: GnomonError) -> None:
        self._set(answer_of(error))

    def stream(self, frame: Frame) -> None:
        # The request was not marked as one that may stream, so only the end of a broken exchange could come here.
        if frame.kind == Kind.STREAM_END:
            self.broken()

    def broken(self) -> None:
        self.refuse(GnomonError(502, "answer_broken", "The function's answer broke off."))

    def _set(self, answer: FunctionAnswer) -> None:
        if not self.answered.done():
            self.answered.set_result(answer)


def _meta(invocation: Invocation) -> bytes:
    lines = [invocation.method, invocation.path, invocation.query]
    lines += [f"{name}: {value}" for name, value in invocation.headers]
    return "\n".join(lines).encode("latin-1", "replace")

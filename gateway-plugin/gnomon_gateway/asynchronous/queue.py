"""The queue of asynchronous calls: accepts what it has room for, executes it in turn, tries again, calls back, and forgets.

The bounds count what is on disk and not finished. A call waits in memory without its body, which is read when its turn comes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random

from gnomon_core.clock import Clock
from gnomon_core.errors import GnomonError
from gnomon_core.functions import FunctionKey
from gnomon_gateway.asynchronous.callbacks import Callbacks
from gnomon_gateway.asynchronous.calls import Call, CallStore
from gnomon_gateway.asynchronous.invocation import FunctionAnswer, Invocation, Invoke, answer_of, take_deadline
from gnomon_gateway.asynchronous.lanes import Lanes
from gnomon_gateway.asynchronous.retries import RetryRule

FAULT_WAIT_S = 10.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AsyncLimits:
    """How much is accepted and done at a time.

    `function_width` calls of one function run together, so that they can be batched; `callback_width` callbacks to one host.
    """

    body_bytes: int = 1 << 20
    answer_bytes: int = 16 << 20
    waiting_calls: int = 10_000
    waiting_bytes: int = 1 << 30
    function_width: int = 64
    callback_width: int = 8
    stop_grace_s: float = 5.0


@dataclass(slots=True)
class AsyncCounters:
    """What happened to calls; `waiting` and `waiting_bytes` are now, the rest is since the start."""

    waiting: int = 0
    waiting_bytes: int = 0
    accepted: int = 0
    refused: int = 0
    retried: int = 0
    completed: int = 0


class AsyncQueue:
    """Stored calls and the workers that execute them."""

    def __init__(
        self,
        store: CallStore,
        invoke: Invoke,
        callbacks: Callbacks,
        retry_rule: Callable[[FunctionKey], RetryRule],
        *,
        clock: Clock,
        chance: Random,
        limits: AsyncLimits | None = None,
    ) -> None:
        self.limits = limits or AsyncLimits()
        self.counters = AsyncCounters()
        self._store = store
        self._invoke = invoke
        self._callbacks = callbacks
        self._retry_rule = retry_rule
        self._clock = clock
        self._chance = chance
        self._lanes = Lanes(self.limits.function_width)
        self._callback_lanes = Lanes(self.limits.callback_width)

    async def start(self) -> None:
        """Take up what an earlier process left."""
        for call in await self._store.unfinished():
            self._count(call.body_bytes)
            self._schedule(call)

    async def stop(self) -> None:
        """Let running calls finish for a while; what is not finished stays on disk."""
        await asyncio.gather(self._lanes.stop(self.limits.stop_grace_s), self._callback_lanes.stop(self.limits.stop_grace_s))
        await self._store.close()

    def check_room(self, body_bytes: int = 0) -> None:
        """Refuse a call that there is no room for.

        Raises:
            GnomonError: 429 `async_queue_full`.

        """
        full = self.counters.waiting >= self.limits.waiting_calls
        if full or self.counters.waiting_bytes + body_bytes > self.limits.waiting_bytes:
            self.counters.refused += 1
            raise GnomonError(
                429,
                "async_queue_full",
                f"{self.counters.waiting} asynchronous calls wait with {self.counters.waiting_bytes} bytes.",
                "Send it again later.",
                retry_after_s=5.0,
            )

    async def submit(self, call: Call, body: bytes) -> None:
        """Store a call. Once it is stored it is executed, whether or not the caller still waits for this to return.

        Raises:
            GnomonError: 429 `async_queue_full`; 507 `store_failed`.

        """
        self.check_room(len(body))
        self._count(len(body))
        await asyncio.shield(asyncio.create_task(self._keep(call, body)))

    async def _keep(self, call: Call, body: bytes) -> None:
        try:
            stored = await self._store.add(call, body)
        except BaseException:
            self._discount(call)
            raise
        self.counters.accepted += 1
        self._schedule(stored)

    def _schedule(self, call: Call, delay_s: float = 0.0) -> None:
        if call.answered:
            self._callback_lanes.add(self._callbacks.host(call.callback_url), partial(self._work, call), delay_s)
        else:
            self._lanes.add(call.function, partial(self._work, call), delay_s)

    async def _work(self, call: Call) -> None:
        try:
            await (self._call_back(call) if call.answered else self._execute(call))
        except Exception:  # noqa: BLE001 - an accepted call must not be lost to any of them
            # The disk, or a fault of ours. The call is still on disk, so it is taken up again, now and then.
            _log.exception("The asynchronous call %s of %s is tried again.", call.call_id, call.function)
            self._schedule(call, FAULT_WAIT_S)

    async def _execute(self, call: Call) -> None:
        body = await self._store.body(call)
        begin_s = self._clock.now_s()
        answer = await self._answer(call, body)
        duration_s = self._clock.now_s() - begin_s
        wait_s = self._retry_rule(call.function).wait_s(answer, call.tried + 1, self._chance)
        if wait_s is not None:
            self.counters.retried += 1
            self._schedule(await self._store.note_try(call), wait_s)
        elif call.callback_url:
            self._schedule(await self._store.note_answer(call, self._bounded(answer), duration_s))
        else:
            await self._finish(call)

    async def _answer(self, call: Call, body: bytes) -> FunctionAnswer:
        try:
            deadline_s, headers = take_deadline(call.headers)
            return await self._invoke(Invocation(call.function, "POST", call.path, call.query, headers, body, deadline_s))
        except GnomonError as error:
            return answer_of(error)

    def _bounded(self, answer: FunctionAnswer) -> FunctionAnswer:
        if len(answer.body) <= self.limits.answer_bytes:
            return answer
        return answer_of(
            GnomonError(
                502,
                "answer_too_large",
                f"The answer ({answer.status}) has {len(answer.body)} bytes; a callback carries {self.limits.answer_bytes}.",
                "Let the function store large results and answer with their address.",
            )
        )

    async def _call_back(self, call: Call) -> None:
        answer, duration_s = await self._store.answer(call)
        wait_s = await self._callbacks.deliver(call, answer, duration_s)
        if wait_s is None:
            await self._finish(call)
        else:
            self._schedule(await self._store.note_try(call), wait_s)

    async def _finish(self, call: Call) -> None:
        await self._store.finish(call)
        self.counters.completed += 1
        self._discount(call)

    def _count(self, body_bytes: int) -> None:
        self.counters.waiting += 1
        self.counters.waiting_bytes += body_bytes

    def _discount(self, call: Call) -> None:
        self.counters.waiting -= 1
        self.counters.waiting_bytes -= call.body_bytes

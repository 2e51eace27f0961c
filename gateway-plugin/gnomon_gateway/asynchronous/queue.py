"""The queue of asynchronous calls: accepts calls within its limits, executes them in turn, retries, and delivers callbacks.

    submit ─▶ disk ─▶ lane of the function ─▶ invoke ─┬─ final answer ─▶ callback, or finished
                             ▲                        └─ retry after a back-off ─┐
                             └──────────────────────────────────────────────────┘

The limits count the unfinished calls on disk, with the answers that wait for their callback. A waiting call is in memory without
its body, which is read when the call is executed. Lanes bound the concurrency per function and per callback host, so that a slow
one never delays the others (no head-of-line blocking).

Retries follow OpenFaaS's `com.openfaas.retry.*` annotations. By default only temporary errors of the platform are retried: a 429,
502, 503 or 504 with `X-OpenFaaS-Internal`. A function's own answer is final, unless its author listed the status.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import TypeAlias, TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gnomon_core.clock import Clock
from gnomon_core.errors import GnomonError, bad_request
from gnomon_core.functions import FunctionKey
from gnomon_core.units import parse_duration_s
from gnomon_gateway.asynchronous.callbacks import Callbacks
from gnomon_gateway.asynchronous.calls import Call, CallStore, FunctionAnswer, Invocation, Invoke, answer_of, take_deadline

FAULT_WAIT_S = 10.0
T = TypeVar("T")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AsyncLimits:
    """Limits on stored calls and on concurrency.

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
    """Counters of asynchronous calls; `waiting` and `waiting_bytes` are current values, the rest totals since the start."""

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
        rng: Random,
        limits: AsyncLimits | None = None,
    ) -> None:
        self.limits = limits or AsyncLimits()
        self.counters = AsyncCounters()
        self._store = store
        self._invoke = invoke
        self._callbacks = callbacks
        self._retry_rule = retry_rule
        self._clock = clock
        self._rng = rng
        self._lanes = Lanes(self.limits.function_width)
        self._callback_lanes = Lanes(self.limits.callback_width)

    async def start(self) -> None:
        """Resume the unfinished calls of an earlier process."""
        for call in await self._store.unfinished():
            self._count(call.body_bytes)
            self._schedule(call)

    async def stop(self) -> None:
        """Wait for running calls for a grace period; unfinished calls stay on disk."""
        await asyncio.gather(self._lanes.stop(self.limits.stop_grace_s), self._callback_lanes.stop(self.limits.stop_grace_s))
        await self._store.close()

    def check_room(self, body_bytes: int = 0) -> None:
        """Refuse a call if the queue is full.

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
        # Counted before the write, so that calls which arrive during the write see the room as taken.
        self._count(len(body))
        # Shielded: if the client disconnects during the write, the call may be on disk already and must be executed.
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
            # A read error or an internal error. The call is still on disk, so it is retried later: at-least-once execution.
            _log.exception("asynchronous call %s of %s failed by an internal error and is retried", call.call_id, call.function)
            self._schedule(call, FAULT_WAIT_S)

    async def _execute(self, call: Call) -> None:
        body = await self._store.body(call)
        begin_s = self._clock.now_s()
        answer = await self._answer(call, body)
        duration_s = self._clock.now_s() - begin_s
        wait_s = self._retry_rule(call.function).wait_s(answer, call.tried + 1, self._rng)
        if wait_s is not None:
            self.counters.retried += 1
            self._schedule(await self._stored(call, partial(self._store.note_try, call)), wait_s)
        elif call.callback_url:
            # Stored before the callback: after a crash only the callback is repeated, not the function.
            answered = await self._stored(call, partial(self._store.note_answer, call, self._bounded(answer), duration_s))
            self.counters.waiting_bytes += answered.body_bytes - call.body_bytes
            self._schedule(answered)
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
            self._schedule(await self._stored(call, partial(self._store.note_try, call)), wait_s)

    async def _finish(self, call: Call) -> None:
        await self._stored(call, partial(self._store.finish, call))
        self.counters.completed += 1
        self._discount(call)

    async def _stored(self, call: Call, write: Callable[[], Awaitable[T]]) -> T:
        """Store what an attempt has led to, again and again while the disk refuses it: the attempt must not be repeated.

        The call keeps its place in its lane meanwhile, so that no further outcomes come that could not be stored either.
        """
        while True:
            try:
                return await write()
            except GnomonError as error:
                _log.error(
                    "the outcome of asynchronous call %s of %s cannot be stored and is kept: %s",
                    call.call_id,
                    call.function,
                    error,
                )
                await self._clock.sleep(FAULT_WAIT_S)

    def _count(self, body_bytes: int) -> None:
        self.counters.waiting += 1
        self.counters.waiting_bytes += body_bytes

    def _discount(self, call: Call) -> None:
        self.counters.waiting -= 1
        self.counters.waiting_bytes -= call.body_bytes


class AsyncCollector(Collector):
    """The Prometheus collector of asynchronous calls and their callbacks."""

    def __init__(self, queue: AsyncQueue, callbacks: Callbacks) -> None:
        self._counters = queue.counters
        self._callbacks = callbacks

    def collect(self) -> Iterator[Metric]:
        counters = self._counters
        yield GaugeMetricFamily("gnomon_async_waiting", "Asynchronous calls that are not finished.", counters.waiting)
        yield GaugeMetricFamily(
            "gnomon_async_waiting_bytes",
            "Bytes of the bodies of waiting asynchronous calls, and of answers that wait for their callback.",
            counters.waiting_bytes,
        )
        calls = CounterMetricFamily("gnomon_async_calls", "Asynchronous calls by event.", labels=("event",))
        for event in ("accepted", "refused", "retried", "completed"):
            calls.add_metric((event,), getattr(counters, event))
        yield calls
        callbacks = CounterMetricFamily("gnomon_async_callbacks", "Callbacks by outcome.", labels=("outcome",))
        callbacks.add_metric(("delivered",), self._callbacks.delivered)
        callbacks.add_metric(("failed",), self._callbacks.failed)
        yield callbacks


Job: TypeAlias = Callable[[], Awaitable[None]]


@dataclass(slots=True)
class _Lane:
    waiting: deque[Job] = field(default_factory=deque)
    running: int = 0


class Lanes:
    """Job queues by key, in order of arrival, with at most `width` jobs of a key running. A job must not raise."""

    def __init__(self, width: int) -> None:
        self._width = width
        self._lanes: dict[Hashable, _Lane] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._timers: set[asyncio.TimerHandle] = set()
        self._stopped = False

    def add(self, key: Hashable, job: Job, delay_s: float = 0.0) -> None:
        """Run a job when its turn comes, not before `delay_s` have passed."""
        if self._stopped:
            return
        if delay_s > 0:
            self._later(key, job, delay_s)
            return
        self._lanes.setdefault(key, _Lane()).waiting.append(job)
        self._advance(key)

    async def stop(self, grace_s: float) -> None:
        """Start no further job, wait for running ones for the grace period, then cancel them."""
        self._stopped = True
        # Calls that wait, or whose back-off has not ended, stay on disk and are resumed by `start`.
        for timer in self._timers:
            timer.cancel()
        self._lanes.clear()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=grace_s)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _later(self, key: Hashable, job: Job, delay_s: float) -> None:
        def due() -> None:
            self._timers.discard(timer)
            self.add(key, job)

        timer = asyncio.get_running_loop().call_later(delay_s, due)
        self._timers.add(timer)

    def _advance(self, key: Hashable) -> None:
        lane = self._lanes.get(key)
        while lane is not None and lane.waiting and lane.running < self._width:
            lane.running += 1
            task = asyncio.create_task(self._run(key, lane, lane.waiting.popleft()))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _run(self, key: Hashable, lane: _Lane, job: Job) -> None:
        try:
            await job()
        finally:
            lane.running -= 1
            self._advance(key)
            # Keys come from clients (functions, callback hosts): an idle lane that stayed would be a memory leak.
            if not lane.running and not lane.waiting and self._lanes.get(key) is lane:
                del self._lanes[key]


PREFIX = "com.openfaas.retry."
OUR_CODES = frozenset({429, 502, 503, 504})
MAX_ATTEMPTS = 1000
MAX_WAIT_S = 86_400.0
# The bound of the exponent, before a float overflows: 2⁶⁴ × 1 ms is beyond any allowed back-off.
MAX_DOUBLINGS = 64


@dataclass(frozen=True, slots=True)
class RetryRule:
    """Retries and their back-off. `attempts` counts those after the first; `codes` None means the platform's errors only."""

    attempts: int = 10
    codes: frozenset[int] | None = None
    min_wait_s: float = 1.0
    max_wait_s: float = 120.0

    def wait_s(self, answer: FunctionAnswer, tried: int, rng: Random) -> float | None:
        """The back-off after the `tried`-th attempt in seconds; None if the answer is final.

        The back-off doubles from `min_wait_s` to `max_wait_s`, with a random reduction (jitter) by up to half, so that calls that
        failed together are not retried together: 1 s, 2 s, 4 s … become 0.5–1 s, 1–2 s, 2–4 s. `Retry-After` is a lower bound.
        """
        retried = answer.status in self.codes if self.codes is not None else answer.is_ours and answer.status in OUR_CODES
        if not retried or tried > self.attempts:
            return None
        wait_s = min(self.max_wait_s, self.min_wait_s * 2.0 ** min(tried - 1, MAX_DOUBLINGS)) * rng.uniform(0.5, 1.0)
        after = answer.header("Retry-After") or ""
        return max(wait_s, min(float(after), self.max_wait_s)) if re.fullmatch(r"\d{1,6}", after) else wait_s


DEFAULT_RULE = RetryRule()


def read_retry_rule(annotations: Mapping[str, str]) -> RetryRule:
    """The rule of a function.

    Raises:
        GnomonError: 400 `invalid_setting`, naming the annotation and what is allowed.

    """
    attempts, codes = annotations.get(f"{PREFIX}attempts"), annotations.get(f"{PREFIX}codes")
    rule = RetryRule(
        attempts=DEFAULT_RULE.attempts if attempts is None else _read_attempts(attempts),
        codes=None if codes is None else _read_codes(codes),
        min_wait_s=_read_wait_s(annotations, "min_wait", DEFAULT_RULE.min_wait_s),
        max_wait_s=_read_wait_s(annotations, "max_wait", DEFAULT_RULE.max_wait_s),
    )
    if rule.max_wait_s < rule.min_wait_s:
        raise _invalid("max_wait", annotations.get(f"{PREFIX}max_wait", ""), f"at least min_wait, {rule.min_wait_s:g}s")
    return rule


def retry_rule_of(function: FunctionKey, annotations: Mapping[str, str]) -> RetryRule:
    """The rule of a deployed function; the default where it cannot be read, as of functions that no gateway has checked.

    Those of OpenFaaS, or of `kubectl apply`, are served as they are.
    """
    try:
        return read_retry_rule(annotations)
    except GnomonError as error:
        _log.warning("%s: asynchronous calls are retried by the default settings: %s", function, error)
        return DEFAULT_RULE


def _read_attempts(text: str) -> int:
    if not re.fullmatch(r"\d{1,4}", text.strip()) or int(text) > MAX_ATTEMPTS:
        raise _invalid("attempts", text, f"a whole number from 0 to {MAX_ATTEMPTS}")
    return int(text)


def _read_codes(text: str) -> frozenset[int]:
    codes = [code.strip() for code in text.split(",")]
    if not all(re.fullmatch(r"[2-5]\d\d", code) for code in codes):
        raise _invalid("codes", text, "HTTP statuses with commas between, such as 429,502,503")
    return frozenset(map(int, codes))


def _read_wait_s(annotations: Mapping[str, str], name: str, default_s: float) -> float:
    text = annotations.get(f"{PREFIX}{name}")
    if text is None:
        return default_s
    try:
        wait_s = parse_duration_s(text)
    except ValueError:
        wait_s = -1.0
    if not 0 <= wait_s <= MAX_WAIT_S:
        raise _invalid(name, text, "a duration such as 500ms, 10s or 2m, up to 24h")
    return wait_s


def _invalid(name: str, text: str, allowed: str) -> GnomonError:
    return bad_request("invalid_setting", f"annotation {PREFIX}{name} is {text[:100]!r}.", f"It must be {allowed}.")

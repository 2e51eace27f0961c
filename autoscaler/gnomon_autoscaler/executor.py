"""Worker threads that execute scaling policies' decisions outside the event loop.

Calls that are submitted in one turn of the event loop share a worker thread: many decisions take less than handing one call to a
thread and its result back.

    submit, submit, submit ▶ queue ▶ worker 1 takes one call after the other ▶ the results return to the event loop together
                                └─ worker 1 has been in one call for 20 ms ▶ worker 2 takes the calls behind it
                                        └─ the call has overrun its limit ▶ `Overrun`; worker 1 is abandoned

Built-in policies have no time limit: tests keep them quick. A third party's policy has a limit in CPU time of the worker, so that
a busy machine, where every decision is late, disables no policy. A call that waits instead of computing overruns after
`WALL_FACTOR` times the limit of wall-clock time.

A Python thread cannot be stopped from outside. The worker of a call that has overrun is abandoned: its result is discarded, and
it ends when the call returns. While `MAX_ABANDONED` abandoned workers are still inside their calls, further calls with a limit
overrun without being executed. Workers are daemon threads, because the interpreter joins the threads of `concurrent.futures` at
its exit.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol, TypeAlias, TypeVar

T = TypeVar("T")

WORKERS = 16
"""Worker threads at the same time, apart from abandoned ones."""
MAX_ABANDONED = 8
"""Abandoned workers that may still be inside their calls; those that overrun at the same time may exceed it by `WORKERS` - 1."""
LONG_S = 0.02
"""The time of a call in seconds after which another worker takes the calls that wait behind it."""
WALL_FACTOR = 30.0
"""Wall-clock limit of a call as a multiple of its CPU limit: a policy that sleeps or waits uses no CPU time."""
FLUSH_S = 0.005
"""Results wait this long for the results of other calls."""
BACKOFF_S = 1.0
"""After a thread could not be started."""

_LOG = logging.getLogger("gnomon.autoscaler")

Outcome: TypeAlias = Callable[[], T]
"""Returns the result of a call, or raises what the call has raised."""


class Overrun(Exception):  # noqa: N818 - named as TimeoutError is
    """A call that did not return within its time limit."""


class Executor(Protocol):
    """Executes a call and passes its outcome to `then`. `limit_s` is in seconds of CPU time, None for no limit."""

    def __call__(self, call: Callable[[], T], limit_s: float | None, then: Callable[[Outcome[T]], None]) -> None: ...


def at_once(call: Callable[[], T], limit_s: float | None, then: Callable[[Outcome[T]], None]) -> None:  # noqa: ARG001
    """Execute the call synchronously, for virtual clocks: they stand still meanwhile, so that a limit means nothing."""
    then(_outcome(call))


class PolicyExecutor:
    """An `Executor` with worker threads. It is called on one event loop, where it passes the outcomes, too."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._queue: deque[_Call] = deque()
        self._results: deque[tuple[_Call, Outcome[Any]]] = deque()
        self._workers: set[_Worker] = set()
        self._abandoned: set[_Worker] = set()
        self._starting = self._watching = self._flushing = False

    def __call__(self, call: Callable[[], T], limit_s: float | None, then: Callable[[Outcome[T]], None]) -> None:
        self._queue.append(_Call(call, limit_s, then))
        if not self._starting:
            self._starting = True
            self._loop = asyncio.get_running_loop()
            self._loop.call_soon(self._start)

    def _start(self) -> None:
        """Start a worker, unless one is about to take the next call."""
        self._starting = False
        now_s = time.monotonic()
        if self._queue and len(self._workers) < WORKERS and all(worker.is_long(now_s) for worker in self._workers):
            worker = _Worker(self)
            try:
                worker.start()
            except RuntimeError as error:
                # The machine, or a pod's limit of processes, has no thread left: the calls wait, and nobody else would ask again.
                _LOG.warning("scaling policies cannot decide, retry in %g s: %s", BACKOFF_S, error)
                asyncio.get_running_loop().call_later(BACKOFF_S, self._start)
                return
            self._workers.add(worker)
            self._watch()

    def _watch(self) -> None:
        if not self._watching and self._loop is not None:
            self._watching = True
            self._loop.call_later(LONG_S, self._check_workers)

    def _check_workers(self) -> None:
        """Abandon workers whose calls have overrun, and have another one take the calls behind a long one."""
        self._watching = False
        self._pass_results()
        now_s = time.monotonic()
        for worker in list(self._workers):
            call = worker.call
            # A thread cannot be stopped: its call gets the outcome `Overrun`, and other workers take the queue.
            if call is not None and call.limit_s is not None and worker.has_overrun(call, call.limit_s, now_s):
                self._workers.discard(worker)
                self._abandoned.add(worker)
                worker.abandoned = True
                call.pass_on(_raising(Overrun(f"no answer within {call.limit_s:g} s of CPU time")))
        self._start()
        if self._workers:
            self._watch()

    def next_call(self) -> _Call | None:
        """Take the next call from the queue; None if the queue is empty. Called by workers."""
        with suppress(IndexError):
            return self._queue.popleft()
        return None

    @property
    def is_full(self) -> bool:
        """Return whether no other worker may be abandoned. Called by workers."""
        return len(self._abandoned) >= MAX_ABANDONED

    def add_result(self, call: _Call, outcome: Outcome[Any], *, flush: bool) -> None:
        """Hand in a call's outcome. Called by workers."""
        self._results.append((call, outcome))
        if flush and not self._flushing:
            self._flushing = True
            self._call_soon(self._pass_results)

    def finish(self, worker: _Worker) -> None:
        """Report that a worker ends, as the queue is empty or because it was abandoned. Called by workers."""
        self._call_soon(self._finished, worker)

    def _call_soon(self, call: Callable[..., None], *given: object) -> None:
        assert self._loop is not None
        with suppress(RuntimeError):  # the event loop has been closed meanwhile
            self._loop.call_soon_threadsafe(call, *given)

    def _finished(self, worker: _Worker) -> None:
        self._pass_results()
        self._workers.discard(worker)
        self._abandoned.discard(worker)
        self._start()

    def _pass_results(self) -> None:
        self._flushing = False
        while self._results:
            call, outcome = self._results.popleft()
            call.pass_on(outcome)


class _Call:
    """A submitted call, with the time at which its execution began; `done` says that its outcome has been passed on."""

    __slots__ = ("begun_cpu_s", "begun_s", "call", "done", "limit_s", "then")

    def __init__(self, call: Callable[[], Any], limit_s: float | None, then: Callable[[Outcome[Any]], None]) -> None:
        self.call, self.limit_s, self.then = call, limit_s, then
        self.begun_s = self.begun_cpu_s = 0.0
        self.done = False

    def pass_on(self, outcome: Outcome[Any]) -> None:
        """Pass the outcome on, unless the call has overrun before. Called on the event loop."""
        if not self.done:
            self.done = True
            self.then(outcome)


class _Worker(threading.Thread):
    """A thread that executes calls until the queue is empty or it is abandoned."""

    def __init__(self, owner: PolicyExecutor) -> None:
        super().__init__(name="gnomon-policy", daemon=True)
        self.call: _Call | None = None
        """The call in execution; its `begun_s` is set before, so that the event loop needs no lock to read both."""
        self.abandoned = False
        self._owner = owner
        self._cpu_clock = time.CLOCK_THREAD_CPUTIME_ID

    def is_long(self, now_s: float) -> bool:
        """Return whether the worker has been in one call for long, so that other calls must not wait for it."""
        call = self.call
        return call is not None and now_s - call.begun_s >= LONG_S

    def has_overrun(self, call: _Call, limit_s: float, now_s: float) -> bool:
        """Return whether the call has used up its CPU time, or waits so long that it may never return."""
        wall_s = now_s - call.begun_s
        if wall_s < limit_s:
            return False
        if wall_s >= WALL_FACTOR * limit_s:
            return True
        try:
            return time.clock_gettime(self._cpu_clock) - call.begun_cpu_s >= limit_s
        except OSError:  # the thread has ended since: its result is about to be passed on
            return False

    def run(self) -> None:
        # A thread reads its own clock id: for an ended thread the C library may read freed memory.
        self._cpu_clock = time.pthread_getcpuclockid(threading.get_ident())
        flushed_s = time.monotonic()
        while not self.abandoned and (call := self._owner.next_call()) is not None:
            if call.limit_s is not None and self._owner.is_full:
                outcome = _raising(Overrun(f"not asked: {MAX_ABANDONED} earlier calls have not returned yet"))
            else:
                call.begun_s, call.begun_cpu_s = time.monotonic(), time.thread_time()
                self.call = call
                try:
                    outcome = _outcome(call.call)
                except BaseException as error:  # noqa: BLE001 - SystemExit of a policy must not end the worker
                    outcome = _raising(RuntimeError(f"{type(error).__name__}: {error}"))
                self.call = None
            now_s = time.monotonic()
            flush = now_s - flushed_s >= FLUSH_S
            flushed_s = now_s if flush else flushed_s
            self._owner.add_result(call, outcome, flush=flush)
        self._owner.finish(self)


def _outcome(call: Callable[[], T]) -> Outcome[T]:
    try:
        result = call()
    except Exception as error:  # noqa: BLE001 - the caller raises it again
        return _raising(error)
    return lambda: result


def _raising(error: Exception) -> Outcome[Any]:
    def outcome() -> Any:
        raise error

    return outcome

"""Run policies beside the event loop, each for a limited time.

A policy is somebody's Python: it may compute for long or for ever, and the event loop must not notice, nor may another policy.
But most answer in a tenth of a millisecond, which is less than it takes to hand one question to a thread and its answer back.
So questions that come together are handed over together:

    ask, ask, ask ▶ a thread answers one after the other ▶ their answers come back together
                         └─ one takes long ▶ those before it come back, the others go to another thread
                                └─ too long ▶ it is told to end, and has overrun

A limit is CPU time that the thread itself has used since the question began: on a busy machine a decision comes late, which is no
fault of its policy. A call that waits instead of computing ends after `WALL_FACTOR` times the limit on the clock. A thread that
is told to end does so at its next bytecode where it is in Python, and when the call returns where it is in C.
"""

from __future__ import annotations

import asyncio
import ctypes
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol, TypeAlias, TypeVar

T = TypeVar("T")

KEPT = 4
"""Idle threads; policies compute in turns anyway."""
AT_ONCE = 16
"""Questions that are thought about at the same time."""
LONG_S = 0.02
"""A question that takes longer than this holds nobody up: the others go to another thread."""
WALL_FACTOR = 30.0
"""Wall-clock limit of a call as a multiple of its CPU limit: a policy that sleeps or waits uses no CPU time."""
TOLD_S = 0.005
"""Answers wait this long for others."""

Outcome: TypeAlias = Callable[[], T]
"""Returns what a call has returned, or raises what it has raised."""


class Overrun(Exception):  # noqa: N818 - it is what happened, as TimeoutError's name is
    """The call did not return in time."""


class Caller(Protocol):
    """Makes a call within a limit in seconds of CPU time, and tells on the event loop how it went."""

    def __call__(self, call: Callable[[], T], limit_s: float, then: Callable[[Outcome[T]], None]) -> None: ...


def at_once(call: Callable[[], T], limit_s: float, then: Callable[[Outcome[T]], None]) -> None:  # noqa: ARG001 - see below
    """Call right here, for clocks that stand still while a policy thinks: virtual time has no limit in real seconds."""
    then(_outcome(call))


def _outcome(call: Callable[[], T]) -> Outcome[T]:
    try:
        result = call()
    except Exception as error:  # noqa: BLE001 - whatever it is belongs to who asked
        return _raising(error)
    return lambda: result


def _raising(error: Exception) -> Outcome[Any]:
    def told() -> Any:
        raise error

    return told


class _Asked:
    """A question. `done` is whether who asked has been told."""

    __slots__ = ("begun_cpu_s", "begun_s", "call", "done", "limit_s", "then")

    def __init__(self, call: Callable[[], Any], limit_s: float, then: Callable[[Outcome[Any]], None]) -> None:
        self.call, self.limit_s, self.then = call, limit_s, then
        self.begun_s = self.begun_cpu_s = 0.0
        self.done = False


class Beside:
    """A `Caller` that calls in threads. It is asked on one event loop."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: deque[_Asked] = deque()
        self._answered: deque[tuple[_Asked, Outcome[Any]]] = deque()
        self._working: set[_Thread] = set()
        self._handing = self._watching = False
        self._collecting = False
        """Whether the loop has been told that there are answers."""

    def __call__(self, call: Callable[[], T], limit_s: float, then: Callable[[Outcome[T]], None]) -> None:
        self._waiting.append(_Asked(call, limit_s, then))
        if not self._handing:
            self._handing = True
            self._loop = asyncio.get_running_loop()
            self._loop.call_soon(self._hand_over)

    def _hand_over(self) -> None:
        """Everything that waits goes to a thread that gets on, or to another one."""
        self._handing = False
        if not self._waiting:
            return
        now_s = time.monotonic()
        if any(thread.take_more(self._waiting, now_s) for thread in self._working):
            self._waiting.clear()
        elif len(self._working) < AT_ONCE:
            batch, self._waiting = self._waiting, deque()
            thread = _idle.take()
            self._working.add(thread)
            thread.begin(batch, self)
            self._watch()

    def _watch(self) -> None:
        if not self._watching and self._loop is not None:
            self._watching = True
            self._loop.call_later(LONG_S, self._look)

    def _look(self) -> None:
        """Let nobody wait behind a long thought, nor for its end, and end those that are too long."""
        self._watching = False
        self._collect()
        now_s = time.monotonic()
        for thread in list(self._working):
            overrun = thread.relieve(self._waiting, now_s)
            if overrun is not None:
                self._working.discard(thread)
                self._tell(overrun, _raising(Overrun(f"no answer within {overrun.limit_s:g} s of CPU time")))
        self._hand_over()
        if self._working:
            self._watch()

    def answer(self, asked: _Asked, outcome: Outcome[Any], *, tell: bool) -> None:
        """From a thread: an answer."""
        self._answered.append((asked, outcome))
        if tell and not self._collecting:
            self._collecting = True
            self._call_soon(self._collect)

    def finish(self, thread: _Thread) -> None:
        """From a thread: it has answered all that it was asked."""
        self._call_soon(self._ended, thread)

    def _call_soon(self, call: Callable[..., None], *given: object) -> None:
        assert self._loop is not None
        with suppress(RuntimeError):  # the loop has closed in the meantime
            self._loop.call_soon_threadsafe(call, *given)

    def _ended(self, thread: _Thread) -> None:
        self._collect()
        self._working.discard(thread)
        _idle.put(thread)
        self._hand_over()

    def _collect(self) -> None:
        self._collecting = False
        while self._answered:
            self._tell(*self._answered.popleft())

    def _tell(self, asked: _Asked, outcome: Outcome[Any]) -> None:
        if not asked.done:
            asked.done = True
            asked.then(outcome)


class _Thread(threading.Thread):
    """Answers one batch of questions after the other, until it is told to end.

    `_lock` is held by whoever begins a question, brings some or takes some away, or ends the thread.
    """

    def __init__(self) -> None:
        super().__init__(name="gnomon-decide", daemon=True)
        self._lock = threading.Lock()
        self._batch: deque[_Asked] = deque()
        self._current: _Asked | None = None
        self._at_work = self._ended = False
        self._clock = time.CLOCK_THREAD_CPUTIME_ID
        """The thread's CPU time, once it runs."""
        self._work: queue.SimpleQueue[Beside | None] = queue.SimpleQueue()
        self.start()

    def begin(self, batch: deque[_Asked], owner: Beside) -> None:
        """Let it answer these."""
        self._batch, self._at_work = batch, True
        self._work.put(owner)

    def take_more(self, more: deque[_Asked], now_s: float) -> bool:
        """Whether it takes these, too: it is at work, and gets on."""
        with self._lock:
            current = self._current
            gets_on = self._at_work and (current is None or now_s - current.begun_s < LONG_S)
            if gets_on:
                self._batch.extend(more)
            return gets_on

    def relieve(self, waiting: deque[_Asked], now_s: float) -> _Asked | None:
        """If it thinks for long, what it has not begun waits for others; the question that has overrun, and ended it."""
        with self._lock:
            current = self._current
            if current is None or now_s - current.begun_s < min(LONG_S, current.limit_s):
                return None
            waiting.extendleft(reversed(self._batch))
            self._batch.clear()
            if not self._overran(current, now_s):
                return None
            self._end()
            return current

    def _overran(self, current: _Asked, now_s: float) -> bool:
        """Whether the call has used up its CPU time, or has waited for so long that it never ends. `_lock` is held."""
        wall_s = now_s - current.begun_s
        if wall_s < current.limit_s:
            return False
        if wall_s >= WALL_FACTOR * current.limit_s:
            return True
        try:
            used_s = time.clock_gettime(self._clock)
        except OSError:  # the thread has ended: its policy raised SystemExit
            return True
        return used_s - current.begun_cpu_s >= current.limit_s

    def leave(self) -> None:
        """End it: it waits for work."""
        self._work.put(None)

    def run(self) -> None:
        # Asked by the thread itself: of one that has ended the C library may read freed memory.
        self._clock = time.pthread_getcpuclockid(threading.get_ident())
        with suppress(SystemExit):  # it overran, and nobody waits any more
            while (owner := self._work.get()) is not None:
                told_s = time.monotonic()
                while (asked := self._next()) is not None:
                    outcome, now_s = _outcome(asked.call), time.monotonic()
                    tell = now_s - told_s >= TOLD_S
                    told_s = now_s if tell else told_s
                    owner.answer(asked, outcome, tell=tell)
                if self._ended:
                    return
                owner.finish(self)

    def _next(self) -> _Asked | None:
        with self._lock:
            if self._ended or not self._batch:
                self._current, self._at_work = None, False
                return None
            asked = self._current = self._batch.popleft()
            asked.begun_s, asked.begun_cpu_s = time.monotonic(), time.thread_time()
            return asked

    def _end(self) -> None:
        """Let it end: where it is, if it is in Python; or when what it calls has returned."""
        self._ended = True
        if self.ident is not None and self.is_alive():
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self.ident), ctypes.py_object(SystemExit))


class _Idle:
    """Threads that wait for questions. A few are kept; beginning one costs more than most decisions."""

    def __init__(self) -> None:
        self._threads: list[_Thread] = []

    def take(self) -> _Thread:
        """One that nobody else has."""
        return self._threads.pop() if self._threads else _Thread()

    def put(self, thread: _Thread) -> None:
        """It waits, if few do; or it ends."""
        if len(self._threads) < KEPT:
            self._threads.append(thread)
        else:
            thread.leave()


_idle = _Idle()

"""Run a policy beside the event loop, for a limited time.

A policy is somebody's Python: it may compute for long or for ever, and the event loop must not notice. Each question has a
thread for itself, because one that never comes back must hold up nobody else's question; one that does is used again. One that
overruns is told to end, which ends Python code at its next bytecode; a thread inside a C call ends when that returns.
"""

from __future__ import annotations

import asyncio
import ctypes
import queue
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Protocol, TypeVar

T = TypeVar("T")

KEPT = 4
"""Idle threads; policies compute in turns anyway."""


class Overrun(Exception):  # noqa: N818 - it is what happened, as TimeoutError's name is
    """The call did not return in time."""


class Caller(Protocol):
    """Makes a call within a time limit in seconds and returns its result."""

    def __call__(self, call: Callable[[], T], limit_s: float) -> Awaitable[T]: ...


async def beside(call: Callable[[], T], limit_s: float) -> T:
    """Call in a thread that does nothing else meanwhile.

    Raises:
        Overrun: it did not return within `limit_s`.

    """
    loop = asyncio.get_running_loop()
    answered: asyncio.Future[T] = loop.create_future()

    def settle(set_: Callable[[Any], None], value: object) -> None:
        if not answered.done():
            set_(value)

    def work() -> None:
        try:
            result = call()
        except Exception as error:  # noqa: BLE001 - whatever it is belongs to the caller
            outcome: tuple[Callable[[Any], None], object] = (answered.set_exception, error)
        else:
            outcome = (answered.set_result, result)
        with suppress(RuntimeError):  # the loop has closed in the meantime
            loop.call_soon_threadsafe(settle, *outcome)

    thread = _idle.take()
    thread.work.put(work)
    try:
        await asyncio.wait({answered}, timeout=limit_s)
        if not answered.done():
            thread.end()
            msg = f"no answer within {limit_s:g} s"
            raise Overrun(msg)
        return answered.result()
    finally:
        answered.cancel()


async def at_once(call: Callable[[], T], limit_s: float) -> T:  # noqa: ARG001 - virtual time has no limit in real seconds
    """Call right here, for clocks that stand still while a policy thinks."""
    return call()


class _Thread(threading.Thread):
    """Takes one call after the other, until it is told to end."""

    def __init__(self) -> None:
        super().__init__(name="gnomon-decide", daemon=True)
        self.work: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self.ended = False
        self.start()

    def run(self) -> None:
        with suppress(SystemExit):  # it overran, and nobody waits any more
            while not self.ended:
                self.work.get()()
                if not _idle.put(self):
                    return

    def end(self) -> None:
        """Let it end: where it is, if it is in Python; or when what it calls has returned."""
        self.ended = True
        if self.ident is not None and self.is_alive():
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self.ident), ctypes.py_object(SystemExit))
        # It may have returned just now, and wait.
        self.work.put(lambda: None)


class _Idle:
    """Threads that wait for a call. A few are kept; beginning one costs more than most decisions."""

    def __init__(self) -> None:
        self._threads: list[_Thread] = []

    def take(self) -> _Thread:
        """One that nobody else has."""
        while self._threads:
            thread = self._threads.pop()
            if not thread.ended:
                return thread
        return _Thread()

    def put(self, thread: _Thread) -> bool:
        """Whether it is kept."""
        keep = len(self._threads) < KEPT and not thread.ended
        if keep:
            self._threads.append(thread)
        return keep


_idle = _Idle()

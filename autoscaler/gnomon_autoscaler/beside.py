"""Run a policy beside the event loop, for a limited time.

A policy is somebody's Python: it may compute for long or for ever, and the event loop must not notice. Each question gets a
thread of its own (0.2 ms), because a thread that never comes back must hold up nobody else's question. One that overruns is told
to end, which ends Python code at its next bytecode; a thread inside a C call ends when that returns.
"""

from __future__ import annotations

import asyncio
import ctypes
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Overrun(Exception):  # noqa: N818 - it is what happened, as TimeoutError's name is
    """The call did not return in time."""


class Caller(Protocol):
    """Makes a call within a time limit in seconds and returns its result."""

    def __call__(self, call: Callable[[], T], limit_s: float) -> Awaitable[T]: ...


async def beside(call: Callable[[], T], limit_s: float) -> T:
    """Call in a thread of its own.

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
        except SystemExit:
            return  # it overran, and nobody waits any more
        except Exception as error:  # noqa: BLE001 - whatever it is belongs to the caller
            outcome: tuple[Callable[[Any], None], object] = (answered.set_exception, error)
        else:
            outcome = (answered.set_result, result)
        with suppress(RuntimeError):  # the loop has closed in the meantime
            loop.call_soon_threadsafe(settle, *outcome)

    thread = threading.Thread(target=work, name="gnomon-decide", daemon=True)
    thread.start()
    try:
        await asyncio.wait({answered}, timeout=limit_s)
        if not answered.done():
            _end(thread)
            msg = f"no answer within {limit_s:g} s"
            raise Overrun(msg)
        return answered.result()
    finally:
        answered.cancel()


async def at_once(call: Callable[[], T], limit_s: float) -> T:  # noqa: ARG001 - virtual time has no limit in real seconds
    """Call right here, for clocks that stand still while a policy thinks."""
    return call()


def _end(thread: threading.Thread) -> None:
    if thread.ident is not None and thread.is_alive():
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(SystemExit))

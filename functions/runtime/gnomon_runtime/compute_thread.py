"""The thread that runs an application: one call after another, and a Body's idle work (its Shadows) in between.

A thread of its own, because an application is used by one thread at a time and because torch keeps a pool of threads for each
thread that calls it. For the idle work (`application.IdleWork`) it is the batch channel: an eventfd that counts the waiting
calls.
"""

from __future__ import annotations

import os
import select
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import ParamSpec, TypeVar

from gnomon_runtime.application import IdleWork

Given = ParamSpec("Given")
Result = TypeVar("Result")


class ComputeThread:
    """A daemon thread that runs calls in order: the process's exit does not wait for the thread itself."""

    holds_more = False
    """False: every waiting call is counted in the eventfd."""

    def __init__(self, name: str) -> None:
        self._waiting: deque[Callable[[], None]] = deque()
        # As a semaphore, each read takes one from the count: one read for each call that `_run` executes.
        self._count = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_SEMAPHORE)
        self._idle_work: IdleWork | None = None
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def fileno(self) -> int:
        return self._count

    def submit(self, act: Callable[Given, Result], *arguments: Given.args, **options: Given.kwargs) -> Future[Result]:
        """Call `act` in the thread when its turn comes."""
        future: Future[Result] = Future()

        def turn() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = act(*arguments, **options)
            except BaseException as error:  # noqa: BLE001 - the future's owner gets it
                future.set_exception(error)
            else:
                future.set_result(result)

        # In this order: the thread finds a call for each count. `deque` needs no lock for append and popleft (collections.deque).
        self._waiting.append(turn)
        os.eventfd_write(self._count, 1)
        return future

    def set_idle_work(self, idle_work: IdleWork | None) -> None:
        """Set the work that the thread does between calls. Must be called in the thread."""
        self._idle_work = idle_work

    def _run(self) -> None:
        while True:
            if self._idle_work is None:
                select.select([self._count], [], [])
            else:
                self._idle_work.attend(self)
            os.eventfd_read(self._count)
            self._waiting.popleft()()

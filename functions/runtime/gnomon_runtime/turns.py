"""One thread that does what it is given, one after the other, and between its turns looks after a Body's Shadows.

A thread of its own, because an application is used by one thread at a time and because torch keeps a pool of threads for each
thread that calls it. To whoever attends between turns (`application.Beside`) this is the batch channel: an eventfd that counts
what waits.
"""

from __future__ import annotations

import os
import select
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import ParamSpec, TypeVar

from gnomon_runtime.application import Beside

Given = ParamSpec("Given")
Result = TypeVar("Result")


class Turns:
    """The thread, which is a daemon: a process that ends waits for its requests, not for it."""

    holds_more = False
    """Everything that waits has been counted."""

    def __init__(self, name: str) -> None:
        self._waiting: deque[Callable[[], None]] = deque()
        self._count = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_SEMAPHORE)
        self._beside: Beside | None = None
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def fileno(self) -> int:
        return self._count

    def submit(self, act: Callable[Given, Result], *arguments: Given.args, **options: Given.kwargs) -> Future[Result]:
        """Do it when its turn comes."""
        future: Future[Result] = Future()

        def turn() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = act(*arguments, **options)
            except BaseException as error:  # noqa: BLE001 - it is whoever asked for it that hears of it
                future.set_exception(error)
            else:
                future.set_result(result)

        self._waiting.append(turn)
        os.eventfd_write(self._count, 1)
        return future

    def attend_with(self, beside: Beside | None) -> None:
        """Whom to ask between turns. To be called in a turn."""
        self._beside = beside

    def _run(self) -> None:
        while True:
            if self._beside is None:
                select.select([self._count], [], [])
            else:
                self._beside.attend(self)
            os.eventfd_read(self._count)
            self._waiting.popleft()()

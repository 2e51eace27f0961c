"""Background tasks: begun here without waiting, and awaited or cancelled by their owner when it stops."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

from gnomon_core.errors import GnomonError

_LOG = logging.getLogger("gnomon.background")

ResultT = TypeVar("ResultT")


class Background:
    """A group of background tasks. Failures are logged; a `GnomonError` is logged with its own message."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def begin(self, work: Coroutine[Any, Any, ResultT]) -> asyncio.Task[ResultT]:
        """Start the task at the next iteration of the loop."""
        task = asyncio.get_running_loop().create_task(work)
        # The loop keeps only a weak reference: without another one a task may be collected while it runs (asyncio.create_task).
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    async def settled(self) -> None:
        """Return when all tasks have ended, including tasks that they started."""
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def end(self) -> None:
        """Cancel all tasks, and return when they have ended."""
        for task in self._tasks:
            task.cancel()
        await self.settled()

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, GnomonError):
            _LOG.warning("a background task has failed: %s", error)
        elif error is not None:
            _LOG.error("a background task has failed unexpectedly", exc_info=error)

"""What is done behind whoever asked for it: nobody waits, a refusal is logged, and who stops can wait for all of it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from gnomon_core.errors import GnomonError

_LOG = logging.getLogger("gnomon.kubernetes")


class Behind:
    """Work that nobody waits for."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Do it from the next turn of the loop on."""
        task = asyncio.get_running_loop().create_task(_guarded(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def done(self) -> None:
        """Wait for what has been begun."""
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def _guarded(work: Coroutine[Any, Any, None]) -> None:
    try:
        await work
    except GnomonError as error:
        _LOG.warning("%s", error)

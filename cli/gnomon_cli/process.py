"""What every command that serves does with its process: its log, its start, its signals and its garbage collector."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import signal
from collections.abc import Coroutine


def begin_log(*, verbose: bool) -> None:
    """To stderr, warnings only unless more is asked for."""
    level = logging.INFO if verbose else logging.WARNING
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")


async def started(start: Coroutine[None, None, None], ended: asyncio.Task[bool]) -> bool:
    """Start; False if it was to be stopped before that was done, as one that stands by for another may be."""
    starting = asyncio.ensure_future(start)
    await asyncio.wait({starting, ended}, return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        starting.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await starting
    return not starting.cancelled()


def stopped_by_signal() -> asyncio.Event:
    """Set by the first SIGINT or SIGTERM. The second ends this process there and then, and with it every other: see SIGKILL."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    numbers = (signal.SIGINT, signal.SIGTERM)

    def begin() -> None:
        stop.set()
        for number in numbers:
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)

    for number in numbers:
        loop.add_signal_handler(number, begin)
    return stop


def calm_collector() -> None:
    """Look for garbage less often, and never again at what was made by starting: requests make no cycles worth a pause each."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)

"""`gnomon serve`: run everything until someone asks it to stop, then stop without losing a request."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import signal
from collections.abc import Awaitable, Callable

import uvloop

from gnomon_cli.composition import Gnomon
from gnomon_cli.preflight import allow_open_files, check_port, check_room, lock_state
from gnomon_cli.serve_options import ServeOptions


def serve(options: ServeOptions, then: Callable[[Gnomon], Awaitable[bool]] | None = None) -> None:
    """Serve until SIGINT or SIGTERM; a second one does not wait for what is under way.

    `then` runs once serving has begun, and ends it by returning False.

    Raises:
        GnomonError: what is missing: a port, memory, disk, credentials.

    """
    logging.basicConfig(
        level=logging.INFO if options.verbose else logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    if options.port:
        check_port(options.host, options.port)
    if options.cluster is None:
        check_room(options.state)
    allow_open_files()
    with lock_state(options.state):
        uvloop.run(_serve(options, then))


def calm_collector() -> None:
    """Look for garbage less often, and never again at what was made by starting: requests make no cycles worth a pause each."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


async def _serve(options: ServeOptions, then: Callable[[Gnomon], Awaitable[bool]] | None) -> None:
    stop = _stopped_by_signal()
    gnomon = Gnomon(options)
    ended = asyncio.create_task(stop.wait())
    try:
        if not await _started(gnomon, ended):
            return
        calm_collector()
        print(f"Gnomon serves on {gnomon.url}. State is in {options.state}. Ctrl-C stops it.", flush=True)
        first = asyncio.ensure_future(then(gnomon)) if then is not None else None
        if first is not None:
            await asyncio.wait({first, ended}, return_when=asyncio.FIRST_COMPLETED)
            if first.done() and not first.result():
                return
            first.cancel()
        await ended
        print("Stopping: answering what is under way. Ctrl-C again does not wait for it.", flush=True)
    finally:
        ended.cancel()
        await gnomon.stop()


async def _started(gnomon: Gnomon, ended: asyncio.Task[bool]) -> bool:
    """Start; False if it was to be stopped before that was done, as one that stands by for another may be."""
    starting = asyncio.create_task(gnomon.start())
    await asyncio.wait({starting, ended}, return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        starting.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await starting
    return not starting.cancelled()


def _stopped_by_signal() -> asyncio.Event:
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

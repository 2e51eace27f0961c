"""`gnomon serve`: run everything until someone asks it to stop, then stop without losing a request."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import uvloop

from gnomon_cli.composition import Gnomon
from gnomon_cli.preflight import allow_open_files, check_port, check_room, lock_state
from gnomon_cli.process import begin_log, calm_collector, started, stopped_by_signal
from gnomon_cli.serve_options import ServeOptions


def serve(options: ServeOptions, then: Callable[[Gnomon], Awaitable[bool]] | None = None) -> None:
    """Serve until SIGINT or SIGTERM; a second one does not wait for what is under way.

    `then` runs once serving has begun, and ends it by returning False.

    Raises:
        GnomonError: what is missing: a port, memory, disk, credentials.

    """
    begin_log(verbose=options.verbose)
    if options.port:
        check_port(options.host, options.port)
    if options.cluster is None:
        check_room(options.state)
    allow_open_files()
    with lock_state(options.state):
        uvloop.run(_serve(options, then))


async def _serve(options: ServeOptions, then: Callable[[Gnomon], Awaitable[bool]] | None) -> None:
    stop = stopped_by_signal()
    gnomon = Gnomon(options)
    ended = asyncio.create_task(stop.wait())
    try:
        if not await started(gnomon.start(), ended):
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

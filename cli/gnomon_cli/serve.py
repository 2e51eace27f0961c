"""`gnomon serve`: run everything until someone asks it to stop, then stop without losing a request."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

import uvloop

from gnomon_cli.commands.serve_options import ServeOptions
from gnomon_cli.composition import Gnomon
from gnomon_cli.preflight import check_port, check_room, lock_state, memory_is_short
from gnomon_cli.process import begin_log, serve_until_signal

_LOG = logging.getLogger("gnomon")


def serve(options: ServeOptions, then: Callable[[Gnomon], Awaitable[bool]] | None = None) -> None:
    """Serve until SIGINT or SIGTERM; a second one does not wait for what is under way.

    `then` runs once serving has begun, and ends it by returning False.

    Raises:
        GnomonError: what is missing: a port, disk, credentials.

    """
    begin_log(verbose=options.verbose)
    if options.port:
        check_port(options.host, options.port)
    if options.cluster is None:
        check_room(options.state)
        if short := memory_is_short():
            _LOG.warning("%s Libraries of models are loaded when the first of them is deployed.", short)

    async def meanwhile(gnomon: Gnomon, ended: asyncio.Task[bool]) -> None:
        if then is not None:
            first = asyncio.ensure_future(then(gnomon))
            await asyncio.wait({first, ended}, return_when=asyncio.FIRST_COMPLETED)
            if first.done() and not first.result():
                return
            first.cancel()
        await ended
        print("Stopping: answering what is under way. Ctrl-C again does not wait for it.", flush=True)

    with lock_state(options.state):
        uvloop.run(serve_until_signal(lambda: Gnomon(options), _said, meanwhile))


def _said(gnomon: Gnomon) -> str:
    return f"Gnomon serves on {gnomon.url}. State is in {gnomon.options.state}."

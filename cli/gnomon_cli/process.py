"""What every command that serves does with its process: its log, its start, its signals and its garbage collector."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import logging
import signal
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Protocol, TypeVar

from gnomon_cli.preflight import allow_open_files


def begin_log(*, verbose: bool) -> None:
    """To stderr, warnings only unless more is asked for."""
    level = logging.INFO if verbose else logging.WARNING
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")


class Service(Protocol):
    """What a command serves."""

    async def start(self) -> None: ...

    async def stop(self) -> None: ...


LARGE_BLOCK_BYTES = 4 << 20
_MMAP_THRESHOLD = -3  # malloc.h
COLLECT_EVERY_S = 60.0
COLLECTING_SHARE = 0.001
"""How much of the time full collections may take at most."""

ServiceT = TypeVar("ServiceT", bound=Service)


async def serve_until_signal(
    make: Callable[[], ServiceT],
    said: Callable[[ServiceT], str],
    meanwhile: Callable[[ServiceT, asyncio.Task[bool]], Awaitable[None]] | None = None,
) -> None:
    """Make a service on this loop, start it and say so; stop it at SIGINT or SIGTERM, or when `meanwhile` has come to its end.

    `meanwhile` gets the task that ends with the first signal.
    """
    stop = _stopped_by_signal()
    allow_open_files()
    give_back_large_blocks()
    service, collections = make(), FullCollections()
    ended = asyncio.create_task(stop.wait())
    try:
        if not await _started(service.start(), ended):
            return
        calm_collector()
        collections.start()
        print(f"{said(service)} Ctrl-C stops it.", flush=True)
        await (ended if meanwhile is None else meanwhile(service, ended))
    finally:
        collections.stop()
        ended.cancel()
        await service.stop()


async def _started(start: Coroutine[None, None, None], ended: asyncio.Task[bool]) -> bool:
    """Start; False if it was to be stopped before that was done, as one that stands by for another may be."""
    starting = asyncio.ensure_future(start)
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


def give_back_large_blocks() -> None:
    """Let the allocator give each freed block of 4 MiB or more back to the kernel, as it does in the beginning.

    glibc raises that bound to the size of the largest block that was ever freed, 32 MiB at most: bodies and answers of some
    megabytes then share the heap with small objects, of which one keeps all below it resident.
    """
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        library.mallopt(_MMAP_THRESHOLD, LARGE_BLOCK_BYTES)


def calm_collector() -> None:
    """Look for garbage less often, and never again at what was made by starting: requests make no cycles worth a pause each.

    The second collection lets the collector forget how much there was: it puts off a full one until a quarter is new.
    """
    gc.collect()
    gc.freeze()
    gc.collect()
    gc.set_threshold(20_000, 20, 50)


class FullCollections:
    """Collects everything from time to time: what outlived the small collections would else stay for days.

    Each stops the event loop for as long as it takes to look at all objects, so the pauses are bounded as a share of time.
    """

    def __init__(self, now_s: Callable[[], float] = time.thread_time) -> None:
        self._now_s = now_s
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._plan(COLLECT_EVERY_S)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _plan(self, delay_s: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._collect)

    def _collect(self) -> None:
        began_s = self._now_s()
        gc.collect()
        self._plan(next_collection_s(self._now_s() - began_s))


def next_collection_s(took_s: float) -> float:
    """When to collect again, in seconds, after a collection of `took_s`: 20 ms are followed by 60 s, 200 ms by 200 s."""
    return max(COLLECT_EVERY_S, took_s / COLLECTING_SHARE)

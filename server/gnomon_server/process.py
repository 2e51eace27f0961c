"""The process of `gnomon serve`: checks before its start, its log, signals, memory and garbage collector."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import fcntl
import gc
import logging
import os
import resource
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO, Protocol, TypeVar

from gnomon_core.addresses import host_and_port
from gnomon_core.errors import GnomonError
from gnomon_platforms.local.nodes import available_memory_bytes

MEMORY_BYTES = 1_500_000_000
DISK_BYTES = 500_000_000
OPEN_FILES = 1 << 16
LARGE_BLOCK_BYTES = 4 << 20
_LOG = logging.getLogger("gnomon")
_MMAP_THRESHOLD = -3  # malloc.h
WORKER_THREADS = 32
"""Threads for calls that block: on files, SQLite, buckets. asyncio has six on two cores, and six that wait for a bucket held
up the start of instances and the acceptance of asynchronous calls."""
THREADS = "gnomon"
"""How the names of threads begin that may wait for a model store, and whose pools are shut down at the end."""
EXIT_S = 5.0
"""The longest time that the stopped process waits for worker threads: a read from a model store that hangs takes minutes."""
COLLECT_EVERY_S = 60.0
COLLECTING_SHARE = 0.001
"""The largest share of time that full collections may take."""


def begin_log(*, verbose: bool) -> None:
    """Log to stderr: warnings and errors, with `verbose` everything from INFO on."""
    level = logging.INFO if verbose else logging.WARNING
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")


class Service(Protocol):
    """A service that runs until a signal."""

    async def start(self) -> None: ...

    async def stop(self) -> None: ...


ServiceT = TypeVar("ServiceT", bound=Service)


async def serve_until_signal(
    make: Callable[[], ServiceT],
    serving_line: Callable[[ServiceT], str],
    meanwhile: Callable[[ServiceT, asyncio.Task[bool]], Awaitable[None]] | None = None,
) -> None:
    """Make a service on this loop and start it; stop it at SIGINT or SIGTERM, or when `meanwhile` returns.

    `serving_line` is printed once the service has started. `meanwhile` gets the task that ends with the first signal.
    """
    stop = _stopped_by_signal()
    allow_open_files()
    workers = ThreadPoolExecutor(WORKER_THREADS, f"{THREADS}-worker")
    asyncio.get_running_loop().set_default_executor(workers)
    give_back_large_blocks()
    service, collections = make(), FullCollections()
    ended = asyncio.create_task(stop.wait())
    try:
        if await _started(service.start(), ended):
            calm_collector()
            collections.start()
            print(f"{serving_line(service)} Ctrl-C stops it.", flush=True)
            await (ended if meanwhile is None else meanwhile(service, ended))
    finally:
        collections.stop()
        ended.cancel()
        await service.stop()
    await _end_threads(workers)


async def _end_threads(workers: ThreadPoolExecutor) -> None:
    """End the worker threads. If some hang, end the process without them: Python would wait for them without a limit."""
    workers.shutdown(wait=False, cancel_futures=True)
    end_s = time.monotonic() + EXIT_S
    while hanging := _names_of_threads():
        if time.monotonic() >= end_s:
            _LOG.warning("the process ends although these threads still wait, as for a model store: %s", ", ".join(hanging))
            logging.shutdown()
            sys.stdout.flush()
            os._exit(0)
        await asyncio.sleep(0.01)


def _names_of_threads() -> list[str]:
    """The threads of the pools that are shut down which have not ended. Python does not wait for daemons."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith(f"{THREADS}-") and not thread.daemon]


async def _started(start: Coroutine[None, None, None], ended: asyncio.Task[bool]) -> bool:
    """Start the service; False if a signal came first, as it may while a gateway stands by for the leader."""
    starting = asyncio.ensure_future(start)
    await asyncio.wait({starting, ended}, return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        starting.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await starting
    return not starting.cancelled()


def _stopped_by_signal() -> asyncio.Event:
    """An event that the first SIGINT or SIGTERM sets. The second signal ends this process, and its children, at once."""
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
    """Let the allocator return each freed block of 4 MiB or more to the kernel, as it does at first.

    glibc raises that threshold to the size of the largest block freed so far, 32 MiB at most. Bodies and answers of some
    megabytes then share the heap with small objects, and one small object keeps all of the heap below it resident.
    """
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        library.mallopt(_MMAP_THRESHOLD, LARGE_BLOCK_BYTES)


def calm_collector() -> None:
    """Collect less often, and never visit the objects made at the start again: requests make few reference cycles.

    The second `gc.collect` resets the count of long-lived objects: a full collection waits until a quarter of them is new.
    """
    gc.collect()
    gc.freeze()
    gc.collect()
    gc.set_threshold(20_000, 20, 50)


class FullCollections:
    """Runs a full collection now and then: objects that outlive the small collections would otherwise stay for days.

    A full collection blocks the event loop while it visits all objects, so its share of time is bounded.
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
    """Seconds until the next collection, after one of `took_s`. Example: 60 s after 20 ms, 200 s after 200 ms."""
    return max(COLLECT_EVERY_S, took_s / COLLECTING_SHARE)


def check_port(host: str, port: int) -> None:
    """Refuse a port that is in use, or that this user may not listen on.

    Raises:
        GnomonError: 500 `port_in_use` or `port_refused`.

    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise GnomonError(
                    500,
                    "port_in_use",
                    f"Port {port} on {host} is in use.",
                    "Stop what listens there, or choose another: --port N (make run PORT=N).",
                ) from None
            raise GnomonError(500, "port_refused", f"Cannot listen on {host_and_port(host, port)}: {error.strerror}.") from None


def lock_state(state: Path) -> BinaryIO:
    """Lock the state folder for this process as long as the returned file is open.

    Raises:
        GnomonError: 500 `state_in_use`. Two gateways on one folder would each run its asynchronous calls.

    """
    state.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = (state / "lock").open("ab")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        raise GnomonError(
            500, "state_in_use", f"Another Gnomon serves from {state} already.", "Stop it, or choose another folder with --state."
        ) from None
    return lock


def memory_is_short() -> str:
    """A warning if less memory is free than a model and its libraries take; else empty."""
    available = available_memory_bytes()
    if available is None or available >= MEMORY_BYTES:
        return ""
    return f"{available / 1e9:.1f} GB of memory are free, and a model with torch takes up to {MEMORY_BYTES / 1e9:.1f} GB."


def check_disk_space(state: Path, *, disk_bytes: int = DISK_BYTES) -> None:
    """Refuse to start with too little disk.

    Little memory does not prevent a start: functions are served again after the kernel has killed something for memory, and many
    functions need little.

    Raises:
        GnomonError: 500 `no_disk`.

    """
    folder = next(parent for parent in (state, *state.absolute().parents) if parent.exists())
    free = shutil.disk_usage(folder).free
    if free < disk_bytes:
        raise GnomonError(
            500,
            "no_disk",
            f"{free / 1e9:.1f} GB are free in {folder}; {disk_bytes / 1e9:.1f} GB are needed.",
            "Make room, or choose another folder with --state.",
        )


def allow_open_files() -> None:
    """Raise the limit of open files to the hard limit, or to the most that is useful.

    A connection needs one descriptor and an instance five: a thousand idle connections exhaust the usual limit of 1024.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))

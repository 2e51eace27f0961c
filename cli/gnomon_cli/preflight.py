"""What must be there before anything is started: a free port, memory, disk, open files. One clear line for whatever is not."""

from __future__ import annotations

import errno
import fcntl
import resource
import shutil
import socket
from pathlib import Path
from typing import BinaryIO

from gnomon_core.addresses import host_and_port
from gnomon_core.errors import GnomonError

MEMORY_BYTES = 1_500_000_000
DISK_BYTES = 500_000_000
OPEN_FILES = 1 << 16


def check_port(host: str, port: int) -> None:
    """Refuse a port that something else has, or that we may not have.

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
    """Hold the state folder for this process alone, as long as the returned file is open.

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
    """What to tell where less memory is free than a model and its libraries take; empty where there is enough."""
    available = _available_memory_bytes()
    if available is None or available >= MEMORY_BYTES:
        return ""
    return f"{available / 1e9:.1f} GB of memory are free, and a model with torch takes up to {MEMORY_BYTES / 1e9:.1f} GB."


def check_room(state: Path, *, disk_bytes: int = DISK_BYTES) -> None:
    """Refuse to begin where it would end half-way for want of disk.

    Little memory is no reason: what was deployed is to be served again after the kernel has ended something for memory, and many
    functions need little of it.

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
    """Use as many open files as we may and could need.

    A connection needs one and an instance five: the customary 1024 are gone with a thousand idle connections.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _available_memory_bytes() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)

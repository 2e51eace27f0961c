"""The memory of a process, as Linux counts it in `/proc/PID/status` (proc_pid_status(5))."""

from __future__ import annotations

from pathlib import Path
from typing import Literal


def resident_bytes(pid: int | Literal["self"] = "self") -> int:
    """The resident memory of a process now.

    Raises:
        OSError: there is no such process, or it has ended.

    """
    return _status_bytes(pid, "VmRSS")


def peak_bytes(pid: int | Literal["self"] = "self") -> int:
    """The most resident memory that a process has had since its start, or since its `clear_refs` was reset.

    Raises:
        OSError: there is no such process, or it has ended.

    """
    return _status_bytes(pid, "VmHWM")


def _status_bytes(pid: int | Literal["self"], field: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return 1024 * int(value.split()[0])
    raise ProcessLookupError(f"process {pid} has ended")  # a zombie has a status, but no memory

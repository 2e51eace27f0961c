"""What a running process has used, as /proc tells it to everybody."""

from __future__ import annotations

import os
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def cpu_s(pid: int) -> float:
    """CPU seconds of a process and of the children that it has collected; 0 when it has gone."""
    try:
        # The name, in parentheses, may itself hold spaces and parentheses.
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(int(ticks) for ticks in fields[11:15]) / _TICKS_PER_S


def private_bytes(pid: int) -> int:
    """Memory of a process that is not backed by a file. Pages it still shares with its zygote count as well."""
    try:
        words = Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()
    except OSError:
        return 0
    return (int(words[1]) - int(words[2])) * _PAGE_BYTES

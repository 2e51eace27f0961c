"""When something that was built was last used: the date of a file of it, which outlives a restart."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from gnomon_core.clock import utc_now_s


def touch(path: Path) -> None:
    """It is used now. What is not there is ignored."""
    with contextlib.suppress(FileNotFoundError):
        os.utime(path)


def idle_s(path: Path) -> float:
    """Seconds since it was used; endless for what is not there, which nobody can use."""
    try:
        return utc_now_s() - path.stat().st_mtime
    except FileNotFoundError:
        return float("inf")

"""The cores and memory that this machine and the control group of this process allow.

In a container the control group's bounds apply to Gnomon's own processes too, so that instances get the rest.
"""

from __future__ import annotations

import os
from pathlib import Path

NO_LIMIT_BYTES = 1 << 60
"""Version 1 of control groups states no limit as a number of about this size."""
OWN_MEMORY_BYTES = 576 << 20
"""Memory of the gateway, the supervisor and the zygote that has loaded torch, as measured without any function."""


def quota_cores(groups: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Whole cores that the control group's CPU quota allows; None without a quota."""
    for name in ("cpu.max", "unified/cpu.max"):
        # "QUOTA PERIOD" in microseconds, or "max PERIOD".
        words = _read(groups / name).split()
        if words and words[0] != "max":
            return max(1, int(words[0]) // int(words[1]))
    quota = _read(groups / "cpu/cpu.cfs_quota_us").strip()
    period = _read(groups / "cpu/cpu.cfs_period_us").strip()
    return max(1, int(quota) // int(period)) if quota and int(quota) > 0 else None


def memory_for_instances(groups: Path = Path("/sys/fs/cgroup")) -> int:
    """The bytes that instances may use: the machine's memory, or what the control group's limit leaves them."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = _limit_bytes(groups)
    # Half is left where the limit is too low for models: small handlers can be served.
    return total if limit is None else min(total, max(limit - OWN_MEMORY_BYTES, limit // 2))


def available_memory_bytes(groups: Path = Path("/sys/fs/cgroup"), meminfo: Path = Path("/proc/meminfo")) -> int | None:
    """The bytes that are free, or can be freed, on the machine and in the control group; None if the kernel does not say."""
    lines = [line.split() for line in _read(meminfo).splitlines()]
    available = next((int(words[1]) * 1024 for words in lines if words and words[0] == "MemAvailable:"), None)
    limit, used = _limit_bytes(groups), _used_bytes(groups)
    if limit is None or used is None:
        return available
    in_group = max(0, limit - used)
    return in_group if available is None else min(available, in_group)


def _limit_bytes(groups: Path) -> int | None:
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        limit = _read(groups / name).strip()
        if limit.isdigit() and int(limit) < NO_LIMIT_BYTES:
            return int(limit)
    return None


def _used_bytes(groups: Path) -> int | None:
    """The memory of the control group that the kernel cannot free: without file pages that were not used lately."""
    for usage, statistics, inactive in (
        ("memory.current", "memory.stat", "inactive_file"),
        ("memory/memory.usage_in_bytes", "memory/memory.stat", "total_inactive_file"),
    ):
        used = _read(groups / usage).strip()
        if used.isdigit():
            rows = dict(line.split() for line in _read(groups / statistics).splitlines())
            return max(0, int(used) - int(rows.get(inactive, 0)))
    return None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii")
    except OSError:
        return ""

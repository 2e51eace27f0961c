"""What instances have used: CPU seconds, as /proc tells them to everybody, and memory.

A group of each instance's own bounds and counts its memory, where there can be one.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from gnomon_core.fleet import Instance
from gnomon_core.seam_values import Usage
from gnomon_platforms.local.cgroups import MemoryGroups

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Using(Protocol):
    """What of an instance is looked at."""

    instance: Instance
    pid: int | None

    @property
    def cpu_s(self) -> float: ...


class Accounts:
    """The memory groups of a platform's instances, and the CPU seconds of those that have ended."""

    def __init__(self) -> None:
        self._memory = MemoryGroups()
        self._ended_cpu_s: dict[str, float] = {}

    @property
    def description(self) -> str:
        """By which mechanism memory is limited."""
        return self._memory.description

    def open(self, instance_id: str, limit_bytes: int | None) -> list[str]:
        """Make a group that bounds an instance's memory, where there can be one, and return the files that take its members."""
        return [self._memory.create(instance_id, limit_bytes)] if self._memory.available else []

    def ran_out(self, instance_id: str) -> bool:
        """Whether the kernel has ended an instance because of its limit."""
        return self._memory.available and self._memory.ran_out(instance_id)

    def ended(self, instance: Instance, cpu_s: float) -> None:
        """An instance has gone after so many CPU seconds."""
        self._ended_cpu_s[instance.function] = self._ended_cpu_s.get(instance.function, 0.0) + cpu_s
        self._memory.remove(instance.id)

    def of(self, function: str, living: Iterable[Using]) -> Usage:
        """What a function has used, with the instances of it that live."""
        lives = list(living)
        cpu_s = sum(life.cpu_s for life in lives) + self._ended_cpu_s.get(function, 0.0)
        return Usage(cpu_s, sum(self._memory_of(life) for life in lives))

    def close(self) -> None:
        """Remove the groups."""
        self._memory.close()

    def _memory_of(self, life: Using) -> int:
        if life.pid is None:
            return 0
        return self._memory.usage_bytes(life.instance.id) if self._memory.available else private_bytes(life.pid)


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

"""CPU time and memory of instances, and the control groups that bound their memory.

Where a control group can be written, version 1 or 2, every instance has one below the gateway's own: the kernel ends a process of
that instance and of no other when the limit is passed, and the group counts shared pages once. Elsewhere the instance sets
RLIMIT_DATA for itself, and memory is read from /proc. A start removes the empty groups that killed gateways left behind.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from gnomon_core.fleet import Instance
from gnomon_core.interfaces import Usage

PREFIX = "gnomon-"


@dataclass(frozen=True, slots=True)
class _Names:
    """The file names of a memory control group in one version of cgroups."""

    limit: str
    swap_limit: str
    usage: str
    events: str


_V1 = _Names("memory.limit_in_bytes", "memory.memsw.limit_in_bytes", "memory.usage_in_bytes", "memory.oom_control")
_V2 = _Names("memory.max", "memory.swap.max", "memory.current", "memory.events")


class MemoryGroups:
    """The groups of this process's instances. `description` says which mechanism applies."""

    def __init__(self) -> None:
        self._root: Path | None = None
        self._names = _V1
        self._emptying: set[Path] = set()
        self.description = "RLIMIT_DATA of each process; no memory control group is writable"
        for version, names, parent in _candidates():
            root = _try(parent, names)
            if root is not None:
                self._root, self._names = root, names
                self.description = f"control groups version {version} below {root}"
                return

    @property
    def available(self) -> bool:
        return self._root is not None

    def create(self, instance_id: str, limit_bytes: int | None) -> str:
        """Make a group, bounded if there is a limit, and return the file that takes its members."""
        group = self._group(instance_id)
        group.mkdir(exist_ok=True)
        if limit_bytes is not None:
            (group / self._names.limit).write_text(str(limit_bytes), encoding="ascii")
            with contextlib.suppress(OSError):
                # Version 1 counts memory and swap together, version 2 swap alone; without swap the file may be absent.
                swap_bytes = limit_bytes if self._names is _V1 else 0
                (group / self._names.swap_limit).write_text(str(swap_bytes), encoding="ascii")
        return str(group / "cgroup.procs")

    def usage_bytes(self, instance_id: str) -> int:
        """The memory that a group's members hold."""
        with contextlib.suppress(OSError):
            return int((self._group(instance_id) / self._names.usage).read_text(encoding="ascii"))
        return 0

    def ran_out(self, instance_id: str) -> bool:
        """True if the kernel has ended a member because of the limit."""
        with contextlib.suppress(OSError):
            text = (self._group(instance_id) / self._names.events).read_text(encoding="ascii")
            found = re.search(r"^oom_kill (\d+)$", text, re.MULTILINE)
            return found is not None and int(found[1]) > 0
        return False

    def remove(self, instance_id: str) -> None:
        """Remove a group whose members have ended. One that an orphan still holds is removed with a later one."""
        if self._root is not None:
            self._emptying.add(self._group(instance_id))
            for group in list(self._emptying):
                with contextlib.suppress(OSError):
                    if group.exists():
                        group.rmdir()
                    self._emptying.discard(group)

    def close(self) -> None:
        """Remove the remaining groups and our own."""
        if self._root is not None:
            _remove_tree(self._root)

    def _group(self, instance_id: str) -> Path:
        assert self._root is not None
        return self._root / instance_id


def _candidates() -> list[tuple[int, _Names, Path]]:
    """Possible parents of a new control group: the process's own group first, then the top of the hierarchy."""
    found: list[tuple[int, _Names, Path]] = []
    for line in Path("/proc/self/cgroup").read_text(encoding="ascii").splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            found += [(1, _V1, Path("/sys/fs/cgroup/memory" + path)), (1, _V1, Path("/sys/fs/cgroup/memory"))]
        elif not controllers:
            for top in ("/sys/fs/cgroup", "/sys/fs/cgroup/unified"):
                found += [(2, _V2, Path(top + path)), (2, _V2, Path(top))]
    return found


def _try(parent: Path, names: _Names) -> Path | None:
    """Make our own group below this one, and tell whether its children can be limited."""
    try:
        for left in parent.glob(f"{PREFIX}*"):
            if not Path("/proc", left.name.removeprefix(PREFIX)).exists():
                _remove_tree(left)
        if names is _V2:
            # Refused (EBUSY) where the parent has processes of its own and is not the root: cgroups(7), "no internal processes".
            (parent / "cgroup.subtree_control").write_text("+memory", encoding="ascii")
        root = parent / f"{PREFIX}{os.getpid()}"
        root.mkdir(exist_ok=True)
        if names is _V2:
            (root / "cgroup.subtree_control").write_text("+memory", encoding="ascii")
        probe = root / "probe"
        probe.mkdir(exist_ok=True)
        (probe / names.limit).write_text(str(1 << 30), encoding="ascii")
        probe.rmdir()
    except OSError:
        return None
    return root


def _remove_tree(group: Path) -> None:
    # A control group is removed by rmdir although it shows files, and only while it has no members and no children.
    with contextlib.suppress(OSError):
        for child in group.iterdir():
            if child.is_dir():
                child.rmdir()
        group.rmdir()


_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class RunningProcess(Protocol):
    """The fields of an instance that usage is computed from."""

    instance: Instance
    pid: int | None

    @property
    def cpu_s(self) -> float: ...


class ResourceAccounting:
    """The memory groups of a platform's instances, and the CPU seconds of those that have ended."""

    def __init__(self) -> None:
        self._memory = MemoryGroups()
        self._ended_cpu_s: dict[str, float] = {}

    @property
    def description(self) -> str:
        """The mechanism that limits memory, for logs."""
        return self._memory.description

    def open(self, instance_id: str, limit_bytes: int | None) -> list[str]:
        """Make a group that bounds an instance's memory, where there can be one, and return the files that take its members."""
        return [self._memory.create(instance_id, limit_bytes)] if self._memory.available else []

    def ran_out(self, instance_id: str) -> bool:
        """True if the kernel has ended an instance because of its limit."""
        return self._memory.available and self._memory.ran_out(instance_id)

    def ended(self, instance: Instance, cpu_s: float) -> None:
        """Record that an instance ended after this many CPU seconds."""
        self._ended_cpu_s[instance.function] = self._ended_cpu_s.get(instance.function, 0.0) + cpu_s
        self._memory.remove(instance.id)

    def of(self, function: str, instances: Iterable[RunningProcess]) -> Usage:
        """CPU time and memory of a function, its ended and its running instances together."""
        running = list(instances)
        cpu_s = sum(instance.cpu_s for instance in running) + self._ended_cpu_s.get(function, 0.0)
        return Usage(cpu_s, sum(self._memory_of(instance) for instance in running))

    def close(self) -> None:
        """Remove the groups."""
        self._memory.close()

    def _memory_of(self, instance: RunningProcess) -> int:
        if instance.pid is None:
            return 0
        return self._memory.usage_bytes(instance.instance.id) if self._memory.available else private_bytes(instance.pid)


def cpu_s(pid: int) -> float:
    """CPU seconds of a process and of the children that it has reaped; 0 if the process has ended."""
    try:
        # The name, in parentheses, may itself hold spaces and parentheses. After it, fields 14 to 17 of proc_pid_stat(5) are
        # utime, stime, cutime and cstime, in ticks: the last two count children that were waited for.
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
    # proc_pid_statm(5), in pages: resident, less what is backed by a file or shared memory.
    return (int(words[1]) - int(words[2])) * _PAGE_BYTES

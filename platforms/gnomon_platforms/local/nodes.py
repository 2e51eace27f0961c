"""The local machine as a node: capacity, reservations, and the CPUs of each instance.

Memory is reserved for as long as an instance lives. Cores are reserved while it starts, executes, or has executed in the last
seconds; an idle instance reserves none, unless its deployment asks for CPU (`requests.cpu`, `limits.cpu`). The first instance of
a function needs memory only, so that no function is kept out by others that are busy. Example: on 2 cores ten models have an
instance each. Two of them are busy: no function gets a second instance until one of the two is idle. If all ten are busy, the
kernel shares the 2 cores among them, a fifth of a core each.

With `gnomon serve --lend-cores` the node lends cores (`gnomon_core.core_arbiter`): an instance that borrows reserves only the
cores that it keeps, and each of its batches has as many more as the arbiter lends for the time of the batch. The instance may run
on every CPU. It uses as many threads as its batch has cores, so that the kernel has a CPU for each of them.

An instance has CPUs of its own while there are any. After that, instances may run on every CPU and the kernel places them, so
that two busy ones do not share one CPU beside an idle one.

Cores can be held in reserve for Shadows, so that a burst finds free cores: a node reports them apart from its free ones. A
Body that fits nowhere else gets them (AsyFunc, section 3.4); what it gives back is reserve again. The memory of the pool's empty
containers is not free either, and an instance that needs it gets it, because the pool then has to shrink.

**Capacity.** The cores and memory that this machine and the control group of this process allow.

In a container the control group's bounds apply to Gnomon's own processes too, so that instances get the rest.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gnomon_core.core_arbiter import CoreArbiter
from gnomon_core.errors import GnomonError
from gnomon_core.fleet import Node
from gnomon_core.units import many


@dataclass(frozen=True, slots=True)
class Allocation:
    """Resources allocated to one instance. If `held_while_idle`, its cores stay allocated while it is idle."""

    cores: float
    memory_bytes: int
    cpus: tuple[int, ...]
    from_reserve: bool = False
    held_while_idle: bool = True


class LocalNode:
    """The node of the local platform. `in_use` says whether an instance starts, executes, or did so lately."""

    def __init__(
        self,
        cpus: tuple[int, ...],
        cores: int,
        memory_bytes: int,
        name: str = "",
        *,
        reserved_cores: float = 0.0,
        lends: bool = False,
        in_use: Callable[[str], bool] = lambda _: True,
    ) -> None:
        self.name = name or os.uname().nodename
        self._cpus = cpus
        self._cores = cores
        self._memory_bytes = memory_bytes
        self._reserved_cores = reserved_cores
        self._lends = lends
        self._arbiter = CoreArbiter(cores, in_use)
        self._allocations: dict[str, Allocation] = {}
        self._pool_bytes = 0

    @staticmethod
    def this_machine(
        cores: int | None = None,
        reserved_cores: float = 0.0,
        in_use: Callable[[str], bool] = lambda _: True,
        *,
        lends: bool = False,
    ) -> LocalNode:
        """The node that the affinity mask and control groups leave us. `cores` states another number to give away."""
        cpus = tuple(sorted(os.sched_getaffinity(0)))
        if cores is not None and cores < len(cpus):
            cpus = cpus[:cores]
        given = cores or min(len(cpus), quota_cores() or len(cpus))
        return LocalNode(cpus, given, memory_for_instances(), reserved_cores=reserved_cores, lends=lends, in_use=in_use)

    @property
    def unallocated_cores(self) -> float:
        """Cores that no instance reserves, the reserve for Shadows included; negative while more are busy than exist."""
        return self._arbiter.unclaimed

    @property
    def reserve_cores(self) -> float:
        """Cores held for Shadows now: fewer than configured while Shadows use them, or while Bodies need them."""
        return self._left_of_reserve(self.unallocated_cores) if self._reserved_cores else 0.0

    def _left_of_reserve(self, unallocated_cores: float) -> float:
        used = sum(allocation.cores for allocation in self._allocations.values() if allocation.from_reserve)
        return max(0.0, min(self._reserved_cores - used, unallocated_cores))

    def value(self) -> Node:
        """Capacity and free resources of the node; the reserve is separate, the pool's containers are deducted."""
        unallocated_cores = self.unallocated_cores
        reserve_cores = self._left_of_reserve(unallocated_cores) if self._reserved_cores else 0.0
        return Node(
            name=self.name,
            cores=self._cores,
            memory_bytes=self._memory_bytes,
            free_cores=max(0.0, round(unallocated_cores - reserve_cores, 6)),
            free_memory_bytes=max(0, self.unallocated_memory_bytes - self._pool_bytes),
            reserve_cores=round(reserve_cores, 6),
            lends=self._lends,
        )

    @property
    def unallocated_memory_bytes(self) -> int:
        """Memory in bytes that is allocated to no instance; the pool's containers use a part of it."""
        return self._memory_bytes - sum(allocation.memory_bytes for allocation in self._allocations.values())

    def set_pool_bytes(self, memory_bytes: int) -> None:
        """Set the memory that the pool's empty containers use now."""
        self._pool_bytes = memory_bytes

    def allocate(
        self,
        instance_id: str,
        cores: float,
        memory_bytes: int,
        width: int,
        *,
        from_reserve: bool = False,
        held_while_idle: bool = True,
        first: bool = False,
        idle_cores: int | None = None,
    ) -> Allocation:
        """Allocate cores, memory and `width` CPUs to an instance. A Shadow's come from the reserve as far as that goes.

        With `idle_cores` it keeps so many cores between batches, borrows others for each batch, and may run on every CPU.

        The `first` instance of a function needs only memory, and a machine that is large enough for it; one that is
        `held_while_idle` needs its cores all the same.

        Raises:
            GnomonError: 503 `no_capacity`.

        """
        previous = self._allocations.pop(instance_id, None)
        free_cores = self._cores if first and not held_while_idle else self._arbiter.available(instance_id)
        if previous is not None:
            free_cores = max(free_cores, previous.cores)  # what it has already is no new claim
        if cores > free_cores or memory_bytes > self.unallocated_memory_bytes:
            now = self.value()
            if previous is not None:
                self._allocations[instance_id] = previous
            raise no_capacity(now, cores, memory_bytes)
        cpus = (self._own_cpus(width) if idle_cores is None else ()) or self._cpus
        allocation = self._allocations[instance_id] = Allocation(cores, memory_bytes, cpus, from_reserve, held_while_idle)
        self._arbiter.claim(instance_id, cores, idle_cores=idle_cores, held_while_idle=held_while_idle)
        return allocation

    def resize(self, instance_id: str, cores: float, width: int, *, idle_cores: int | None = None) -> Allocation:
        """Change the cores and the number of CPUs that are allocated to an instance. See `allocate`.

        Raises:
            GnomonError: 503 `no_capacity`; the instance keeps its cores.

        """
        current = self._allocations[instance_id]
        return self.allocate(
            instance_id, cores, current.memory_bytes, width, held_while_idle=current.held_while_idle, idle_cores=idle_cores
        )

    def lend(self, instance_id: str, cores: int) -> int:
        """Lend up to so many cores for the instance's next batch. Returns how many it has."""
        return self._arbiter.lend(instance_id, cores)

    def give_back(self, instance_id: str) -> None:
        """Take back the cores that the instance's last batch borrowed. Unknown ids are ignored."""
        self._arbiter.give_back(instance_id)

    def share(self, instance_id: str) -> int:
        """The most cores that a batch of this instance may have now; 0 where it does not borrow."""
        return self._arbiter.share(instance_id)

    def check_name(self, name: str | None) -> None:
        """Raise for the name of another node: GnomonError, 503 `no_capacity`."""
        if name not in (None, self.name):
            raise GnomonError(
                503, "no_capacity", f"There is no node {name!r} here, only {self.name!r}.", "Name this node, or none."
            )

    def allocation(self, instance_id: str) -> Allocation:
        """The allocation of an instance."""
        return self._allocations[instance_id]

    def release(self, instance_id: str) -> None:
        """Free the resources of an instance. Unknown ids are ignored."""
        self._allocations.pop(instance_id, None)
        self._arbiter.release(instance_id)

    def _own_cpus(self, width: int) -> tuple[int, ...]:
        """Return `width` CPUs that no instance has to itself; an empty tuple if there are too few."""
        taken = {
            cpu for allocation in self._allocations.values() if len(allocation.cpus) < len(self._cpus) for cpu in allocation.cpus
        }
        own = [cpu for cpu in self._cpus if cpu not in taken]
        return tuple(own[:width]) if len(own) >= width else ()


def no_capacity(node: Node, cores: float, memory_bytes: int) -> GnomonError:
    """The refusal of an instance that does not fit."""
    return GnomonError(
        503,
        "no_capacity",
        f"An instance needs {many(cores, 'core')} and {memory_bytes / 2**20:.0f} MiB; node {node.name} has "
        f"{many(node.free_cores + node.reserve_cores, 'core')} and {node.free_memory_bytes / 2**20:.0f} MiB free.",
        "Scale something down, ask for less (requests.cpu, gnomon/cores), or let the node give away more (--cores).",
    )


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

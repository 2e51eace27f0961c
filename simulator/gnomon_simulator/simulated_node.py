"""A machine of the simulated cluster: what it has, what has been given away, what it holds for Shadows, and its pool.

Cores and memory are claimed as on the local platform's node (`gnomon_platforms.local.nodes`): a Shadow's cores come from the
reserve as far as that goes, a Body gets what is left of it where it fits nowhere else, and what it gives back is reserve again.
The pool is the one that the coordinator keeps, in virtual time: a Shadow that finds an empty container is there the sooner by a
fork, the containers' memory is not free, and an instance that needs it gets it, because the pool then has to shrink.

    pool 1, three Shadows at once: one finds a container, two wait for forks; from now on three are kept
"""

from __future__ import annotations

from dataclasses import dataclass

from gnomon_coordinator.pool_size import PoolSize
from gnomon_core.fleet import Node
from gnomon_platforms.local.recipes import BURST_CONTAINERS, CONTAINER_BYTES


@dataclass(frozen=True, slots=True)
class NodePlan:
    """A machine of the simulated cluster.

    `reserved_cores` are held for Shadows, `pool` empty containers are kept, more after bursts, as `gnomon serve` has it. `fork_s`
    is what a Shadow takes longer that finds none: medians of 22.9 beside 13.2 ms were measured (`benchmarks.shadow starts`).
    """

    name: str
    cores: int
    memory_bytes: int = 2**37
    reserved_cores: float = 0.0
    pool: int = 1
    fork_s: float = 0.01


class SimulatedNode:
    """What is free of one machine."""

    def __init__(self, plan: NodePlan) -> None:
        self.plan = plan
        self.unclaimed_cores = plan.cores
        self.unclaimed_bytes = plan.memory_bytes
        self._shadows_cores = 0
        self._pool = PoolSize()
        self._told: tuple[int, int] | None = None
        self._containers = 0
        self._ready_s = 0.0
        """When the youngest of the containers is ready."""
        self._fit(-plan.fork_s)

    def value(self, now_s: float) -> Node:
        """What the node has and what is free now, the reserve by itself, and without what the pool's containers hold."""
        self._fill(now_s)
        reserve = self.reserve_cores
        return Node(
            name=self.plan.name,
            cores=self.plan.cores,
            memory_bytes=self.plan.memory_bytes,
            free_cores=self.unclaimed_cores - reserve,
            free_memory_bytes=max(0, self.unclaimed_bytes - self._pool.wanted * CONTAINER_BYTES),
            reserve_cores=reserve,
        )

    @property
    def reserve_cores(self) -> float:
        """What is held for Shadows now: less than was asked for while they use it, or while Bodies need it."""
        return max(0.0, min(self.plan.reserved_cores - self._shadows_cores, self.unclaimed_cores))

    def has_room(self, cores: int, memory_bytes: int, *, reserve: bool) -> bool:
        """Whether an instance fits, into the reserve as well or beside it."""
        free_cores = self.unclaimed_cores - (0.0 if reserve else self.reserve_cores)
        return cores <= free_cores and memory_bytes <= self.unclaimed_bytes

    def take(self, cores: int, memory_bytes: int, now_s: float, *, shadow: bool = False) -> None:
        """Give cores and memory away, to a Shadow or a Body; negative amounts come back."""
        self.unclaimed_cores -= cores
        self.unclaimed_bytes -= memory_bytes
        self._shadows_cores += cores if shadow else 0
        self._fit(now_s)

    def take_container(self, now_s: float) -> bool:
        """A Shadow begins: whether it finds an empty container that is ready."""
        self._fill(now_s)
        found = self._containers > 0 and self._ready_s <= now_s
        self._containers -= found
        self._pool.taken(now_s)
        return found

    def _fit(self, now_s: float) -> None:
        """Keep as many containers as there is memory for (`gnomon_platforms.local.recipes`)."""
        room = max(0, self.unclaimed_bytes // CONTAINER_BYTES)
        size = min(self.plan.pool, room)
        most = min(max(size, BURST_CONTAINERS), room) if size else 0
        if (size, most) != self._told:
            self._told = size, most
            self._pool.resize(size, now_s, most)
        self._fill(now_s)

    def _fill(self, now_s: float) -> None:
        """Fork what has been missing, from when it was due, and end what is too much."""
        due_s = self._pool.due_s(self._containers)
        missing = self._pool.missing(self._containers, now_s)
        self._containers += missing
        if missing > 0 and due_s is not None:
            self._ready_s = due_s + self.plan.fork_s

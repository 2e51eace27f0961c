"""What is free on the nodes, as a decision gives it away: no two of its actions may count on the same cores."""

from __future__ import annotations

from collections.abc import Iterable

from gnomon_core.fleet import Node

_TOLERANCE_CORES = 1e-9
"""Free cores are sums of fractions: 0.9999999999999998 of a core is one."""


class Room:
    """Free cores and memory by node. What is taken stays taken."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        self._free = {node.name: (node.free_cores, node.free_memory_bytes) for node in nodes}

    def roomiest(self, cores: int, memory_bytes: int = 0) -> str | None:
        """The node with most free cores that has room for an instance; None where none has."""
        room = [name for name, (spare, spare_bytes) in self._free.items() if spare >= cores and spare_bytes >= memory_bytes]
        return min(room, key=lambda name: (-self._free[name][0], name), default=None)

    def take(self, node: str, cores: int, memory_bytes: int = 0) -> None:
        """An instance begins on this node; a negative amount: one ends."""
        spare, spare_bytes = self._free[node]
        self._free[node] = (spare - cores, spare_bytes - memory_bytes)

    def cores(self, node: str) -> int:
        """Whole free cores of a node; 0 for one that is not known."""
        return max(0, int(self._free.get(node, (0.0, 0))[0] + _TOLERANCE_CORES))

    def others(self, node: str) -> list[str]:
        """The other nodes, those with most free cores first."""
        return sorted(self._free.keys() - {node}, key=lambda name: (-self._free[name][0], name))

    def memory_bytes(self, node: str) -> int:
        """Free memory of a node; 0 for one that is not known."""
        return self._free.get(node, (0.0, 0))[1]

"""What is free on the nodes, as a decision gives it away: no two of its actions may count on the same cores.

A node's free cores are anybody's. Those in its reserve are for Shadows, which take them first; a Body gets them where no node has
other room for it (AsyFunc, section 3.4). Example: 1 core free, 2 in reserve. A Shadow of 3 has room. A Body of 1 takes the free
one, and one of 2 that fits nowhere else takes that and 1 of the reserve.
"""

from __future__ import annotations

from collections.abc import Iterable

from gnomon_core.fleet import Node

_TOLERANCE_CORES = 1e-9
"""Free cores are sums of fractions: 0.9999999999999998 of a core is one."""
_NOTHING = (0.0, 0.0, 0)


class Room:
    """Free cores, reserve and free memory by node. What is taken stays taken; of a node that is not known nothing is kept."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        seen = tuple(nodes)
        self._free = {node.name: (node.free_cores, node.reserve_cores, node.free_memory_bytes) for node in seen}
        self._pairs = {node.name for node in seen if node.pairs}

    def roomiest(self, cores: int, memory_bytes: int = 0, *, reserve: bool = False) -> str | None:
        """The node with most free cores that has room for a Body; None where none has. With `reserve` that counts as free."""
        room = {
            name: spare + held * reserve for name, (spare, held, spare_bytes) in self._free.items() if spare_bytes >= memory_bytes
        }
        return min((name for name in room if room[name] >= cores), key=lambda name: (-room[name], name), default=None)

    def take(self, node: str, cores: int, memory_bytes: int = 0) -> None:
        """A Body begins on this node, or grows; a negative amount: one ends."""
        spare = self._free.get(node, _NOTHING)[0]
        self._take(node, cores, max(0.0, cores - max(0.0, spare)), memory_bytes)

    def take_for_shadow(self, node: str, cores: int, memory_bytes: int = 0) -> None:
        """A Shadow begins on this node."""
        self._take(node, cores, cores, memory_bytes)

    def cores(self, node: str) -> int:
        """Whole free cores of a node, without its reserve; 0 for one that is not known."""
        return _whole(self._free.get(node, _NOTHING)[0])

    def makes_shadows(self, node: str) -> bool:
        """Whether Shadows can be made there now, and Bodies be told of them."""
        return node in self._pairs

    def shadow_cores(self, node: str) -> int:
        """Whole cores of a node that Shadows may have; 0 for one that is not known, or where none can be made now."""
        spare, held, _ = self._free.get(node, _NOTHING)
        return _whole(spare + held) if node in self._pairs else 0

    def others(self, node: str) -> list[str]:
        """The other nodes, those with most cores for Shadows first."""
        return sorted(self._free.keys() - {node}, key=lambda name: (-sum(self._free[name][:2]), name))

    def memory_bytes(self, node: str) -> int:
        """Free memory of a node; 0 for one that is not known."""
        return self._free.get(node, _NOTHING)[2]

    def _take(self, node: str, cores: int, most_of_reserve: float, memory_bytes: int) -> None:
        if node not in self._free:
            return
        spare, held, spare_bytes = self._free[node]
        reserved = min(held, most_of_reserve)
        self._free[node] = (spare - (cores - reserved), held - reserved, spare_bytes - memory_bytes)


def _whole(cores: float) -> int:
    return max(0, int(cores + _TOLERANCE_CORES))

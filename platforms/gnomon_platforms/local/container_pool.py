"""How many empty containers the node's coordinator keeps in reserve, and the memory that they take of the node.

What was asked for, and more after bursts (`most`), as far as there is memory beside the instances: those come first, and the pool
shrinks for them. The coordinator is told when that changes, and tells how many containers it keeps from now on. Their memory is
counted whether they are there or about to be: a container that becomes a Shadow is made again, beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gnomon_platforms.local.nodes import LocalNode
from gnomon_platforms.local.zygotes import TORCH

CONTAINER_BYTES = 32 * 2**20
"""What an empty container holds of its own once it has rehearsed: 11 MB were measured, and the tables of its pages."""
BURST_CONTAINERS = 4
"""How many the pool may keep for the next burst when it has seen one."""


class ContainerPool:
    """`ask` reaches the coordinator, if there is one just now; `size` is what was asked for."""

    def __init__(self, ask: Callable[[Mapping[str, Any]], None], node: LocalNode, size: int) -> None:
        self._ask = ask
        self._node = node
        self._size = size
        self._warm = False
        self._told: tuple[int, int] | None = None

    def warm(self) -> None:
        """The zygote that containers are forked from is warm."""
        self._warm = True
        self.tell()

    def tell(self) -> None:
        """Tell the coordinator, whatever it was told before: it may be another."""
        self._told = None
        self.fit()

    def fit(self) -> None:
        """Keep as many containers as there is memory for. Called when what the instances have has changed."""
        room = max(0, self._node.unclaimed_memory_bytes // CONTAINER_BYTES)
        size = min(self._size, room)
        most = min(max(size, BURST_CONTAINERS), room) if size else 0
        if self._warm and (size, most) != self._told:
            self._told = size, most
            self._ask({"do": "pool", "size": size, "most": most, "zygote": TORCH.id})

    def keeps(self, containers: int) -> None:
        """The coordinator keeps so many."""
        self._node.hold_for_pool(containers * CONTAINER_BYTES)

    def lost(self) -> None:
        """They have all ended with the supervisor."""
        self._warm = False
        self.keeps(0)

"""Which CPUs a Shadow runs on: those that the fewest Shadows have.

The pool's container has a request and no limit, so a Shadow has its cores at once, by affinity. Bodies on the node are not bound
to CPUs; the kernel moves them away from those that a Shadow keeps busy.

    4 CPUs    s1 gets two: 0 1    s2 two: 2 3    s3 one: 0    s1 ends    s4 two: 1, which nobody has, and 0, as good as 2 or 3
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence


class Cpus:
    """The node's, or what of them the pool may use."""

    def __init__(self, cpus: Sequence[int]) -> None:
        self._cpus = tuple(sorted(cpus))
        self._held: dict[str, tuple[int, ...]] = {}

    def __len__(self) -> int:
        return len(self._cpus)

    def claim(self, holder: str, cores: int) -> tuple[int, ...]:
        """So many CPUs for this holder, in place of those that it has; all of them where there are not as many."""
        self.release(holder)
        load = Counter(cpu for held in self._held.values() for cpu in held)
        found = tuple(sorted(sorted(self._cpus, key=lambda cpu: (load[cpu], cpu))[:cores]))
        self._held[holder] = found
        return found

    def release(self, holder: str) -> None:
        """Give back what it has. Nothing happens to one that has none."""
        self._held.pop(holder, None)

    @property
    def claimed(self) -> int:
        """Cores of all Shadows together: what the pool's request should say."""
        return sum(len(held) for held in self._held.values())

"""The arbiter of one node's cores: instances claim cores until they end, and batches borrow cores while they execute.

    arbiter = CoreArbiter(26)
    arbiter.claim(1), arbiter.enter("a")   # an instance that keeps one core between its batches
    arbiter.lend("a", 1, 20)               # 20: its own and 19 free ones
    arbiter.give_back("a")                 # its batch has ended: 19 are free again
    arbiter.claim(1), arbiter.enter("b")   # from now on neither has more than half: 13

A batch always gets at least the cores that its instance keeps, and claimed cores are never lent to other instances. The unclaimed
cores are shared equally among the instances that borrow. Without shares the first batch would take the whole node, and the next
batch would take very long on the one core that remains. With shares, loans need not be revoked.
"""

from __future__ import annotations


class CoreArbiter:
    """The claims, borrowers and loans of one node. Callers of `claim` check that the cores are available."""

    __slots__ = ("_borrowers", "_claimed", "_loans", "cores")

    def __init__(self, cores: int) -> None:
        self.cores = cores
        self._claimed = 0.0
        self._borrowers: set[str] = set()
        self._loans: dict[str, int] = {}

    @property
    def unclaimed(self) -> float:
        """Cores that no instance claims; some of them may be lent now."""
        return self.cores - self._claimed

    @property
    def free(self) -> float:
        """Cores that are neither claimed nor lent."""
        return self.unclaimed - sum(self._loans.values())

    def claim(self, cores: float) -> None:
        """Claim cores for an instance until it ends; a negative number releases them."""
        self._claimed += cores

    def enter(self, borrower: str) -> None:
        """An instance borrows cores for its batches from now on."""
        self._borrowers.add(borrower)

    def leave(self, borrower: str) -> None:
        """The instance has ended, and so has its batch. Unknown borrowers are ignored."""
        self._borrowers.discard(borrower)
        self.give_back(borrower)

    def lend(self, borrower: str, kept: int, wanted: int) -> int:
        """Lend cores for a batch, bounded by the instance's share and the free cores; returns the sum of its cores.

        The instance keeps `kept` cores of its own. The loan replaces its last one.
        """
        # One loan per instance: its last batch has ended, or the loan is replaced.
        self.give_back(borrower)
        share = int(self.unclaimed / max(1, len(self._borrowers)))
        loan = min(max(0, wanted - kept), max(0, share), max(0, int(self.free)))
        if loan:
            self._loans[borrower] = loan
        return kept + loan

    def give_back(self, borrower: str) -> None:
        """The instance's batch has ended. Unknown borrowers are ignored."""
        self._loans.pop(borrower, None)

"""The arbiter of one node's cores: instances claim cores until they end, and batches borrow cores while they execute.

    arbiter = CoreArbiter(26)
    arbiter.claim("a", 1, idle_cores=1)    # an instance that keeps one core between its batches
    arbiter.lend("a", 20)                  # 20: its own and 19 free ones
    arbiter.give_back("a")                 # its batch has ended: 19 are free again
    arbiter.claim("b", 1, idle_cores=1)    # from now on neither has more than half: 13

A batch always gets at least the cores that its instance keeps, and claimed cores are never lent to other instances. The unclaimed
cores are shared equally among the instances that borrow. Without shares the first batch would take the whole node, and the next
batch would take very long on the one core that remains. With shares, loans need not be revoked.

A node may leave the cores of idle instances to others (`in_use`): claims and shares of such instances count only while the
instance is in use. Its next batch counts again, at once. A loan of another instance that was made meanwhile is kept until that
batch ends; until then both run on the node's cores, as the kernel divides them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

_DIGITS = 6
"""Decimals to which sums of claims are rounded: claims may be fractions of a core, whose sums are not exact."""


@dataclass(slots=True)
class _Claim:
    cores: float
    idle_cores: int | None
    held_while_idle: bool
    loan: int = 0


class CoreArbiter:
    """The claims and loans of one node. Callers of `claim` check that the cores are available."""

    __slots__ = ("_claims", "_in_use", "cores")

    def __init__(self, cores: int, in_use: Callable[[str], bool] = lambda _: True) -> None:
        self.cores = cores
        self._in_use = in_use
        self._claims: dict[str, _Claim] = {}

    @property
    def unclaimed(self) -> float:
        """Cores that no instance claims; some of them may be lent now. Negative while more are in use than the node has."""
        return self.available("")

    @property
    def free(self) -> float:
        """Cores that are neither claimed nor lent."""
        return self.unclaimed - sum(claim.loan for claim in self._claims.values())

    def available(self, instance: str) -> float:
        """Cores that no other instance claims."""
        return round(self.cores - sum(claim.cores for claim in self._others(instance)), _DIGITS)

    def claim(self, instance: str, cores: float, *, idle_cores: int | None = None, held_while_idle: bool = True) -> None:
        """Claim cores for an instance until `release`, in the place of its earlier claim.

        With `idle_cores` the instance keeps that many cores between batches and borrows others for each batch. Unless
        `held_while_idle`, the claim and the share count only while the instance is in use.
        """
        previous = self._claims.get(instance)
        loan = 0 if previous is None or idle_cores is None else previous.loan
        self._claims[instance] = _Claim(cores, idle_cores, held_while_idle, loan)

    def claimed(self, instance: str) -> float:
        """The cores that an instance claims; 0 for an unknown one."""
        claim = self._claims.get(instance)
        return 0.0 if claim is None else claim.cores

    def release(self, instance: str) -> None:
        """Release the claim and the loan of an instance that has ended. Unknown instances are ignored."""
        self._claims.pop(instance, None)

    def share(self, instance: str) -> int:
        """The most cores that a batch of this instance may have now, if no loan is in its way; 0 where it does not borrow."""
        claim = self._claims.get(instance)
        if claim is None or claim.idle_cores is None:
            return 0
        return claim.idle_cores + self._share(instance, claim)

    def lend(self, instance: str, cores: int) -> int:
        """Lend cores for a batch, bounded by the instance's share and the free cores; returns the sum of its cores.

        The loan replaces its last one. An instance that does not borrow has all its cores.
        """
        claim = self._claims.get(instance)
        if claim is None or claim.idle_cores is None:
            return cores
        # One loan per instance: its last batch has ended, or the loan is replaced.
        claim.loan = 0
        lent = sum(other.loan for other in self._claims.values())
        free = int(self.available(instance) - claim.cores - lent)
        claim.loan = max(0, min(cores - claim.idle_cores, self._share(instance, claim), free))
        return claim.idle_cores + claim.loan

    def give_back(self, instance: str) -> None:
        """Take back the cores that the instance's ended batch borrowed. Unknown instances are ignored."""
        claim = self._claims.get(instance)
        if claim is not None:
            claim.loan = 0

    def _share(self, instance: str, claim: _Claim) -> int:
        borrowers = 1 + sum(other.idle_cores is not None for other in self._others(instance))
        return max(0, int((self.available(instance) - claim.cores) / borrowers))

    def _others(self, instance: str) -> Iterator[_Claim]:
        """The claims that count beside an instance's."""
        for name, claim in self._claims.items():
            if name != instance and (claim.held_while_idle or self._in_use(name)):
                yield claim

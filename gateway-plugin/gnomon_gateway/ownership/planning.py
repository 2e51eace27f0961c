"""The leader's rules: when there is a new map, and what is in it. Values in, values out.

Whoever answers is an owner, unless it says that it is leaving; whoever is gone is left out; whoever is silent stays as it was
until it is known to be gone, or has been silent for longer than `patience_s`.

    refused by its address, twice in a row   nothing listens there: it is gone
    its address answers with another id      its process was replaced: it is gone
    not among the addresses any more         it is gone
    silent                                   gone after `patience_s`: frozen, or cut off; instances fence it (`holdings`)

Who leads owns nothing as long as there is another: if it is killed, nobody publishes a map before its Lease is over, and
functions that it owned would wait for as long.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from gnomon_core.ownership import OwnershipMap, Replica

PATIENCE_S = 3.0
REFUSALS = 2


@dataclass(frozen=True, slots=True)
class Sighting:
    """A replica that has answered: who is at this address, and whether it wants to go."""

    id: str
    address: str
    leaving: bool = False


class Attendance:
    """Who answers, and who is gone. Times are on the leader's clock; its memory is its own: a new leader begins with patience."""

    def __init__(self, patience_s: float = PATIENCE_S) -> None:
        self._patience_s = patience_s
        self._seen: dict[str, Sighting] = {}
        self._heard_s: dict[str, float] = {}
        self._refusals: dict[str, int] = {}

    def answered(self, sighting: Sighting, now_s: float) -> None:
        """The replica at this address has answered."""
        self._seen[sighting.address] = sighting
        self._heard_s[sighting.id] = now_s
        self._refusals.pop(sighting.address, None)

    def refused(self, address: str) -> None:
        """Nothing listens at this address."""
        self._refusals[address] = self._refusals.get(address, 0) + 1

    def seen(self, addresses: Collection[str]) -> list[Sighting]:
        """Those that are there, as they last said, of these addresses."""
        return [one for address, one in self._seen.items() if address in addresses]

    def gone(self, members: Iterable[Replica], addresses: Collection[str], now_s: float) -> set[str]:
        """The members that are gone. One that was never heard of is given patience from now on."""
        return {replica.id for replica in members if self._is_gone(replica, addresses, now_s)}

    def forget(self, gone: Collection[str]) -> None:
        """These are gone, and come back, if they do, as others would."""
        self._seen = {address: one for address, one in self._seen.items() if one.id not in gone}
        for identity in gone:
            self._heard_s.pop(identity, None)

    def _is_gone(self, replica: Replica, addresses: Collection[str], now_s: float) -> bool:
        there = self._seen.get(replica.address)
        if replica.address not in addresses or (there is not None and there.id != replica.id):
            return True
        if self._refusals.get(replica.address, 0) >= REFUSALS:
            return True
        return now_s - self._heard_s.setdefault(replica.id, now_s) > self._patience_s


def next_map(
    current: OwnershipMap | None, seen: Collection[Sighting], gone: Collection[str], leader: str = ""
) -> OwnershipMap | None:
    """The map that follows from who is there; None where the current one is right.

    Who leaves, or leads, stays an owner as long as there is no other: requests wait nowhere else.
    """
    epoch = 1 if current is None else current.epoch + 1
    known = {replica.id: replica for replica in (current.members if current is not None else ()) if replica.id not in gone}
    wants_to_go = {one.id for one in seen if one.leaving}
    if current is not None:
        # Who has begun to leave goes, whatever its last answer was.
        wants_to_go |= {replica.id for replica in current.leaving} - {leader}
    for one in seen:
        if one.id not in known and one.id not in gone and not one.leaving:
            known[one.id] = Replica(one.id, one.address, epoch)
    staying = [replica for replica in known.values() if replica.id not in wants_to_go]
    owners = tuple(sorted(replica for replica in staying if replica.id != leader or len(staying) == 1))
    leaving = tuple(sorted(replica for replica in known.values() if replica not in owners))
    if not owners:
        owners, leaving = leaving, ()
    if current is None:
        return OwnershipMap(epoch, owners, leaving) if owners else None
    same = {one.id for one in owners} == {one.id for one in current.owners} and {one.id for one in leaving} == {
        one.id for one in current.leaving
    }
    return None if same else OwnershipMap(epoch, owners, leaving)

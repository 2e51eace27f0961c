"""What one replica may dispatch: it begins with a function only when nobody else may have anything of it in flight.

    not its ─▶ its by the map, waits ─▶ serves ─▶ another's by a newer map, drains ─▶ zero in flight, released
                  └─ until every other member of the map says, knowing this map, that it does not drain it

An owner asks everyone and not only who had the function before: whatever maps were missed, whoever else died in between, what
each member says of itself is enough. A member that knows a map does not begin with what is another's by it, so what it has
released stays released; hence no two replicas of a map ever dispatch for one function at the same time.

A replica that does not answer is taken out of the map by the leader. It may still be there, frozen or cut off: then it is the
instances that refuse its batches, for they carry an older epoch than those of the new owner. If it comes back, its entry has a
newer `since`, by which it knows that what it held may have been another's.

The leader's rules: when there is a new map, and what is in it. Values in, values out.

Whoever answers is an owner, unless it says that it is leaving; whoever is gone is left out; whoever is silent stays as it was
until it is known to be gone, or has been silent for longer than `patience_s`.

    refused by its address, twice in a row   nothing listens there: it is gone
    its address answers with another id      its process was replaced: it is gone
    not among the addresses any more         it is gone
    silent                                   gone after `patience_s`: frozen, or cut off; instances fence it (`holdings`)

Who leads owns nothing as long as there is another: if it is killed, nobody publishes a map before its Lease is over, and
functions that it owned would wait for as long.

Who owns a function: the replica whose hash with the function's name is the highest (rendezvous hashing).

Each replica draws a number for each function, and the highest has it. When one goes, only its functions move, each to the one
that drew second; when one comes, only those move that it draws highest for: of 1,000 functions of 3 replicas 250 to a fourth.
Reference: Thaler and Ravishankar, "Using name-based mappings to increase hit rates", IEEE/ACM Transactions on Networking 6(1),
1998, section III.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from hashlib import blake2b

from gnomon_core.ownership import OwnershipMap, Replica


def owner(function: str, replicas: Sequence[Replica]) -> Replica | None:
    """The replica that owns a function; None where there is none. The order of the replicas has no meaning."""
    return max(replicas, key=lambda replica: (_weight(replica.id, function), replica.id), default=None)


def _weight(replica_id: str, function: str) -> bytes:
    return blake2b(f"{replica_id}\n{function}".encode(), digest_size=8).digest()


class Place(Enum):
    """Where a request is to go, if not to another replica."""

    HERE = "here"
    WAITS = "waits"
    """Nobody may dispatch it yet: the owner begins soon, or a newer map is to come."""


@dataclass(frozen=True, slots=True)
class Word:
    """What a replica says of itself: the newest map that it knows, and the functions of others that it still drains."""

    replica: str
    epoch: int
    draining: frozenset[str]


class Holdings:
    """The functions of the replica `me`. Functions are named `name.namespace`."""

    def __init__(self, me: str) -> None:
        self._me = me
        self._map: OwnershipMap | None = None
        self._claims: dict[str, int] = {}
        self._floors: dict[str, int] = {}
        self._heard: dict[str, Word] = {}
        self._owners: dict[str, Replica | None] = {}
        self.serving: set[str] = set()
        """What may be dispatched here now. Read for every request."""
        self.draining: set[str] = set()

    @property
    def map(self) -> OwnershipMap | None:
        """The newest map that was seen."""
        return self._map

    @property
    def epoch(self) -> int:
        """That of the map; 0 before the first."""
        return self._map.epoch if self._map is not None else 0

    @property
    def is_owner(self) -> bool:
        """Whether functions are assigned to this replica."""
        return self._map is not None and any(replica.id == self._me for replica in self._map.owners)

    def word(self) -> Word:
        return Word(self._me, self.epoch, frozenset(self.draining))

    def apply(self, new: OwnershipMap) -> frozenset[str]:
        """This map has been published. The functions that are to be drained because of it; older maps change nothing."""
        if new.epoch <= self.epoch:
            return frozenset()
        entry = new.member(self._me)
        dropped = entry is None or entry.since > self.epoch
        self._map, self._owners = new, {}
        members = {replica.id for replica in new.members}
        self._heard = {name: word for name, word in self._heard.items() if name in members}
        return self._lose(self.serving if dropped else {function for function in self.serving if not self._owns(function)})

    def hear(self, word: Word) -> None:
        """Another replica has said this of itself."""
        before = self._heard.get(word.replica)
        if word.replica != self._me and (before is None or word.epoch >= before.epoch):
            self._heard[word.replica] = word

    def epoch_of(self, function: str) -> int:
        """What batches of a function bear."""
        return max(self.epoch, self._floors.get(function, 0))

    def refused(self, function: str, newest: int) -> bool:
        """An instance of the function says that it has had a batch of epoch `newest`; whether the function is to be drained.

        It is not dispatched here before that map has come, or the board has said that there is none (`confirmed`). An instance
        may run anybody's code: what it says concerns its own function alone.
        """
        if newest <= self.epoch_of(function):
            return False
        self._claims[function] = newest
        return bool(self._lose({function} & self.serving))

    def claims(self) -> dict[str, int]:
        """The epochs that instances know and we do not. To be taken before the board is asked."""
        self._claims = {function: newest for function, newest in self._claims.items() if newest > self.epoch}
        return dict(self._claims)

    def confirmed(self, claims: dict[str, int]) -> None:
        """The board was asked after these claims, and the newest map is the one that we have.

        So nobody owns by a later one: a map was lost with its board, or the instance is mistaken. From now on our batches bear
        what it claims.
        """
        for function, newest in claims.items():
            if self._claims.get(function) == newest:
                del self._claims[function]
                self._floors[function] = newest

    def released(self, function: str) -> None:
        """Nothing of this function is in flight here any more."""
        self.draining.discard(function)

    def forget(self, function: str) -> None:
        """The function was removed."""
        self.serving.discard(function)
        self._claims.pop(function, None)
        self._floors.pop(function, None)

    def owner(self, function: str) -> Replica | None:
        """Who owns a function by the newest map."""
        if self._map is None:
            return None
        try:
            return self._owners[function]
        except KeyError:
            found = self._owners[function] = owner(function, self._map.owners)
            return found

    def place(self, function: str) -> Place | Replica:
        """Where a request to this function goes now. What may be served from now on is in `serving` afterwards."""
        if function in self.serving:
            return Place.HERE
        replica = self.owner(function)
        if replica is None or self._claims.get(function, 0) > self.epoch:
            return Place.WAITS
        if replica.id != self._me:
            return replica
        if function in self.draining or self.waited_for(function):
            return Place.WAITS
        self.serving.add(function)
        return Place.HERE

    def waited_for(self, function: str) -> list[Replica]:
        """The members that have not said, knowing this map, that they have nothing of this function in flight."""
        assert self._map is not None
        return [other for other in self._map.members if other.id != self._me and not self._has_let_go(other.id, function)]

    def unheard(self) -> list[Replica]:
        """The other members that may not know this map yet."""
        if self._map is None:
            return []
        others = (replica for replica in self._map.members if replica.id != self._me)
        return [
            other for other in others if (word := self._heard.get(other.id)) is None or word.epoch < self.epoch or word.draining
        ]

    def _has_let_go(self, replica_id: str, function: str) -> bool:
        word = self._heard.get(replica_id)
        # One that knows a newer map than we do may have begun with what we take for ours.
        return word is not None and word.epoch == self.epoch and function not in word.draining

    def _owns(self, function: str) -> bool:
        replica = self.owner(function)
        return replica is not None and replica.id == self._me

    def _lose(self, functions: set[str]) -> frozenset[str]:
        lost = frozenset(functions)
        self.serving -= lost
        self.draining |= lost
        return lost


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

"""What one replica may dispatch: it begins with a function only when nobody else may have anything of it in flight.

    not its ─▶ its by the map, waits ─▶ serves ─▶ another's by a newer map, drains ─▶ zero in flight, released
                  └─ until every other member of the map says, knowing this map, that it does not drain it

An owner asks everyone and not only who had the function before: whatever maps were missed, whoever else died in between, what
each member says of itself is enough. A member that knows a map does not begin with what is another's by it, so what it has
released stays released; hence no two replicas of a map ever dispatch for one function at the same time.

A replica that does not answer is taken out of the map by the leader. It may still be there, frozen or cut off: then it is the
instances that refuse its batches, for they carry an older epoch than those of the new owner. If it comes back, its entry has a
newer `since`, by which it knows that what it held may have been another's.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from gnomon_core.ownership import OwnershipMap, Replica
from gnomon_gateway.ownership.rendezvous import owner


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

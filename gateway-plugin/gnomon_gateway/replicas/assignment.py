"""The rules by which replicas own functions' queues, as pure functions and state machines.

Ownership (`owner`). The replica whose hash with the function's name is the highest owns the function (rendezvous hashing). When a
replica leaves, only its functions move, each to the replica with the second highest hash; when one joins, only the functions move
for which its hash is the highest: of 1,000 functions of 3 replicas, 250 move to a fourth. Reference: Thaler and Ravishankar,
"Using name-based mappings to increase hit rates", IEEE/ACM Transactions on Networking 6(1), 1998, section III.

Handover (`OwnedFunctions`). A replica dispatches a function only once no other replica may have its requests in flight:

    another's ─▶ own by the map, waits ─▶ serves ─▶ another's by a newer map, drains ─▶ zero in flight, released
                  └─ until every other member of the map states, knowing this map, that it does not drain the function

The owner polls every member, not only the previous owner: the members' own statements suffice even if maps were missed or
replicas died meanwhile. A member that knows a map does not begin to serve functions that the map gives to others, so that a
released function stays released. Hence no two replicas of a map dispatch one function at the same time.

The leader removes a replica that does not answer from the map. If that replica is only frozen or partitioned, the instances fence
it: its batches carry an older epoch than those of the new owner. When it returns, its entry has a newer `since`, by which it
knows that its functions may have had another owner meanwhile.

Membership (`Attendance`, `next_map`). A replica that answers is an owner, unless it is leaving:

    its address refuses connections twice in a row   no process listens: gone
    its address answers with another id              the process was replaced: gone
    its address is not listed any more               gone
    it does not answer                               gone after `silence_s`: frozen or partitioned, and fenced

The leader owns no function while there is another replica: if the leader is killed, no map is published until its Lease expires,
and its functions would wait as long.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from hashlib import blake2b

from gnomon_core.ownership import OwnershipMap, Replica


def owner(function: str, replicas: Sequence[Replica]) -> Replica | None:
    """The replica that owns a function by rendezvous hashing; None without replicas. Their order does not matter."""
    return max(replicas, key=lambda replica: (_weight(replica.id, function), replica.id), default=None)


def _weight(replica_id: str, function: str) -> bytes:
    return blake2b(f"{replica_id}\n{function}".encode(), digest_size=8).digest()


class Place(Enum):
    """The destination of a request that is not forwarded to another replica."""

    HERE = "here"
    WAITS = "waits"
    """Wait: no replica may dispatch the function yet. The owner begins soon, or a newer map is about to come."""


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """A replica's statement about itself: the newest map that it knows, and the functions that it still drains."""

    replica: str
    epoch: int
    draining: frozenset[str]


class OwnedFunctions:
    """The functions of the replica `me`. Functions are named `name.namespace`."""

    def __init__(self, me: str) -> None:
        self._me = me
        self._map: OwnershipMap | None = None
        self._claims: dict[str, int] = {}
        self._floors: dict[str, int] = {}
        self._statuses: dict[str, ReplicaStatus] = {}
        self._owners: dict[str, Replica | None] = {}
        self.serving: set[str] = set()
        """The functions that this replica dispatches now. Read for every request."""
        self.draining: set[str] = set()

    @property
    def map(self) -> OwnershipMap | None:
        """The newest known map."""
        return self._map

    @property
    def epoch(self) -> int:
        """The epoch of the map; 0 before the first."""
        return self._map.epoch if self._map is not None else 0

    @property
    def is_owner(self) -> bool:
        """Return whether functions are assigned to this replica."""
        return self._map is not None and any(replica.id == self._me for replica in self._map.owners)

    def status(self) -> ReplicaStatus:
        """The status that this replica reports to the leader."""
        return ReplicaStatus(self._me, self.epoch, frozenset(self.draining))

    def apply(self, new: OwnershipMap) -> frozenset[str]:
        """Take a published map; returns the functions that must be drained because of it. Older maps change nothing."""
        if new.epoch <= self.epoch:
            return frozenset()
        entry = new.member(self._me)
        # An entry that is newer than the known map: this replica was removed meanwhile, and its functions may have had other
        # owners.
        dropped = entry is None or entry.since > self.epoch
        self._map, self._owners = new, {}
        members = {replica.id for replica in new.members}
        self._statuses = {name: status for name, status in self._statuses.items() if name in members}
        return self._lose(self.serving if dropped else {function for function in self.serving if not self._owns(function)})

    def take_status(self, status: ReplicaStatus) -> None:
        """Take another replica's statement."""
        before = self._statuses.get(status.replica)
        if status.replica != self._me and (before is None or status.epoch >= before.epoch):
            self._statuses[status.replica] = status

    def epoch_of(self, function: str) -> int:
        """The epoch that a function's batches carry."""
        return max(self.epoch, self._floors.get(function, 0))

    def refused(self, function: str, newest: int) -> bool:
        """Handle an instance's refusal of a batch, as it has seen epoch `newest`; returns whether to drain the function.

        The function is not dispatched here until that map arrives, or the board confirms that there is none (`confirmed`). An
        instance runs untrusted code, so its claim affects its own function only.
        """
        if newest <= self.epoch_of(function):
            return False
        self._claims[function] = newest
        return bool(self._lose({function} & self.serving))

    def claims(self) -> dict[str, int]:
        """The newer epochs that instances claim. Read before the board is read."""
        self._claims = {function: newest for function, newest in self._claims.items() if newest > self.epoch}
        return dict(self._claims)

    def confirmed(self, claims: dict[str, int]) -> None:
        """Discard these claims: the board was read after them, and has no newer map than this replica.

        Hence no replica owns the function by a later map: a map was lost with its board, or the instance is wrong. The function's
        batches carry the claimed epoch from now on.
        """
        for function, newest in claims.items():
            if self._claims.get(function) == newest:
                del self._claims[function]
                self._floors[function] = newest

    def released(self, function: str) -> None:
        """Release a function without requests in flight here."""
        self.draining.discard(function)

    def forget(self, function: str) -> None:
        """Forget a removed function."""
        self.serving.discard(function)
        self._claims.pop(function, None)
        self._floors.pop(function, None)

    def owner(self, function: str) -> Replica | None:
        """The function's owner by the newest map."""
        if self._map is None:
            return None
        try:
            return self._owners[function]
        except KeyError:
            found = self._owners[function] = owner(function, self._map.owners)
            return found

    def place(self, function: str) -> Place | Replica:
        """The destination of a request to this function. Adds the function to `serving` if this replica may begin to serve it."""
        if function in self.serving:
            return Place.HERE
        replica = self.owner(function)
        if replica is None or self._claims.get(function, 0) > self.epoch:
            return Place.WAITS
        if replica.id != self._me:
            return replica
        # Requests in flight, here from an earlier ownership or at another member, forbid a second dispatcher.
        if function in self.draining or self.unreleased_by(function):
            return Place.WAITS
        self.serving.add(function)
        return Place.HERE

    def unreleased_by(self, function: str) -> list[Replica]:
        """The members that have not yet stated, knowing this map, that they have released this function."""
        assert self._map is not None
        return [other for other in self._map.members if other.id != self._me and not self._has_released(other.id, function)]

    def unconfirmed(self) -> list[Replica]:
        """The other members that may not know this map yet."""
        if self._map is None:
            return []
        others = (replica for replica in self._map.members if replica.id != self._me)
        return [
            other
            for other in others
            if (status := self._statuses.get(other.id)) is None or status.epoch < self.epoch or status.draining
        ]

    def _has_released(self, replica_id: str, function: str) -> bool:
        status = self._statuses.get(replica_id)
        # A replica that knows a newer map may already dispatch functions that this map gives to us.
        return status is not None and status.epoch == self.epoch and function not in status.draining

    def _owns(self, function: str) -> bool:
        replica = self.owner(function)
        return replica is not None and replica.id == self._me

    def _lose(self, functions: set[str]) -> frozenset[str]:
        lost = frozenset(functions)
        self.serving -= lost
        self.draining |= lost
        return lost


SILENCE_S = 3.0
REFUSALS = 2


@dataclass(frozen=True, slots=True)
class Sighting:
    """A replica's answer to the leader: the id at this address, and whether it is leaving."""

    id: str
    address: str
    leaving: bool = False


class Attendance:
    """Failure detection of replicas. Times are on the leader's clock; a new leader starts with a full `silence_s` for each."""

    def __init__(self, silence_s: float = SILENCE_S) -> None:
        self._silence_s = silence_s
        self._seen: dict[str, Sighting] = {}
        self._last_seen_s: dict[str, float] = {}
        self._refusals: dict[str, int] = {}

    def answered(self, sighting: Sighting, now_s: float) -> None:
        """Record the answer of the replica at this address."""
        self._seen[sighting.address] = sighting
        self._last_seen_s[sighting.id] = now_s
        self._refusals.pop(sighting.address, None)

    def refused(self, address: str) -> None:
        """Record that the address refused a connection."""
        self._refusals[address] = self._refusals.get(address, 0) + 1

    def seen(self, addresses: Collection[str]) -> list[Sighting]:
        """The last answers of the replicas at these addresses."""
        return [replica for address, replica in self._seen.items() if address in addresses]

    def gone(self, members: Iterable[Replica], addresses: Collection[str], now_s: float) -> set[str]:
        """The members that are gone. For a member that has never answered, `silence_s` starts now."""
        return {replica.id for replica in members if self._is_gone(replica, addresses, now_s)}

    def forget(self, gone: Collection[str]) -> None:
        """Forget replicas that are gone; if one returns, it joins as a new replica."""
        self._seen = {address: replica for address, replica in self._seen.items() if replica.id not in gone}
        for identity in gone:
            self._last_seen_s.pop(identity, None)

    def _is_gone(self, replica: Replica, addresses: Collection[str], now_s: float) -> bool:
        there = self._seen.get(replica.address)
        if replica.address not in addresses or (there is not None and there.id != replica.id):
            return True
        if self._refusals.get(replica.address, 0) >= REFUSALS:
            return True
        return now_s - self._last_seen_s.setdefault(replica.id, now_s) > self._silence_s


def next_map(
    current: OwnershipMap | None, sightings: Collection[Sighting], gone: Collection[str], leader: str = ""
) -> OwnershipMap | None:
    """The next map for these replicas; None if the current map is right.

    A replica that is leaving, or leads, stays an owner while there is no other, because requests need an owner to wait at.
    """
    epoch = 1 if current is None else current.epoch + 1
    members = {replica.id: replica for replica in (current.members if current is not None else ()) if replica.id not in gone}
    leaving_ids = {peer.id for peer in sightings if peer.leaving}
    if current is not None:
        # A replica that has begun to leave leaves, whatever its last answer was.
        leaving_ids |= {replica.id for replica in current.leaving} - {leader}
    for peer in sightings:
        if peer.id not in members and peer.id not in gone and not peer.leaving:
            members[peer.id] = Replica(peer.id, peer.address, epoch)
    staying = [replica for replica in members.values() if replica.id not in leaving_ids]
    owners = tuple(sorted(replica for replica in staying if replica.id != leader or len(staying) == 1))
    leaving = tuple(sorted(replica for replica in members.values() if replica not in owners))
    # All replicas are leaving: requests still need an owner to wait at, until the last one stops.
    if not owners:
        owners, leaving = leaving, ()
    if current is None:
        return OwnershipMap(epoch, owners, leaving) if owners else None
    unchanged = {replica.id for replica in owners} == {replica.id for replica in current.owners} and {
        replica.id for replica in leaving
    } == {replica.id for replica in current.leaving}
    return None if unchanged else OwnershipMap(epoch, owners, leaving)

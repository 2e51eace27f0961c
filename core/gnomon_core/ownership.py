"""Ownership: the map of functions' queues to gateway replicas, with an epoch, and the interfaces around the map.

    leader ──next map──▶ OwnershipBoard ──watch──▶ every replica ──epoch of each batch──▶ instances, which refuse older ones

A map names the replicas among which functions are shared; who has a function follows from its name and the map alone
(`gnomon_gateway.replicas.assignment`), so that a map stays as small as the number of replicas. Each map's epoch is one more than
its predecessor's, whoever leads.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from gnomon_core.errors import bad_request

MAX_EPOCH = (1 << 32) - 1
"""A batch frame carries it in 32 bits: at a change each second, enough for 136 years."""


@dataclass(frozen=True, slots=True, order=True)
class Replica:
    """A gateway process.

    `id` is unique to the process: one that was started again in its place is another. `address` is its internal listener,
    `http://host:port`. `since` is the epoch of the map that it joined with: one that finds a `since` newer than the last map it
    knew was taken for gone in between, and others may have served what it had.
    """

    id: str
    address: str
    since: int


@dataclass(frozen=True, slots=True)
class OwnershipMap:
    """The replicas that share the functions; `leaving` are on their way out and may have something in flight, or lead."""

    epoch: int
    owners: tuple[Replica, ...]
    leaving: tuple[Replica, ...] = ()

    @property
    def members(self) -> tuple[Replica, ...]:
        """All replicas that may have requests of functions: owners and leaving ones."""
        return self.owners + self.leaving

    def follows(self, newest: OwnershipMap | None) -> bool:
        """Return whether this map may be published as the successor of the newest one."""
        return newest is None or self.epoch == newest.epoch + 1

    def member(self, replica_id: str) -> Replica | None:
        return next((replica for replica in self.members if replica.id == replica_id), None)

    def to_json(self) -> dict[str, Any]:
        """The document that is published."""
        return {
            "epoch": self.epoch,
            "owners": [_replica_document(replica) for replica in self.owners],
            "leaving": [_replica_document(replica) for replica in self.leaving],
        }

    @classmethod
    def from_json(cls, document: object) -> OwnershipMap:
        """A published map.

        Raises:
            GnomonError: 400 `invalid_map`.

        """
        try:
            fields = dict(document) if isinstance(document, Mapping) else {}
            epoch = _epoch(fields["epoch"])
            owners, leaving = (tuple(map(_replica, fields[name])) for name in ("owners", "leaving"))
        except (KeyError, TypeError, ValueError) as error:
            raise bad_request(
                "invalid_map", f"This is no map of owners: {error}.", "Remove it; the leader makes a new one."
            ) from None
        return cls(epoch, owners, leaving)


class OwnershipBoard(Protocol):
    """Store of the published map and the list of replicas. It outlives every process; the newest map is never withdrawn."""

    async def read(self) -> OwnershipMap | None:
        """The newest map; None before the first.

        Raises:
            GnomonError: 503 where the place cannot be reached.

        """
        ...

    async def publish(self, new: OwnershipMap) -> bool:
        """Make this the newest map, if the one before it (`epoch - 1`) still is, or if there is none.

        False where another leader was quicker: nothing has changed then. Where somebody has removed the map, its readers still
        have it, and its successor is published all the same.

        Raises:
            GnomonError: 503 where it is unknown whether the map was published; read it to find out.

        """
        ...

    def watch(self, changed: Callable[[OwnershipMap], None]) -> Callable[[], None]:
        """Call `changed` on the event loop with the newest map, now and at each newer one; the returned function ends that."""
        ...

    def addresses(self) -> Collection[str]:
        """Internal listeners of the gateway processes now, or a short time ago. Does no I/O."""
        ...


def _replica_document(replica: Replica) -> dict[str, Any]:
    return {"id": replica.id, "address": replica.address, "since": replica.since}


def _replica(document: Any) -> Replica:
    identity, address = document["id"], document["address"]
    if not (isinstance(identity, str) and identity and isinstance(address, str) and address):
        raise ValueError("a replica needs an id and an address")
    return Replica(identity, address, _epoch(document["since"]))


def _epoch(value: object) -> int:
    if type(value) is not int or not 0 < value <= MAX_EPOCH:
        raise ValueError(f"an epoch is a number from 1 to {MAX_EPOCH}")
    return value

"""Who owns a function: the replica whose hash with the function's name is the highest (rendezvous hashing).

Each replica draws a number for each function, and the highest has it. When one goes, only its functions move, each to the one
that drew second; when one comes, only those move that it draws highest for: of 1,000 functions of 3 replicas 250 to a fourth.
Reference: Thaler and Ravishankar, "Using name-based mappings to increase hit rates", IEEE/ACM Transactions on Networking 6(1),
1998, section III.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

from gnomon_core.ownership import Replica


def owner(function: str, replicas: Sequence[Replica]) -> Replica | None:
    """The replica that owns a function; None where there is none. The order of the replicas has no meaning."""
    return max(replicas, key=lambda replica: (_weight(replica.id, function), replica.id), default=None)


def _weight(replica_id: str, function: str) -> bytes:
    return blake2b(f"{replica_id}\n{function}".encode(), digest_size=8).digest()

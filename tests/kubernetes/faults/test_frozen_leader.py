"""A leader that is frozen and comes back: nothing that it decided is accepted after its successor has acted."""

from __future__ import annotations

import asyncio
import secrets

from benchmarks.kubernetes.leader import chain
from tests.cluster.client import Cluster

ROUNDS = 3


async def test_a_frozen_leader_writes_nothing_after_its_successor(control_plane: Cluster) -> None:
    """`python -m benchmarks.kubernetes leader` does the same 200 times, and without the guards, where writes are late."""
    name = f"leading-{secrets.token_hex(3)}"
    found = await asyncio.gather(*(chain(control_plane.kubeconfig, f"{name}-{seed}", ROUNDS, seed) for seed in (1, 2)))
    for tally in found:
        assert tally.rounds == ROUNDS
        assert tally.writes > ROUNDS
        assert (tally.late, tally.unnoticed) == (0, 0)
        assert tally.ended == ROUNDS

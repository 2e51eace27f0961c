"""Who shares the functions goes on doing so, whatever has kept it from that once."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import cast

import pytest

from gnomon_core.clock import VirtualClock
from gnomon_core.errors import GnomonError
from gnomon_gateway.replicas.assigner import LOOK_S, Assigner
from gnomon_gateway.replicas.peers import Peers
from tests.ownership_boards import MemoryBoard


class Broken(MemoryBoard):
    """Says at the first two looks that it cannot be read."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error, self.looks = error, 0

    def addresses(self) -> Collection[str]:
        self.looks += 1
        if self.looks <= 2:
            raise self.error
        return ()


@pytest.mark.parametrize("error", [GnomonError(503, "away", "It is away."), OSError(116, "Stale file handle"), KeyError("ip")])
async def test_it_looks_again(error: Exception) -> None:
    clock, board = VirtualClock(), Broken(error)
    task = asyncio.create_task(Assigner(board, cast("Peers", None), clock, leads=lambda: True).run())
    await clock.advance(5 * LOOK_S)
    assert board.looks > 2
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

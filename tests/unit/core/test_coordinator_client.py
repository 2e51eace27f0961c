"""What a platform wishes for reaches its coordinator, however much is predicted of it; nonsense that it says harms nothing."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping, Sequence
from typing import Any

from gnomon_core import packets
from gnomon_core.coordinator_client import CoordinatorClient

NEVER = 1e9
"""Milliseconds that take ten letters."""


async def test_a_wish_with_more_predictions_than_fit_is_heard_without_them_and_so_is_the_next() -> None:
    theirs: list[socket.socket] = []

    def supervisor(_message: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
        theirs.extend(socket.socket(fileno=descriptor) for descriptor in descriptors)

    client = CoordinatorClient(supervisor, lambda _: None, {})
    [coordinator] = theirs
    try:
        # The largest batch of all, in as many runs as eight blocks that are no neighbours make.
        client.send({"do": "change", "shadow": "s-1", "expected_ms": [[NEVER] * 1023] * 8})
        client.send({"do": "change", "shadow": "s-2", "expected_ms": [[1.5, 2.5]]})
        assert packets.receive(coordinator)[0] == {"do": "change", "shadow": "s-1", "expected_ms": []}
        assert packets.receive(coordinator)[0] == {"do": "change", "shadow": "s-2", "expected_ms": [[1.5, 2.5]]}
    finally:
        client.close()
        coordinator.close()


async def test_a_coordinator_that_counts_to_infinity_is_left_out_and_heard_on() -> None:
    theirs: list[socket.socket] = []
    found: asyncio.Queue[int] = asyncio.Queue()

    def supervisor(_message: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
        theirs.extend(socket.socket(fileno=descriptor) for descriptor in descriptors)

    def heard(event: Mapping[str, Any]) -> None:
        found.put_nowait(int(event["containers"]))

    raised: list[Mapping[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: raised.append(context))
    client = CoordinatorClient(supervisor, heard, {})
    [coordinator] = theirs
    try:
        for containers in (float("inf"), float("nan"), 3):
            packets.send(coordinator, {"event": "pool", "containers": containers})
        assert await asyncio.wait_for(found.get(), 10.0) == 3
        assert not raised
    finally:
        client.close()
        coordinator.close()

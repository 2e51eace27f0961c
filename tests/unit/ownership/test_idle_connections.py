"""The pool of connections to other replicas keeps nothing of a replica that is gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from gnomon_gateway.replicas.peers import Peers, PeerSecret
from tests.waiting import until


@pytest.fixture
async def address() -> AsyncIterator[str]:
    """The address of a replica that answers nothing."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


@pytest.fixture
async def peers() -> AsyncIterator[Peers]:
    made = Peers(PeerSecret("between-the-replicas-only"))
    yield made
    made.close()


async def test_kept_connection_is_used_again(peers: Peers, address: str) -> None:
    connection = await peers.open(address)
    peers.keep(connection)
    assert peers.idle(address) is connection
    assert peers.idle(address) is None
    connection.drop()


async def test_address_is_forgotten_with_its_last_connection(peers: Peers, address: str) -> None:
    first, second = await peers.open(address), await peers.open(address)
    peers.keep(first)
    peers.keep(second)
    assert peers.idle(address) is second
    second.drop()
    first.drop()
    await until(lambda: peers._idle == {})

"""Who gets to a Shadow over the node's port for Bodies of others, and that nothing but the Shadow answers them."""

from __future__ import annotations

import asyncio
import os
import socket
from typing import cast

import pytest
from aiohttp.test_utils import TestServer

from gnomon_coordinator.node.arrivals import Arrivals
from gnomon_coordinator.node.shadows import Shadow, Shadows
from gnomon_core.coordination import PAIR_PATH, PAIR_PROTOCOL

TOKEN = "of-the-shadow"


class OneShadow:
    """As much of a node's Shadows as somebody who arrives meets."""

    def __init__(self) -> None:
        self.connections: list[socket.socket] = []

    def of_token(self, token: str) -> Shadow | None:
        return cast("Shadow", self) if token == TOKEN else None

    def reached(self, shadow: Shadow, connection: int) -> None:
        assert cast("OneShadow", shadow) is self
        self.connections.append(socket.socket(fileno=os.dup(connection)))


async def asked(port: int, *headers: str, path: str = PAIR_PATH) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    lines = (f"GET {path} HTTP/1.1", "Host: node", "Connection: Upgrade", *headers, "", "")
    writer.write("\r\n".join(lines).encode("latin-1"))
    return reader, writer


async def test_a_connection_with_its_token_is_the_shadows_from_then_on() -> None:
    shadow = OneShadow()
    async with TestServer(Arrivals(cast("Shadows", shadow)).application()) as server:
        assert server.port is not None
        reader, writer = await asked(server.port, f"Authorization: Bearer {TOKEN}", f"Upgrade: {PAIR_PROTOCOL}")
        async with asyncio.timeout(20):
            while not shadow.connections:  # noqa: ASYNC110 - the server tells nobody
                await asyncio.sleep(0.01)
        [connection] = shadow.connections
        await server.close()
        # The server has gone, and has said nothing.
        with connection:
            connection.setblocking(True)  # noqa: FBT003 - the signature is socket's
            connection.sendall(b"101, and what it likes")
            assert await reader.readexactly(22) == b"101, and what it likes"
            writer.write(b"a hand-over")
            await writer.drain()
            assert await asyncio.to_thread(connection.recv, 11) == b"a hand-over"
        assert await reader.read() == b""
        writer.close()


@pytest.mark.parametrize(
    ("headers", "path", "status"),
    [
        ((f"Upgrade: {PAIR_PROTOCOL}",), PAIR_PATH, b"401"),
        (("Authorization: Bearer guessed", f"Upgrade: {PAIR_PROTOCOL}"), PAIR_PATH, b"401"),
        (("Authorization: Bearer \xff\xfe", f"Upgrade: {PAIR_PROTOCOL}"), PAIR_PATH, b"401"),
        ((f"Authorization: Basic {TOKEN}", f"Upgrade: {PAIR_PROTOCOL}"), PAIR_PATH, b"401"),
        ((f"Authorization: Bearer {TOKEN}",), PAIR_PATH, b"426"),
        ((f"Authorization: Bearer {TOKEN}", "Upgrade: websocket"), PAIR_PATH, b"426"),
        ((f"Authorization: Bearer {TOKEN}", f"Upgrade: {PAIR_PROTOCOL}"), "/v1/state", b"404"),
    ],
)
async def test_whoever_else_comes_is_refused(headers: tuple[str, ...], path: str, status: bytes) -> None:
    shadow = OneShadow()
    async with TestServer(Arrivals(cast("Shadows", shadow)).application()) as server:
        assert server.port is not None
        reader, writer = await asked(server.port, *headers, path=path)
        assert (await reader.readline()).split()[1] == status
        writer.close()
    assert shadow.connections == []

"""The callers that reach a Shadow over the node's port, and the limit of attempts."""

import asyncio
import errno
import os
import socket
from collections.abc import AsyncIterator
from typing import cast

import pytest

from gnomon_coordinator.node import pair_listener, pod_sockets
from gnomon_coordinator.node.pair_listener import PairListener
from gnomon_coordinator.node.pod_sockets import Acceptor
from gnomon_coordinator.node.shadows import NodeShadow, NodeShadows
from gnomon_core.coordination import PAIR_PATH, PAIR_PROTOCOL
from tests.waiting import until

TOKEN = "of-the-shadow"
WHOLE = (f"GET {PAIR_PATH} HTTP/1.1", "Host: node", f"Authorization: Bearer {TOKEN}", f"Upgrade: {PAIR_PROTOCOL}")


class OneShadow:
    """The part of a node's Shadows that the listener uses."""

    def __init__(self) -> None:
        self.connections: list[socket.socket] = []
        self.door = PairListener(cast("NodeShadows", self))
        self.door.start("127.0.0.1", 0)

    def of_token(self, token: str) -> NodeShadow | None:
        return cast("NodeShadow", self) if token == TOKEN else None

    def body_connected(self, shadow: NodeShadow, connection: int) -> None:
        assert cast("OneShadow", shadow) is self
        self.connections.append(socket.socket(fileno=os.dup(connection)))

    async def visitor(self, *lines: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A visitor who says this, and where there is no line nothing."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.door.port)
        if lines:
            writer.write("\r\n".join([*lines, "", ""]).encode("latin-1"))
        return reader, writer


@pytest.fixture
async def shadow() -> AsyncIterator[OneShadow]:
    made = OneShadow()
    yield made
    await made.door.stop()
    for connection in made.connections:
        connection.close()


async def test_connection_with_a_token_is_passed_to_its_shadow(shadow: OneShadow) -> None:
    reader, writer = await shadow.visitor(*WHOLE)
    await until(lambda: shadow.connections, "nobody has come")
    [connection] = shadow.connections
    # The port is closed, and has said nothing.
    await shadow.door.stop()
    connection.setblocking(True)  # noqa: FBT003 - the signature is socket's
    connection.sendall(b"101, and what it likes")
    assert await reader.readexactly(22) == b"101, and what it likes"
    writer.write(b"a hand-over")
    await writer.drain()
    assert await asyncio.to_thread(connection.recv, 11) == b"a hand-over"
    connection.close()
    assert await reader.read() == b""
    writer.close()


async def test_request_may_arrive_in_pieces(shadow: OneShadow) -> None:
    _, writer = await shadow.visitor()
    for byte in "\r\n".join([*WHOLE, "", ""]).encode():
        writer.write(bytes([byte]))
        await writer.drain()
    await until(lambda: shadow.connections, "nobody has come")
    writer.close()


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        ((WHOLE[0], WHOLE[3]), b"401"),
        ((WHOLE[0], "Authorization: Bearer guessed", WHOLE[3]), b"401"),
        ((WHOLE[0], "Authorization: Bearer \xff\xfe", WHOLE[3]), b"401"),
        ((WHOLE[0], f"Authorization: Basic {TOKEN}", WHOLE[3]), b"401"),
        (WHOLE[:3], b"426"),
        ((*WHOLE[:3], "Upgrade: websocket"), b"426"),
        (("GET /v1/state HTTP/1.1", *WHOLE[1:]), b"404"),
        ((f"POST {PAIR_PATH} HTTP/1.1", *WHOLE[1:]), b"404"),
        (("\0\xff",), b"404"),
    ],
)
async def test_other_requests_are_refused_with_the_reason(shadow: OneShadow, lines: tuple[str, ...], status: bytes) -> None:
    reader, writer = await shadow.visitor(*lines)
    answer = await reader.read()
    assert answer.split(b" ")[1] == status
    assert answer.startswith(b"HTTP/1.1 ")
    writer.close()
    assert shadow.connections == []


@pytest.mark.parametrize("says", [b"", b"GET ", b"x" * 100_000])
async def test_incomplete_request_times_out(shadow: OneShadow, monkeypatch: pytest.MonkeyPatch, says: bytes) -> None:
    monkeypatch.setattr(pair_listener, "REQUEST_TIMEOUT_S", 0.2)
    reader, writer = await shadow.visitor()
    writer.write(says)
    try:
        assert await reader.read() == b""
    except ConnectionResetError:
        assert len(says) > pair_listener.MAX_HEAD_BYTES, "what it still had to say was not read"
    writer.close()


async def test_silent_connections_keep_no_body_out(shadow: OneShadow) -> None:
    idle = [await shadow.visitor() for _ in range(pair_listener.MAX_WAITING + 1)]
    # The first of them has made room.
    assert await idle[0][0].read() == b""
    _, writer = await shadow.visitor(*WHOLE)
    await until(lambda: shadow.connections, "it does not get through")
    for _, connection in [*idle, (None, writer)]:
        connection.close()


async def test_number_of_waiting_connections_is_bounded(shadow: OneShadow, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pair_listener, "REQUEST_TIMEOUT_S", 600.0)
    # All of them are there before the first one is met.
    crowd = [socket.create_connection(("127.0.0.1", shadow.door.port)) for _ in range(pair_listener.MAX_WAITING + 50)]
    await until(lambda: waiting(crowd) <= pair_listener.MAX_WAITING, "too many are waited for")
    for writer in crowd:
        writer.close()


async def test_accept_is_retried_after_a_lack_of_descriptors(shadow: OneShadow, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_sockets, "ACCEPT_RETRY_S", 0.2)
    asked = 0

    def refused(_listener: socket.socket) -> tuple[socket.socket, str]:
        nonlocal asked
        asked += 1
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as none_left:
        none_left.setattr(socket.socket, "accept", refused)
        _, writer = await shadow.visitor(*WHOLE)
        await until(lambda: asked, "nobody is looked at")
        await asyncio.sleep(0.05)
        assert asked < 20, "it keeps the loop to itself"
    await until(lambda: shadow.connections, "it does not get through")
    writer.close()


def waiting(crowd: list[socket.socket]) -> int:
    """How many of them were not hung up on."""
    left = 0
    for writer in crowd:
        writer.setblocking(False)  # noqa: FBT003 - the signature is socket's
        try:
            left += bool(writer.recv(1))
        except BlockingIOError:
            left += 1
        except ConnectionResetError:
            pass
    return left


def listener() -> socket.socket:
    return socket.create_server(("127.0.0.1", 0))


def calls(port: int, number: int) -> list[socket.socket]:
    return [socket.create_connection(("127.0.0.1", port)) for _ in range(number)]


@pytest.mark.parametrize(("rest_s", "seen"), [(0.0, 3), (3600.0, 1)])
async def test_acceptor_accepts_nothing_during_its_pause(rest_s: float, seen: int) -> None:
    came: list[socket.socket] = []
    listening = Acceptor(listener(), came.append, rest_s)
    callers = calls(listening.port, 3)
    for _ in range(20):
        await asyncio.sleep(0)
    assert len(came) == seen
    listening.close()
    for each in (*callers, *came):
        each.close()


async def test_acceptor_accepts_waiting_connections_after_its_pause() -> None:
    came: asyncio.Queue[socket.socket] = asyncio.Queue()
    listening = Acceptor(listener(), came.put_nowait, 0.001)
    callers = calls(listening.port, 3)
    for _ in callers:
        (await asyncio.wait_for(came.get(), 20)).close()
    listening.close()
    for each in callers:
        each.close()


async def test_acceptor_closed_during_its_pause_stays_closed() -> None:
    came: asyncio.Queue[socket.socket] = asyncio.Queue()
    listening = Acceptor(listener(), came.put_nowait, 0.001)
    callers = calls(listening.port, 2)
    (await asyncio.wait_for(came.get(), 20)).close()
    listening.close()
    await asyncio.sleep(0.01)
    assert came.empty()
    for each in callers:
        each.close()

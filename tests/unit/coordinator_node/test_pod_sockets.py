"""Who comes to a door, and how often."""

import asyncio
import socket

import pytest

from gnomon_coordinator.node.pod_sockets import Acceptor


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

"""A port that passes on: whole, in both directions, to whoever leads by then."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from gnomon_gateway.http import pass_through
from gnomon_gateway.http.pass_through import PassThrough, Place
from tests.waiting import until


@asynccontextmanager
async def leader(answer: Callable[[bytes], bytes]) -> AsyncIterator[Place]:
    """Reads all that a client sends, and answers."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer(await reader.read()))
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    yield "127.0.0.1", server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()


async def asked(port: int, data: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    writer.write_eof()
    async with asyncio.timeout(30.0):
        answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer


async def test_what_is_sent_and_answered_passes_whole() -> None:
    large = bytes(range(256)) * 20_000
    async with leader(lambda data: data[::-1]) as place:
        standby = PassThrough("127.0.0.1", 0, lambda: place)
        await standby.start()
        answers = await asyncio.gather(*(asked(standby.port, large + bytes([number])) for number in range(4)))
        assert answers == [bytes([number]) + large[::-1] for number in range(4)]
        await standby.stop()


async def test_connections_wait_for_who_will_lead() -> None:
    places: list[Place] = []
    standby = PassThrough("127.0.0.1", 0, lambda: places[-1] if places else None)
    await standby.start()
    waiting = asyncio.create_task(asked(standby.port, b"first"))
    await asyncio.sleep(0)
    async with leader(lambda data: b"by the new one: " + data) as place:
        # One that is announced and not there yet is tried again.
        places.append(("127.0.0.1", 1))
        await asyncio.sleep(0)
        places.append(place)
        assert await waiting == b"by the new one: first"
    await standby.stop()


async def test_a_connection_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pass_through, "PATIENCE_S", 0.05)
    standby = PassThrough("127.0.0.1", 0, lambda: None)
    await standby.start()
    assert await asked(standby.port, b"anybody?") == b""
    await standby.stop()


async def test_the_port_is_free_at_once_and_what_passes_goes_on() -> None:
    release = asyncio.Event()

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(5)
        await release.wait()
        writer.write(b"late")
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(slow, "127.0.0.1", 0)
    place = "127.0.0.1", server.sockets[0].getsockname()[1]
    standby = PassThrough("127.0.0.1", 0, lambda: place)
    await standby.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", standby.port)
    writer.write(b"hello")
    await writer.drain()
    await until(lambda: standby._connections)
    await standby.stop_listening()
    own = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", standby.port)
    release.set()
    assert await reader.read() == b"late"
    writer.close()
    await writer.wait_closed()
    own.close()
    server.close()
    await standby.stop()

"""Clients that take a long answer slowly, and how long they may. The time is the test's: nobody else looks at the connections."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from gnomon_gateway.http.connection import WRITE_BUFFER_S, Limits, check_timeouts
from tests.waiting import until

LIMITS = Limits(idle_s=10.0, check_s=3600.0)
LOOK_S = 0.5
ANSWER_BYTES = 3_000_000
BUFFER_BYTES = 32 << 10
KEPT = b"GET /function/f/large HTTP/1.1\r\nHost: x\r\n\r\n"
CLOSED = b"GET /function/f/large HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
OLD = b"GET /function/f/large HTTP/1.0\r\n\r\n"
slowly = pytest.mark.parametrize("gateway", [LIMITS], indirect=True)
BOUND_BYTES = 2 * ANSWER_BYTES
bounded = pytest.mark.parametrize("gateway", [Limits(check_s=3600.0, max_write_buffer_bytes=BOUND_BYTES)], indirect=True)


class Reader:
    """A client that has asked for a long answer, little of which fits into the kernel's buffers. `received` is of its body."""

    def __init__(self, gateway: Any) -> None:
        self.gateway = gateway
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
        self.socket.settimeout(0.0)
        self.received = 0
        self.waited_s = 0.0

    async def ask(self, request: bytes) -> None:
        loop = asyncio.get_running_loop()
        await loop.sock_connect(self.socket, ("127.0.0.1", self.gateway.server.port))
        ours = self.socket.getsockname()
        await until(lambda: any(one.client == ours for one in self.gateway.server._connections()))
        (self.served,) = [one for one in self.gateway.server._connections() if one.client == ours]
        self.served.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
        await loop.sock_sendall(self.socket, request)
        data = b""
        while b"\r\n\r\n" not in data:
            try:
                data += (received := await loop.sock_recv(self.socket, 1000))
            except ConnectionResetError:
                return
            if not received:
                return
        self.received = len(data.partition(b"\r\n\r\n")[2])
        self.began_s = self.served.since_s

    async def read(self, size: int) -> bool:
        """Take this much, or the rest; False where the connection ends before."""
        wanted = min(self.received + size, ANSWER_BYTES)
        while self.received < wanted:
            try:
                data = await asyncio.get_running_loop().sock_recv(self.socket, wanted - self.received)
            except ConnectionResetError:
                return False
            if not data:
                return False
            self.received += len(data)
        return True

    def is_served(self) -> bool:
        return self.served in self.gateway.server._connections()

    async def look(self) -> None:
        """Time passes, and the server looks whether it has been too long."""
        self.waited_s += LOOK_S
        if self.is_served():
            check_timeouts(self.served, self.began_s + self.waited_s)
        await asyncio.sleep(0)


@pytest.fixture
async def reader(gateway: Any) -> Any:
    await gateway.deploy()
    one = Reader(gateway)
    yield one
    one.socket.close()


@slowly
@pytest.mark.parametrize("request_bytes", [KEPT, CLOSED, OLD])
async def test_who_reads_slowly_but_steadily_gets_the_whole_answer(reader: Reader, request_bytes: bytes) -> None:
    await reader.ask(request_bytes)
    while reader.received < ANSWER_BYTES:
        assert await reader.read(int(1.1 * LIMITS.answer_bytes_per_s * LOOK_S)), f"cut off after {reader.waited_s} s"
        await reader.look()
    assert reader.waited_s > max(LIMITS.idle_s, WRITE_BUFFER_S)


@slowly
@pytest.mark.parametrize("request_bytes", [KEPT, CLOSED, OLD])
async def test_who_reads_next_to_nothing_is_cut_off(reader: Reader, request_bytes: bytes) -> None:
    await reader.ask(request_bytes)
    while await reader.read(int(0.1 * LIMITS.answer_bytes_per_s * LOOK_S)):
        assert reader.received < ANSWER_BYTES, "served to the end"
        await reader.look()
    assert reader.waited_s < 2 * WRITE_BUFFER_S


@slowly
@pytest.mark.parametrize(("request_bytes", "allowed_s"), [(KEPT, LIMITS.idle_s), (CLOSED, WRITE_BUFFER_S), (OLD, WRITE_BUFFER_S)])
async def test_who_stops_reading_has_no_more_time_for_having_read_fast(
    reader: Reader, request_bytes: bytes, allowed_s: float
) -> None:
    await reader.ask(request_bytes)
    await reader.look()
    assert await reader.read(ANSWER_BYTES * 2 // 3)
    while reader.is_served() and reader.waited_s < 10 * WRITE_BUFFER_S:
        await reader.look()
    assert allowed_s < reader.waited_s < allowed_s + 10 * LOOK_S


@pytest.fixture
async def crowd(gateway: Any) -> Any:
    """Six clients that have asked for three times as much as is held unsent; the first has begun to read."""
    await gateway.deploy()
    readers = [Reader(gateway) for _ in range(6)]
    for number, one in enumerate(readers):
        await one.ask(KEPT)
        if not number:
            assert await one.read(ANSWER_BYTES // 4)
    yield readers
    for one in readers:
        one.socket.close()


@bounded
async def test_unsent_bytes_of_all_readers_together_are_bounded(gateway: Any, crowd: list[Reader]) -> None:
    buffers = gateway.server._context.write_buffers
    await until(lambda: 1 < sum(one.is_served() for one in crowd) < len(crowd))
    assert ANSWER_BYTES // 2 < buffers.held_bytes <= BOUND_BYTES
    assert await crowd[0].read(ANSWER_BYTES), "who began to read is served to the end"
    assert (await gateway.call("/function/f", b"another")).body == b"another"
    for one in crowd:
        one.socket.close()
    await until(lambda: not gateway.server._connections())
    assert buffers.held_bytes == 0


@bounded
async def test_the_slowest_reader_is_closed_first(gateway: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gnomon_gateway.http.connection.GRACE_S", 1e-6)
    await gateway.deploy()
    silent, reading, newest = Reader(gateway), Reader(gateway), Reader(gateway)
    await silent.ask(KEPT)
    await reading.ask(KEPT)
    assert silent.is_served()
    assert await reading.read(ANSWER_BYTES // 2)
    await newest.ask(KEPT)
    await until(lambda: not silent.is_served())
    assert reading.is_served()
    assert newest.is_served()
    assert await reading.read(ANSWER_BYTES)
    for one in (silent, reading, newest):
        one.socket.close()

"""Streams, slow readers and connections passed through."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gnomon_gateway.http import pass_through
from gnomon_gateway.http.connection import WRITE_BUFFER_S, Limits, check_timeouts
from gnomon_gateway.http.pass_through import PassThrough, Place
from tests.waiting import until

SSE = b"GET /function/f/%b HTTP/1.1\r\nHost: x\r\nAccept: text/event-stream\r\n\r\n"


async def rest(connection: Any) -> None:
    """Read a stream to its end, which must be one of the connection and not the stream's own."""
    while True:
        assert await connection.chunk()


async def test_parts_arrive_as_they_are_made(gateway: Any) -> None:
    await gateway.deploy()
    connection = await gateway.connect()
    await connection.send(SSE % b"stream/held")
    head = await connection.head()
    assert (head.status, head.headers["content-type"], head.headers["transfer-encoding"]) == (200, "text/event-stream", "chunked")
    arrived = await connection.chunk()
    assert arrived == b"data: 0\n\n"
    gateway.release()
    while part := await connection.chunk():
        arrived += part
    assert arrived == b"data: 0\n\ndata: 1\n\ndata: 2\n\n"
    # The connection is in step for the next request.
    assert (await connection.call("/function/f", b"next")).body == b"next"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [(b"GET", b"stream/nothing", 204), (b"GET", b"stream/unchanged", 304), (b"HEAD", b"stream", 200)],
)
async def test_an_answer_that_has_no_body_has_none_as_a_stream(gateway: Any, method: bytes, path: bytes, status: int) -> None:
    await gateway.deploy()
    connection = await gateway.connect()
    await connection.send(SSE.replace(b"GET", method) % path)
    head = await connection.head()
    assert (head.status, head.headers["content-type"]) == (status, "text/event-stream")
    assert "transfer-encoding" not in head.headers
    # The connection is in step for the next request.
    assert (await connection.call("/function/f", b"next")).body == b"next"


async def test_a_client_that_does_not_accept_streams_gets_the_whole_answer(gateway: Any) -> None:
    await gateway.deploy()
    response = await gateway.call("/function/f/stream")
    assert (response.status, response.body) == (200, b"data: 0\n\ndata: 1\n\ndata: 2\n\n")
    assert "content-length" in response.headers


async def test_client_that_accepts_streams_gets_a_plain_answer_without_one(gateway: Any) -> None:
    await gateway.deploy()
    response = await gateway.call("/function/f", b"plain", headers={"Accept": "application/x-ndjson"})
    assert (response.status, response.body) == (200, b"plain")


async def test_http_10_gets_the_parts_and_the_end_of_the_connection(gateway: Any) -> None:
    await gateway.deploy()
    connection = await gateway.connect()
    await connection.send(b"GET /function/f/stream HTTP/1.0\r\nAccept: text/event-stream\r\n\r\n")
    assert (await connection.head()).status == 200
    assert await connection.reader.read() == b"data: 0\n\ndata: 1\n\ndata: 2\n\n"


@pytest.mark.parametrize("path", [b"stream/crash", b"stream/break"])
async def test_a_stream_that_breaks_off_is_not_taken_for_whole(gateway: Any, path: bytes) -> None:
    runtime = await gateway.deploy()
    connection = await gateway.connect()
    await connection.send(SSE % path)
    assert (await connection.head()).status == 200
    assert await connection.chunk()
    with pytest.raises((asyncio.IncompleteReadError, ConnectionError, ValueError)):
        await rest(connection)
    if path == b"stream/crash":
        await gateway.add_instance()
    # A function that gives up costs its instance nothing.
    assert (await gateway.call("/function/f", b"after")).body == b"after"
    assert runtime.ready == 1


async def test_a_deadline_bounds_the_first_part_and_not_the_stream(gateway: Any) -> None:
    await gateway.deploy()
    connection = await gateway.connect()
    request = SSE.replace(b"\r\n\r\n", b"\r\nX-Gnomon-Deadline-Ms: 500\r\n\r\n") % b"stream/long"
    begun_s = time.monotonic()
    await connection.send(request)
    assert (await connection.head()).status == 200
    while time.monotonic() < begun_s + 0.7:
        assert (await connection.chunk()).startswith(b"data: ")


async def test_a_client_that_leaves_ends_the_stream_and_frees_the_instance(gateway: Any) -> None:
    runtime = await gateway.deploy()
    connection = await gateway.connect()
    await connection.send(SSE % b"stream/long")
    await connection.head()
    await connection.chunk()
    connection.close()
    # The stream would go on for 50 s.
    assert (await gateway.call("/function/f", b"next")).body == b"next"
    assert runtime.metrics.left == 1


async def test_streams_are_batches_of_their_own(gateway: Any) -> None:
    runtime = await gateway.deploy(max_batch=8)
    connections = [await gateway.connect() for _ in range(4)]
    for connection in connections:
        await connection.send(SSE % b"stream")
    for connection in connections:
        assert (await connection.answer()).body.count(b"data") == 3
    assert runtime.dispatcher._last_batch == 4


async def test_errors_before_the_first_part_are_ordinary_answers(gateway: Any) -> None:
    await gateway.deploy(instances=0, deadline_s=0.1)
    response = await gateway.call("/function/f/stream", headers={"Accept": "text/event-stream"})
    assert (response.status, json.loads(response.body)["error"]["code"]) == (503, "no_instance")


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
        await until(lambda: any(connection.client == ours for connection in self.gateway.server._connections()))
        (self.served,) = [connection for connection in self.gateway.server._connections() if connection.client == ours]
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
    slow_reader = Reader(gateway)
    yield slow_reader
    slow_reader.socket.close()


@slowly
@pytest.mark.parametrize("request_bytes", [KEPT, CLOSED, OLD])
async def test_slow_but_steady_reader_gets_the_whole_answer(reader: Reader, request_bytes: bytes) -> None:
    await reader.ask(request_bytes)
    while reader.received < ANSWER_BYTES:
        assert await reader.read(int(1.1 * LIMITS.answer_bytes_per_s * LOOK_S)), f"cut off after {reader.waited_s} s"
        await reader.look()
    assert reader.waited_s > max(LIMITS.idle_s, WRITE_BUFFER_S)


@slowly
@pytest.mark.parametrize("request_bytes", [KEPT, CLOSED, OLD])
async def test_reader_below_the_minimum_rate_is_disconnected(reader: Reader, request_bytes: bytes) -> None:
    await reader.ask(request_bytes)
    while await reader.read(int(0.1 * LIMITS.answer_bytes_per_s * LOOK_S)):
        assert reader.received < ANSWER_BYTES, "served to the end"
        await reader.look()
    assert reader.waited_s < 2 * WRITE_BUFFER_S


@slowly
@pytest.mark.parametrize(("request_bytes", "allowed_s"), [(KEPT, LIMITS.idle_s), (CLOSED, WRITE_BUFFER_S), (OLD, WRITE_BUFFER_S)])
async def test_reader_that_stops_is_disconnected_however_fast_it_was(
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
    for number, reader in enumerate(readers):
        await reader.ask(KEPT)
        if not number:
            assert await reader.read(ANSWER_BYTES // 4)
    yield readers
    for reader in readers:
        reader.socket.close()


@bounded
async def test_unsent_bytes_of_all_readers_together_are_bounded(gateway: Any, crowd: list[Reader]) -> None:
    buffers = gateway.server._context.write_buffers
    await until(lambda: 1 < sum(slow_reader.is_served() for slow_reader in crowd) < len(crowd))
    assert ANSWER_BYTES // 2 < buffers.held_bytes <= BOUND_BYTES
    assert await crowd[0].read(ANSWER_BYTES), "who began to read is served to the end"
    assert (await gateway.call("/function/f", b"another")).body == b"another"
    for slow_reader in crowd:
        slow_reader.socket.close()
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
    for each_reader in (silent, reading, newest):
        each_reader.socket.close()


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


async def test_request_and_answer_pass_through_unchanged() -> None:
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

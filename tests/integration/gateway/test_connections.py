"""Many connections, dead ones, and heads that do not end: what they cost others, and what is executed for them."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import resource
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from gnomon_core.errors import GnomonError
from gnomon_gateway.functions import function_runtime
from gnomon_gateway.http import acceptor
from gnomon_gateway.http.connection import Limits, Phase
from gnomon_gateway.http.server import GatewayServer
from tests.waiting import TIMEOUT_S, until

HEAD_BYTES = Limits().head_bytes
SENT_BYTES = 20 << 20
DEAD = 300


def post(path: str, body: bytes, more: bytes = b"") -> bytes:
    return b"POST %b HTTP/1.1\r\nHost: x\r\n%bContent-Length: %d\r\n\r\n%b" % (path.encode(), more, len(body), body)


def connected(gateway: Any, request: bytes) -> socket.socket:
    """A client that has sent a request while the gateway's loop stands still: whoever calls this does not yield to it."""
    client = socket.create_connection(("127.0.0.1", gateway.server.port))
    client.sendall(request)
    return client


async def test_live_client_is_answered_despite_hundreds_of_dead_connections(gateway: Any) -> None:
    await gateway.deploy()
    for number in range(DEAD):
        connected(gateway, post("/function/f", b"dead %d" % number)).close()
    answer = await gateway.call("/function/f", b"alive")
    assert (answer.status, answer.body) == (200, b"alive")
    assert gateway.executed() == [b"alive"], "requests of clients that had gone were executed"


async def test_request_of_a_closed_connection_is_not_executed(gateway: Any) -> None:
    await gateway.deploy()
    kept = await gateway.connect()
    assert (await kept.call("/function/f", b"first")).status == 200
    raw = kept.writer.get_extra_info("socket")
    with socket.fromfd(raw.fileno(), socket.AF_INET, socket.SOCK_STREAM) as same:
        same.sendall(post("/function/f", b"given up"))
        same.shutdown(socket.SHUT_RDWR)
    await until(lambda: not gateway.server._connections())
    assert (await gateway.call("/function/f", b"last")).status == 200
    assert gateway.executed() == [b"first", b"last"]


async def test_the_file_descriptor_of_a_connection_is_closed_once(gateway: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second close would hit whatever another thread has opened meanwhile under the same number."""
    ends: list[str] = []
    monkeypatch.setattr(acceptor.AcceptedSocket, "close", lambda _: ends.append("closed again"))
    monkeypatch.setattr(acceptor.AcceptedSocket, "detach", lambda sock: (ends.append("detached"), socket.socket.detach(sock))[1])
    await gateway.deploy()
    assert (await gateway.call("/function/f", b"x")).status == 200
    await until(lambda: not gateway.server._connections())
    assert ends == ["detached"], "uvloop closes the descriptor by itself"


async def test_many_that_connect_at_once_are_served_in_a_few_turns_of_the_loop(gateway: Any) -> None:
    clients = [connected(gateway, b"") for _ in range(100)]
    turns = 0
    while len(gateway.server._connections()) < len(clients):
        await asyncio.sleep(0)
        turns += 1
        assert turns < len(clients), "a connection is accepted per turn, or fewer"
    for client in clients:
        client.close()


async def test_lack_of_file_descriptors_is_logged_once_and_clients_are_served_when_there_are_some(
    gateway: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acceptor, "_RETRY_S", 0.001)
    await gateway.deploy()
    accept = socket.socket._accept  # type: ignore[attr-defined]
    tried = 0

    def counted(listener: socket.socket) -> Any:
        nonlocal tried
        tried += 1
        return accept(listener)

    monkeypatch.setattr(socket.socket, "_accept", counted)
    with connected(gateway, post("/function/f", b"x")), no_more_descriptors():
        await until(lambda: tried > 5)
        assert caplog.text.count("cannot accept connections") == 1
    assert (await gateway.call("/function/f", b"x")).status == 200


@contextmanager
def no_more_descriptors() -> Iterator[None]:
    """Every number below the limit is taken, as where many clients have connected."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(int(entry.name) for entry in Path("/proc/self/fd").iterdir()), hard))
    taken: list[int] = []
    try:
        with suppress(OSError):
            while True:
                taken.append(os.dup(0))
        yield
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize(("waited_s", "order"), [(0.0, [b"1", b"2", b"3"]), (0.2, [b"3", b"2", b"1"])])
async def test_the_newest_is_served_first_where_the_others_have_waited_for_long(
    gateway: Any, monkeypatch: pytest.MonkeyPatch, waited_s: float, order: list[bytes]
) -> None:
    """All of them would be served too late otherwise: the queue is as long as clients have patience."""
    monkeypatch.setattr(acceptor, "MAX_OPENED_PER_TURN", 1)
    monkeypatch.setattr(acceptor, "LIFO_AFTER_S", 0.1 if waited_s else 60.0)
    await gateway.deploy()
    clients = [connected(gateway, post("/function/f", b"%d" % number)) for number in (1, 2, 3)]
    time.sleep(waited_s)  # noqa: ASYNC251 - the loop stands still
    for client in clients:
        assert (await asyncio.to_thread(client.recv, 65536)).startswith(b"HTTP/1.1 200 ")
        client.close()
    assert gateway.executed() == order


async def test_request_unread_past_its_deadline_is_refused(gateway: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acceptor, "REFUSE_AFTER_S", 0.1)
    await gateway.deploy()
    client = connected(gateway, post("/function/f", b"too late"))
    time.sleep(0.3)  # noqa: ASYNC251 - the loop stands still
    said = await asyncio.to_thread(everything_from, client)
    assert said.startswith(b"HTTP/1.1 503 ")
    assert json.loads(said.partition(b"\r\n\r\n")[2])["error"]["code"] == "overloaded"
    assert gateway.executed() == []


def everything_from(client: socket.socket) -> bytes:
    client.settimeout(TIMEOUT_S)
    with client:
        return b"".join(iter(lambda: client.recv(65536), b""))


async def test_the_deadline_counts_the_time_before_the_connection_is_accepted(gateway: Any) -> None:
    await gateway.deploy()
    client = connected(gateway, post("/function/f", b"too late", b"X-Gnomon-Deadline-Ms: 100\r\n"))
    time.sleep(0.3)  # noqa: ASYNC251 - the loop stands still, and the kernel keeps the connection
    assert (await asyncio.to_thread(client.recv, 65536)).startswith(b"HTTP/1.1 504 ")
    client.close()
    assert gateway.executed() == []


async def test_the_deadline_does_not_count_the_time_before_the_request_is_sent(gateway: Any) -> None:
    await gateway.deploy()
    client = await gateway.connect()
    await asyncio.sleep(0.3)
    assert (await client.call("/function/f", b"x", headers={"X-Gnomon-Deadline-Ms": "250"})).status == 200


@pytest.mark.parametrize("path", ["/function/f", "/system/info"])
@pytest.mark.parametrize(
    ("head", "ends"),
    [
        (b"X-Endless: ", b"\r\n\r\n"),
        (b"Endless", b": 1\r\n\r\n"),
        (b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nX-Trailer: ", b"\r\n\r\n"),
        (b"Transfer-Encoding: chunked\r\n\r\n3;extension=", b"\r\nabc\r\n0\r\n\r\n"),
    ],
    ids=["header value", "header name", "trailer", "chunk extension"],
)
async def test_endless_header_is_bounded_by_bytes_received(gateway: Any, path: str, head: bytes, ends: bytes) -> None:
    await gateway.deploy()
    client = await gateway.connect()
    await client.send(b"POST %b HTTP/1.1\r\nHost: x\r\n" % path.encode() + head)
    sent = 0

    async def pour() -> None:
        nonlocal sent
        while sent < SENT_BYTES:
            await client.send(b"a" * 8192)
            sent += 8192
        await client.send(ends)

    pouring = asyncio.ensure_future(pour())
    assert (await client.answer()).status == 431
    pouring.cancel()
    await asyncio.wait([pouring])
    if not pouring.cancelled():
        assert isinstance(pouring.exception(), ConnectionError)
    # What left the client beyond the limit sits in the two sockets' buffers.
    assert sent < HEAD_BYTES + 8_000_000
    assert await client.closed()
    assert gateway.executed() == []


@pytest.mark.parametrize("gateway", [Limits(linger_s=60.0, check_s=0.05)], indirect=True)
async def test_client_that_goes_on_after_its_refusal_waits_and_leaves_nothing_behind(gateway: Any) -> None:
    client = await refused(gateway)
    await asyncio.sleep(1.5)
    assert gateway.server._connections(), "it may connect again at once"
    client.close()
    await until(lambda: not gateway.server._connections())


@pytest.mark.parametrize("gateway", [Limits(linger_s=0.2, check_s=0.05)], indirect=True)
async def test_client_that_goes_on_after_its_refusal_is_closed_in_the_end(gateway: Any) -> None:
    await refused(gateway)
    await until(lambda: not gateway.server._connections())


async def refused(gateway: Any) -> Any:
    """A client whose head is too large, and of which the server has not read everything."""
    client = await gateway.connect()
    await client.send(b"GET / HTTP/1.1\r\nX-Endless: " + b"a" * (4 * HEAD_BYTES))
    assert (await client.answer()).status == 431
    return client


async def test_small_chunks_with_extensions_and_trailers_are_accepted(gateway: Any) -> None:
    await gateway.deploy()
    client = await gateway.connect()
    body = b"".join(b"1;number=%d\r\nx\r\n" % number for number in range(20_000)) + b"0\r\nX-Trailer: 1\r\n\r\n"
    await client.send(b"POST /function/f HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + body)
    assert (await client.answer()).body == b"x" * 20_000


GOOD = [b"GET /function/f HTTP/1.1\r\n", b"\r\n\r\nGET /function/f HTTP/1.1\r\n", b"GET http://x/function/f?a=b HTTP/1.1\r\n"]
BAD = [
    b"GET  /function/f HTTP/1.1\r\n",
    b"GET /function/f  HTTP/1.1\r\n",
    b"GET   /function/f   HTTP/1.1\r\n",
    b"GET /function/f HTTP/1.1 \r\n",
    b"GET\t/function/f HTTP/1.1\r\n",
    b"GET  /system/info HTTP/1.1\r\n",
]
FIRST = {
    "whole": b"",
    "byte by byte": b"",
    "behind another": post("/function/f", b""),
    "behind a body": post("/function/f", b"body"),
}


async def send_as(way: str, client: Any, line: bytes) -> None:
    """Send a request with this line, and read the answer to the one in front of it if there is one."""
    request = FIRST[way] + line + b"Host: x\r\n\r\n"
    for piece in [bytes((byte,)) for byte in request] if way == "byte by byte" else [request]:
        await client.send(piece)
        await asyncio.sleep(0)
    if FIRST[way]:
        assert (await client.answer()).status == 200


@pytest.mark.parametrize("way", FIRST)
@pytest.mark.parametrize("line", GOOD)
async def test_a_request_line_is_read_in_whatever_pieces_it_comes(gateway: Any, line: bytes, way: str) -> None:
    await gateway.deploy()
    client = await gateway.connect()
    await send_as(way, client, line)
    assert (await client.answer()).status == 200
    assert (await client.call("/function/f", b"next")).body == b"next"


@pytest.mark.parametrize("way", FIRST)
@pytest.mark.parametrize("line", BAD)
async def test_the_parts_of_a_request_line_have_one_space_between_them(gateway: Any, line: bytes, way: str) -> None:
    await gateway.deploy()
    client = await gateway.connect()
    await send_as(way, client, line)
    if not FIRST[way]:  # behind an answer, the end of the connection is all that is said
        assert (await client.answer()).status == 400
    assert await client.closed()
    assert len(gateway.executed()) == (1 if FIRST[way] else 0)


@contextmanager
def errors(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    with caplog.at_level(logging.ERROR):
        yield
    assert [record.getMessage() for record in caplog.records] == []


async def test_nothing_is_written_behind_the_end_of_an_answer(gateway: Any, caplog: pytest.LogCaptureFixture) -> None:
    """A client that waits for `100 Continue` sends what is no body: the application asks for it when that has been refused.

    `write() after write_eof()`, said the log.
    """
    with errors(caplog):
        client = await gateway.connect()
        await client.send(
            b"POST /system/x HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\nno size\r\n"
        )
        assert (await client.answer()).status == 400
        assert await client.closed()


# Starting, stopping, and noticing instances that do not answer.


async def test_stopping_answers_what_is_under_way_and_closes_what_is_idle(gateway: Any) -> None:
    runtime = await gateway.deploy()
    busy, idle = await gateway.connect(), await gateway.connect()
    assert (await idle.call("/function/f", b"1")).status == 200
    call = asyncio.ensure_future(busy.call("/function/f/held", b"finish me"))
    await until(lambda: runtime.load().executing == 1)
    stopping = asyncio.ensure_future(gateway.server.stop())
    await asyncio.sleep(0)
    assert not call.done()
    gateway.release()
    await stopping
    response = await call
    assert (response.status, response.body) == (200, b"finish me")
    assert response.headers["connection"] == "close"
    assert await idle.closed()
    with pytest.raises(ConnectionRefusedError):
        await gateway.connect()


def request(path: str, body: bytes) -> bytes:
    return b"POST %b HTTP/1.1\r\nHost: gnomon\r\nContent-Length: %d\r\n\r\n%b" % (path.encode(), len(body), body)


@pytest.mark.parametrize("gateway", [Limits(check_s=0.05, last_s=20.0)], indirect=True)
async def test_connected_clients_are_answered_at_shutdown(gateway: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also who was not heard yet: in the kernel's queue, on a connection that is kept, or by a request that follows later."""
    await gateway.deploy()
    kept, server = await gateway.connect(), gateway.server._server
    assert (await kept.call("/function/f", b"first")).headers.get("connection") is None
    ends = server.shutdown
    early: list[socket.socket] = []
    late: list[socket.socket] = []

    async def shutdown(sockets: list[socket.socket]) -> None:
        """In one turn of the loop, in which nobody is accepted and nothing is read."""
        for number in range(3):
            early.append(socket.create_connection(("127.0.0.1", gateway.server.port)))
            early[-1].sendall(request("/function/f", b"early %d" % number))
        late.append(socket.create_connection(("127.0.0.1", gateway.server.port)))
        os.write(kept.writer.get_extra_info("socket").fileno(), request("/function/f", b"again"))
        await ends(sockets)

    monkeypatch.setattr(server, "shutdown", shutdown)
    stopping = asyncio.ensure_future(gateway.server.stop())
    await until(lambda: bool(late))
    with pytest.raises(ConnectionRefusedError):
        await gateway.connect()
    await asyncio.to_thread(late[0].sendall, request("/function/f", b"late"))
    answer = await kept.answer()
    assert (answer.status, answer.headers["connection"], answer.body) == (200, "close", b"again")
    for client, body in ((early[0], b"early 0"), (early[1], b"early 1"), (early[2], b"early 2"), (late[0], b"late")):
        said = await asyncio.to_thread(everything_from, client)
        assert said.startswith(b"HTTP/1.1 200 ")
        assert said.endswith(b"\r\n\r\n" + body)
    await stopping


@pytest.mark.parametrize("gateway", [Limits(check_s=0.05, last_s=0.1)], indirect=True)
async def test_silent_connection_does_not_delay_shutdown(gateway: Any) -> None:
    silent = await gateway.connect()
    await until(lambda: bool(gateway.server._connections()))
    await gateway.server.stop()
    assert await silent.closed()


@pytest.mark.parametrize("gateway", [Limits(check_s=0.05)], indirect=True)
async def test_last_answer_of_a_bounded_connection_is_received(gateway: Any) -> None:
    """The third request was not read: closing on that would be a reset, which may overtake the answer."""
    runtime = await gateway.deploy()
    client = await asyncio.to_thread(socket.create_connection, ("127.0.0.1", gateway.server.port))
    await asyncio.to_thread(client.sendall, request("/function/f/held", b"the first"))
    await until(lambda: runtime.load().executing == 1)
    [connection] = gateway.server._connections()
    await asyncio.to_thread(client.sendall, request("/function/f", b"the second"))
    await until(lambda: len(connection.pipeline) == 1)
    await asyncio.to_thread(client.sendall, request("/function/f", b"the third"))
    await until(connection.has_unread_data)
    stopping = asyncio.ensure_future(gateway.server.stop())
    await asyncio.sleep(0)
    gateway.release()
    said = await asyncio.to_thread(everything_from, client)
    await stopping
    assert said.count(b"HTTP/1.1 ") == 1
    assert b"connection: close\r\n" in said
    assert said.endswith(b"\r\n\r\nthe first")
    assert gateway.executed() == [b"the first"], "what was not answered was not executed"


@pytest.mark.parametrize("gateway", [Limits(check_s=0.02, last_s=20.0)], indirect=True)
async def test_a_body_that_begins_to_come_while_the_server_stops_has_its_time(gateway: Any) -> None:
    await gateway.deploy()
    client, context = await gateway.connect(), gateway.server._context
    context.stopping_s = context.now_s - 60.0
    await client.send(b"POST /function/f HTTP/1.1\r\nHost: gnomon\r\nContent-Length: 4\r\n\r\nbo")
    await until(lambda: [connection.phase for connection in gateway.server._connections()] == [Phase.BODY])
    begun_s = context.now_s
    await until(lambda: context.now_s > begun_s + 0.1)
    await client.send(b"dy")
    assert (await client.answer()).body == b"body"


async def test_kept_connections_are_told_to_close_before_shutdown(gateway: Any) -> None:
    """Hot routes and others; everything is answered, and comes by a new connection afterwards."""
    await gateway.deploy()
    first, second = await gateway.connect(), await gateway.connect()
    assert [(await first.call("/function/f", b"1")).status, (await second.call("/system/info")).status] == [200, 200]
    gateway.server.announce_end()
    for connection, path in ((first, "/function/f"), (second, "/system/info")):
        answer = await connection.call(path, b"2")
        assert (answer.status, answer.headers["connection"]) == (200, "close")
        assert await connection.closed()
    assert (await gateway.call("/function/f", b"3")).body == b"3"


async def test_signals_stay_with_the_program(gateway: Any) -> None:
    handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    second = GatewayServer(gateway.server._context.routes, port=0)
    await second.start()
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == handlers
    await second.stop()


async def test_a_port_in_use_is_one_clear_line(gateway: Any) -> None:
    second = GatewayServer(gateway.server._context.routes, port=gateway.server.port)
    with pytest.raises(GnomonError) as caught:
        await second.start()
    assert caught.value.code == "port_in_use"
    assert str(gateway.server.port) in str(caught.value)


async def test_an_idle_instance_that_is_frozen_is_reported_and_gets_nothing_more(
    gateway: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(function_runtime, "PROBE_EVERY_S", 0.05)
    monkeypatch.setattr(function_runtime, "PROBE_TIMEOUT_S", 1.0)
    runtime = await gateway.deploy(instances=2)
    gateway.signal("i1", signal.SIGSTOP)
    await until(lambda: bool(gateway.owner.frozen))
    assert gateway.owner.frozen == ["i1"]
    assert runtime.ready == 1
    for _ in range(5):
        assert (await gateway.call("/function/f", b"alive")).status == 200
    assert gateway.owner.frozen == ["i1"]


async def test_a_busy_instance_that_is_frozen_is_bounded_by_its_batch(gateway: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(function_runtime, "PROBE_EVERY_S", 0.05)
    monkeypatch.setattr(function_runtime, "BUSY_AT_LEAST_S", 0.3)
    await gateway.deploy(deadline_s=0.1)
    call = asyncio.ensure_future(gateway.call("/function/f/held", b"x"))
    await until(lambda: bool(gateway.owner.frozen))
    assert gateway.owner.frozen == ["i1"]
    assert (await call).status == 504

"""Many connections, dead ones, and heads that do not end: what they cost others, and what is executed for them."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from gnomon_gateway.http import acceptor
from gnomon_gateway.http.connection import Limits
from tests.waiting import until

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


@pytest.mark.parametrize(("waited_s", "order"), [(0.0, [b"1", b"2", b"3"]), (0.2, [b"3", b"2", b"1"])])
async def test_the_newest_is_served_first_where_the_others_have_waited_for_long(
    gateway: Any, monkeypatch: pytest.MonkeyPatch, waited_s: float, order: list[bytes]
) -> None:
    """All of them would be served too late otherwise: the queue is as long as clients have patience."""
    monkeypatch.setattr(acceptor, "MOST_OPENED", 1)
    monkeypatch.setattr(acceptor, "LONG_S", 0.1 if waited_s else 60.0)
    await gateway.deploy()
    clients = [connected(gateway, post("/function/f", b"%d" % number)) for number in (1, 2, 3)]
    time.sleep(waited_s)  # noqa: ASYNC251 - the loop stands still
    for client in clients:
        assert (await asyncio.to_thread(client.recv, 65536)).startswith(b"HTTP/1.1 200 ")
        client.close()
    assert gateway.executed() == order


async def test_request_unread_past_its_deadline_is_refused(gateway: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acceptor, "LONGEST_S", 0.1)
    await gateway.deploy()
    client = connected(gateway, post("/function/f", b"too late"))
    time.sleep(0.3)  # noqa: ASYNC251 - the loop stands still
    said = await asyncio.to_thread(everything_from, client)
    assert said.startswith(b"HTTP/1.1 503 ")
    assert json.loads(said.partition(b"\r\n\r\n")[2])["error"]["code"] == "overloaded"
    assert gateway.executed() == []


def everything_from(client: socket.socket) -> bytes:
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

"""Starting, stopping, and noticing instances that do not answer."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from typing import Any

import pytest

from gnomon_core.errors import GnomonError
from gnomon_gateway.functions import function_runtime
from gnomon_gateway.http.connection import Limits, Phase
from gnomon_gateway.http.server import GatewayServer
from tests.waiting import until


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
    for one, body in ((early[0], b"early 0"), (early[1], b"early 1"), (early[2], b"early 2"), (late[0], b"late")):
        said = await asyncio.to_thread(everything_from, one)
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
    """One executes, one waits, and the third was not read: closing on that would be a reset, which may overtake the answer."""
    runtime = await gateway.deploy()
    client = await asyncio.to_thread(socket.create_connection, ("127.0.0.1", gateway.server.port))
    await asyncio.to_thread(client.sendall, request("/function/f/held", b"the first"))
    await until(lambda: runtime.load().executing == 1)
    [connection] = gateway.server._connections()
    await asyncio.to_thread(client.sendall, request("/function/f", b"the second"))
    await until(lambda: len(connection.pipeline) == 1)
    await asyncio.to_thread(client.sendall, request("/function/f", b"the third"))
    await until(connection.has_sent)
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
    await until(lambda: [one.phase for one in gateway.server._connections()] == [Phase.BODY])
    begun_s = context.now_s
    await until(lambda: context.now_s > begun_s + 0.1)
    await client.send(b"dy")
    assert (await client.answer()).body == b"body"


async def test_kept_connections_are_told_to_close_before_shutdown(gateway: Any) -> None:
    """Hot routes and others; everything is answered, and comes by a new connection afterwards."""
    await gateway.deploy()
    one, other = await gateway.connect(), await gateway.connect()
    assert [(await one.call("/function/f", b"1")).status, (await other.call("/system/info")).status] == [200, 200]
    gateway.server.announce_end()
    for connection, path in ((one, "/function/f"), (other, "/system/info")):
        answer = await connection.call(path, b"2")
        assert (answer.status, answer.headers["connection"]) == (200, "close")
        assert await connection.closed()
    assert (await gateway.call("/function/f", b"3")).body == b"3"


def everything_from(client: socket.socket) -> bytes:
    client.settimeout(20)
    with client:
        return b"".join(iter(lambda: client.recv(65536), b""))


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

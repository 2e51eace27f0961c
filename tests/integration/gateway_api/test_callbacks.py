"""Callbacks: the answer arrives once it is there, at the address that was looked at and nowhere else."""

from __future__ import annotations

import asyncio
import socket
import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path
from random import Random
from typing import Any

import pytest
from aiohttp import web

from gnomon_core.errors import GnomonError
from gnomon_gateway.asynchronous import callbacks as callbacks_module
from gnomon_gateway.asynchronous.callbacks import CallbackHosts, Callbacks
from gnomon_gateway.asynchronous.calls import FunctionAnswer, Invocation
from gnomon_gateway.asynchronous.queue import AsyncLimits
from tests.waiting import until


class Receiver:
    """A server that is called back, and answers the statuses it was given, then 200."""

    def __init__(self, *statuses: int) -> None:
        self.port = 0
        self.seen: list[tuple[str, dict[str, str], bytes]] = []
        self.statuses = list(statuses)
        self.headers: dict[str, str] = {}
        self.release = asyncio.Event()
        self.release.set()

    async def handle(self, request: web.Request) -> web.Response:
        self.seen.append(
            (request.path_qs, {name.lower(): value for name, value in request.headers.items()}, await request.read())
        )
        await self.release.wait()
        status = self.statuses.pop(0) if self.statuses else 200
        return web.Response(status=status, headers=self.headers)


@asynccontextmanager
async def receiving(*statuses: int) -> AsyncIterator[Receiver]:
    receiver = Receiver(*statuses)
    runner = web.ServerRunner(web.Server(receiver.handle))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    receiver.port = runner.addresses[0][1]
    yield receiver
    await runner.cleanup()


async def hello(_: Invocation) -> FunctionAnswer:
    return FunctionAnswer(201, (("Content-Type", "text/x-answer"), ("Set-Cookie", "secret=1")), b"hello")


def allowed(*hosts: str, resolve: Any = None) -> Callbacks:
    return Callbacks(CallbackHosts(hosts), Random(1), resolve)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(callbacks_module, "MIN_WAIT_S", 0.002)


async def send(gateway: Any, url: str) -> None:
    headers = {"X-Callback-Url": url, "X-Call-Id": "call-1"}
    status, body = await gateway.call("POST", "/async-function/fn", headers=headers)
    assert status == 202, body


async def test_the_answer_is_posted_with_openfaas_headers(start_gateway: Any) -> None:
    async with receiving() as receiver:
        gateway = await start_gateway(invoke=hello, callbacks=allowed(f"127.0.0.1:{receiver.port}"))
        await gateway.deploy("fn")
        await send(gateway, f"http://127.0.0.1:{receiver.port}/done?x=%2F")
        await until(lambda: gateway.queue.counters.completed == 1)
        ((path, headers, body),) = receiver.seen
    assert (path, body) == ("/done?x=%2F", b"hello")
    assert headers["x-call-id"] == "call-1"
    assert headers["x-function-name"] == "fn.openfaas-fn"
    assert headers["x-function-status"] == "201"
    assert float(headers["x-duration-seconds"]) >= 0
    assert headers["content-type"] == "text/x-answer"
    assert "set-cookie" not in headers
    assert gateway.callbacks.delivered == 1


async def test_a_callback_cannot_use_the_control_routes_in_the_gateways_name(start_gateway: Any) -> None:
    """Also where an operator has allowed callbacks to the very port: the answer is a function's, and could be a deployment."""

    async def deployment(_: Invocation) -> FunctionAnswer:
        document = b'{"service": "spy", "image": "functions/alpine", "envProcess": "cat"}'
        return FunctionAnswer(200, (("Content-Type", "application/json"),), document)

    gateway = await start_gateway(invoke=deployment)
    gateway.callbacks._hosts = CallbackHosts([f"127.0.0.1:{gateway.port}"])
    await gateway.deploy("fn")
    await send(gateway, f"http://127.0.0.1:{gateway.port}/system/functions")
    await until(lambda: gateway.queue.counters.completed == 1)
    assert gateway.callbacks.failed == 1
    assert [key.name for key in gateway.functions.deployed] == ["fn"]


async def test_a_failed_call_is_told_too(start_gateway: Any) -> None:
    async def full(_: Invocation) -> FunctionAnswer:
        raise GnomonError(404, "function_not_found", "Gone.")

    async with receiving() as receiver:
        gateway = await start_gateway(invoke=full, callbacks=allowed(f"127.0.0.1:{receiver.port}"))
        await gateway.deploy("fn")
        await send(gateway, f"http://127.0.0.1:{receiver.port}/")
        await until(lambda: gateway.queue.counters.completed == 1)
    assert receiver.seen[0][1]["x-function-status"] == "404"
    assert b"function_not_found" in receiver.seen[0][2]


async def test_a_busy_receiver_is_tried_again_without_running_the_function_again(start_gateway: Any) -> None:
    runs: list[Invocation] = []

    async def once(invocation: Invocation) -> FunctionAnswer:
        runs.append(invocation)
        return FunctionAnswer(200, (), b"")

    async with receiving(503, 429) as receiver:
        gateway = await start_gateway(invoke=once, callbacks=allowed(f"127.0.0.1:{receiver.port}"))
        await gateway.deploy("fn")
        await send(gateway, f"http://127.0.0.1:{receiver.port}/")
        await until(lambda: gateway.queue.counters.completed == 1)
    assert (len(receiver.seen), len(runs), gateway.callbacks.delivered) == (3, 1, 1)


async def test_answers_that_wait_for_their_callback_count_as_what_waits(start_gateway: Any) -> None:
    async def long(_: Invocation) -> FunctionAnswer:
        return FunctionAnswer(200, (), bytes(600))

    async with receiving() as receiver:
        url = f"http://127.0.0.1:{receiver.port}/"
        limits = AsyncLimits(waiting_bytes=1000)
        gateway = await start_gateway(invoke=long, callbacks=allowed(f"127.0.0.1:{receiver.port}"), limits=limits)
        receiver.release.clear()
        await gateway.deploy("fn")
        for number in (1, 2):
            await send(gateway, url)
            await until(lambda: len(receiver.seen) == number)  # noqa: B023 - awaited within the turn
        assert gateway.queue.counters.waiting_bytes == 1200
        status, body = await gateway.call("POST", "/async-function/fn")
        assert (status, body["error"]["code"]) == (429, "async_queue_full")
        receiver.release.set()
        await until(lambda: gateway.queue.counters.completed == 2)
        assert gateway.queue.counters.waiting_bytes == 0
        await send(gateway, url)
        await until(lambda: gateway.queue.counters.completed == 3)


async def test_disk_that_refuses_an_outcome_repeats_neither_the_function_nor_the_callback(
    start_gateway: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("gnomon_gateway.asynchronous.queue.FAULT_WAIT_S", 0.001)
    monkeypatch.setattr("gnomon_gateway.store.BUSY_TIMEOUT_S", 0.01)
    runs: list[Invocation] = []
    release = asyncio.Event()

    async def once(invocation: Invocation) -> FunctionAnswer:
        runs.append(invocation)
        await release.wait()
        return FunctionAnswer(200, (), b"")

    async with receiving() as receiver:
        gateway = await start_gateway(invoke=once, callbacks=allowed(f"127.0.0.1:{receiver.port}"))
        with closing(sqlite3.connect(tmp_path / "calls.db", isolation_level=None)) as disk:

            async def end_while_nothing_can_be_stored(begun: list[Any], end: asyncio.Event) -> None:
                await until(lambda: begun)
                disk.execute("BEGIN IMMEDIATE")
                caplog.clear()
                end.set()
                await until(lambda: "call-1" in caplog.text)
                disk.execute("ROLLBACK")

            receiver.release.clear()
            await gateway.deploy("fn")
            await send(gateway, f"http://127.0.0.1:{receiver.port}/")
            await end_while_nothing_can_be_stored(runs, release)
            await end_while_nothing_can_be_stored(receiver.seen, receiver.release)
            await until(lambda: gateway.queue.counters.completed == 1)
    assert (len(runs), len(receiver.seen), gateway.callbacks.delivered) == (1, 1, 1)


@pytest.mark.parametrize(("statuses", "tries"), [((404,), 1), ((302,), 1), ((500,) * 9, callbacks_module.MAX_TRIES)])
async def test_a_receiver_that_refuses_is_given_up(start_gateway: Any, statuses: Sequence[int], tries: int) -> None:
    async with receiving(*statuses) as receiver:
        gateway = await start_gateway(invoke=hello, callbacks=allowed(f"127.0.0.1:{receiver.port}"))
        await gateway.deploy("fn")
        await send(gateway, f"http://127.0.0.1:{receiver.port}/")
        await until(lambda: gateway.queue.counters.completed == 1)
    assert len(receiver.seen) == tries
    assert (gateway.callbacks.delivered, gateway.callbacks.failed) == (0, 1)


async def test_a_redirect_is_not_followed(start_gateway: Any) -> None:
    async with receiving() as inside, receiving(307) as receiver:
        receiver.headers["Location"] = f"http://127.0.0.1:{inside.port}/secret"
        hosts = (f"127.0.0.1:{receiver.port}", f"127.0.0.1:{inside.port}")
        gateway = await start_gateway(invoke=hello, callbacks=allowed(*hosts))
        await gateway.deploy("fn")
        await send(gateway, f"http://127.0.0.1:{receiver.port}/")
        await until(lambda: gateway.queue.counters.completed == 1)
        assert inside.seen == []
        assert gateway.callbacks.failed == 1


async def test_a_name_is_resolved_once_and_the_connection_goes_to_that_address(start_gateway: Any) -> None:
    asked: list[str] = []

    async def resolve(host: str, _: int) -> Sequence[str]:
        asked.append(host)
        return ["127.0.0.1"]

    async with receiving() as receiver:
        hosts = (f"hooks.example.org:{receiver.port}", f"127.0.0.1:{receiver.port}")
        gateway = await start_gateway(invoke=hello, callbacks=allowed(*hosts, resolve=resolve))
        await gateway.deploy("fn")
        await send(gateway, f"http://hooks.example.org:{receiver.port}/")
        await until(lambda: gateway.queue.counters.completed == 1)
    assert asked == ["hooks.example.org"]
    assert receiver.seen[0][1]["host"] == f"hooks.example.org:{receiver.port}"


@pytest.mark.parametrize("addresses", [["127.0.0.1"], ["93.184.216.34", "127.0.0.1"], ["::ffff:127.0.0.1"], ["169.254.169.254"]])
async def test_a_name_that_leads_inside_is_never_connected_to(start_gateway: Any, addresses: list[str]) -> None:
    async def resolve(*_: object) -> Sequence[str]:
        return addresses

    async with receiving() as receiver:
        gateway = await start_gateway(invoke=hello, callbacks=allowed(f"hooks.example.org:{receiver.port}", resolve=resolve))
        await gateway.deploy("fn")
        await send(gateway, f"http://hooks.example.org:{receiver.port}/")
        await until(lambda: gateway.queue.counters.completed == 1)
        assert receiver.seen == []
    assert gateway.callbacks.failed == 1


async def test_a_rebound_name_is_refused_at_the_second_delivery(start_gateway: Any) -> None:
    """The first answer is the listed address, which fails; by the second try the name points inside."""
    answers = [["127.0.0.1"], ["127.0.0.2"]]

    async def resolve(*_: object) -> Sequence[str]:
        return answers.pop(0)

    async with receiving(503) as receiver:
        hosts = (f"hooks.example.org:{receiver.port}", f"127.0.0.1:{receiver.port}")
        gateway = await start_gateway(invoke=hello, callbacks=allowed(*hosts, resolve=resolve))
        await gateway.deploy("fn")
        await send(gateway, f"http://hooks.example.org:{receiver.port}/")
        await until(lambda: gateway.queue.counters.completed == 1)
        assert len(receiver.seen) == 1
    assert answers == []
    assert gateway.callbacks.failed == 1


async def test_a_receiver_that_never_answers_is_given_up_in_time(start_gateway: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(callbacks_module, "TOTAL_TIMEOUT_S", 0.02)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        gateway = await start_gateway(invoke=hello, callbacks=allowed(f"127.0.0.1:{port}"))
        await gateway.deploy("fn")
        await send(gateway, f"http://127.0.0.1:{port}/")
        await until(lambda: gateway.queue.counters.completed == 1)
    assert gateway.callbacks.failed == 1


async def test_an_endless_answer_of_the_receiver_is_not_read(start_gateway: Any) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000000\r\n\r\n")
        await reader.read()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    gateway = await start_gateway(invoke=hello, callbacks=allowed(f"127.0.0.1:{port}"))
    await gateway.deploy("fn")
    await send(gateway, f"http://127.0.0.1:{port}/")
    await until(lambda: gateway.callbacks.delivered == 1)
    server.close()
    await server.wait_closed()


async def test_an_answer_over_the_limit_becomes_an_error_that_says_so(start_gateway: Any) -> None:
    async with receiving() as receiver:
        gateway = await start_gateway(
            invoke=hello, callbacks=allowed(f"127.0.0.1:{receiver.port}"), limits=AsyncLimits(answer_bytes=4)
        )
        await gateway.deploy("fn")
        await send(gateway, f"http://127.0.0.1:{receiver.port}/")
        await until(lambda: gateway.queue.counters.completed == 1)
    assert receiver.seen[0][1]["x-function-status"] == "502"
    assert b"answer_too_large" in receiver.seen[0][2]


async def test_a_proxy_of_the_environment_is_not_used(start_gateway: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async with receiving() as proxy, receiving() as receiver:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
        gateway = await start_gateway(invoke=hello, callbacks=allowed(f"127.0.0.1:{receiver.port}"))
        await gateway.deploy("fn")
        await send(gateway, f"http://127.0.0.1:{receiver.port}/")
        await until(lambda: gateway.queue.counters.completed == 1)
        assert (len(proxy.seen), len(receiver.seen)) == (0, 1)

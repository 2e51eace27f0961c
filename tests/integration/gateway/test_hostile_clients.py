"""Clients that send garbage or too much."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from gnomon_gateway.api.invocation import Invocation
from gnomon_gateway.http.connection import Limits
from gnomon_gateway.http.exchange import Exchange
from gnomon_gateway.queueing.queue import Batch, Request
from tests.garbage import collected_only_when_asked, garbage
from tests.waiting import until

BRISK = Limits(head_s=0.3, body_s=0.3, idle_s=0.6, check_s=0.05)
LIMIT_BYTES = 1_000_000


def code(response: Any) -> str:
    return json.loads(response.body)["error"]["code"]


async def test_a_stated_length_over_the_limit_is_a_413_before_the_body_is_sent(gateway: Any) -> None:
    await gateway.deploy()
    connection = await gateway.connect()
    await connection.send(b"POST /function/f HTTP/1.1\r\nHost: x\r\nContent-Length: 1000001\r\n\r\n")
    response = await connection.answer()
    assert (response.status, code(response)) == (413, "body_too_large")
    assert await connection.closed()
    assert gateway.executed() == []


@pytest.mark.parametrize("length", [b"99999999999999999999999", b"-1", b"1e3", b"0x10", b""])
async def test_a_length_that_is_none_is_a_400(gateway: Any, length: bytes) -> None:
    await gateway.deploy()
    connection = await gateway.connect()
    await connection.send(b"POST /function/f HTTP/1.1\r\nHost: x\r\nContent-Length: " + length + b"\r\n\r\n")
    assert (await connection.answer()).status in (400, 413)


@pytest.mark.parametrize("path", ["/function/f", "/v2/models/m/infer"])
async def test_chunks_over_the_limit_are_a_413_without_being_read_whole(gateway: Any, model: Any, path: str) -> None:
    await gateway.deploy()
    await gateway.deploy("m", signature=model)
    connection = await gateway.connect()
    await connection.send(b"POST %b HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" % path.encode())
    sent = 0

    async def pour() -> None:
        nonlocal sent
        chunk = b"10000\r\n" + b"x" * 65536 + b"\r\n"
        while True:
            await connection.send(chunk)
            sent += 65536

    pouring = asyncio.ensure_future(pour())
    response = await connection.answer()
    assert response.status == 413
    pouring.cancel()
    with pytest.raises((asyncio.CancelledError, ConnectionError)):
        await pouring
    # What left the client beyond the limit sits in the two sockets' buffers, not in the gateway.
    assert sent < LIMIT_BYTES + 8_000_000
    assert gateway.executed() == []


async def test_chunks_of_one_byte_are_counted_too(gateway: Any) -> None:
    await gateway.deploy()
    connection = await gateway.connect()
    await connection.send(b"POST /function/f HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
    await connection.send(b"1\r\nx\r\n" * 3000 + b"0\r\n\r\n")
    assert (await connection.answer()).body == b"x" * 3000


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"NONSENSE\r\n\r\n",
        b"GET\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET /function/f HTTP/9.9\r\nHost: x\r\n\r\n",
        b"POST /function/f HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
        b"POST /function/f HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /function/f HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\nabc",
        b"POST /function/f HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\nabc\r\n",
        b"GET /function/f HTTP/1.1\r\nHost: x\r\nX-A: 1\r\n folded: 2\r\n\r\n",
        b"GET /function/f HTTP/1.1\r\nHost: x\r\nBad Name: 1\r\n\r\n",
        b"GET /function/f HTTP/1.1\r\nHost: x\r\nX: a\x00b\r\n\r\n",
    ],
)
async def test_bytes_that_are_not_http_answer_400_and_close(gateway: Any, request_bytes: bytes) -> None:
    await gateway.deploy()
    connection = await gateway.connect()
    await connection.send(request_bytes)
    response = await connection.answer()
    assert response.status == 400
    assert await connection.closed()
    assert gateway.executed() == []


@pytest.mark.parametrize("head", [b"X: " + b"a" * 70_000, b"\r\n".join(b"X-%d: 1" % n for n in range(200))])
async def test_a_head_without_end_is_a_431(gateway: Any, head: bytes) -> None:
    await gateway.deploy()
    connection = await gateway.connect()
    await connection.send(b"GET /function/f HTTP/1.1\r\nHost: x\r\n" + head + b"\r\n\r\n")
    response = await connection.answer()
    assert (response.status, code(response)) == (431, "head_too_large")
    assert await connection.closed()


async def test_garbage_behind_a_good_request_does_not_cost_it_its_answer(gateway: Any) -> None:
    await gateway.deploy()
    connection = await gateway.connect()
    await connection.send(b"POST /function/f/sleep/100 HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nokGARBAGE\r\n\r\n")
    response = await connection.answer()
    assert (response.status, response.body) == (200, b"ok")
    assert await connection.closed()


@pytest.mark.parametrize("gateway", [BRISK], indirect=True)
async def test_a_slow_head_is_a_408_however_it_trickles(gateway: Any) -> None:
    await gateway.deploy()
    connection = await gateway.connect()
    with_answer = asyncio.ensure_future(connection.answer())
    await connection.send(b"GET /function/f HTTP/1.1\r\nHost: a-name-that-does-not-end")
    while not with_answer.done():
        with contextlib.suppress(ConnectionError):  # it may be closed already, behind the answer
            await connection.send(b"-")
        await asyncio.wait([with_answer], timeout=0.02)
    response = await with_answer
    assert (response.status, code(response)) == (408, "request_too_slow")
    assert await connection.closed()


@pytest.mark.parametrize("gateway", [BRISK], indirect=True)
@pytest.mark.parametrize("path", ["/function/f", "/system/functions"])
async def test_a_slow_body_is_a_408(gateway: Any, path: str) -> None:
    await gateway.deploy()
    connection = await gateway.connect()
    await connection.send(b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\nabc" % path.encode())
    assert (await connection.answer()).status == 408
    assert await connection.closed()
    assert gateway.executed() == []


@pytest.mark.parametrize("gateway", [BRISK], indirect=True)
async def test_silent_and_idle_connections_are_closed_and_busy_ones_are_not(gateway: Any) -> None:
    await gateway.deploy()
    idle = await gateway.connect()
    assert (await idle.call("/function/f", b"1")).status == 200
    busy = await gateway.connect()
    long = asyncio.ensure_future(busy.call("/function/f/held", b"long"))
    silent = await gateway.connect()
    assert await silent.closed()
    assert await idle.closed()
    gateway.release()
    assert (await long).body == b"long"


async def test_slow_clients_do_not_hold_up_a_good_one(gateway: Any) -> None:
    await gateway.deploy()
    slow = [await gateway.connect() for _ in range(100)]
    for connection in slow:
        await connection.send(b"POST /function/f HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n")
    good = await gateway.connect()
    for _ in range(20):
        assert (await good.call("/function/f", b"quick")).status == 200
    assert gateway.executed() == [b"quick"] * 20
    for connection in slow:
        await connection.send(b"x" * 1000)
    assert [(await connection.answer()).status for connection in slow] == [200] * 100


async def test_a_refused_small_body_is_swallowed_and_the_connection_goes_on(gateway: Any) -> None:
    await gateway.deploy()
    connection = await gateway.connect()
    assert (await connection.call("/function/nobody", b"x" * 1000)).status == 404
    assert (await connection.call("/function/f", b"still here")).body == b"still here"


async def test_an_offer_to_upgrade_is_answered_as_usual(gateway: Any) -> None:
    await gateway.deploy()
    connection = await gateway.connect()
    head = b"POST /function/f HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 3\r\n\r\n"
    for _ in range(2):
        await connection.send(head + b"abc")
        answer = await connection.answer()
        assert (answer.status, answer.body) == (200, b"abc")


async def test_a_trickling_body_does_not_keep_the_server_from_stopping(gateway: Any) -> None:
    await gateway.deploy()
    slow, good = await gateway.connect(), await gateway.connect()
    await slow.send(b"POST /function/f HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\nabc")
    await good.send(b"POST /function/f HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\na")
    stopping = asyncio.ensure_future(gateway.server.stop())
    await asyncio.sleep(0.1)
    await good.send(b"bc")
    assert (await good.answer()).body == b"abc"
    assert (await slow.answer()).status == 408
    await stopping


REQUESTS = 200
"""More than the entries that the deadlines of answered requests may keep."""
OF_A_REQUEST = (Exchange, Invocation, Request, Batch)


def garbage_of_requests() -> Counter[str]:
    return garbage(lambda problem: isinstance(problem, OF_A_REQUEST))


async def answered(connection: Any) -> None:
    assert (await connection.call("/function/f", b"hello")).status == 200


async def refused(connection: Any) -> None:
    assert (await connection.call("/function/f", b"x" * 3000)).status == 429


async def streamed(connection: Any) -> None:
    assert (await connection.call("/function/f/stream", headers={"Accept": "text/event-stream"})).status == 200


@pytest.mark.parametrize(("call", "times"), [(answered, REQUESTS), (refused, REQUESTS), (streamed, 70)])
async def test_requests_leave_nothing_to_the_garbage_collector(
    gateway: Any, call: Callable[[Any], Awaitable[None]], times: int
) -> None:
    await gateway.deploy(queue_max_bytes=2000)
    connection = await gateway.connect()
    with collected_only_when_asked():
        for _ in range(times):
            await call(connection)
        assert garbage_of_requests() == Counter()


async def test_clients_that_leave_do_neither(gateway: Any) -> None:
    runtime = await gateway.deploy()
    with collected_only_when_asked():
        for _ in range(REQUESTS):
            connection = await gateway.connect()
            await connection.send(b"POST /function/f/sleep/5 HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx")
            await asyncio.sleep(0)
            connection.close()
        await until(lambda: runtime.metrics.started == REQUESTS and runtime.dispatcher.in_system == 0)
        assert (await gateway.call("/function/f", b"hello")).status == 200
        assert runtime.metrics.left > 0
        assert garbage_of_requests() == Counter()


async def test_garbage_is_seen(gateway: Any) -> None:
    first, second = object.__new__(Exchange), object.__new__(Invocation)
    first._owner, second._exchange = second, first
    with collected_only_when_asked():
        del first, second
        assert garbage_of_requests() == Counter({"Exchange": 1, "Invocation": 1})


async def test_a_full_queue_is_a_429_at_once(gateway: Any) -> None:
    runtime = await gateway.deploy(queue_max_requests=2)
    calls = [asyncio.ensure_future(gateway.call("/function/f/held", b"%d" % n)) for n in range(3)]
    await until(lambda: runtime.load().queued == 2)
    response = await gateway.call("/function/f", b"one too many")
    assert (response.status, response.headers["x-openfaas-internal"]) == (429, "gnomon")
    assert int(response.headers["retry-after"]) >= 1
    assert not any(call.done() for call in calls)
    gateway.release()
    assert [call.status for call in await asyncio.gather(*calls)] == [200] * 3


async def test_full_queue_refuses_a_body_before_it_is_read(gateway: Any) -> None:
    runtime = await gateway.deploy(queue_max_bytes=10_000)
    connection = await gateway.connect()
    await connection.send(b"POST /function/f HTTP/1.1\r\nHost: x\r\nContent-Length: 500000\r\n\r\n")
    assert (await connection.answer()).status == 429
    assert runtime.load().arrivals == 1


async def test_request_refused_unread_is_never_executed(gateway: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = await gateway.deploy(queue_max_requests=1)
    calls = [asyncio.ensure_future(gateway.call("/function/f/held", b"%d" % n)) for n in range(2)]
    await until(lambda: runtime.load().queued == 1)
    queue = runtime.dispatcher.queue
    has_room = queue.has_room

    def make_room() -> None:
        gateway.release()
        gateway.result_comes()

    def asked(body_bytes: int) -> bool:
        asyncio.get_running_loop().call_soon(make_room)
        return has_room(body_bytes)

    monkeypatch.setattr(queue, "has_room", asked)
    connection = await gateway.connect()
    await connection.send(b"POST /function/f HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\n")
    assert (await connection.answer()).status == 429
    assert [call.status for call in await asyncio.gather(*calls)] == [200] * 2
    assert sorted(gateway.executed()) == [b"0", b"1"]
    assert (runtime.load().arrivals, runtime.metrics.started, runtime.metrics.by_code[429].count) == (3, 3, 1)


async def test_full_queue_sends_no_100_continue(gateway: Any) -> None:
    await gateway.deploy(queue_max_bytes=10_000)
    connection = await gateway.connect()
    head = b"POST /function/f HTTP/1.1\r\nHost: x\r\nContent-Length: 500000\r\nExpect: 100-continue\r\n\r\n"
    await connection.send(head)
    assert (await connection.answer()).status == 429


async def test_full_queue_answers_429_for_bodies_that_came_early(gateway: Any) -> None:
    runtime = await gateway.deploy(queue_max_bytes=2_000)
    connection = await gateway.connect()
    first = b"POST /function/f/held HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\n0"
    await connection.send(first + b"POST /function/f HTTP/1.1\r\nHost: x\r\nContent-Length: 3000\r\n\r\n" + b"x" * 3000)
    await until(lambda: runtime.load().executing == 1)
    gateway.release()
    assert [(await connection.answer()).status for _ in range(2)] == [200, 429]

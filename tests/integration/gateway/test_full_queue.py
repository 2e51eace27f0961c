"""What a full queue has no room for: refused at once, unread where it can be, and never executed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.waiting import until


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


async def test_a_body_that_the_queue_has_no_room_for_is_refused_before_it_is_read(gateway: Any) -> None:
    runtime = await gateway.deploy(queue_max_bytes=10_000)
    connection = await gateway.connect()
    await connection.send(b"POST /function/f HTTP/1.1\r\nHost: x\r\nContent-Length: 500000\r\n\r\n")
    assert (await connection.answer()).status == 429
    assert runtime.load().arrivals == 1


async def test_what_is_refused_unread_is_not_executed_although_room_is_made_at_that_moment(
    gateway: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = await gateway.deploy(queue_max_requests=1)
    calls = [asyncio.ensure_future(gateway.call("/function/f/held", b"%d" % n)) for n in range(2)]
    await until(lambda: runtime.load().queued == 1)
    has_room_for = runtime.has_room_for

    def make_room() -> None:
        gateway.release()
        gateway.result_comes()

    def asked(body_bytes: int) -> bool:
        asyncio.get_running_loop().call_soon(make_room)
        return bool(has_room_for(body_bytes))

    monkeypatch.setattr(runtime, "has_room_for", asked)
    connection = await gateway.connect()
    await connection.send(b"POST /function/f HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\n")
    assert (await connection.answer()).status == 429
    assert [call.status for call in await asyncio.gather(*calls)] == [200] * 2
    assert sorted(gateway.executed()) == [b"0", b"1"]
    assert (runtime.load().arrivals, runtime.metrics.started, runtime.metrics.by_code[429].count) == (3, 3, 1)


async def test_a_client_that_waits_to_be_told_to_go_on_is_not_told_so_where_there_is_no_room(gateway: Any) -> None:
    await gateway.deploy(queue_max_bytes=10_000)
    connection = await gateway.connect()
    head = b"POST /function/f HTTP/1.1\r\nHost: x\r\nContent-Length: 500000\r\nExpect: 100-continue\r\n\r\n"
    await connection.send(head)
    assert (await connection.answer()).status == 429


async def test_what_there_is_no_room_for_is_a_429_too_if_its_body_came_before_its_turn(gateway: Any) -> None:
    runtime = await gateway.deploy(queue_max_bytes=2_000)
    connection = await gateway.connect()
    first = b"POST /function/f/held HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\n0"
    await connection.send(first + b"POST /function/f HTTP/1.1\r\nHost: x\r\nContent-Length: 3000\r\n\r\n" + b"x" * 3000)
    await until(lambda: runtime.load().executing == 1)
    gateway.release()
    assert [(await connection.answer()).status for _ in range(2)] == [200, 429]

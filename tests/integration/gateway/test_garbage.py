"""A request leaves nothing to the garbage collector, which would stop the event loop for many milliseconds at a time."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from gnomon_gateway.http.exchange import Exchange
from gnomon_gateway.invoke import Invocation
from gnomon_gateway.queueing.request import Batch, Request
from tests.garbage import collected_only_when_asked, garbage
from tests.waiting import until

REQUESTS = 200
"""More than the entries that the deadlines of answered requests may keep."""
OF_A_REQUEST = (Exchange, Invocation, Request, Batch)


def garbage_of_requests() -> Counter[str]:
    return garbage(lambda one: isinstance(one, OF_A_REQUEST))


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

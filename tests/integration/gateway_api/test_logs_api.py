"""`/system/logs`: NDJSON, now and live."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from gnomon_core.functions import FunctionKey
from tests.waiting import until

FN = FunctionKey("fn")


async def read(gateway: Any, query: str) -> list[dict[str, str]]:
    async with gateway.client.get(f"{gateway.url}/system/logs?{query}") as response:
        assert response.status == 200
        assert response.headers["Content-Type"] == "application/x-ndjson"
        return [json.loads(line) for line in (await response.read()).splitlines()]


async def test_lines_have_openfaas_fields(gateway: Any) -> None:
    await gateway.deploy("fn")
    gateway.logs.append(FN, "fn-1", "Forking fprocess.")
    (line,) = await read(gateway, "name=fn&namespace=openfaas-fn&follow=false")
    assert line.pop("timestamp").endswith("Z")
    assert line == {"name": "fn", "namespace": "openfaas-fn", "instance": "fn-1", "text": "Forking fprocess."}


async def test_tail_instance_and_since_choose(gateway: Any) -> None:
    await gateway.deploy("fn")
    for number in range(4):
        gateway.logs.append(FN, f"i{number % 2}", str(number))
    assert [line["text"] for line in await read(gateway, "name=fn&tail=2")] == ["2", "3"]
    assert [line["text"] for line in await read(gateway, "name=fn&tail=-1")] == ["0", "1", "2", "3"]
    assert [line["text"] for line in await read(gateway, "name=fn.openfaas-fn&instance=i0")] == ["0", "2"]
    assert await read(gateway, "name=fn&since=2999-01-01T00:00:00Z") == []
    assert len(await read(gateway, "name=fn&since=2020-01-01T00:00:00%2B02:00")) == 4


async def test_a_follower_gets_each_line_at_once_until_the_function_goes(gateway: Any) -> None:
    await gateway.deploy("fn")
    gateway.logs.append(FN, "i", "before")
    async with gateway.client.get(gateway.url + "/system/logs?name=fn&follow=1&tail=-1") as response:
        assert json.loads(await response.content.readline())["text"] == "before"
        for text in ("one", "two"):
            gateway.logs.append(FN, "i", text)
            async with asyncio.timeout(5):
                assert json.loads(await response.content.readline())["text"] == text
        gateway.logs.forget(FN)
        async with asyncio.timeout(5):
            assert await response.content.read() == b""


async def test_a_follower_that_leaves_is_forgotten(gateway: Any) -> None:
    await gateway.deploy("fn")
    gateway.logs.append(FN, "i", "x")
    response = await gateway.client.get(gateway.url + "/system/logs?name=fn&follow=true")
    await response.content.readline()
    response.close()
    await until(lambda: not gateway.logs._followers)


async def test_a_follower_that_does_not_read_holds_nobody_up(gateway: Any) -> None:
    await gateway.deploy("fn")
    _, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    writer.write(b"GET /system/logs?name=fn&follow=true HTTP/1.1\r\nHost: localhost\r\n\r\n")
    await until(lambda: gateway.logs._followers)
    for number in range(20_000):
        gateway.logs.append(FN, "i", f"{number} " + "x" * 1000)
        if number % 1000 == 0:
            await asyncio.sleep(0)
    (follower,) = gateway.logs._followers[FN]
    assert len(follower._waiting) <= 1000
    assert (await gateway.call("GET", "/healthz"))[0] == 200
    writer.close()


@pytest.mark.parametrize(
    "query",
    [
        "",
        "name=",
        "name=fn&tail=x",
        "name=fn&tail=1.5",
        "name=fn&since=yesterday",
        "name=fn&since=2024-01-01",
        "name=fn&follow=maybe",
    ],
)
async def test_a_wrong_query_is_422(gateway: Any, query: str) -> None:
    await gateway.deploy("fn")
    status, error = await gateway.call("GET", f"/system/logs?{query}")
    assert (status, error["error"]["code"]) == (422, "invalid_query")


async def test_an_unknown_function_is_404(gateway: Any) -> None:
    assert (await gateway.call("GET", "/system/logs?name=nope"))[0] == 404
    assert (await gateway.call("GET", "/system/logs?name=nope&follow=true"))[0] == 404

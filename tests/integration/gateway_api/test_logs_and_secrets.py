"""Logs and secrets over the API."""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path
from typing import Any

import pytest

from gnomon_core.functions import FunctionKey
from gnomon_gateway.api.secrets import MAX_SECRET_BYTES
from gnomon_gateway.store import SqliteStore
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
            async with asyncio.timeout(60):
                assert json.loads(await response.content.readline())["text"] == text
        gateway.logs.forget(FN)
        async with asyncio.timeout(60):
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


@pytest.fixture
def stored(tmp_path: Path) -> Any:
    """The content on disk, read beside the gateway."""

    def read(name: str, namespace: str = "openfaas-fn") -> bytes | None:
        store = SqliteStore(tmp_path / "gnomon.db")
        try:
            return store.secret(FunctionKey(name, namespace))
        finally:
            store.close()

    return read


async def test_a_text_and_bytes_are_kept_exactly(gateway: Any, stored: Any) -> None:
    raw = bytes(range(256))
    assert (await gateway.call("POST", "/system/secrets", {"name": "text", "value": "é \n"}))[0] == 202
    both = {"name": "file", "value": "broken \ufffd", "rawValue": base64.b64encode(raw).decode(), "namespace": "openfaas-fn"}
    assert (await gateway.call("POST", "/system/secrets", both))[0] == 202
    assert stored("text") == "é \n".encode()
    assert stored("file") == raw


async def test_listing_gives_names_of_a_namespace_and_no_values(gateway: Any) -> None:
    assert await gateway.call("GET", "/system/secrets") == (200, [])
    await gateway.call("POST", "/system/namespace/", {"name": "dev"})
    await gateway.call("POST", "/system/secrets", {"name": "b", "value": "x"})
    await gateway.call("POST", "/system/secrets", {"name": "a.b-c", "value": "x"})
    await gateway.call("POST", "/system/secrets", {"name": "elsewhere", "value": "x", "namespace": "dev"})
    assert (await gateway.call("GET", "/system/secrets?namespace=openfaas-fn"))[1] == [
        {"name": "a.b-c", "namespace": "openfaas-fn"},
        {"name": "b", "namespace": "openfaas-fn"},
    ]
    assert (await gateway.call("GET", "/system/secrets?namespace=dev"))[1] == [{"name": "elsewhere", "namespace": "dev"}]
    assert (await gateway.call("GET", "/system/secrets?namespace=nope"))[0] == 404


async def test_creating_twice_is_a_conflict_and_put_replaces(gateway: Any, stored: Any) -> None:
    assert (await gateway.call("PUT", "/system/secrets", {"name": "s", "value": "x"}))[0] == 404
    await gateway.call("POST", "/system/secrets", {"name": "s", "value": "one"})
    status, error = await gateway.call("POST", "/system/secrets", {"name": "s", "value": "two"})
    assert (status, error["error"]["code"]) == (409, "secret_exists")
    assert stored("s") == b"one"
    assert (await gateway.call("PUT", "/system/secrets", {"name": "s", "value": "two"}))[0] == 202
    assert stored("s") == b"two"


async def test_a_deleted_secret_is_gone(gateway: Any, stored: Any) -> None:
    await gateway.call("POST", "/system/secrets", {"name": "s", "value": "one"})
    assert (await gateway.call("DELETE", "/system/secrets", {"name": "s", "namespace": "openfaas-fn"}))[0] == 202
    assert stored("s") is None
    status, error = await gateway.call("DELETE", "/system/secrets", {"name": "s"})
    assert (status, error["error"]["code"]) == (404, "secret_not_found")


WRONG_NAMES = ["", "..", ".", "../x", "a/b", "A", "a_b", "-a", "a-", "a..b", ".a", "a" * 254, "a\nb", "é"]


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
@pytest.mark.parametrize("name", WRONG_NAMES)
async def test_a_name_that_is_no_file_name_is_refused(gateway: Any, method: str, name: str) -> None:
    status, error = await gateway.call(method, "/system/secrets", {"name": name, "value": "x"})
    assert (status, error["error"]["code"]) == (400, "invalid_name")


@pytest.mark.parametrize(
    "body",
    [
        {"name": "s"},
        {"name": "s", "value": ""},
        {"name": "s", "value": 3},
        {"name": "s", "rawValue": "no base64!"},
        {"name": "s", "rawValue": [1]},
        {"name": 1, "value": "x"},
    ],
)
async def test_a_wrong_value_is_400(gateway: Any, body: Any) -> None:
    assert (await gateway.call("POST", "/system/secrets", body))[0] == 400


async def test_a_large_one_is_413(gateway: Any) -> None:
    at_most = {"name": "s", "value": "x" * MAX_SECRET_BYTES}
    assert (await gateway.call("POST", "/system/secrets", at_most))[0] == 202
    assert (await gateway.call("PUT", "/system/secrets", {**at_most, "value": "x" * (MAX_SECRET_BYTES + 1)}))[0] == 413

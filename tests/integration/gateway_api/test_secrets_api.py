"""`/system/secrets`: written, listed, never read back."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest

from gnomon_core.functions import FunctionKey
from gnomon_gateway.api.secrets import MAX_SECRET_BYTES
from gnomon_gateway.store import SqliteStore


@pytest.fixture
def stored(tmp_path: Path) -> Any:
    """What is on disk, read beside the gateway."""

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


@pytest.mark.parametrize("method", ["POST", "PUT"])
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

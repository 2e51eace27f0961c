"""What is kept at a provider: functions, secrets and namespaces, as `FunctionStore` promises it where a provider can."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gnomon_core.errors import GnomonError
from gnomon_core.functions import FunctionKey, read_deployment
from gnomon_core.interfaces import StoredFunction, StoredNamespace
from gnomon_platforms.provider.api import ProviderApi, ProviderOptions
from gnomon_platforms.provider.catalog import Catalog, ProviderStore
from tests.integration.adoption.played_provider import PlayedProvider
from tests.waiting import until

ECHO = FunctionKey("echo")


@pytest.fixture
async def provider() -> AsyncIterator[PlayedProvider]:
    async with PlayedProvider() as played:
        yield played


@pytest.fixture
async def store(provider: PlayedProvider) -> AsyncIterator[ProviderStore]:
    options = ProviderOptions(provider.url, poll_s=0.05)
    api = ProviderApi(options)
    catalog = Catalog(api, options)
    await asyncio.to_thread(catalog.start)
    known = ProviderStore(api, catalog)
    yield known
    await asyncio.to_thread(known.close)


def stored(image: str = "functions/alpine:latest", **fields: Any) -> StoredFunction:
    return StoredFunction(read_deployment({"service": "echo", "image": image, "envProcess": "cat", **fields}), 7, 0.0)


async def test_stored_function_is_readable_when_the_call_returns(provider: PlayedProvider, store: ProviderStore) -> None:
    await asyncio.to_thread(store.put_function, stored(annotations={"note": "é\n☀"}))
    [found] = store.functions()
    assert (found.spec.key, found.spec.annotations, found.spec.env_process) == (ECHO, {"note": "é\n☀"}, "cat")
    assert [method for method, _, _ in provider.calls] == ["PUT", "POST"], "as faas-cli does it"
    await asyncio.to_thread(store.put_function, stored("functions/alpine:new"))
    assert [one.spec.image for one in store.functions()] == ["functions/alpine:new"]
    assert await asyncio.to_thread(store.delete_function, ECHO) is True
    assert await asyncio.to_thread(store.delete_function, ECHO) is False
    assert store.functions() == []


async def test_functions_read_from_the_provider_are_never_written_back(provider: PlayedProvider, store: ProviderStore) -> None:
    """Somebody deploys version two while we follow version one."""
    provider.add("echo", image="functions/alpine:one")
    await until(store.functions)
    [one] = store.functions()
    provider.functions["echo"].document = {**provider.functions["echo"].document, "image": "functions/alpine:two"}
    await until(lambda: store.functions()[0].spec.image == "functions/alpine:two")
    await asyncio.to_thread(store.put_function, one)
    assert provider.calls == []
    assert store.functions()[0].spec.image == "functions/alpine:two"


async def test_watchers_hear_of_what_others_do_there_until_they_stop(provider: PlayedProvider, store: ProviderStore) -> None:
    heard: list[FunctionKey] = []
    stop = store.watch(heard.append)
    provider.add("echo")
    await until(lambda: heard == [ECHO])
    provider.functions["echo"].wanted = 5
    await asyncio.to_thread(store.put_secret, FunctionKey("token"), b"v")
    provider.functions["echo"].document["labels"] = {"team": "vision"}
    await until(lambda: heard == [ECHO] * 2)
    del provider.functions["echo"]
    await until(lambda: heard == [ECHO] * 3)
    stop()
    stop()
    provider.add("echo")
    await until(store.functions)
    assert heard == [ECHO] * 3


async def test_secrets_are_kept_there_whole_and_none_comes_back(provider: PlayedProvider, store: ProviderStore) -> None:
    raw = FunctionKey("raw")
    await asyncio.to_thread(store.put_secret, raw, b"\x00\xff")
    await asyncio.to_thread(store.put_secret, FunctionKey("text"), b"one")
    await asyncio.to_thread(store.put_secret, FunctionKey("text"), b"two")
    assert provider.secrets == {"raw": b"\x00\xff", "text": b"two"}
    assert await asyncio.to_thread(store.secrets, "openfaas-fn") == ["raw", "text"]
    assert await asyncio.to_thread(store.secret, raw) == b""
    assert await asyncio.to_thread(store.delete_secret, raw) is True
    assert await asyncio.to_thread(store.delete_secret, raw) is False
    assert await asyncio.to_thread(store.secret, raw) is None


async def test_a_secret_that_a_function_there_has_is_there(provider: PlayedProvider, store: ProviderStore) -> None:
    provider.add("echo", secrets=["unlisted"])
    await until(store.functions)
    assert await asyncio.to_thread(store.secret, FunctionKey("unlisted")) == b""
    assert await asyncio.to_thread(store.secret, FunctionKey("unlisted", "other")) is None


async def test_unsupported_operation_answers_with_the_provider_s_message(store: ProviderStore) -> None:
    """This one knows no routes for making namespaces."""
    with pytest.raises(GnomonError) as refused:
        await asyncio.to_thread(store.put_namespace, StoredNamespace("staging"))
    assert (refused.value.status, refused.value.code) == (404, "provider_refused")
    assert "make the namespace staging" in refused.value.message
    assert store.namespaces() == []
    with pytest.raises(GnomonError) as refused:
        await asyncio.to_thread(store.put_function, stored("no-tag"))
    assert refused.value.status == 400

"""An installation's provider, played, and Gnomon in front of it: one for all tests of a module, each with functions of its own.

The gateway takes seconds to begin.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from tests.integration.adoption.outer_gateway import PASSWORD, USER, login_files
from tests.integration.adoption.played_provider import PlayedProvider
from tests.integration.serve.conftest import Serving

TOKEN = "batches-please"
STRANGE = {"gnomon/autoscaler": "asyfunc", "gnomon/unheard-of": "1"}
BATCHING = {"gnomon/max-batch": "8", "gnomon/scheduler": "fixed", "gnomon/max-wait-ms": "2000", "gnomon/max-inflight": "1"}
ONE_SHORT = {"gnomon/max-inflight": "1", "gnomon/deadline-ms": "300"}
AGAIN_AT_ONCE = {"com.openfaas.retry.min_wait": "1ms", "com.openfaas.retry.max_wait": "1ms"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def known() -> AsyncIterator[PlayedProvider]:
    """A provider with what was deployed before anybody heard of us."""
    async with PlayedProvider(user=USER, password=PASSWORD) as played:
        played.add("old", annotations=STRANGE, labels={"com.openfaas.scale.max": "0"})
        for name in ("echo", "breaking"):
            played.add(name)
        played.add("broken", "false")
        played.add("patient", annotations={"gnomon/deadline-ms": "60000"})
        played.add("single", replicas=5, envVars={"max_inflight": "1"}).delay_s = 0.05
        played.add("double", replicas=3, annotations={"gnomon/max-inflight": "2"}).delay_s = 0.05
        played.add("sleepy", replicas=0, labels={"com.openfaas.scale.min": "2"})
        played.add("late", annotations=ONE_SHORT)
        played.add("again", annotations=AGAIN_AT_ONCE)
        played.add("gone", annotations=AGAIN_AT_ONCE | {"gnomon/max-batch": "2"}, secrets=["gnomon-batch-token"])
        for name in ("body", "stranger"):
            played.add(name, annotations=BATCHING, secrets=["gnomon-batch-token"])
        yield played


@pytest.fixture
def provider(known: PlayedProvider) -> PlayedProvider:
    """The known provider, with nothing remembered of earlier tests."""
    known.seen.clear()
    known.calls.clear()
    known.answers.clear()
    return known


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory, known: PlayedProvider) -> list[str]:
    folder = tmp_path_factory.mktemp("of-the-provider")
    (folder / "token").write_text(TOKEN)
    credentials = ["--provider-credentials", login_files(folder), "--provider-batch-token", str(folder / "token")]
    return ["--platform", "provider", "--provider-url", known.url + "/", *credentials]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def user(tmp_path_factory: pytest.TempPathFactory, options: list[str]) -> AsyncIterator[aiohttp.ClientSession]:
    serving = Serving(tmp_path_factory.mktemp("in-front") / "state")
    await asyncio.to_thread(serving.start, *options)
    async with aiohttp.ClientSession(serving.url, timeout=aiohttp.ClientTimeout(total=60)) as session:
        yield session
    await asyncio.to_thread(serving.stop)


async def call(user: aiohttp.ClientSession, name: str, body: bytes = b"x") -> tuple[int, bytes]:
    async with user.post(f"/function/{name}", data=body) as answer:
        return answer.status, await answer.read()


async def status(user: aiohttp.ClientSession, name: str) -> dict[str, Any]:
    async with user.get(f"/system/function/{name}") as answer:
        return dict(await answer.json()) if answer.status == 200 else {}


async def seen(user: aiohttp.ClientSession, name: str, **expected: Any) -> None:
    """Return when the gateway says so of a function."""
    async with asyncio.timeout(60):
        while True:
            found = await status(user, name)
            if all(found.get(field) == value for field, value in expected.items()):
                return
            await asyncio.sleep(0.02)


async def answered(user: aiohttp.ClientSession, name: str, body: bytes, code: int) -> bytes:
    """Call until it is answered so."""
    async with asyncio.timeout(60):
        while True:
            found, answer = await call(user, name, body)
            if found == code:
                return answer
            await asyncio.sleep(0.05)


async def error_of(answer: aiohttp.ClientResponse) -> dict[str, Any]:
    return dict((await answer.json())["error"])

"""Between the two halves of an installation: its gateway in front, its provider behind, and only the buffer is new."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from tests.integration.adoption.logins import PASSWORD, USER, login_files
from tests.integration.adoption.outer_gateway import OuterGateway
from tests.integration.adoption.played_provider import PlayedProvider
from tests.integration.serve.conftest import Serving
from tests.waiting import until


@pytest.fixture
async def provider() -> AsyncIterator[PlayedProvider]:
    async with PlayedProvider(user=USER, password=PASSWORD) as played:
        yield played


@pytest.fixture
async def outer(tmp_path: Path, provider: PlayedProvider) -> AsyncIterator[OuterGateway]:
    """All three know the same credentials, as an installation's parts do."""
    secrets = login_files(tmp_path)
    provider.add("echo", replicas=2, envVars={"max_inflight": "1"}, labels={"com.openfaas.scale.max": "5"})
    between = Serving(tmp_path / "state")
    own = ("--behind-gateway", "--basic-auth", "--secrets", secrets)
    theirs = ("--platform", "provider", "--provider-url", provider.url, "--provider-credentials", secrets)
    await asyncio.to_thread(between.start, *own, *theirs)
    async with OuterGateway(between.url, USER, PASSWORD) as gateway:
        yield gateway
    await asyncio.to_thread(between.stop)


async def test_the_gateway_scales_the_providers_replicas_as_before_and_nothing_meets_a_busy_one(
    outer: OuterGateway, provider: PlayedProvider
) -> None:
    provider.functions["echo"].delay_s = 0.05
    async with aiohttp.ClientSession(outer.url, headers={"Authorization": aiohttp.encode_basic_auth(USER, PASSWORD)}) as user:

        async def call(number: int) -> tuple[int, bytes]:
            async with user.post("/function/echo", data=b"%d" % number) as answer:
                return answer.status, await answer.read()

        assert await asyncio.gather(*(call(number) for number in range(20))) == [(200, b"%d" % number) for number in range(20)]
        assert await outer.alert("echo", firing=True) == 200
        await until(lambda: len(provider.functions["echo"].replicas) == 3)
        async with user.get("/system/info") as answer:
            assert (await answer.json())["provider"]["orchestration"] == "provider"
        assert await outer.alert("echo", firing=False) == 200
        await until(lambda: len(provider.functions["echo"].replicas) == 1)
        assert await asyncio.gather(*(call(number) for number in range(20))) == [(200, b"%d" % number) for number in range(20)]
    assert outer.scaled == [("echo", 3, 202), ("echo", 1, 202)]

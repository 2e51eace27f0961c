"""Guarantees for users of a stock OpenFaaS gateway whose provider is Gnomon."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.integration.adoption.outer_gateway import PASSWORD, USER, OuterGateway, login_files
from tests.integration.adoption.played_provider import PlayedProvider
from tests.integration.serve.conftest import Serving
from tests.waiting import until

# The classic watchdog splits its process at spaces and knows no quotes.
SLOW_CAT = "perl -e select(undef,undef,undef,.2);print<STDIN>"


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("behind")
    secrets = login_files(folder)
    gateway = Serving(folder / "state")
    gateway.start("--behind-gateway", "--basic-auth", "--secrets", secrets)
    yield gateway
    gateway.stop()
    gateway.client.clear()


@pytest.fixture
async def external_gateway(serving: Serving) -> AsyncIterator[OuterGateway]:
    async with OuterGateway(serving.url, USER, PASSWORD) as gateway:
        yield gateway


@pytest.fixture
async def user(external_gateway: OuterGateway) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(
        external_gateway.url, headers={"Authorization": aiohttp.encode_basic_auth(USER, PASSWORD)}
    ) as session:
        yield session


async def deploy(user: aiohttp.ClientSession, name: str, process: str = "cat", **fields: Any) -> None:
    document = {"service": name, "image": "functions/alpine:latest", "envProcess": process, **fields}
    async with user.put("/system/functions", json=document) as answer:
        assert answer.status == 404, "faas-cli deploys by POST what PUT does not know"
    async with user.post("/system/functions", json=document) as answer:
        assert answer.status == 202, await answer.text()


async def remove(user: aiohttp.ClientSession, name: str) -> None:
    async with user.delete("/system/functions", json={"functionName": name}) as answer:
        assert answer.status == 202


async def status(user: aiohttp.ClientSession, name: str) -> dict[str, Any]:
    async with user.get(f"/system/function/{name}?usage=1") as answer:
        assert answer.status == 200
        return dict(await answer.json())


async def ready(user: aiohttp.ClientSession, name: str, count: int = 1) -> None:
    async with asyncio.timeout(60):
        while True:
            if (await status(user, name)).get("availableReplicas", 0) == count:
                return
            await asyncio.sleep(0.02)


async def log_lines(user: aiohttp.ClientSession, name: str) -> list[str]:
    async with user.get(f"/system/logs?name={name}&follow=false") as answer:
        return [json.loads(line)["text"] for line in (await answer.text()).splitlines()]


async def test_a_function_is_deployed_listed_called_and_removed_through_it(
    external_gateway: OuterGateway, user: aiohttp.ClientSession
) -> None:
    await deploy(user, "echo", labels=None, annotations=None)
    async with user.post("/function/echo.openfaas-fn", data=b"hello") as answer:
        assert (answer.status, await answer.read()) == (200, b"hello")
        assert answer.headers["X-Call-Id"]
        assert answer.headers["X-Start-Time"]
    await ready(user, "echo")
    await until(lambda: [row["name"] for row in external_gateway.listed] == ["echo"], "the exporter never saw it")
    seen = await status(user, "echo")
    assert (seen["replicas"], seen["availableReplicas"], seen["labels"]["faas_function"]) == (1, 1, "echo")
    assert any("Forking fprocess" in line for line in await log_lines(user, "echo"))
    await remove(user, "echo")
    async with user.post("/function/echo", data=b"") as answer:
        assert answer.status == 404


async def test_gateway_wraps_the_provider_s_document(user: aiohttp.ClientSession) -> None:
    async with user.get("/system/info") as answer:
        info = await answer.json()
    assert info["provider"]["provider"] == "gnomon", "a provider's name is a text there"
    assert info["provider"]["orchestration"] == "local"
    assert info["provider"]["version"]["release"]


async def test_the_provider_takes_the_gateways_credentials_and_nobody_elses(
    serving: Serving, user: aiohttp.ClientSession
) -> None:
    async with user.get("/system/namespaces") as answer:
        assert await answer.json() == ["openfaas-fn"]
    refused = await asyncio.to_thread(serving.call, "GET", "/system/functions")
    assert (refused.status, refused.headers["WWW-Authenticate"]) == (401, 'Basic realm="Restricted"')


async def test_secrets_pass(user: aiohttp.ClientSession) -> None:
    secret = {"name": "token", "namespace": "openfaas-fn", "value": "v"}
    for method, expected in (("POST", 202), ("POST", 409), ("PUT", 202)):
        async with user.request(method, "/system/secrets", json=secret) as answer:
            assert answer.status == expected
    async with user.get("/system/secrets?namespace=openfaas-fn") as answer:
        assert await answer.json() == [{"name": "token", "namespace": "openfaas-fn"}]
    async with user.delete("/system/secrets", json=secret) as answer:
        assert answer.status == 202


async def test_path_query_headers_and_a_large_chunked_body_reach_the_function(user: aiohttp.ClientSession) -> None:
    await deploy(user, "env", "env")
    async with user.put("/function/env/deep/%C3%A9?x=1&y=%26", headers={"X-Mine": "kept", "X-Call-Id": "mine"}) as answer:
        seen = await answer.text()
        assert answer.headers["X-Call-Id"] == "mine"
    for expected in ("Http_Method=PUT", "Http_Path=/deep/%C3%A9", "Http_Query=x=1&y=%26", "Http_X_Mine=kept"):
        assert expected in seen, seen
    assert "Http_Authorization=Basic" in seen, "a function may have a login of its own"
    await remove(user, "env")
    await deploy(user, "count", "wc -c")
    async with user.post("/function/count", data=io.BytesIO(b"x" * 5_000_000)) as answer:
        assert (await answer.text()).strip() == "5000000"
    await remove(user, "count")


async def test_a_function_learns_who_called_the_gateway_and_by_which_name(
    external_gateway: OuterGateway, user: aiohttp.ClientSession
) -> None:
    await deploy(user, "env", "env")
    async with user.get("/function/env") as answer:
        seen = await answer.text()
    assert f"Http_X_Forwarded_Host={external_gateway.url.removeprefix('http://')}" in seen
    assert "Http_X_Forwarded_For=127.0.0.1, 127.0.0.1" in seen, "the client, then the gateway"
    await remove(user, "env")


async def test_ui_may_deploy_and_another_origin_may_not(external_gateway: OuterGateway, user: aiohttp.ClientSession) -> None:
    document = {"service": "page", "image": "functions/alpine:latest", "envProcess": "cat"}
    foreign = {"Origin": "http://evil.example", "Sec-Fetch-Site": "cross-site"}
    for headers in (foreign, {"Origin": "http://evil.example"}):
        async with user.post("/system/functions", json=document, headers=headers) as answer:
            assert answer.status == 403
    own = {"Origin": external_gateway.url, "Sec-Fetch-Site": "same-origin"}
    async with user.post("/system/functions", json=document, headers=own) as answer:
        assert answer.status == 202
    await remove(user, "page")


async def test_a_request_at_zero_is_woken_by_the_gateway_and_none_is_lost(
    external_gateway: OuterGateway, user: aiohttp.ClientSession
) -> None:
    zero = {"com.openfaas.scale.zero": "true", "com.openfaas.scale.zero-duration": "1s"}
    await deploy(user, "sleepy", labels=zero)
    await ready(user, "sleepy", 1)
    await ready(user, "sleepy", 0)

    async def call(number: int) -> bytes:
        async with user.post("/function/sleepy", data=b"%d" % number) as answer:
            assert answer.status == 200
            return await answer.read()

    assert await asyncio.gather(*(call(number) for number in range(20))) == [b"%d" % number for number in range(20)]
    assert ("sleepy", 1, 202) in external_gateway.scaled
    assert not any("is ignored" in line for line in await log_lines(user, "sleepy")), "waking is nobody's quarrel"
    await remove(user, "sleepy")


async def test_alerts_do_not_fight_the_functions_policy(external_gateway: OuterGateway, user: aiohttp.ClientSession) -> None:
    """Three instances by the function's own policy; the gateway's alert asks for two, then for one, again and again."""
    labels = {"com.openfaas.scale.min": "3", "com.openfaas.scale.max": "20"}
    await deploy(user, "steady", SLOW_CAT, labels=labels, annotations={"gnomon/autoscaler": "kpa"})
    await ready(user, "steady", 3)

    async def call() -> int:
        async with user.post("/function/steady", data=b"x") as answer:
            return answer.status

    async def clamped(replicas: int) -> int:
        async with user.post("/system/scale-function/steady", json={"serviceName": "steady", "replicas": replicas}) as answer:
            return answer.status

    calls = [asyncio.create_task(call()) for _ in range(12)]
    assert [await external_gateway.alert("steady", firing=firing) for firing in (True, True, False)] == [200] * 3
    assert await clamped(1) == 202
    assert set(await asyncio.gather(*calls)) == {200}
    assert (await status(user, "steady"))["availableReplicas"] >= 3
    ignored_alerts = [line for line in await log_lines(user, "steady") if "is ignored" in line]
    assert len(ignored_alerts) == 1, "once, not at each alert"
    assert "kpa decides" in ignored_alerts[0]
    assert "gnomon/autoscaler: fixed" in ignored_alerts[0]
    await remove(user, "steady")


async def test_a_function_that_leaves_numbers_to_the_gateway_is_scaled_by_it(
    external_gateway: OuterGateway, user: aiohttp.ClientSession
) -> None:
    await deploy(user, "led", annotations={"gnomon/autoscaler": "fixed"}, labels={"com.openfaas.scale.max": "4"})
    await ready(user, "led", 1)
    assert await external_gateway.alert("led", firing=True) == 200
    await ready(user, "led", 2)
    assert await external_gateway.alert("led", firing=False) == 200
    await ready(user, "led", 1)
    await remove(user, "led")


async def test_a_function_that_takes_too_long_is_refused_by_us_before_the_gateway_gives_up(user: aiohttp.ClientSession) -> None:
    """The gateway would answer 502 without a word."""
    await deploy(user, "late", "sleep 5", annotations={"gnomon/deadline-ms": "300"})
    await ready(user, "late")
    async with user.post("/function/late") as answer:
        said = await answer.read()
        assert answer.status == 504, said
        assert answer.headers["X-OpenFaaS-Internal"] == "gnomon"
        # On a machine that is very busy it may have passed before anything was begun.
        assert json.loads(said)["error"]["code"] in {"deadline_exceeded", "deadline_cannot_be_met"}
    await remove(user, "late")


# Between the two halves of an installation: its gateway in front, its provider behind, and only the buffer is new.


@pytest.fixture
async def provider() -> AsyncIterator[PlayedProvider]:
    async with PlayedProvider(user=USER, password=PASSWORD) as played:
        yield played


@pytest.fixture
async def outer_with_provider(tmp_path: Path, provider: PlayedProvider) -> AsyncIterator[OuterGateway]:
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
    outer_with_provider: OuterGateway, provider: PlayedProvider
) -> None:
    provider.functions["echo"].delay_s = 0.05
    async with aiohttp.ClientSession(
        outer_with_provider.url, headers={"Authorization": aiohttp.encode_basic_auth(USER, PASSWORD)}
    ) as user:

        async def call(number: int) -> tuple[int, bytes]:
            async with user.post("/function/echo", data=b"%d" % number) as answer:
                return answer.status, await answer.read()

        assert await asyncio.gather(*(call(number) for number in range(20))) == [(200, b"%d" % number) for number in range(20)]
        assert await outer_with_provider.alert("echo", firing=True) == 200
        await until(lambda: len(provider.functions["echo"].replicas) == 3)
        async with user.get("/system/info") as answer:
            assert (await answer.json())["provider"]["orchestration"] == "provider"
        assert await outer_with_provider.alert("echo", firing=False) == 200
        await until(lambda: len(provider.functions["echo"].replicas) == 1)
        assert await asyncio.gather(*(call(number) for number in range(20))) == [(200, b"%d" % number) for number in range(20)]
    assert outer_with_provider.scaled == [("echo", 3, 202), ("echo", 1, 202)]

"""Guarantees for users of an installation whose provider is away or refuses Gnomon, or in which Gnomon itself ends."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
from pathlib import Path

import aiohttp
import pytest

from tests.integration.adoption.in_front.conftest import call, error_of
from tests.integration.adoption.outer_gateway import PASSWORD
from tests.integration.adoption.played_provider import PlayedProvider
from tests.integration.serve.conftest import GNOMON, Serving
from tests.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_while_the_provider_is_away_requests_wait_and_none_is_lost_when_it_is_back(
    provider: PlayedProvider, user: aiohttp.ClientSession
) -> None:
    assert await call(user, "patient") == (200, b"x")
    await provider.down()
    waiting = [asyncio.create_task(call(user, "patient", b"%d" % number)) for number in range(20)]
    async with user.post("/system/functions", json={"service": "later", "image": "functions/alpine:latest"}) as answer:
        assert (answer.status, (await error_of(answer))["code"]) == (503, "provider_unreachable")
        assert answer.headers["X-OpenFaaS-Internal"] == "gnomon"
    async with user.get("/system/functions") as answer:
        assert "patient" in [row["name"] for row in await answer.json()], "what was known is still told"
    async with user.post("/function/patient", headers={"X-Gnomon-Deadline-Ms": "2000"}) as answer:
        assert answer.status == 503
        assert (await error_of(answer))["hint"]
    await provider.up()
    assert await asyncio.gather(*waiting) == [(200, b"%d" % number) for number in range(20)]


async def test_broken_request_is_reported_and_not_executed_twice(provider: PlayedProvider, user: aiohttp.ClientSession) -> None:
    function = provider.functions["breaking"]
    function.delay_s = 30.0
    under_way = asyncio.create_task(call(user, "breaking"))
    await until(lambda: len(provider.seen) == 1)
    await provider.down()
    code, body = await under_way
    assert (code, json.loads(body)["error"]["code"]) == (502, "instance_lost")
    function.delay_s = 0.0
    await provider.up()
    assert await call(user, "breaking", b"next") == (200, b"next")
    assert len(provider.seen) == 2, "a function's request may have done something: it is not sent again by us"


async def test_wrong_credentials_are_told_at_the_start_and_later(
    provider: PlayedProvider, user: aiohttp.ClientSession, options: list[str], tmp_path: Path
) -> None:
    assert await call(user, "echo") == (200, b"x")
    provider.password = "another"
    async with user.post("/system/functions", json={"service": "later", "image": "functions/alpine:latest"}) as answer:
        error = await error_of(answer)
    assert (answer.status, error["code"]) == (502, "provider_credentials")
    assert "--provider-credentials" in error["hint"]
    assert await call(user, "echo") == (200, b"x"), "functions that serve need no credentials"
    command = [*GNOMON, "serve", "--port", "0", "--state", str(tmp_path / "other"), *options]
    ended = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=60, check=False)
    provider.password = PASSWORD
    assert ended.returncode == 1
    assert "does not take our credentials" in ended.stderr


async def test_no_provider_at_the_start_is_told(tmp_path: Path, provider: PlayedProvider, options: list[str]) -> None:
    await provider.down()
    command = [*GNOMON, "serve", "--port", "0", "--state", str(tmp_path / "state"), *options]
    ended = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    assert f"The provider at {provider.url} cannot be reached: Connection refused." in ended.stderr
    await provider.up()


async def test_stop_loses_no_waiting_request_and_keeps_the_functions(
    provider: PlayedProvider, tmp_path: Path, options: list[str]
) -> None:
    function = provider.add("stopping", annotations={"gnomon/max-inflight": "1"})
    function.delay_s = 0.2
    serving = Serving(tmp_path / "state")
    await asyncio.to_thread(serving.start, *options)
    assert serving.process is not None
    async with aiohttp.ClientSession(serving.url) as caller:
        waiting = [asyncio.create_task(call(caller, "stopping", b"%d" % number)) for number in range(10)]
        await until(lambda: provider.seen)
        serving.process.send_signal(signal.SIGTERM)
        assert await asyncio.gather(*waiting) == [(200, b"%d" % number) for number in range(10)]
    assert await asyncio.to_thread(serving.process.wait, 60) == 0
    assert provider.changes("DELETE") == []
    await asyncio.to_thread(serving.stop)


async def marked(user: aiohttp.ClientSession, name: str) -> tuple[int, bool]:
    """The status of an answer, and whether it is marked as the platform's own."""
    async with user.post(f"/function/{name}", data=b"x") as answer:
        return answer.status, answer.headers.get("X-OpenFaaS-Internal") == "gnomon"


async def finished(user: aiohttp.ClientSession) -> None:
    """Return when no asynchronous call is left."""
    async with asyncio.timeout(60):
        while True:
            async with user.get("/metrics") as answer:
                if "\ngnomon_async_waiting 0.0\n" in await answer.text():
                    return
            await asyncio.sleep(0.02)


async def test_an_error_of_the_provider_is_told_as_the_platforms_and_an_asynchronous_call_is_made_again(
    provider: PlayedProvider, user: aiohttp.ClientSession
) -> None:
    function = provider.functions["again"]
    function.instead = [(502, True), (404, True), (502, False), (503, False)]
    assert [await marked(user, "again") for _ in range(5)] == [(502, True), (404, True), (502, False), (503, False), (200, False)]
    provider.seen.clear()
    function.instead = [(502, True), (504, True), (502, True)]
    async with user.post("/async-function/again", data=b"kept") as answer:
        assert answer.status == 202
    await finished(user)
    assert (function.instead, len(provider.seen)) == ([], 1), "it was made again until the function had it, and then no more"


@pytest.mark.parametrize("status", [429, 500, 502, 503])
async def test_answer_of_the_function_is_final(provider: PlayedProvider, user: aiohttp.ClientSession, status: int) -> None:
    provider.functions["again"].instead = [(status, False)]
    async with user.post("/async-function/again") as answer:
        assert answer.status == 202
    await finished(user)
    assert (provider.answers, provider.seen) == ({status: 1}, [])


async def test_a_body_that_is_gone_behind_another_gateway_is_the_platforms_failure(
    provider: PlayedProvider, user: aiohttp.ClientSession
) -> None:
    """No function answers a batch with a status: what it says is in the members. So nobody else need have marked it."""
    provider.functions["gone"].instead = [(502, False)]
    async with user.post("/async-function/gone", data=b"kept") as answer:
        assert answer.status == 202
    await finished(user)
    assert provider.answers == {502: 1, 200: 2}
    paths = [request.path.removeprefix("/function/gone.openfaas-fn") for request in provider.seen]
    assert paths == ["/gnomon/batch", "/"]

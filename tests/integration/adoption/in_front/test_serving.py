"""Guarantees for users of an installation in which Gnomon buffers and dispatches in front of its provider."""

from __future__ import annotations

import asyncio
import io
import json
import random
from pathlib import Path

import aiohttp
import pytest

from tests.integration.adoption.in_front.conftest import TOKEN, answered, call, error_of, seen
from tests.integration.adoption.played_provider import PlayedProvider
from tests.integration.kubernetes_platform.instance_server import InstanceServer
from tests.waiting import until

COUNTS_ITS_BATCH = """
def handle_batch(events, context):
    return [str(len(events)).encode() + b" " + event.body for event in events]
"""

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_faas_cli_commands_reach_the_provider(provider: PlayedProvider, user: aiohttp.ClientSession) -> None:
    document = {
        "service": "mine",
        "image": "functions/alpine:latest",
        "envProcess": "cat",
        "labels": {"com.openfaas.scale.max": "7", "team": "vision"},
        "annotations": {"note": '{\n "é": "☀" }', "gnomon/max-inflight": "2"},
        "secrets": ["token"],
    }
    async with user.put("/system/functions", json=document) as answer:
        assert answer.status == 404
    async with user.post("/system/functions", json=document) as answer:
        assert (answer.status, (await error_of(answer))["code"]) == (400, "secret_not_found")
    async with user.post("/system/secrets", json={"name": "token", "namespace": "openfaas-fn", "value": "v"}) as answer:
        assert answer.status == 202
    assert provider.secrets == {"token": b"v"}
    async with user.post("/system/functions", json=document) as answer:
        assert answer.status == 202
    kept = provider.functions["mine"].document
    assert {name: kept[name] for name in document} == document
    await seen(user, "mine", replicas=1, availableReplicas=1, annotations=document["annotations"])
    assert await call(user, "mine.openfaas-fn", b"hello") == (200, b"hello")
    async with user.get("/system/logs?name=mine&follow=false") as answer:
        lines = [json.loads(line) for line in (await answer.text()).splitlines()]
    assert ("replica-1", "Forking fprocess.") in [(line["instance"], line["text"]) for line in lines]
    async with user.post("/system/scale-function/mine", json={"serviceName": "mine", "replicas": 3}) as answer:
        assert answer.status == 202
    await seen(user, "mine", replicas=3, availableReplicas=3)
    async with user.get("/metrics") as answer:
        assert 'gateway_service_count{function_name="mine.openfaas-fn"} 3.0' in await answer.text()
    async with user.get("/system/secrets?namespace=openfaas-fn") as answer:
        assert await answer.json() == [{"name": "token", "namespace": "openfaas-fn"}]
    async with user.get("/system/info") as answer:
        assert (await answer.json())["provider"]["orchestration"] == "provider"
    async with user.put("/system/functions", json={**document, "image": "functions/alpine:new"}) as answer:
        assert answer.status == 202
    assert provider.functions["mine"].document["image"] == "functions/alpine:new"
    assert await call(user, "mine", b"again") == (200, b"again")
    async with user.delete("/system/functions", json={"functionName": "mine"}) as answer:
        assert answer.status == 202
    assert "mine" not in provider.functions
    assert (await call(user, "mine"))[0] == 404


async def test_path_query_headers_status_and_streams_pass_both_ways(
    provider: PlayedProvider, user: aiohttp.ClientSession
) -> None:
    headers = {"X-Mine": "kept", "X-Call-Id": "mine", "Connection": "X-Hop", "X-Hop": "dropped"}
    async with user.put("/function/echo/deep/%C3%A9%2F?x=1&y=%26", data=b"b", headers=headers) as answer:
        assert (answer.status, await answer.read(), answer.headers["X-Function"]) == (200, b"b", "echo")
        assert answer.headers["X-Call-Id"] == "mine"
    [request] = provider.seen
    assert (request.method, request.raw_path) == ("PUT", "/function/echo.openfaas-fn/deep/%C3%A9%2F?x=1&y=%26")
    assert (request.headers["X-Mine"], request.headers["X-Call-Id"]) == ("kept", "mine")
    assert "X-Hop" not in request.headers
    assert request.headers["X-Forwarded-For"] == "127.0.0.1"
    async with user.get("/function/echo", headers={"Accept": "text/event-stream"}) as answer:
        assert answer.headers["Content-Type"] == "text/event-stream"
        assert await answer.read() == b"data: 0\n\ndata: 1\n\ndata: 2\n\n"
    assert (await call(user, "broken"))[0] == 500, "the function's own failing is passed on"
    photograph = random.Random(3).randbytes(3_000_000)
    async with user.post("/function/echo", data=io.BytesIO(photograph)) as answer:
        assert await answer.read() == photograph


async def test_functions_that_were_there_are_served_and_what_others_do_there_is_followed(
    provider: PlayedProvider, user: aiohttp.ClientSession
) -> None:
    assert await call(user, "old", b"was here") == (200, b"was here"), "settings that we cannot read stop nobody"
    provider.add("new")
    await seen(user, "new", replicas=1)
    assert await call(user, "new", b"came later") == (200, b"came later")
    provider.functions["new"].document["annotations"] = {"gnomon/deadline-ms": "200"}
    await seen(user, "new", annotations={"gnomon/deadline-ms": "200"})
    provider.functions["new"].delay_s = 30.0
    assert (await call(user, "new"))[0] == 504, "its new deadline holds"
    assert provider.changes("PUT") == [], "nothing is deployed again because it was seen"
    provider.functions["new"].document["annotations"] = {"gnomon/scheduler": "of-my-own", "gnomon/deadline-ms": "60000"}
    listed = provider.listed
    await until(lambda: provider.listed > listed + 1)
    assert (await call(user, "new"))[0] == 504, "what cannot be served so is served as it was"
    del provider.functions["old"]
    await answered(user, "old", b"x", 404)


async def test_no_more_are_under_way_than_the_replicas_take_and_all_others_wait(
    provider: PlayedProvider, user: aiohttp.ClientSession
) -> None:
    """Five replicas of one place each, picked by chance: most meet a busy one at first, and none of fifty is refused."""
    single, double = provider.functions["single"], provider.functions["double"]
    answers = await asyncio.gather(*(call(user, name, b"%d" % number) for number in range(50) for name in ("single", "double")))
    assert [answer for answer in answers if answer[0] != 200] == []
    assert [body for _, body in answers] == [b"%d" % number for number in range(50) for _ in range(2)]
    assert 1 < single.most <= 5
    assert 1 < double.most <= 6, "the provider would have taken all fifty"
    assert provider.answers[429] > 0, "else nothing was shown"


async def test_a_function_at_zero_is_woken_once_and_its_requests_wait(
    provider: PlayedProvider, user: aiohttp.ClientSession
) -> None:
    provider.start_s = 0.5
    answers = await asyncio.gather(*(call(user, "sleepy", b"%d" % number) for number in range(20)))
    assert answers == [(200, b"%d" % number) for number in range(20)]
    assert [change["replicas"] for change in provider.changes("POST")] == [2]


async def test_a_slow_function_is_answered_for_at_its_deadline_and_its_slot_is_free_again(
    provider: PlayedProvider, user: aiohttp.ClientSession
) -> None:
    function = provider.functions["late"]
    function.delay_s = 30.0
    code, body = await call(user, "late")
    assert code == 504, body
    # On a machine that is very busy it may have passed before anything was begun.
    assert json.loads(body)["error"]["code"] in {"deadline_exceeded", "deadline_cannot_be_met"}
    function.delay_s = 0.0
    assert await answered(user, "late", b"quick", 200) == b"quick"


async def test_policies_that_would_scale_are_refused_and_the_provider_scales(
    provider: PlayedProvider, user: aiohttp.ClientSession
) -> None:
    document = {"service": "scaled", "image": "functions/alpine:latest", "annotations": {"gnomon/autoscaler": "kpa"}}
    async with user.post("/system/functions", json=document) as answer:
        error = await error_of(answer)
    assert (answer.status, error["code"]) == (400, "unsupported_policy")
    assert "the provider decides how many replicas" in error["message"]
    assert provider.calls == []
    async with user.post("/system/functions", json={**document, "image": "no-tag", "annotations": {}}) as answer:
        error = await error_of(answer)
    assert (answer.status, error["code"]) == (400, "provider_refused")
    assert "the image has no tag" in error["message"]


async def test_an_asynchronous_call_is_taken_at_once_and_made_when_there_is_a_place(
    provider: PlayedProvider, user: aiohttp.ClientSession
) -> None:
    async with user.post("/async-function/echo", data=b"later", headers={"X-Call-Id": "call-7"}) as answer:
        assert answer.status == 202
    await until(lambda: [request.headers["X-Call-Id"] for request in provider.seen] == ["call-7"])


async def test_a_body_there_gets_whole_batches(tmp_path: Path, provider: PlayedProvider, user: aiohttp.ClientSession) -> None:
    folder = tmp_path / "handler"
    folder.mkdir()
    (folder / "handler.py").write_text(COUNTS_ITS_BATCH)
    instance = await asyncio.to_thread(InstanceServer, "127.0.0.1", 0, folder, TOKEN)
    provider.functions["body"].upstream = instance.address
    try:
        answers = await asyncio.gather(*(call(user, "body", b"%d" % number) for number in range(16)))
        assert answers == [(200, b"8 %d" % number) for number in range(16)]
        assert [request.path for request in provider.seen] == ["/function/body.openfaas-fn/gnomon/batch"] * 2
        provider.seen.clear()
        answers = await asyncio.gather(*(call(user, "stranger", b"%d" % number) for number in range(8)))
        assert answers == [(200, b"%d" % number) for number in range(8)], "one that does not know batches gets requests"
        paths = [request.path.removeprefix("/function/stranger.openfaas-fn") for request in provider.seen]
        assert paths == ["/gnomon/batch"] + ["/"] * 8
    finally:
        await asyncio.to_thread(instance.end)


async def test_a_function_that_is_allowed_batches_while_it_serves_gets_them(
    provider: PlayedProvider, user: aiohttp.ClientSession
) -> None:
    provider.add("grown", secrets=["gnomon-batch-token"])
    await answered(user, "grown", b"alone", 200)
    assert [request.path for request in provider.seen] == ["/function/grown.openfaas-fn/"]
    provider.functions["grown"].document["annotations"] = {"gnomon/max-batch": "8"}
    async with asyncio.timeout(60):
        while not any(request.path.endswith("/gnomon/batch") for request in provider.seen):
            assert await call(user, "grown", b"x") == (200, b"x")

"""Asynchronous calls and callbacks."""

from __future__ import annotations

import asyncio
import re
import signal
import sys
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest
from aiohttp import web
from yarl import URL

from gnomon_core.errors import GnomonError
from gnomon_core.functions import read_deployment
from gnomon_gateway.asynchronous.calls import FunctionAnswer, Invocation, answer_of
from gnomon_gateway.asynchronous.queue import AsyncLimits
from gnomon_gateway.functions.service import FunctionStatus
from tests.waiting import until

UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class Recorder:
    """A function that says what it was asked, and answers what it is told to; it waits for `release`."""

    def __init__(self, *answers: FunctionAnswer | Exception) -> None:
        self.seen: list[Invocation] = []
        self.running = 0
        self.most = 0
        self.release = asyncio.Event()
        self.release.set()
        self._answers = list(answers)

    async def __call__(self, invocation: Invocation) -> FunctionAnswer:
        self.seen.append(invocation)
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await self.release.wait()
        finally:
            self.running -= 1
        answer = self._answers.pop(0) if self._answers else FunctionAnswer(200, (), b"")
        if isinstance(answer, Exception):
            raise answer
        return answer


async def test_a_call_is_202_with_its_id_and_reaches_the_function_as_it_was_sent(start_gateway: Any) -> None:
    recorder = Recorder()
    gateway = await start_gateway(invoke=recorder)
    await gateway.deploy("fn")
    headers = {"X-Custom": "é", "Content-Type": "text/plain", "Connection": "X-Hop", "X-Hop": "1"}
    async with gateway.client.post(
        URL(gateway.url + "/async-function/fn.openfaas-fn/a%0Db/c?x=1&y=%20z", encoded=True), data=b"\x00body", headers=headers
    ) as response:
        assert response.status == 202
        assert await response.read() == b""
        call_id = response.headers["X-Call-Id"]
        assert UUID.fullmatch(call_id)
        assert int(response.headers["X-Start-Time"]) > 1.6e18
    await until(lambda: gateway.queue.counters.completed == 1)
    (seen,) = recorder.seen
    assert (str(seen.function), seen.method, seen.path, seen.query) == ("fn.openfaas-fn", "POST", "/a%0Db/c", "x=1&y=%20z")
    assert (seen.body, seen.deadline_s) == (b"\x00body", None)
    kept = dict(seen.headers)
    assert kept["x-custom"] == "é".encode().decode("latin-1")
    assert kept["content-type"] == "text/plain"
    assert kept["x-call-id"] == call_id
    assert kept.keys().isdisjoint({"connection", "x-hop", "content-length", "x-callback-url"})


async def test_deadline_header_bounds_each_attempt_and_is_not_passed_on(start_gateway: Any) -> None:
    recorder = Recorder(FunctionAnswer(429, (("X-OpenFaaS-Internal", "gnomon"),), b""))
    gateway = await start_gateway(invoke=recorder)
    await gateway.deploy("fn", annotations={"com.openfaas.retry.min_wait": "1ms", "com.openfaas.retry.max_wait": "1ms"})
    headers = {"X-Gnomon-Deadline-Ms": "250", "X-Custom": "kept"}
    async with gateway.client.post(gateway.url + "/async-function/fn", headers=headers) as response:
        assert response.status == 202
    await until(lambda: gateway.queue.counters.completed == 1)
    assert [seen.deadline_s for seen in recorder.seen] == [0.25, 0.25]
    for seen in recorder.seen:
        assert dict(seen.headers)["x-custom"] == "kept"
        assert "x-gnomon-deadline-ms" not in dict(seen.headers)


async def test_a_deadline_that_is_none_is_refused_before_the_call_is_taken(gateway: Any) -> None:
    await gateway.deploy("fn")
    for wrong in ("-1", "0", "nan", "inf", "soon", ""):
        async with gateway.client.post(gateway.url + "/async-function/fn", headers={"X-Gnomon-Deadline-Ms": wrong}) as response:
            assert (response.status, (await response.json())["error"]["code"]) == (400, "invalid_deadline")
    assert gateway.queue.counters.accepted == 0


async def test_the_callers_own_id_is_kept_if_it_is_one(gateway: Any) -> None:
    await gateway.deploy("fn")
    for given, kept in (("mine-1", True), ("a" * 129, False), ("a b", False)):
        async with gateway.client.post(gateway.url + "/async-function/fn", headers={"X-Call-Id": given}) as response:
            assert (response.headers["X-Call-Id"] == given) is kept


async def test_only_post_and_only_a_function_that_is_there(gateway: Any) -> None:
    await gateway.deploy("fn")
    assert (await gateway.call("GET", "/async-function/fn"))[0] == 405
    status, error = await gateway.call("POST", "/async-function/nope")
    assert (status, error["error"]["code"]) == (404, "function_not_found")


async def test_our_own_not_now_is_tried_again_and_the_functions_answer_is_final(start_gateway: Any) -> None:
    recorder = Recorder(
        answer_of(GnomonError(429, "queue_full", "Full.")),
        GnomonError(503, "no_instance", "None."),
        FunctionAnswer(503, (), b"the function's own"),
    )
    gateway = await start_gateway(invoke=recorder)
    await gateway.deploy("fn", annotations={"com.openfaas.retry.min_wait": "1ms", "com.openfaas.retry.max_wait": "2ms"})
    await gateway.call("POST", "/async-function/fn")
    await until(lambda: gateway.queue.counters.completed == 1)
    assert len(recorder.seen) == 3
    assert gateway.queue.counters.retried == 2


async def test_after_its_attempts_a_call_is_given_up(start_gateway: Any) -> None:
    recorder = Recorder(*[GnomonError(503, "no_instance", "None.")] * 9)
    gateway = await start_gateway(invoke=recorder)
    annotations = {"com.openfaas.retry.attempts": "2", "com.openfaas.retry.min_wait": "1ms", "com.openfaas.retry.max_wait": "1ms"}
    await gateway.deploy("fn", annotations=annotations)
    await gateway.call("POST", "/async-function/fn")
    await until(lambda: gateway.queue.counters.completed == 1)
    assert len(recorder.seen) == 3
    assert gateway.queue.counters.waiting == 0


async def test_function_whose_retry_settings_nobody_has_checked_is_executed_once(start_gateway: Any) -> None:
    recorder = Recorder()
    gateway = await start_gateway(invoke=recorder)
    spec = read_deployment({"service": "fn", "image": "i", "annotations": {"com.openfaas.retry.attempts": "many"}})
    gateway.functions.deployed[spec.key] = FunctionStatus(spec, 0.0)
    await gateway.call("POST", "/async-function/fn")
    await until(lambda: gateway.queue.counters.completed == 1)
    assert len(recorder.seen) == 1


async def test_a_full_queue_is_429_by_count_and_by_bytes(start_gateway: Any) -> None:
    recorder = Recorder()
    recorder.release.clear()
    gateway = await start_gateway(invoke=recorder, limits=AsyncLimits(waiting_calls=3, waiting_bytes=100))
    await gateway.deploy("fn")
    async with gateway.client.post(gateway.url + "/async-function/fn", data=b"x" * 101) as response:
        assert (response.status, response.headers["Retry-After"]) == (429, "5")
    for _ in range(3):
        assert (await gateway.call("POST", "/async-function/fn", data=b"x"))[0] == 202
    status, error = await gateway.call("POST", "/async-function/fn", data=b"x")
    assert (status, error["error"]["code"]) == (429, "async_queue_full")
    recorder.release.set()
    await until(lambda: gateway.queue.counters.completed == 3)
    assert (gateway.queue.counters.waiting, gateway.queue.counters.waiting_bytes) == (0, 0)
    assert (await gateway.call("POST", "/async-function/fn", data=b"x"))[0] == 202


async def test_a_body_over_the_limit_is_413_without_being_read(start_gateway: Any) -> None:
    gateway = await start_gateway(limits=AsyncLimits(body_bytes=1000))
    await gateway.deploy("fn")
    head = b"POST /async-function/fn HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1001\r\n\r\n"
    assert (await gateway.raw(head)).startswith(b"HTTP/1.1 413 ")
    assert (await gateway.call("POST", "/async-function/fn", data=b"x" * 1000))[0] == 202


async def test_headers_over_the_limit_are_431(gateway: Any) -> None:
    await gateway.deploy("fn")
    headers = {f"X-{number}": "x" * 4000 for number in range(9)}
    assert (await gateway.call("POST", "/async-function/fn", headers=headers))[0] == 431


async def test_calls_of_a_function_run_together_up_to_its_width(start_gateway: Any) -> None:
    recorder = Recorder()
    recorder.release.clear()
    gateway = await start_gateway(invoke=recorder, limits=AsyncLimits(function_width=4))
    await gateway.deploy("fn")
    await gateway.deploy("other")
    await asyncio.gather(*(gateway.call("POST", "/async-function/fn") for _ in range(10)))
    await gateway.call("POST", "/async-function/other")
    await until(lambda: len(recorder.seen) == 5)
    assert [invocation.function.name for invocation in recorder.seen].count("other") == 1
    recorder.release.set()
    await until(lambda: gateway.queue.counters.completed == 11)
    assert recorder.most == 5


async def test_a_fault_of_ours_does_not_lose_a_call(
    start_gateway: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("gnomon_gateway.asynchronous.queue.FAULT_WAIT_S", 0.001)
    recorder = Recorder(RuntimeError("a fault"))
    gateway = await start_gateway(invoke=recorder)
    await gateway.deploy("fn")
    await gateway.call("POST", "/async-function/fn")
    await until(lambda: gateway.queue.counters.completed == 1)
    assert len(recorder.seen) == 2
    assert "a fault" in caplog.text


@pytest.mark.parametrize("url", ["http://169.254.169.254/", "http://example.org/", "file:///etc/passwd", "http://127.0.0.1:1/"])
async def test_by_default_no_callback_is_allowed(gateway: Any, url: str) -> None:
    await gateway.deploy("fn")
    status, error = await gateway.call("POST", "/async-function/fn", headers={"X-Callback-Url": url})
    assert (status, error["error"]["code"]) == (400, "callback_not_allowed")
    assert "--callback-host" in error["error"]["hint"]
    assert gateway.queue.counters.accepted == 0


CHILD = Path(__file__).with_name("async_child.py")


async def run(folder: Path, port: int, count: int, kill_after_s: float | None) -> list[str]:
    """The output of the process until it ended or was killed."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(CHILD), str(folder), str(port), str(count), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    said = bytearray()
    if kill_after_s is not None:
        said += await process.stdout.readline()
        await asyncio.sleep(kill_after_s)
        process.send_signal(signal.SIGKILL)
    said += await process.stdout.read()
    await process.wait()
    return said[: said.rfind(b"\n") + 1].decode().splitlines()


async def test_accepted_calls_survive_sigkill(tmp_path: Path) -> None:
    called_back: Counter[str] = Counter()

    async def handle(request: web.Request) -> web.Response:
        called_back[request.headers["X-Call-Id"]] += 1
        assert await request.read() == request.headers["X-Call-Id"].encode() * 100
        return web.Response()

    runner = web.ServerRunner(web.Server(handle))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    port = runner.addresses[0][1]
    rng, accepted = Random(3), set[str]()
    for _ in range(4):
        said = await run(tmp_path, port, 60, rng.uniform(0.0, 0.05))
        accepted |= {line.split()[1] for line in said}
    assert (await run(tmp_path, port, 0, None))[-1] == "empty"
    await runner.cleanup()

    ran = Counter(line.split()[1] for line in (tmp_path / "journal").read_text().splitlines())
    assert accepted <= ran.keys()
    assert {call_id for call_id in accepted if int(call_id.rpartition("-")[2]) % 2} <= called_back.keys()
    # Only what ran when the process was killed may run again: not every call, and none more often than there were kills.
    assert max(ran.values()) <= 5
    assert sum(number > 1 for number in ran.values()) < len(ran)

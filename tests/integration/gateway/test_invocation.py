"""Invocations through a running gateway."""

from __future__ import annotations

import asyncio
import gzip
import json
import re
import socket
import struct
import time
from collections import Counter
from itertools import cycle
from typing import Any

import pytest

from gnomon_core.functions import FunctionKey
from gnomon_core.pairs import Pair
from gnomon_core.settings import Settings
from gnomon_gateway.asynchronous.calls import FunctionAnswer, Headers, Invocation
from gnomon_gateway.asynchronous.invoker import Invoker
from gnomon_gateway.functions.function_runtime import CHECK_AFTER_S
from gnomon_gateway.scheduling.registry import scheduling_policy
from gnomon_gateway.v2.json_process import LARGE_BYTES
from tests.waiting import until


async def test_a_request_reaches_the_function_as_it_was_sent(gateway: Any) -> None:
    await gateway.deploy()
    headers = {
        "X-Mine": "1",
        "Connection": "keep-alive, X-Hop",
        "X-Hop": "secret",
        "TE": "trailers",
        "X-Forwarded-For": "6.6.6.6",
    }
    response = await gateway.call("/function/f/seen?a=%20b", b"body", "PUT", headers)
    seen = json.loads(response.body)
    sent = dict(line.split(": ", 1) for line in seen["headers"])
    assert (seen["method"], seen["query"]) == ("PUT", "a=%20b")
    assert sent["x-mine"] == "1"
    assert sent["content-length"] == "4"
    assert not {"connection", "x-hop", "te"} & sent.keys()
    assert (sent["x-forwarded-for"], sent["x-forwarded-host"]) == ("127.0.0.1", "gnomon")
    assert sent["x-call-id"] == response.headers["x-call-id"]
    assert sent["x-start-time"] == response.headers["x-start-time"]


async def test_every_answer_says_its_call_its_start_and_its_duration(gateway: Any) -> None:
    await gateway.deploy()
    response = await gateway.call("/function/f", b"hello")
    assert (response.status, response.body) == (200, b"hello")
    assert re.fullmatch(r"[0-9a-f-]{36}", response.headers["x-call-id"])
    assert abs(int(response.headers["x-start-time"]) - time.time_ns()) < 60e9
    assert 0 < float(response.headers["x-duration-seconds"]) < 10
    kept = await gateway.call("/function/f", b"", headers={"X-Call-Id": "mine"})
    assert kept.headers["x-call-id"] == "mine"


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
async def test_every_method_is_passed_on(gateway: Any, method: str) -> None:
    await gateway.deploy()
    response = await gateway.call("/function/f.openfaas-fn/seen", b"", method)
    assert json.loads(response.body)["method"] == method


async def test_head_204_and_redirects_keep_the_connection_in_step(gateway: Any) -> None:
    await gateway.deploy()
    connection = await gateway.connect()
    head = await connection.call("/function/f/large", method="HEAD", bodiless=True)
    assert (head.status, head.headers["content-length"]) == (200, "3000000")
    empty = await connection.call("/function/f/nothing")
    assert (empty.status, "content-length" in empty.headers) == (204, False)
    redirect = await connection.call("/function/f/redirect")
    assert (redirect.status, redirect.headers["location"]) == (302, "/elsewhere")
    large = await connection.call("/function/f/large")
    assert len(large.body) == 3_000_000


@pytest.mark.parametrize(
    "path", ["/function/", "/function/.openfaas-fn", "/function/g", "/function/f.elsewhere", "/function/%66"]
)
async def test_an_unknown_function_is_a_404_of_ours(gateway: Any, path: str) -> None:
    await gateway.deploy()
    response = await gateway.call(path)
    assert (response.status, response.headers["x-openfaas-internal"]) == (404, "gnomon")
    assert json.loads(response.body)["error"]["code"] == "function_not_found"


async def test_chunked_bodies_arrive_whole(gateway: Any) -> None:
    await gateway.deploy()
    connection = await gateway.connect()
    await connection.send(b"POST /function/f HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
    for part in (b"one ", b"two ", b"x" * 100_000):
        await connection.send(b"%x\r\n%b\r\n" % (len(part), part))
        await asyncio.sleep(0.01)
    await connection.send(b"0\r\n\r\n")
    assert (await connection.answer()).body == b"one two " + b"x" * 100_000


async def test_a_client_that_expects_100_continue_is_told_to_go_on(gateway: Any) -> None:
    await gateway.deploy()
    connection = await gateway.connect()
    await connection.send(b"POST /function/f HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n")
    assert (await connection.head()).status == 100
    await connection.send(b"body")
    assert (await connection.answer()).body == b"body"


async def test_a_client_of_http_10_is_not_told_to_continue(gateway: Any) -> None:
    """An HTTP/1.0 client knows no interim response (RFC 9110, section 10.1.1)."""
    await gateway.deploy()
    for path, body in ((b"/function/f", b"body"), (b"/system/info", b"controlbody")):
        connection = await gateway.connect()
        await connection.send(b"POST " + path + b" HTTP/1.0\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\nbody")
        answer = await connection.answer()
        assert (answer.status, answer.body) == (200, body)


@pytest.mark.parametrize("query", [b"", b"?a=b"])
async def test_a_target_in_absolute_form_is_its_path_and_its_host(gateway: Any, query: bytes) -> None:
    """Clients that take us for a proxy send it (RFC 9112, section 3.2.2)."""
    await gateway.deploy()
    connection = await gateway.connect()
    await connection.send(
        b"POST http://me@there:81/function/f/seen" + query + b" HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nbody"
    )
    seen = json.loads((await connection.answer()).body)
    assert (seen["method"], seen["query"]) == ("POST", query.decode().removeprefix("?"))
    assert "x-forwarded-host: there:81" in seen["headers"]
    await connection.send(b"POST HTTPS://there" + query + b" HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nbody")
    assert (await connection.answer()).body == b"controlbody"


async def test_a_header_in_several_lines_is_one_list(gateway: Any) -> None:
    await gateway.deploy()
    connection = await gateway.connect()
    await connection.send(
        b"GET /function/f/seen HTTP/1.1\r\nHost: x\r\nConnection: X-Hop\r\nX-Hop: 1\r\nConnection: keep-alive\r\n\r\n"
    )
    seen = json.loads((await connection.answer()).body)
    assert not [line for line in seen["headers"] if line.startswith(("x-hop", "connection"))]


async def test_http_10_is_answered_and_closed(gateway: Any) -> None:
    await gateway.deploy()
    connection = await gateway.connect()
    await connection.send(b"GET /function/f HTTP/1.0\r\n\r\n")
    assert (await connection.answer()).headers["connection"] == "close"
    assert await connection.closed()


async def test_client_of_http_10_keeps_its_connection_where_it_asks_for_that(gateway: Any) -> None:
    """As ApacheBench's -k does."""
    await gateway.deploy()
    connection = await gateway.connect()
    for body in (b"1", b"22"):
        head = b"POST /function/f HTTP/1.0\r\nConnection: Keep-Alive\r\nContent-Length: %d\r\n\r\n" % len(body)
        await connection.send(head + body)
        answer = await connection.answer()
        assert (answer.body, answer.headers["connection"]) == (body, "keep-alive")
    await connection.send(b"GET /function/f/stream HTTP/1.0\r\nConnection: keep-alive\r\nAccept: text/event-stream\r\n\r\n")
    assert (await connection.head()).headers["connection"] == "close", "a stream's end is the connection's"
    assert await connection.reader.read() == b"data: 0\n\ndata: 1\n\ndata: 2\n\n"


async def test_pipelined_request_of_http_10_is_answered_as_one(gateway: Any) -> None:
    await gateway.deploy()
    connection = await gateway.connect()
    await connection.send(b"GET /function/f HTTP/1.1\r\nHost: x\r\n\r\nGET /function/f HTTP/1.0\r\n\r\n")
    assert "connection" not in (await connection.answer()).headers
    assert (await connection.answer()).headers["connection"] == "close"
    assert await connection.closed()


async def test_other_paths_go_to_the_control_application_on_the_same_connection(gateway: Any) -> None:
    await gateway.deploy()
    connection = await gateway.connect()
    assert (await connection.call("/system/info", b"abc")).body == b"controlabc"
    assert (await connection.call("/function/f", b"1")).body == b"1"
    assert (await connection.call("/system/info")).body == b"control"


async def test_pipelined_requests_are_answered_in_order(gateway: Any) -> None:
    await gateway.deploy(max_batch=8)
    connection = await gateway.connect()
    paths = [("/function/f", 200), ("/function/nobody", 404), ("/system/info", 200)] * 40
    requests = [
        f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\n{number:03}" for number, (path, _) in enumerate(paths)
    ]
    await connection.send("".join(requests).encode())
    for number, (path, status) in enumerate(paths):
        response = await connection.answer()
        assert response.status == status
        if status == 200:
            assert response.body == f"{'control' * path.startswith('/system')}{number:03}".encode()


async def test_a_thousand_pipelined_refusals_do_not_exhaust_the_stack(gateway: Any) -> None:
    connection = await gateway.connect()
    await connection.send(b"GET /function/nobody HTTP/1.1\r\nHost: x\r\n\r\n" * 1500)
    assert [(await connection.answer()).status for _ in range(1500)] == [404] * 1500


async def test_a_shorter_deadline_is_kept_and_the_late_result_is_dropped(gateway: Any) -> None:
    runtime = await gateway.deploy()
    connection = await gateway.connect()
    began_s = time.monotonic()
    response = await connection.call("/function/f/held", b"late", headers={"X-Gnomon-Deadline-Ms": "100"})
    assert time.monotonic() - began_s > 0.09
    gateway.release()
    assert (response.status, json.loads(response.body)["error"]["code"]) == (504, "deadline_exceeded")
    assert "retry-after" in response.headers
    # The next answer on this connection is the next request's, not the late one.
    assert (await connection.call("/function/f", b"next", headers={"X-Gnomon-Deadline-Ms": "5000"})).body == b"next"
    assert runtime.dispatcher.late_answers == 1


async def test_a_longer_deadline_than_the_functions_is_not_given(gateway: Any) -> None:
    await gateway.deploy(deadline_s=0.1)
    response = await gateway.call("/function/f/held", headers={"X-Gnomon-Deadline-Ms": "60000"})
    assert response.status == 504


async def test_a_deadline_that_is_none_is_a_400(gateway: Any) -> None:
    await gateway.deploy()
    response = await gateway.call("/function/f", headers={"X-Gnomon-Deadline-Ms": "soon"})
    assert (response.status, json.loads(response.body)["error"]["code"]) == (400, "invalid_deadline")


async def test_a_client_that_leaves_while_waiting_is_not_executed(gateway: Any) -> None:
    runtime = await gateway.deploy()
    running = asyncio.ensure_future(gateway.call("/function/f/held", b"running"))
    await until(lambda: runtime.load().executing == 1)
    impatient = await gateway.connect()
    await impatient.send(b"POST /function/f HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nimpatient")
    await until(lambda: runtime.load().queued == 1)
    impatient.close()
    await until(lambda: runtime.load().queued == 0)
    gateway.release()
    assert (await running).status == 200
    assert (await gateway.call("/function/f", b"after")).status == 200
    assert gateway.executed() == [b"running", b"after"]
    assert runtime.metrics.left == 1


async def test_disconnect_is_noticed_before_the_next_batch(gateway: Any) -> None:
    runtime = await gateway.deploy()
    running = asyncio.ensure_future(gateway.call("/function/f/held", b"running"))
    await until(lambda: runtime.load().executing == 1)
    with socket.create_connection(("127.0.0.1", gateway.server.port)) as impatient:
        impatient.sendall(b"POST /function/f HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nimpatient")
        await until(lambda: runtime.load().queued == 1 and runtime.load().oldest_wait_s > 2 * CHECK_AFTER_S)
    gateway.release()
    gateway.result_comes()
    assert (runtime.load().queued, runtime.load().executing) == (0, 0)
    assert (await running).status == 200
    assert (await gateway.call("/function/f", b"after")).status == 200
    assert gateway.executed() == [b"running", b"after"]
    assert runtime.metrics.left == 1


async def test_a_client_that_leaves_while_executing_disturbs_nobody(gateway: Any) -> None:
    runtime = await gateway.deploy()
    impatient = await gateway.connect()
    await impatient.send(b"POST /function/f/held HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\na")
    await until(lambda: runtime.load().executing == 1 and gateway.executed() == [b"a"])
    impatient.close()
    await until(lambda: runtime.metrics.left == 1)
    gateway.release()
    assert (await gateway.call("/function/f", b"b")).body == b"b"
    assert runtime.dispatcher.late_answers == 1


async def test_requests_wait_for_the_first_instance(gateway: Any) -> None:
    runtime = await gateway.deploy(instances=0)
    call = asyncio.ensure_future(gateway.call("/function/f", b"patient"))
    await until(lambda: runtime.load().queued == 1)
    assert gateway.owner.demands == ["f.openfaas-fn"]
    await gateway.add_instance()
    assert (await call).body == b"patient"


async def test_a_deadline_without_any_instance_is_a_503(gateway: Any) -> None:
    await gateway.deploy(instances=0, deadline_s=0.1)
    response = await gateway.call("/function/f")
    assert (response.status, json.loads(response.body)["error"]["code"]) == (503, "no_instance")


async def test_a_crash_is_a_502_for_its_own_batch_only(gateway: Any) -> None:
    runtime = await gateway.deploy(instances=2)
    slow = asyncio.ensure_future(gateway.call("/function/f/held", b"slow"))
    await until(lambda: runtime.load().executing == 1)
    crashed = await gateway.call("/function/f/crash", b"crash")
    gateway.release()
    assert (crashed.status, json.loads(crashed.body)["error"]["code"]) == (502, "instance_lost")
    assert (await slow).body == b"slow"
    assert runtime.ready == 1
    assert gateway.executed().count(b"crash") == 1


async def test_a_header_that_would_split_the_answer_becomes_a_502(gateway: Any) -> None:
    await gateway.deploy()
    response = await gateway.call("/function/f/split")
    assert (response.status, json.loads(response.body)["error"]["code"]) == (502, "invalid_headers")
    assert "set-cookie" not in response.headers


async def test_batches_form_under_load_and_everybody_gets_his_own_answer(gateway: Any) -> None:
    runtime = await gateway.deploy(max_batch=8)
    connections = [await gateway.connect() for _ in range(16)]

    async def talk(number: int) -> None:
        for turn in range(30):
            token = b"%d-%d" % (number, turn)
            assert (await connections[number].call("/function/f", token)).body == token

    await asyncio.gather(*(talk(number) for number in range(16)))
    assert runtime.metrics.by_code[200].count == 480
    assert len(set(gateway.executed())) == len(gateway.executed()) == 480
    assert runtime.load().successes == 480
    assert runtime.dispatcher._last_batch < 480


async def test_policies_switch_and_instances_come_and_go_while_requests_flow(gateway: Any) -> None:
    runtime = await gateway.deploy(instances=2, max_batch=4)
    connections = [await gateway.connect() for _ in range(8)]
    ended = asyncio.Event()
    answers = 0

    async def talk(number: int) -> None:
        nonlocal answers
        while not ended.is_set():
            answers += 1
            token = b"%d-%d" % (number, answers)
            response = await connections[number].call("/function/f", token)
            assert (response.status, response.body) == (200, token)

    talks = [asyncio.ensure_future(talk(number)) for number in range(8)]
    for turn in range(6):
        name = ("adaptive", "fixed", "immediate")[turn % 3]  # adaptive-paper drops on purpose
        settings = Settings(max_batch=1 + turn, slo_s=0.02, max_wait_s=0.002)
        runtime.update(settings, scheduling_policy(name, settings))
        added = await gateway.add_instance()
        await asyncio.wait_for(runtime.drain(added), 5)
        assert runtime.in_flight(added) == 0
        runtime.instance_gone(added, "drained")
    ended.set()
    await asyncio.gather(*talks)
    assert answers > 100


async def test_drain_all_waits_for_what_was_let_in(gateway: Any) -> None:
    runtime = await gateway.deploy()
    calls = [asyncio.ensure_future(gateway.call("/function/f/held", b"x")) for _ in range(3)]
    await until(lambda: runtime.load().queued == 2)
    draining = asyncio.ensure_future(runtime.drain_all())
    await asyncio.sleep(0)
    gateway.release()
    await draining
    assert [call.status for call in await asyncio.gather(*calls)] == [200] * 3
    assert runtime.ready == 0


async def test_a_fault_of_ours_is_a_500_and_nobody_waits_for_ever(gateway: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = await gateway.deploy()
    connection, other = await gateway.connect(), await gateway.connect()
    with monkeypatch.context() as patch:
        patch.setattr(runtime, "submit", None)
        await connection.send(b"POST /function/f HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\na" * 2)
        failed = await connection.answer()
        assert (failed.status, json.loads(failed.body)["error"]["code"]) == (500, "internal_error")
        assert await connection.closed()
        patch.setattr(runtime, "settings", None)
        assert (await other.call("/function/f", b"a")).status == 500
    assert (await gateway.call("/function/f", b"after")).body == b"after"


JSON = ("content-type", "application/json; charset=utf-8")


@pytest.fixture
async def served(gateway: Any, model: Any) -> Any:
    await gateway.deploy("m", signature=model, max_batch=4)
    return gateway


def document(*rows: list[float], **more: Any) -> bytes:
    tensor = {"name": "x", "datatype": "FP32", "shape": [len(rows), 2], "data": list(rows)}
    return json.dumps({"inputs": [tensor], **more}).encode()


async def call(gateway: Any, body: bytes, *headers: tuple[str, str], path: str = "/") -> FunctionAnswer:
    return await Invoker(gateway.directory)(Invocation(FunctionKey("m"), "POST", path, "", headers, body))


async def test_a_model_takes_tensors_as_json(served: Any) -> None:
    answer = await call(served, document([1, 2], [3, 4], id="mine"), JSON)
    assert (answer.status, answer.header("content-type")) == (200, "application/json")
    assert json.loads(answer.body) == {
        "model_name": "m",
        "model_version": "7",
        "id": "mine",
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [2, 2], "data": [2, 4, 6, 8]}],
    }


async def test_a_model_takes_binary_tensors(served: Any) -> None:
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 2], "parameters": {"binary_data_size": 8}}
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    body = head + struct.pack("<2f", 1.5, 2.0)
    answer = await call(served, body, ("Inference-Header-Content-Length", str(len(head))))
    length = int(answer.header("inference-header-content-length") or "")
    assert answer.header("content-type") == "application/octet-stream"
    assert struct.unpack("<2f", answer.body[length:]) == (3.0, 4.0)


async def test_packed_and_large_documents_are_read_as_over_http(served: Any) -> None:
    large = document([1, 2], id="x" * LARGE_BYTES)
    answer = await call(served, gzip.compress(large), JSON, ("content-encoding", "gzip"))
    assert json.loads(answer.body)["outputs"][0]["data"] == [2, 4]


async def test_body_that_is_no_tensor_is_passed_on_unchanged(served: Any) -> None:
    answer = await call(served, b"a picture", ("content-type", "image/jpeg"))
    assert (answer.status, answer.body) == (200, b"a picture")


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b"not json", (JSON,), 400),
        (document(*[[1, 2]] * 257), (JSON,), 400),
        (document([1, 2]), (JSON, ("content-encoding", "br")), 415),
        (document([1, 2]), (JSON, ("content-encoding", "gzip")), 400),
        (gzip.compress(bytes(5_000_000)), (JSON, ("content-encoding", "gzip")), 413),
        (bytes(100_000), (JSON,), 413),
    ],
)
async def test_input_outside_the_signature_is_refused_before_admission(
    served: Any, body: bytes, headers: Headers, status: int
) -> None:
    answer = await call(served, body, *headers)
    assert (answer.status, answer.is_ours, set(json.loads(answer.body))) == (status, True, {"error"})
    assert served.functions["m"].load().arrivals == 0
    assert served.functions["m"].metrics.started == 1


async def test_an_error_of_the_model_is_the_functions_own(served: Any) -> None:
    answer = await call(served, document([-2, 0]), JSON)
    assert (answer.status, answer.is_ours, json.loads(answer.body)) == (422, False, {"error": "No. Never."})


async def test_inference_is_run_once_more_when_its_instance_dies(served: Any) -> None:
    await served.add_instance("m")
    assert (await call(served, document([-1, 0]), JSON)).status == 502
    assert served.functions["m"].ready == 0, "this input kills every instance: two of them, not more"
    for _ in range(2):
        await served.add_instance("m")
    assert (await call(served, b"a picture", path="/crash")).status == 502
    assert served.functions["m"].ready == 0, "and so it is with pictures"


async def test_a_caller_that_gives_up_takes_its_request_along(served: Any) -> None:
    busy = asyncio.create_task(call(served, b"", path="/held"))
    await until(lambda: served.functions["m"].load().executing)
    waiting = asyncio.create_task(call(served, document([1, 2]), JSON))
    await until(lambda: served.functions["m"].load().queued)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert served.functions["m"].load().queued == 0
    served.release()
    assert (await busy).status == 200


async def test_a_call_of_more_samples_than_a_batch_holds_is_answered_whole(gateway: Any, model: Any) -> None:
    await gateway.deploy("m", signature=model, max_batch=1)
    answer = await call(gateway, document([1, 2], [3, 4], [5, 6]), JSON)
    assert json.loads(answer.body)["outputs"][0]["data"] == [2, 4, 6, 8, 10, 12]


PAIRS = (Pair(1, (1, 2), (0, 1, 1, 2)), None, Pair(2, (1,), (0, 0, 1, 1)), Pair(1, (1,), (0, 1, 1, 1)))
CLIENTS, CALLS = 8, 60


@pytest.mark.parametrize("policy", ["adaptive", "immediate"])
async def test_each_request_runs_once_and_is_answered_once_whatever_shadows_do(gateway: Any, policy: str) -> None:
    runtime = await gateway.deploy(instances=2, policy=policy, max_batch=4, slo_s=0.2, deadline_s=10.0)
    names = list(runtime.dispatcher.workers.by_id)

    async def client(number: int) -> None:
        connection = await gateway.connect()
        for call in range(CALLS):
            body = b"%d-%d" % (number, call)
            answer = await connection.call("/function/f/sleep/2", body)
            assert (answer.status, answer.body) == (200, body)

    async def change() -> None:
        for name, pair in zip(cycle(names), cycle(PAIRS), strict=False):
            runtime.pair_changed(name, pair)
            await asyncio.sleep(0.001)

    changing = asyncio.create_task(change())
    await asyncio.gather(*(client(number) for number in range(CLIENTS)))
    changing.cancel()
    ran = Counter(gateway.executed())
    assert len(ran) == CLIENTS * CALLS
    assert set(ran.values()) == {1}
    assert runtime.dispatcher.in_system == 0
    assert 0 < runtime.metrics.pairs.batches < CLIENTS * CALLS, "some with a Shadow, some without"
    assert runtime.metrics.pairs.ratios.total > 0, "and they were foretold"


async def test_a_body_that_dies_with_its_shadow_is_replaced_by_one_without(gateway: Any) -> None:
    runtime = await gateway.deploy(max_batch=4)
    (name,) = runtime.dispatcher.workers.by_id
    runtime.pair_changed(name, PAIRS[0])
    assert (await gateway.call("/function/f/", b"together")).status == 200
    assert (await gateway.call("/function/f/crash", b"x")).status == 502
    runtime.pair_changed(name, None)  # told late, of an instance that is no more
    await gateway.add_instance()
    assert (await gateway.call("/function/f/", b"alone")).status == 200
    assert runtime.metrics.pairs.batches == 1

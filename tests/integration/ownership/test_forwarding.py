"""A request is answered as if there were one gateway, at whichever of several it arrives."""

from __future__ import annotations

import asyncio
import json
import struct
from typing import Any

import pytest

from gnomon_core.functions import FunctionKey
from gnomon_gateway.asynchronous.calls import Invocation
from gnomon_gateway.asynchronous.invoker import Invoker
from gnomon_gateway.metrics import MetricsPage
from gnomon_gateway.replicas.replica import OwnershipCollector
from tests.integration.gateway.conftest import MODEL
from tests.integration.ownership.conftest import SECRET, until

SHOWN = SECRET.line.decode().strip().partition(": ")[2]


@pytest.fixture
async def two(cluster: Any) -> Any:
    await cluster.deploy("f")
    await cluster.grow(2)
    return cluster


async def test_request_is_executed_once_at_any_gateway(two: Any) -> None:
    for number, replica in enumerate(two.replicas * 3):
        response = await replica.call("/function/f", b"request %d" % number)
        assert (response.status, response.body) == (200, b"request %d" % number)
    assert two.executed() == [b"request %d" % number for number in range(6)]
    assert two.other("f").counters.forwarded == 3
    assert two.owner("f").counters.forwarded == 0


@pytest.mark.parametrize("path", ["/function/f.openfaas-fn", "/function/f/", "/function/f/deep/er?a=b&c=%20"])
async def test_every_way_to_write_its_name(two: Any, path: str) -> None:
    assert (await two.other("f").call(path, b"x")).body == b"x"


async def test_the_function_sees_the_client_and_nothing_of_the_way(two: Any) -> None:
    headers = {
        "Authorization": "Bearer the-functions-own",
        "X-Gnomon-Peer": "i am one of you",
        "X-Gnomon-Peer-Client": "6.6.6.6",
        "X-Gnomon-Deadline-Ms": "5000",
        "X-Call-Id": "mine",
        "Connection": "X-Hop",
        "X-Hop": "1",
        "X-Kept": "yes",
    }
    response = await two.other("f").call("/function/f/seen?q=1", b"", "PUT", headers)
    seen = json.loads(response.body)
    assert (seen["method"], seen["query"]) == ("PUT", "q=1")
    named = {name: value for name, _, value in (line.partition(": ") for line in seen["headers"])}
    assert named["authorization"] == "Bearer the-functions-own"
    assert (named["x-call-id"], named["x-kept"]) == ("mine", "yes")
    assert named["x-forwarded-for"] == "127.0.0.1"
    assert named["x-forwarded-host"] == "gnomon"
    assert not [name for name in named if name.startswith(("x-gnomon", "x-hop", "connection"))]
    assert response.headers["x-call-id"] == "mine"
    assert float(response.headers["x-duration-seconds"]) > 0


async def test_a_call_has_one_name_all_the_way(two: Any) -> None:
    response = await two.other("f").call("/function/f/seen", b"")
    [named] = [line for line in json.loads(response.body)["headers"] if line.startswith("x-call-id")]
    assert named == f"x-call-id: {response.headers['x-call-id']}"


async def test_answers_of_every_kind(two: Any) -> None:
    other = two.other("f")
    large = await other.call("/function/f/large")
    assert (large.status, len(large.body)) == (200, 3_000_000)
    redirected = await other.call("/function/f/redirect")
    assert (redirected.status, redirected.headers["location"]) == (302, "/elsewhere")
    assert (await other.call("/function/f/nothing")).status == 204
    head = await other.call("/function/f/large", b"", "HEAD")
    assert (head.status, head.headers["content-length"], head.body) == (200, "3000000", b"")
    # The connections between the replicas are in step.
    assert (await other.call("/function/f", b"after")).body == b"after"
    split = await other.call("/function/f/split")
    assert json.loads(split.body)["error"]["code"] == "invalid_headers"
    assert split.headers["x-openfaas-internal"] == "gnomon"


async def test_a_client_of_http_1_0_and_one_that_asks_before_it_sends(two: Any) -> None:
    connection = await two.other("f").connect()
    await connection.send(b"POST /function/f HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n")
    assert (await connection.head()).status == 100
    await connection.send(b"body")
    assert (await connection.answer()).body == b"body"
    await connection.send(
        b"POST /function/f HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n"
    )
    assert (await connection.answer()).body == b"abc"
    old = await two.other("f").connect()
    await old.send(b"POST /function/f HTTP/1.0\r\nContent-Length: 3\r\n\r\nold")
    assert (await old.reader.read()).endswith(b"\r\n\r\nold")


async def test_parts_of_a_stream_pass_as_they_are_made(two: Any) -> None:
    connection = await two.other("f").connect()
    await connection.send(b"GET /function/f/stream/held HTTP/1.1\r\nHost: x\r\nAccept: text/event-stream\r\n\r\n")
    head = await connection.head()
    assert (head.status, head.headers["content-type"], head.headers["transfer-encoding"]) == (200, "text/event-stream", "chunked")
    arrived = await connection.chunk()
    assert arrived == b"data: 0\n\n"
    two.release()
    while part := await connection.chunk():
        arrived += part
    assert arrived == b"data: 0\n\ndata: 1\n\ndata: 2\n\n"
    assert (await connection.call("/function/f", b"next")).body == b"next"


async def to_its_end(connection: Any) -> None:
    """Read a stream that breaks off."""
    while True:
        assert await connection.chunk()


async def test_a_stream_that_breaks_off_is_not_taken_for_whole(two: Any) -> None:
    connection = await two.other("f").connect()
    await connection.send(b"GET /function/f/stream/break HTTP/1.1\r\nHost: x\r\nAccept: text/event-stream\r\n\r\n")
    assert (await connection.head()).status == 200
    with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError, ValueError)):
        await to_its_end(connection)


async def test_tensors_pass_in_binary_and_as_json(cluster: Any) -> None:
    await cluster.deploy("m", signature=MODEL, max_batch=4)
    await cluster.grow(2)
    other = cluster.other("m")
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 2], "parameters": {"binary_data_size": 8}}
    document = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    response = await other.call(
        "/v2/models/m/infer",
        document + struct.pack("<2f", 1.5, 2.0),
        headers={"Inference-Header-Content-Length": str(len(document))},
    )
    assert response.status == 200
    size = int(response.headers["inference-header-content-length"])
    assert struct.unpack("<2f", response.body[size:]) == (3.0, 4.0)
    plain = json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}]}).encode()
    answered = await other.call("/function/m", plain, headers={"Content-Type": "application/json"})
    assert json.loads(answered.body)["outputs"][0]["data"] == [2, 4]
    wrong = await other.call("/v2/models/m/infer", b"{}")
    assert wrong.status == 400
    assert isinstance(json.loads(wrong.body)["error"], str)
    assert json.loads((await other.call("/v2/models/m", b"", "GET")).body)["name"] == "m"
    assert (await other.call("/v2/models/m/ready", b"", "GET")).status == 200
    # What is about no function is answered where it arrives.
    assert (await other.call("/v2/health/live", b"", "GET")).status == 200


async def test_a_client_that_leaves_takes_its_request_along(two: Any) -> None:
    connection = await two.other("f").connect()
    await connection.send(b"POST /function/f/held HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nrun")
    await two.executing(b"run")
    waits = await two.other("f").connect()
    await waits.send(b"POST /function/f HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nwaits")
    runtime = two.owner("f").functions["f"]
    await until(lambda: runtime.dispatcher.in_system == 2)
    waits.close()
    await until(lambda: runtime.metrics.left == 1)
    two.release()
    assert (await connection.answer()).body == b"run"
    assert b"waits" not in two.executed()


async def test_the_deadline_goes_along(two: Any) -> None:
    response = await two.other("f").call("/function/f/sleep/2000", b"long", headers={"X-Gnomon-Deadline-Ms": "200"})
    assert response.status == 504
    assert json.loads(response.body)["error"]["code"] == "deadline_exceeded"
    # The owner has said so, in time: our own answer would have come half a second later.
    assert float(response.headers["x-duration-seconds"]) < 0.5
    wrong = await two.other("f").call("/function/f", b"x", headers={"X-Gnomon-Deadline-Ms": "soon"})
    assert (wrong.status, json.loads(wrong.body)["error"]["code"]) == (400, "invalid_deadline")


async def test_oversized_request_is_refused_at_the_first_gateway(two: Any) -> None:
    connection = await two.other("f").connect()
    size = (64 << 20) + 1
    await connection.send(b"POST /function/f HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n" % size)
    piece = bytes(1 << 20)
    for _ in range(64):
        await connection.send(piece)
    await connection.send(b"x\r\n0\r\n\r\n")
    assert (await connection.answer()).status == 413
    assert two.other("f").counters.forwarded == 0


async def test_the_listener_for_replicas_is_for_replicas(two: Any) -> None:
    for shown in ({}, {"X-Gnomon-Peer": "guessed"}, {"Authorization": f"Bearer {SHOWN}"}):
        for path in ("/function/f", "/gnomon/ownership", "/healthz", "/v2/models/f/infer", "/system/functions"):
            connection = await two.owner("f").connect(inside=True)
            response = await connection.call(path, b"{}", headers=shown)
            assert (response.status, json.loads(response.body)["error"]["code"]) == (401, "peer_unknown")
            assert await connection.closed()
    assert two.executed() == []


async def test_replicas_that_disagree_do_not_send_a_request_round(two: Any) -> None:
    other = two.other("f")
    epoch = str(other.holdings.epoch)
    connection = await other.connect(inside=True)
    headers = {"X-Gnomon-Peer": SHOWN, "X-Gnomon-Peer-Epoch": epoch}
    response = await connection.call("/function/f", b"not yours", headers=headers)
    assert (response.status, json.loads(response.body)["error"]["code"]) == (421, "queue_moved")
    assert other.counters.forwarded == 0
    missing = await connection.call("/v2/models", b"", headers=headers)
    assert missing.status == 404
    assert two.executed() == []


@pytest.mark.parametrize(
    "said", [b"", b"[]", b"{}", b'{"from": "a", "map": {"epoch": 0}, "draining": []}', b'{"map": 1, "from": 1}']
)
async def test_invalid_peer_message_changes_nothing(two: Any, said: bytes) -> None:
    before = two.replicas[0].holdings.map
    connection = await two.replicas[0].connect(inside=True)
    response = await connection.call("/gnomon/ownership", said, headers={"X-Gnomon-Peer": SHOWN})
    assert response.status == 400
    assert two.replicas[0].holdings.map == before


async def test_an_unknown_function_is_unknown_everywhere(two: Any) -> None:
    for replica in two.replicas:
        assert (await replica.call("/function/nobody")).status == 404


async def test_request_waits_for_an_owner_that_has_not_heard_of_the_function_yet(two: Any) -> None:
    """Each gateway hears of a deployment by a watch of its own."""
    owner, other = two.owner("f"), two.other("f")
    owner.directory.remove(FunctionKey("f"))
    call = Invocation(FunctionKey("f"), "POST", "", "", (), b"stored")
    stored = asyncio.ensure_future(other.shared.invoke(Invoker(other.directory))(call))
    asked = owner.counters.inside
    waiting = asyncio.ensure_future(other.call("/function/f", b"waiting"))
    await until(lambda: other.counters.moved >= 2 and owner.counters.inside >= asked + 4)
    assert (waiting.done(), stored.done()) == (False, False)
    owner.directory.add(owner.functions["f"])
    assert ((await waiting).body, (await stored).body) == (b"waiting", b"stored")
    assert sorted(two.executed()) == [b"stored", b"waiting"]


async def test_request_to_a_function_that_its_owner_has_removed_is_refused_when_that_is_heard(two: Any) -> None:
    owner, other = two.owner("f"), two.other("f")
    owner.directory.remove(FunctionKey("f"))
    call = Invocation(FunctionKey("f"), "POST", "", "", (), b"stored")
    stored = asyncio.ensure_future(other.shared.invoke(Invoker(other.directory))(call))
    waiting = asyncio.ensure_future(other.call("/function/f", b"waiting"))
    await until(lambda: other.counters.moved >= 1)
    other.directory.remove(FunctionKey("f"))
    response = await waiting
    assert (response.status, json.loads(response.body)["error"]["code"]) == (503, "function_removed")
    assert (await stored).status == 404
    assert two.executed() == []


async def test_calls_from_inside_go_to_the_owner(two: Any) -> None:
    for number, replica in enumerate(two.replicas):
        invoke = replica.shared.invoke(Invoker(replica.directory))
        call = Invocation(
            FunctionKey("f"), "POST", "/seen", "a=1", (("x-call-id", "stored"), ("x-a", "b")), b"stored %d" % number
        )
        answer = await invoke(call)
        assert answer.status == 200
        seen = json.loads(answer.body)
        assert seen["query"] == "a=1"
        assert {"x-call-id: stored", "x-a: b"} <= set(seen["headers"])
        assert not answer.is_ours
        late = await invoke(Invocation(FunctionKey("f"), "POST", "/sleep/2000", "", (), b"late", deadline_s=0.2))
        assert (late.status, late.is_ours) == (504, True)
    assert [line for line in two.executed() if line.startswith(b"stored")] == [b"stored 0", b"stored 1"]


async def test_without_a_map_a_request_waits_until_its_deadline(cluster: Any) -> None:
    cluster.led = False
    await cluster.deploy("f")
    replica = await cluster.add()
    response = await replica.call("/function/f", b"x", headers={"X-Gnomon-Deadline-Ms": "150"})
    assert (response.status, json.loads(response.body)["error"]["code"]) == (503, "no_owner")
    assert response.headers["retry-after"] == "1"
    waiting = asyncio.ensure_future(replica.call("/function/f", b"patient"))
    await asyncio.sleep(0)
    cluster.led = True
    assert (await waiting).body == b"patient"


async def page_of(replica: Any) -> str:
    page = await MetricsPage([OwnershipCollector(lambda: replica.shared.agent)])()
    return page.decode()


async def test_the_metrics_tell_who_has_what_and_what_was_forwarded(two: Any) -> None:
    owner, other = two.owner("f"), two.other("f")
    assert (await other.call("/function/f", b"x")).status == 200
    pages = {replica: await page_of(replica) for replica in (owner, other)}
    epoch = f"gnomon_ownership_epoch {float(owner.holdings.epoch)}"
    assert all(epoch in page.splitlines() for page in pages.values())
    assert 'gnomon_owned_functions{state="serving"} 1.0' in pages[owner]
    assert 'gnomon_owned_functions{state="serving"} 0.0' in pages[other]
    assert 'gnomon_forwarded_requests_total{event="inside"} 1.0' in pages[owner]
    assert 'gnomon_forwarded_requests_total{event="forwarded"} 1.0' in pages[other]
    assert "gnomon_forwarding_requests 0.0" in pages[other]
    assert "gnomon_ownerless_requests 0.0" in pages[other]


async def test_forwarded_requests_in_waiting_are_bounded(two: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gnomon_gateway.replicas.forwarding.MOST_REQUESTS", 1)
    other = two.other("f")
    first = asyncio.ensure_future(other.call("/function/f/held", b"first"))
    await two.executing(b"first")
    refused = await other.call("/function/f", b"second")
    assert (refused.status, json.loads(refused.body)["error"]["code"]) == (503, "too_many_forwarded")
    assert refused.headers["retry-after"] == "1"
    two.release()
    assert (await first).body == b"first"
    assert (await other.call("/function/f", b"third")).body == b"third"

"""Calls of functions from inside the gateway, as stored calls are made: answered as they would be over HTTP."""

from __future__ import annotations

import asyncio
import gzip
import json
import struct
from typing import Any

import pytest

from gnomon_core.functions import FunctionKey
from gnomon_gateway.asynchronous.calls import FunctionAnswer, Headers, Invocation
from gnomon_gateway.inside_call import Invoker
from gnomon_gateway.v2.json_process import LARGE_BYTES
from tests.waiting import until

JSON = ("content-type", "application/json; charset=utf-8")


@pytest.fixture
async def served(gateway: Any, model: Any) -> Any:
    await gateway.deploy("m", signature=model, max_batch=4)
    return gateway


def document(*rows: list[float], **more: Any) -> bytes:
    tensor = {"name": "x", "datatype": "FP32", "shape": [len(rows), 2], "data": list(rows)}
    return json.dumps({"inputs": [tensor], **more}).encode()


async def call(gateway: Any, body: bytes, *headers: tuple[str, str], path: str = "/") -> FunctionAnswer:
    return await Invoker(gateway)(Invocation(FunctionKey("m"), "POST", path, "", headers, body))


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


async def test_what_is_no_tensor_goes_to_the_model_as_it_is(served: Any) -> None:
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
async def test_what_the_model_does_not_take_is_refused_before_it_is_let_in(
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

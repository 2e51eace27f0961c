"""The open inference protocol against the running server, also through the public tritonclient. The model doubles FP32 [2]."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import signal
import struct
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future
from typing import Any

import numpy as np
import pytest
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

from gnomon_core.errors import GnomonError
from gnomon_core.signature import ModelSignature, TensorSpec
from gnomon_gateway.v2.json_process import LARGE_BYTES, PARSER, ParserProcess
from gnomon_gateway.v2.messages import Infer, document_bytes, read_request
from tests.waiting import until

INFER = "/v2/models/m/infer"


def document(*rows: list[float], **more: Any) -> bytes:
    tensor = {"name": "x", "datatype": "FP32", "shape": [len(rows), 2], "data": list(rows)}
    return json.dumps({"inputs": [tensor], **more}).encode()


@pytest.fixture
async def served(gateway: Any, model: Any) -> Any:
    await gateway.deploy("m", signature=model, max_batch=4)
    await gateway.deploy("plain")
    return gateway


def outputs(response: Any) -> Any:
    return json.loads(response.body)["outputs"][0]["data"]


@pytest.mark.parametrize("path", [INFER, "/v2/models/m/versions/7/infer", "/v2/models/m.openfaas-fn/infer"])
async def test_json_in_json_out(served: Any, path: str) -> None:
    response = await served.call(path, document([1, 2], [3, 4], id="mine"))
    assert response.status == 200
    assert json.loads(response.body) == {
        "model_name": "m",
        "model_version": "7",
        "id": "mine",
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [2, 2], "data": [2, 4, 6, 8]}],
    }


async def test_a_function_with_a_model_takes_tensors_under_its_own_name(served: Any) -> None:
    response = await served.call("/function/m", document([1, 2]), headers={"Content-Type": "application/json"})
    assert outputs(response) == [2, 4]
    picture = await served.call("/function/m", b"a picture", headers={"Content-Type": "image/jpeg"})
    assert picture.body == b"a picture"


@pytest.mark.parametrize(("row", "status"), [([1, 2], 400), ([1, 2, 3], 200)], ids=["of the old model", "of the new model"])
async def test_body_that_comes_after_an_update_is_checked_against_the_model_that_the_function_has_then(
    served: Any, row: list[float], status: int
) -> None:
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, len(row)], "data": row}
    body = json.dumps({"inputs": [tensor]}).encode()
    connection, old = await served.connect(), served.functions["m"]
    await connection.send(b"POST %b HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n" % (INFER.encode(), len(body)))
    await connection.send(body[:10])
    await until(lambda: any(one.is_answering for one in served.server._connections()), "its headers have not come")
    wide = ModelSignature("m", "8", (TensorSpec("x", "FP32", (3,)),), (TensorSpec("y", "FP32", (3,)),))
    old.successor = await served.deploy("m", signature=wide)
    await connection.send(body[10:])
    answer = await connection.answer()
    assert answer.status == status
    assert b"the model takes [samples, 3]" in answer.body if status == 400 else outputs(answer) == [2, 4, 6]
    old.close()


async def test_the_public_client_works(served: Any) -> None:
    def talk() -> None:
        client = triton.InferenceServerClient(f"127.0.0.1:{served.server.port}")
        assert client.is_server_live()
        assert client.is_server_ready()
        assert client.is_model_ready("m")
        assert client.is_model_ready("m", "7")
        assert not client.is_model_ready("nobody")
        assert client.get_server_metadata()["name"] == "gnomon"
        metadata = client.get_model_metadata("m")
        assert metadata["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 2]}]
        values = np.array([[1, float("nan")], [3, float("inf")]], np.float32)
        for binary_in in (True, False):
            for binary_out in (True, False):
                for packed in (None, "gzip", "deflate"):
                    sent = triton.InferInput("x", [2, 2], "FP32")
                    data = values if binary_in else np.array([[1, 2], [3, 4]], np.float32)
                    sent.set_data_from_numpy(data, binary_data=binary_in)
                    wanted = triton.InferRequestedOutput("y", binary_data=binary_out)
                    if binary_in and not binary_out:
                        continue  # JSON knows no NaN
                    result = client.infer("m", [sent], outputs=[wanted], request_id="r", request_compression_algorithm=packed)
                    np.testing.assert_array_equal(result.as_numpy("y"), 2 * data)
                    assert result.get_response()["id"] == "r"
        bad = triton.InferInput("x", [1, 3], "FP32")
        bad.set_data_from_numpy(np.zeros((1, 3), np.float32))
        with pytest.raises(InferenceServerException, match="shape"):
            client.infer("m", [bad])
        client.close()

    await asyncio.to_thread(talk)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v2", 200),
        ("GET", "/v2/", 200),
        ("GET", "/v2/health/live", 200),
        ("GET", "/v2/health/ready", 200),
        ("GET", "/v2/models/m", 200),
        ("GET", "/v2/models/m/ready", 200),
        ("GET", "/v2/models/m/versions/7", 200),
        ("GET", "/v2/models/m/versions/8", 404),
        ("GET", "/v2/models/plain", 404),
        ("GET", "/v2/models/nobody", 404),
        ("GET", "/v2/models", 404),
        ("GET", "/v2/elsewhere", 404),
        ("GET", INFER, 405),
        ("POST", "/v2/models/m", 405),
        ("POST", "/v2/models/nobody/infer", 404),
        ("POST", "/v2/models/m/explain", 404),
    ],
)
async def test_each_route_has_its_status_and_errors_their_document(served: Any, method: str, path: str, status: int) -> None:
    response = await served.call(path, b"", method)
    assert response.status == status
    assert response.headers["content-type"] == "application/json"
    if status >= 400:
        assert set(json.loads(response.body)) == {"error"}
        assert response.headers["x-openfaas-internal"] == "gnomon"


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b"", {}, 400),
        (b"not json", {}, 400),
        (document([1, 2, 3]), {}, 400),
        (document([1, 2]).replace(b"FP32", b"FP64"), {}, 400),
        (document([float("nan"), 2], id="\ud800"), {}, 400),
        (document([float("nan"), 2]).replace(b'"x"', b'"\\ud800"'), {}, 400),
        (document(*[[1, 2]] * 257), {}, 400),
        (document([1, 2]), {"Inference-Header-Content-Length": "9999"}, 400),
        (document([1, 2]), {"Content-Encoding": "gzip"}, 400),
        (document([1, 2]), {"Content-Encoding": "br"}, 415),
        (document([1, 2]), {"X-Gnomon-Deadline-Ms": "soon"}, 400),
    ],
)
async def test_input_outside_the_signature_is_refused_before_admission(
    served: Any, body: bytes, headers: dict[str, str], status: int
) -> None:
    response = await served.call(INFER, body, headers=headers)
    assert response.status == status
    assert set(json.loads(response.body)) == {"error"}
    assert served.functions["m"].load().arrivals == 0
    assert served.functions["m"].metrics.started == 1


@pytest.mark.parametrize("encoding", ["gzip", "GZIP", "x-gzip", " gzip "])
async def test_the_name_of_an_encoding_is_of_any_case(served: Any, encoding: str) -> None:
    response = await served.call(INFER, gzip.compress(document([1, 2])), headers={"Content-Encoding": encoding})
    assert outputs(response) == [2, 4]


async def test_a_body_that_breaks_off_within_its_encoding_is_told(served: Any) -> None:
    """Also where all of it has come but the sum by which that is known."""
    for left_out in (1, 8, 30):
        body = gzip.compress(document([1, 2]))[:-left_out]
        response = await served.call(INFER, body, headers={"Content-Encoding": "gzip"})
        assert response.status == 400
        assert "breaks off" in json.loads(response.body)["error"]


async def test_a_bomb_of_zeros_is_a_413(served: Any) -> None:
    response = await served.call(INFER, gzip.compress(bytes(50_000_000)), headers={"Content-Encoding": "gzip"})
    assert response.status == 413


async def test_an_error_of_the_model_is_its_members_own(served: Any) -> None:
    good, bad = await asyncio.gather(served.call(INFER, document([1, 2])), served.call(INFER, document([-2, 0])))
    assert outputs(good) == [2, 4]
    assert bad.status == 422
    assert json.loads(bad.body) == {"error": "No. Never."}


async def test_inference_is_run_once_more_when_its_instance_dies(served: Any) -> None:
    await served.add_instance("m")
    response = await served.call(INFER, document([-1, 0]))
    # This input kills every instance: two of them, not more.
    assert response.status == 502
    assert served.functions["m"].ready == 0
    await served.add_instance("m")
    assert outputs(await served.call(INFER, document([1, 2]))) == [2, 4]


async def test_requests_of_several_samples_share_batches_and_keep_their_rows(served: Any) -> None:
    async def ask(number: int) -> None:
        rows = [[number + turn, -number - 0.5] for turn in range(1 + number % 4)]
        response = await served.call(INFER, document(*rows))
        assert outputs(response) == [2 * value for row in rows for value in row]

    await asyncio.gather(*(ask(number) for number in range(40)))


async def test_binary_out_is_behind_the_document(served: Any) -> None:
    body = document([1, 2], parameters={"binary_data_output": True})
    response = await served.call(INFER, body)
    length = int(response.headers["inference-header-content-length"])
    assert response.headers["content-type"] == "application/octet-stream"
    assert struct.unpack("<2f", response.body[length:]) == (2.0, 4.0)


async def test_a_deadline_is_a_504_with_the_protocols_document(gateway: Any, model: Any) -> None:
    await gateway.deploy("m", instances=0, signature=model)
    response = await gateway.call(INFER, document([1, 2]), headers={"X-Gnomon-Deadline-Ms": "50"})
    assert response.status == 503
    assert "No instance" in json.loads(response.body)["error"]


async def test_readiness_follows_the_instances(gateway: Any, model: Any) -> None:
    await gateway.deploy("m", instances=0, signature=model)
    assert (await gateway.call("/v2/models/m/ready", method="GET")).status == 503
    await gateway.add_instance("m")
    assert (await gateway.call("/v2/models/m/ready", method="GET")).status == 200


async def nothing_left(gateway: Any) -> None:
    """Nothing is under way any more, and each request that was begun has been answered or withdrawn."""
    runtime = gateway.functions["one"]
    await until(lambda: not runtime.busy, "something is still under way")
    assert runtime.metrics.started == runtime.metrics.invocations + runtime.metrics.left


@pytest.mark.parametrize("max_batch", [1, 2])
async def test_oversized_client_batch_is_split_and_answered_whole(gateway: Any, model: Any, max_batch: int) -> None:
    await gateway.deploy("one", instances=2, signature=model, max_batch=max_batch)
    rows = [[float(number), number + 0.5] for number in range(33)]
    response = await gateway.call("/v2/models/one/infer", document(*rows, id="mine"))
    assert (response.status, json.loads(response.body)["id"]) == (200, "mine")
    assert json.loads(response.body)["outputs"][0]["shape"] == [33, 2]
    assert outputs(response) == [2 * value for row in rows for value in row]
    sizes = gateway.functions["one"].metrics.batch_sizes
    assert sizes.total == 33
    assert sum(sizes.counts) >= -(-33 // max_batch)
    await nothing_left(gateway)


async def test_a_split_request_is_answered_by_the_first_failure_of_a_part(gateway: Any, model: Any) -> None:
    await gateway.deploy("one", signature=model, max_batch=1)
    response = await gateway.call("/v2/models/one/infer", document([1, 2], [-2, 0], [3, 4]))
    assert (response.status, json.loads(response.body)["error"]) == (422, "No. Never.")
    assert outputs(await gateway.call("/v2/models/one/infer", document([1, 2]))) == [2, 4]
    await nothing_left(gateway)


async def test_a_split_request_for_which_the_queue_has_no_room_is_refused_whole(gateway: Any, model: Any) -> None:
    await gateway.deploy("one", instances=0, signature=model, max_batch=1, queue_max_requests=3)
    response = await gateway.call("/v2/models/one/infer", document(*[[1, 2]] * 5))
    assert response.status == 429
    await nothing_left(gateway)


async def test_more_samples_than_one_request_may_have_are_refused(gateway: Any, model: Any) -> None:
    await gateway.deploy("one", signature=model, max_batch=1)
    response = await gateway.call("/v2/models/one/infer", document(*[[1, 2]] * 257))
    assert response.status == 400
    assert "257 samples" in json.loads(response.body)["error"]


# Large JSON tensors: read as small ones are, by a process beside, so that the event loop has next to nothing to do with them.


VALUES = 50_000
WIDE = ModelSignature("wide", "7", (TensorSpec("x", "FP32", (VALUES,)),), (TensorSpec("y", "FP32", (VALUES,)),))
NUMBERS = [round(number * 0.37, 3) for number in range(VALUES)]


def large_document(data: Any = NUMBERS, **changes: Any) -> bytes:
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, VALUES], "data": data}
    return json.dumps({"inputs": [tensor | changes], "id": "größe"}).encode()


@pytest.fixture
def reader() -> Iterator[ParserProcess]:
    parser = ParserProcess()
    yield parser
    parser.close()


def read(reader: ParserProcess, body: bytes, length: bytes | None = None) -> Future[Infer]:
    return reader.read(WIDE, body, length, 4)


WRONG: dict[str, bytes] = {
    "ragged": large_document([[1.0], [2.0, 3.0]] * (VALUES // 2)),
    "too few": large_document(NUMBERS[:-1]),
    "no numbers": large_document(["x"] * VALUES),
    "half of it": large_document()[: 2 * LARGE_BYTES],
    "another name": large_document(name="z"),
    "too many": large_document(NUMBERS * 5),
    "no text": b"\xff" * 2 * LARGE_BYTES,
}


@pytest.mark.parametrize("case", WRONG)
def test_large_request_gets_the_same_error_as_a_small_one(reader: ParserProcess, case: str) -> None:
    with pytest.raises(GnomonError) as expected:
        read_request(WIDE, memoryview(WRONG[case]), None, 4)
    with pytest.raises(GnomonError) as caught:
        read(reader, WRONG[case]).result(20)
    assert caught.value == expected.value


@pytest.mark.parametrize("length", [None, str(len(large_document())).encode(), b"12", b"-1", b"9" * 5000])
def test_the_same_is_read(reader: ParserProcess, length: bytes | None) -> None:
    def outcome(work: Any) -> tuple[Any, ...]:
        try:
            infer = work()
        except GnomonError as error:
            return error.status, error.code, error.message, error.hint
        return infer.id, infer.samples, bytes(infer.body), infer.outputs

    body = large_document()
    assert outcome(lambda: read(reader, body, length).result(20)) == outcome(
        lambda: read_request(WIDE, memoryview(body), length, 4)
    )


def test_dead_parser_process_is_replaced_and_a_closed_one_ends(reader: ParserProcess) -> None:
    assert read(reader, large_document()).result(20).samples == 1
    first = reader.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    assert read(reader, large_document()).result(20).samples == 1
    second = reader.pid
    assert second not in (None, first)
    reader.close()
    assert reader.pid is None


def test_a_request_is_refused_where_the_process_does_not_live(reader: ParserProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/bin/false")
    with pytest.raises(GnomonError) as caught:
        read(reader, large_document()).result(20)
    assert (caught.value.status, caught.value.code) == (503, "reader_lost")


def test_waiting_requests_are_bounded() -> None:
    body = large_document()
    reader = ParserProcess(most_waiting_bytes=2 * len(body))
    read(reader, body).result(20)
    assert reader.pid is not None
    os.kill(reader.pid, signal.SIGSTOP)
    waiting = [read(reader, body) for _ in range(2)]
    with pytest.raises(GnomonError) as caught:
        read(reader, body)
    assert (caught.value.status, caught.value.code) == (503, "too_many_bodies")
    waiting[1].cancel()
    assert waiting.append(read(reader, body)) is None, "whoever left has made room"
    os.kill(reader.pid, signal.SIGCONT)
    assert waiting[0].result(20).samples == waiting[2].result(20).samples == 1
    with pytest.raises(CancelledError):
        waiting[1].result()
    reader.close()


async def test_a_large_request_is_answered_and_costs_the_loop_little(gateway: Any) -> None:
    await gateway.deploy("wide", signature=WIDE, max_batch=4)
    tensor = {"name": "x", "datatype": "FP32", "shape": [2, VALUES], "data": NUMBERS * 2}
    body = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    expected = (np.array(NUMBERS * 2, np.float32) * 2).tobytes()

    async def ask() -> None:
        response = await gateway.call("/v2/models/wide/infer", body)
        assert response.status == 200
        assert response.body[int(response.headers["inference-header-content-length"]) :] == expected

    reading_s, asking_s = [], []
    for _ in range(6):
        began_s = time.thread_time()
        read_request(WIDE, memoryview(body), None, 4)
        reading_s.append(time.thread_time() - began_s)
        began_s = time.thread_time()
        await ask()
        asking_s.append(time.thread_time() - began_s)
    # This thread is the loop's, the client's and the test's: sending and receiving costs it 2 to 3 ms, reading would cost 6 more.
    assert min(asking_s) < min(reading_s)
    assert PARSER.pid is not None


async def test_request_of_a_disconnected_client_is_not_executed(gateway: Any) -> None:
    runtime = await gateway.deploy("wide", signature=WIDE)
    await gateway.call("/v2/models/wide/infer", large_document())
    executed = runtime.load().arrivals
    assert PARSER.pid is not None
    os.kill(PARSER.pid, signal.SIGSTOP)
    try:
        connections = gateway.server._server.server_state.connections
        await until(lambda: not connections)
        connection = await gateway.connect()
        text = large_document()
        await connection.send(
            b"POST /v2/models/wide/infer HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%b" % (len(text), text)
        )
        await until(lambda: PARSER._waiting_bytes > 0)
        connection.close()
        await until(lambda: not connections)
    finally:
        os.kill(PARSER.pid, signal.SIGCONT)
    await until(lambda: PARSER._waiting_bytes == 0)
    assert (await gateway.call("/v2/models/wide/infer", large_document())).status == 200
    assert runtime.load().arrivals == executed + 1


def test_small_and_binary_requests_are_read_where_they_are() -> None:
    assert document_bytes(10_000_000, b"200") == 200
    assert document_bytes(10_000_000, None) == 10_000_000
    assert document_bytes(100, b"5000") == 100
    assert document_bytes(100, b"no") == document_bytes(100, b"9" * 5000) == 100

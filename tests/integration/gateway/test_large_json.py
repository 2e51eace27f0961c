"""Large JSON tensors: read as small ones are, by a process beside, so that the event loop has next to nothing to do with them."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future
from typing import Any

import numpy as np
import pytest

from gnomon_core.errors import GnomonError
from gnomon_core.signature import ModelSignature, TensorSpec
from gnomon_gateway.v2.json_process import LARGE_BYTES, READER, Reader
from gnomon_gateway.v2.messages import Infer, document_bytes, read_request
from tests.waiting import until

VALUES = 50_000
WIDE = ModelSignature("wide", "7", (TensorSpec("x", "FP32", (VALUES,)),), (TensorSpec("y", "FP32", (VALUES,)),))
NUMBERS = [round(number * 0.37, 3) for number in range(VALUES)]


def document(data: Any = NUMBERS, **changes: Any) -> bytes:
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, VALUES], "data": data}
    return json.dumps({"inputs": [tensor | changes], "id": "größe"}).encode()


@pytest.fixture
def reader() -> Iterator[Reader]:
    one = Reader()
    yield one
    one.close()


def read(reader: Reader, body: bytes, length: bytes | None = None) -> Future[Infer]:
    return reader.read(WIDE, body, length, 4)


WRONG: dict[str, bytes] = {
    "ragged": document([[1.0], [2.0, 3.0]] * (VALUES // 2)),
    "too few": document(NUMBERS[:-1]),
    "no numbers": document(["x"] * VALUES),
    "half of it": document()[: 2 * LARGE_BYTES],
    "another name": document(name="z"),
    "too many": document(NUMBERS * 5),
    "no text": b"\xff" * 2 * LARGE_BYTES,
}


@pytest.mark.parametrize("case", WRONG)
def test_large_request_gets_the_same_error_as_a_small_one(reader: Reader, case: str) -> None:
    with pytest.raises(GnomonError) as expected:
        read_request(WIDE, memoryview(WRONG[case]), None, 4)
    with pytest.raises(GnomonError) as caught:
        read(reader, WRONG[case]).result(20)
    assert caught.value == expected.value


@pytest.mark.parametrize("length", [None, str(len(document())).encode(), b"12", b"-1", b"9" * 5000])
def test_the_same_is_read(reader: Reader, length: bytes | None) -> None:
    def outcome(work: Any) -> tuple[Any, ...]:
        try:
            infer = work()
        except GnomonError as error:
            return error.status, error.code, error.message, error.hint
        return infer.id, infer.samples, bytes(infer.body), infer.outputs

    body = document()
    assert outcome(lambda: read(reader, body, length).result(20)) == outcome(
        lambda: read_request(WIDE, memoryview(body), length, 4)
    )


def test_dead_parser_process_is_replaced_and_a_closed_one_ends(reader: Reader) -> None:
    assert read(reader, document()).result(20).samples == 1
    first = reader.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    assert read(reader, document()).result(20).samples == 1
    second = reader.pid
    assert second not in (None, first)
    reader.close()
    assert reader.pid is None


def test_a_request_is_refused_where_the_process_does_not_live(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/bin/false")
    with pytest.raises(GnomonError) as caught:
        read(reader, document()).result(20)
    assert (caught.value.status, caught.value.code) == (503, "reader_lost")


def test_waiting_requests_are_bounded() -> None:
    body = document()
    reader = Reader(most_waiting_bytes=2 * len(body))
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
    assert READER.pid is not None


async def test_request_of_a_disconnected_client_is_not_executed(gateway: Any) -> None:
    runtime = await gateway.deploy("wide", signature=WIDE)
    await gateway.call("/v2/models/wide/infer", document())
    executed = runtime.load().arrivals
    assert READER.pid is not None
    os.kill(READER.pid, signal.SIGSTOP)
    try:
        connections = gateway.server._server.server_state.connections
        await until(lambda: not connections)
        connection = await gateway.connect()
        text = document()
        await connection.send(
            b"POST /v2/models/wide/infer HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%b" % (len(text), text)
        )
        await until(lambda: READER._waiting_bytes > 0)
        connection.close()
        await until(lambda: not connections)
    finally:
        os.kill(READER.pid, signal.SIGCONT)
    await until(lambda: READER._waiting_bytes == 0)
    assert (await gateway.call("/v2/models/wide/infer", document())).status == 200
    assert runtime.load().arrivals == executed + 1


def test_small_and_binary_requests_are_read_where_they_are() -> None:
    assert document_bytes(10_000_000, b"200") == 200
    assert document_bytes(10_000_000, None) == 10_000_000
    assert document_bytes(100, b"5000") == 100
    assert document_bytes(100, b"no") == document_bytes(100, b"9" * 5000) == 100

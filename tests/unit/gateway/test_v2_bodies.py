"""Requests of the open inference protocol."""

from __future__ import annotations

import asyncio
import json
import struct
import time
import tracemalloc
from collections.abc import AsyncIterator
from concurrent.futures import Future
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest

from gnomon_core.errors import GnomonError
from gnomon_core.functions import FunctionKey, FunctionSpec, read_deployment
from gnomon_core.profiles import ModelProfile
from gnomon_core.settings import Settings
from gnomon_core.signature import ModelSignature, Padding, TensorSpec
from gnomon_gateway.dispatch.dispatcher import Dispatcher, Send
from gnomon_gateway.dispatch.fleet import UNCALLED_S
from gnomon_gateway.dispatch.latency import LearnedLatency
from gnomon_gateway.functions.function_runtime import FunctionRuntime
from gnomon_gateway.functions.manager import Manager
from gnomon_gateway.queueing.queue import LaneKey, Request
from gnomon_gateway.scheduling.policies import Immediate
from gnomon_gateway.store import SqliteStore
from gnomon_gateway.v2.json_process import LARGE_BYTES
from gnomon_gateway.v2.messages import Infer, error_body, read_request, write_answer
from gnomon_gateway.v2.reading import BodyReader
from tests.unit.gateway.dispatching import Proportional
from tests.unit.gateway.stage import Scaling, Scripted
from tests.unit.gateway.test_latency import PROFILE

SIGNATURE = ModelSignature(
    "m",
    "1",
    inputs=(TensorSpec("x", "FP32", (2,)), TensorSpec("n", "UINT8", ())),
    outputs=(TensorSpec("y", "FP32", (3,)), TensorSpec("label", "INT64", ())),
)


def signature_of(datatype: str, *shape: int) -> ModelSignature:
    return ModelSignature("m", "1", (TensorSpec("x", datatype, shape),), (TensorSpec("y", datatype, shape),))


def tensor(name: str, datatype: str, shape: list[int], data: Any = None, **parameters: Any) -> dict[str, Any]:
    document = {"name": name, "datatype": datatype, "shape": shape}
    if data is not None:
        document["data"] = data
    if parameters:
        document["parameters"] = parameters
    return document


X = tensor("x", "FP32", [2, 2], [[1.0, 2.0], [3.0, 4.0]])
N = tensor("n", "UINT8", [2], [7, 8])


def read(document: Any, *, binary: bytes = b"", signature: ModelSignature = SIGNATURE, max_batch: int = 4) -> Infer:
    text = document if isinstance(document, bytes) else json.dumps(document).encode()
    length = str(len(text)).encode() if binary else None
    return read_request(signature, memoryview(text + binary), length, max_batch)


def refused(document: Any, **options: Any) -> GnomonError:
    with pytest.raises(GnomonError) as caught:
        read(document, **options)
    assert caught.value.status == 400
    return caught.value


def test_json_tensors_become_raw_bytes_in_the_signatures_order() -> None:
    infer = read({"id": "a", "inputs": [N, X]})
    assert bytes(infer.body) == struct.pack("<4f", 1, 2, 3, 4) + bytes([7, 8])
    assert (infer.id, infer.samples, infer.outputs) == ("a", 2, {"y": False, "label": False})


def test_flat_data_is_the_same_as_nested() -> None:
    flat = tensor("x", "FP32", [2, 2], [1, 2, 3, 4])
    assert bytes(read({"inputs": [flat, N]}).body) == bytes(read({"inputs": [X, N]}).body)


def test_binary_and_json_inputs_mix() -> None:
    raw = struct.pack("<4f", 1, float("nan"), float("inf"), 4)
    infer = read({"inputs": [tensor("x", "FP32", [2, 2], binary_data_size=16), N]}, binary=raw)
    assert bytes(infer.body) == raw + bytes([7, 8])


def test_single_binary_input_is_not_copied() -> None:
    infer = read(
        {"inputs": [tensor("x", "FP32", [1, 2], binary_data_size=8)]}, binary=bytes(8), signature=signature_of("FP32", 2)
    )
    assert isinstance(infer.body, memoryview)


def test_nan_is_a_number_of_a_float_tensor_in_json_too() -> None:
    body = b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [NaN, -Infinity]}]}'
    values = np.frombuffer(read(body, signature=signature_of("FP32", 2)).body, "<f4")
    assert np.isnan(values[0])
    assert values[1] == -np.inf


@pytest.mark.parametrize(
    ("datatype", "data", "dtype"),
    [
        ("BOOL", [True, False], "?"),
        ("UINT8", [0, 255], "u1"),
        ("INT8", [-128, 127], "i1"),
        ("UINT64", [0, 2**64 - 1], "<u8"),
        ("INT64", [-(2**63), 2**63 - 1], "<i8"),
        ("FP16", [0.5, -2], "<f2"),
        ("FP64", [0.1, 1e300], "<f8"),
    ],
)
def test_every_datatype_goes_there_and_back(datatype: str, data: list[Any], dtype: str) -> None:
    signature = signature_of(datatype, 2)
    infer = read({"inputs": [tensor("x", datatype, [1, 2], data)]}, signature=signature)
    assert np.frombuffer(infer.body, dtype).tolist() == data
    answer = json.loads(b"".join(write_answer(infer, signature, "f", memoryview(infer.body)).parts))
    assert answer["outputs"][0]["data"] == data


def test_bfloat_is_rounded_to_nearest() -> None:
    signature = signature_of("BF16", 2)
    infer = read({"inputs": [tensor("x", "BF16", [1, 2], [1.0, 3.141592])]}, signature=signature)
    answer = json.loads(b"".join(write_answer(infer, signature, "f", memoryview(infer.body)).parts))
    assert answer["outputs"][0]["data"] == [1.0, 3.140625]


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"inputs": [X]}, "the model takes x, n"),
        ({"inputs": [X, X, N]}, "the model takes x, n"),
        ({"inputs": [X, N, tensor("z", "FP32", [1], [1])]}, "the model takes x, n"),
        ({"inputs": []}, "inputs are none"),
        ({"inputs": [X | {"datatype": "FP64"}, N]}, "the model takes FP32"),
        ({"inputs": [X | {"shape": [4]}, N]}, "has shape"),
        ({"inputs": [X | {"shape": [2, 3]}, N]}, "has shape"),
        ({"inputs": [X | {"shape": [0, 2]}, N]}, "has shape"),
        ({"inputs": [X | {"shape": [-1, 2]}, N]}, "has shape"),
        ({"inputs": [X | {"shape": [1, 2]}, N]}, "4 numbers"),
        ({"inputs": [X, N | {"shape": [1], "data": [7]}]}, "1 samples"),
        ({"inputs": [X | {"data": [[1.0, 2.0], [3.0]]}, N]}, "ragged"),
        ({"inputs": [X | {"data": ["1", "2", "3", "4"]}, N]}, "not all numbers"),
        ({"inputs": [X | {"data": [1, 2, None, 4]}, N]}, "not all numbers"),
        ({"inputs": [X, N | {"data": [7, 256]}]}, "does not fit UINT8"),
        ({"inputs": [X, N | {"data": [7, -1]}]}, "does not fit UINT8"),
        ({"inputs": [X, N | {"data": [7, 1.5]}]}, "whole numbers"),
        ({"inputs": [X, N | {"data": [True, False]}]}, "whole numbers"),
        ({"inputs": [X, N | {"data": [2**64, 1]}]}, "not"),
        ({"inputs": [X | {"data": "AAAA"}, N]}, "has no data"),
        ({"inputs": [X | {"parameters": {"binary_data_size": 16}}, N]}, "both"),
        ({"inputs": [X, N], "outputs": [{"name": "z"}]}, "'z' is unknown"),
        ({"inputs": [X, N], "outputs": [{"name": "y"}, {"name": "y"}]}, "twice"),
        ({"inputs": [X, N], "outputs": [{"name": "y", "parameters": {"classification": 3}}]}, "classification, which is not"),
        ({"inputs": [X, N], "outputs": [{"name": "y", "parameters": {"shared_memory_region": "r"}}]}, "shared_memory_region"),
    ],
)
def test_input_outside_the_signature_is_refused_with_the_reason(document: dict[str, Any], message: str) -> None:
    assert message in refused(document).message


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b'{"inputs": 3}', b'{"inputs": [{}]}', b"\xff\xfe", b"[" * 100_000])
def test_invalid_infer_request_is_refused(body: bytes) -> None:
    assert refused(body).code == "invalid_request"


def test_dimension_of_as_many_digits_as_python_reads_is_refused() -> None:
    """The bytes that such a shape takes have more digits than Python writes into a message."""
    shape = [10**4300 - 1, 2]
    in_binary, in_json = tensor("x", "FP32", shape, binary_data_size=16), tensor("x", "FP32", shape, [1.0])
    assert "shape" in refused({"inputs": [in_binary, N]}, binary=bytes(16)).message
    assert "shape" in refused({"inputs": [in_json, N]}).message


def test_parameters_may_be_nested_once() -> None:
    """MLServer's clients send them so. Deeper ones ended the process that reads large documents, which could not write them."""
    headers = {"content_type": "np", "headers": {"a": "b"}, "list": [1, 2.5, True, None]}
    assert read({"inputs": [X | {"parameters": headers}, N], "parameters": headers}).parameters == headers
    deep = json.loads("[" * 900 + "]" * 900)
    assert refused({"inputs": [X, N], "parameters": {"deep": deep}}).code == "invalid_request"


FAR = b"65e200, " * 65
"""Numbers that are read by Python's json, as NaN is."""


@pytest.mark.parametrize("numbers", [b"NaN, 1", FAR + b"1", b"1, 2"])
@pytest.mark.parametrize(
    "document",
    [
        b'{"id": "\\ud800", "inputs": [%b]}',
        b'{"id": "\\uDC00\\ud800", "inputs": [%b]}',
        b'{"id": "\xed\xa0\x80", "inputs": [%b]}',
        b'{"parameters": {"\\\\\\ud800\\n": 1}, "inputs": [%b]}',
        b'{"outputs": [{"name": "\\ud83d\\ud83d\\ude00"}], "inputs": [%b]}',
    ],
)
def test_a_text_that_nobody_can_write_again_is_refused(document: bytes, numbers: bytes) -> None:
    tensor = b'{"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [%b]}' % numbers
    assert refused(document % tensor, signature=signature_of("FP32", 2)).code == "invalid_request"


@pytest.mark.parametrize("text", ["\\ud83d\\ude00", "\\\\ud800", "\\\\\\ud83d\\ude00\\n", "größe"])
def test_other_texts_are_taken_beside_nan(text: str) -> None:
    tensor = '{"name": "x", "datatype": "FP64", "shape": [1, 2], "data": [NaN, 1e200]}'
    body = f'{{"id": "{text}", "inputs": [{tensor}]}}'.encode()
    infer = read(body, signature=signature_of("FP64", 2))
    answer = json.loads(b"".join(write_answer(infer, signature_of("FP64", 2), "f", memoryview(infer.body)).parts))
    assert answer["id"] == json.loads(f'"{text}"')


def test_an_error_can_be_told_whatever_its_text_is() -> None:
    assert json.loads(error_body("größe \ud800")) == {"error": "größe ?"}


def test_a_long_text_among_the_numbers_takes_no_memory_for_each_of_them() -> None:
    cells = 10_000
    for data in (["x" * 30_000, *[""] * cells], ["x" * 30_000, *[0] * cells], [[0], [["x" * 30_000]], *[[[0]]] * cells]):
        for datatype in ("FP32", "INT8", "BOOL"):
            document = {"inputs": [tensor("x", datatype, [1, cells + 1], data)]}
            tracemalloc.start()
            try:
                assert refused(document, signature=signature_of(datatype, cells + 1)).code == "invalid_tensor"
                assert tracemalloc.get_traced_memory()[1] < 10_000_000
            finally:
                tracemalloc.stop()


@pytest.mark.parametrize("size", [0, 15, 17, -16, "16", 16.0, True])
def test_a_binary_size_must_be_what_the_shape_takes(size: object) -> None:
    document = {"inputs": [tensor("x", "FP32", [2, 2], binary_data_size=size), N]}
    assert refused(document, binary=bytes(16)).code == "invalid_tensor"


def test_bytes_that_no_input_states_are_refused() -> None:
    assert "bytes of binary data" in refused({"inputs": [X, N]}, binary=b"extra").message


@pytest.mark.parametrize("length", [b"99999", b"-1", b"x", b""])
def test_a_header_length_beyond_the_body_is_refused(length: bytes) -> None:
    with pytest.raises(GnomonError, match="Inference-Header-Content-Length"):
        read_request(SIGNATURE, memoryview(json.dumps({"inputs": [X, N]}).encode()), length, 4)


def test_more_samples_than_a_batch_takes_are_refused() -> None:
    assert refused({"inputs": [X, N]}, max_batch=1).code == "batch_too_large"


OUTPUTS = struct.pack("<6f", *range(6)) + struct.pack("<2q", 10, 11)


def test_an_answer_is_json_unless_binary_was_asked_for() -> None:
    answer = write_answer(read({"id": "a", "inputs": [X, N]}), SIGNATURE, "f", memoryview(OUTPUTS))
    assert answer.header_bytes is None
    assert json.loads(answer.parts[0]) == {
        "model_name": "f",
        "model_version": "1",
        "id": "a",
        "outputs": [
            {"name": "y", "datatype": "FP32", "shape": [2, 3], "data": [0, 1, 2, 3, 4, 5]},
            {"name": "label", "datatype": "INT64", "shape": [2], "data": [10, 11]},
        ],
    }


def test_outputs_come_as_and_in_the_order_they_were_asked_for() -> None:
    asked = [{"name": "label", "parameters": {"binary_data": True}}, {"name": "y", "parameters": {"binary_data": False}}]
    answer = write_answer(read({"inputs": [X, N], "outputs": asked}), SIGNATURE, "f", memoryview(OUTPUTS))
    document = json.loads(answer.parts[0])
    assert [output["name"] for output in document["outputs"]] == ["label", "y"]
    assert document["outputs"][0]["parameters"] == {"binary_data_size": 16}
    assert answer.header_bytes == len(answer.parts[0])
    assert bytes(answer.parts[1]) == OUTPUTS[24:]


def test_binary_data_output_asks_for_all() -> None:
    infer = read({"inputs": [X, N], "parameters": {"binary_data_output": True}})
    assert infer.outputs == {"y": True, "label": True}


def test_a_result_of_another_length_is_a_502() -> None:
    with pytest.raises(GnomonError) as caught:
        write_answer(read({"inputs": [X, N]}), SIGNATURE, "f", memoryview(OUTPUTS[:-1]))
    assert caught.value.status == 502


PATIENCE_S = 5.0
"""Only a loop that stands still does not answer within it."""


def deployment(cores: int = 1) -> FunctionSpec:
    return read_deployment({"service": "fn", "image": "i", "annotations": {"gnomon/model": "m@1", "gnomon/cores": str(cores)}})


class Slow(Scripted):
    """A platform that answers when the event loop has done something else."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._loop, self.asked, self.stood_still = loop, list[str](), list[str]()

    def _ask(self, what: str) -> None:
        self.asked.append(what)
        turned = Event()
        self._loop.call_soon_threadsafe(turned.set)
        if not turned.wait(PATIENCE_S):
            self.stood_still.append(what)

    def check(self, spec: FunctionSpec) -> None:
        del spec
        self._ask("check")

    def revision(self, spec: FunctionSpec) -> str:
        self._ask("revision")
        return super().revision(spec)

    def signature(self, spec: FunctionSpec) -> ModelSignature | None:
        self._ask("signature")
        return super().signature(spec)

    def profile(self, spec: FunctionSpec) -> ModelProfile | None:
        self._ask("profile")
        return super().profile(spec)


@pytest.fixture
async def platform() -> Slow:
    return Slow(asyncio.get_running_loop())


@pytest.fixture
async def manager(tmp_path: Path, platform: Slow) -> AsyncIterator[Manager]:
    store = SqliteStore(tmp_path / "functions.db")
    made = Manager(store, platform, Scaling())
    yield made
    await made.stop()
    store.close()


async def test_the_event_loop_goes_on_while_a_deployments_model_is_read(manager: Manager, platform: Slow) -> None:
    await manager.start()
    await manager.deploy(deployment())
    await manager.update(deployment(cores=2))
    assert set(platform.asked) == {"check", "revision", "signature", "profile"}
    assert platform.stood_still == []


TENSORS, EVENTS, STREAM = LaneKey("tensors", "m"), LaneKey("events", "m/events"), LaneKey("stream", "m/events", solo=True)
SETTINGS = Settings(model="m", max_batch=8, slo_s=0.1, deadline_s=5.0)


class Served:
    """An instance that takes a batch of one after the other."""

    def __init__(self) -> None:
        self.now_s, self.batches = 0.0, 0
        self.dispatcher = Dispatcher(SETTINGS, Immediate(), LearnedLatency(Proportional(0.02)), 0.0, sized_by=("m", "m/events"))
        self.dispatcher.instance_ready("body", 1, 8, 0.0)

    def serve(self, lane: LaneKey, count: int = 1, *, taking_s: float = 0.01) -> None:
        for _ in range(count):
            self.dispatcher.arrive([Request(lane, self.now_s, self.now_s + 5.0)], self.now_s)
            self.now_s, self.batches = self.now_s + taking_s, self.batches + 1
            self.dispatcher.finished("body", self.batches, [200], self.now_s)

    @property
    def largest(self) -> int:
        return self.dispatcher.workers.by_id["body"].slot.max_batch


def test_uncalled_variant_does_not_bind_batches_to_the_profile() -> None:
    served = Served()
    assert served.largest == 5, "before the first request both count: t(5) = 100 ms"
    served.serve(TENSORS, 30)
    assert served.largest == 8
    served.serve(STREAM)
    assert served.largest == 8, "one that streams is alone in its batch, however long that takes"


def test_with_its_first_request_a_variant_counts_and_then_by_what_it_takes() -> None:
    served = Served()
    served.serve(TENSORS, 30)
    served.dispatcher.instance_ready("other", 1, 8, served.now_s)
    served.dispatcher.arrive([Request(EVENTS, served.now_s, served.now_s + 5.0)], served.now_s)
    assert {worker.slot.max_batch for worker in served.dispatcher.workers.by_id.values()} == {5}
    served = Served()
    served.serve(TENSORS, 30)
    served.serve(EVENTS, 30)
    assert served.largest == 8


def test_variant_counts_for_five_minutes_after_its_last_call() -> None:
    """The variant's only batch was cold, and took three times as long as foretold: no more than one sample would be in time."""
    served = Served()
    served.serve(TENSORS, 30)
    served.serve(EVENTS, taking_s=0.06)
    tried_s = served.now_s
    assert served.largest < 8
    served.serve(TENSORS, 30)
    assert served.largest < 8
    served.now_s = tried_s + UNCALLED_S
    served.serve(TENSORS)
    assert served.largest == 8
    served.dispatcher.arrive([Request(EVENTS, served.now_s, served.now_s + 5.0)], served.now_s)
    assert served.largest < 8


def test_waiting_request_counts_as_a_call() -> None:
    served = Served()
    served.serve(TENSORS, 30)
    served.dispatcher.arrive([Request(TENSORS, served.now_s, served.now_s + 1e6)], served.now_s)
    served.dispatcher.arrive([Request(EVENTS, served.now_s, served.now_s + 1e6)], served.now_s)
    served.now_s, served.batches = served.now_s + UNCALLED_S, served.batches + 1
    effects = served.dispatcher.finished("body", served.batches, [200], served.now_s)
    assert [effect.batch.lane for effect in effects if isinstance(effect, Send)] == [EVENTS]
    assert served.largest == 5


async def test_policies_are_told_the_latency_of_what_is_called() -> None:
    signature = ModelSignature("m", "1", (TensorSpec("x", "FP32", (4,)),), (TensorSpec("y", "FP32", (2,)),))
    latency = LearnedLatency(Proportional(0.02))
    runtime = FunctionRuntime(FunctionKey("fn"), SETTINGS, Immediate(), latency, signature=signature, profile=PROFILE)
    for _ in range(30):
        latency.observe("m", 1, 1, 0.01)
    assert runtime.latency_s()[0] == 0.02, "before the first request whichever is longer"
    now_s = time.monotonic()
    runtime.dispatcher.arrive([Request(runtime.tensor_lane, now_s, now_s + 5.0)], now_s)
    assert runtime.latency_s()[0] < 0.011
    runtime.close()


PADDING = Padding(4, {"input_ids": 9, "attention_mask": 0}, ("tokens",))
TEXT = ModelSignature(
    "text",
    "1",
    (TensorSpec("input_ids", "INT64", (4,)), TensorSpec("attention_mask", "INT64", (4,))),
    (TensorSpec("tokens", "FP32", (4, 2)), TensorSpec("scores", "FP32", (3,))),
    details={"padding": PADDING.to_json()},
)


def text(length: int, samples: int = 2, *, binary: bool = False) -> tuple[dict[str, Any], bytes]:
    ids = np.arange(samples * length, dtype="<i8").reshape(samples, length)
    mask = np.ones_like(ids)
    given = {"input_ids": ids, "attention_mask": mask}
    if binary:
        inputs = [tensor(name, "INT64", [samples, length], binary_data_size=array.nbytes) for name, array in given.items()]
        return {"inputs": inputs}, ids.tobytes() + mask.tobytes()
    return {"inputs": [tensor(name, "INT64", [samples, length], array.tolist()) for name, array in given.items()]}, b""


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("length", [1, 3, 4])
def test_shorter_sequences_are_padded_and_outputs_by_token_are_cut(length: int, binary: bool) -> None:  # noqa: FBT001
    document, data = text(length, binary=binary)
    infer = read(document, binary=data, signature=TEXT)
    assert (infer.samples, infer.length) == (2, length)
    ids, mask = np.frombuffer(infer.body, "<i8").reshape(2, 2, 4)
    assert ids.tolist() == [[*range(row * length, (row + 1) * length), *[9] * (4 - length)] for row in range(2)]
    assert mask.tolist() == [[*[1] * length, *[0] * (4 - length)]] * 2
    tokens, scores = np.arange(16, dtype="<f4").reshape(2, 4, 2), np.arange(6, dtype="<f4")
    written = write_answer(infer, TEXT, "text", memoryview(tokens.tobytes() + scores.tobytes()))
    by_token, of_text = json.loads(written.parts[0])["outputs"]
    assert by_token["shape"] == [2, length, 2]
    assert by_token["data"] == tokens[:, :length].ravel().tolist()
    assert (of_text["shape"], of_text["data"]) == ([2, 3], scores.tolist())


def test_cut_outputs_are_as_long_in_binary_as_they_say() -> None:
    document, _ = text(3)
    infer = read({**document, "parameters": {"binary_data_output": True}}, signature=TEXT)
    tokens = np.arange(16, dtype="<f4").reshape(2, 4, 2)
    head, by_token, of_text = write_answer(infer, TEXT, "text", memoryview(tokens.tobytes() + bytes(24))).parts
    assert [output["parameters"]["binary_data_size"] for output in json.loads(head)["outputs"]] == [len(by_token), len(of_text)]
    assert bytes(by_token) == tokens[:, :3].tobytes()


@pytest.mark.parametrize("lengths", [(0, 0), (5, 5), (3, 2)])
def test_sequences_of_other_lengths_are_refused_with_those_that_the_model_takes(lengths: tuple[int, int]) -> None:
    names = ("input_ids", "attention_mask")
    inputs = [tensor(name, "INT64", [1, length], [1] * length) for name, length in zip(names, lengths, strict=True)]
    error = refused({"inputs": inputs}, signature=TEXT)
    assert error.code == "invalid_tensor"
    assert "1 to 4 tokens" in error.hint


def test_sequence_without_the_axis_of_samples_is_refused_with_the_shape_that_the_model_takes() -> None:
    names = ("input_ids", "attention_mask")
    error = refused({"inputs": [tensor(name, "INT64", [3], [1] * 3) for name in names]}, signature=TEXT)
    assert error.message == "input_ids has shape [3]; the model takes [samples, 4]."


def test_large_document_of_shorter_sequences_is_padded_in_the_reader_process() -> None:
    document, _ = text(3, samples=4)
    body = json.dumps({**document, "id": "x" * LARGE_BYTES}).encode()
    reading = BodyReader(TEXT, {}, 4, 1 << 20).parse(body)
    assert isinstance(reading, Future)
    infer = reading.result(60)
    ids, mask = np.frombuffer(infer.body, "<i8").reshape(2, 4, 4)
    assert infer.length == 3
    assert set(ids[:, 3].tolist()) == {9}
    assert set(mask[:, 3].tolist()) == {0}

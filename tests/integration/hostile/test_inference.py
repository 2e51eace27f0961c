"""Bad tensors and bad photographs: each gets its own answer, and whoever shares a batch with one does not notice."""

from __future__ import annotations

import gzip
import io
import json
import struct
import threading
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import tritonclient.http as triton
import urllib3
from PIL import Image
from tritonclient.utils import InferenceServerException

from tests.integration.hostile.conftest import CAPTURE_LIMIT_S, INTERNAL, Attacked
from tests.integration.hostile.test_isolation import check_served

pytestmark = [pytest.mark.torch, pytest.mark.timeout(CAPTURE_LIMIT_S + 60)]

SHAPE = (3, 224, 224)
NUMBERS = 3 * 224 * 224
NAME = "image"
BATCH = 8
MOST_SAMPLES = 13
"""Of this model in one request: more than 8 MiB of tensors are not split into batches."""
ZEROS = bytes(4 * NUMBERS)


def tensor(**changes: Any) -> dict[str, Any]:
    return {"name": NAME, "shape": [1, *SHAPE], "datatype": "FP32", "parameters": {"binary_data_size": len(ZEROS)}, **changes}


def in_json(data: Any, **changes: Any) -> dict[str, Any]:
    return tensor(parameters={}, data=data, **changes)


def infer(gateway: Attacked, document: Any, binary: bytes = b"", **headers: str) -> urllib3.BaseHTTPResponse:
    text = document if isinstance(document, bytes) else json.dumps(document).encode()
    headers.setdefault("Inference_Header_Content_Length", str(len(text)))
    return gateway.call("POST", "/v2/models/efficientnet-lite0/infer", text + binary, **headers)


def check_refused(answer: urllib3.BaseHTTPResponse, *words: str) -> None:
    assert answer.status in (400, 413, 415), answer.data[:300]
    assert answer.headers[INTERNAL] == "gnomon"
    document = answer.json()
    assert set(document) == {"error"}
    assert len(document["error"]) < 2000
    assert all(word in document["error"] for word in words), document
    assert not any(word in document["error"] for word in ("Traceback", "site-packages", ".py", "0x"))


TENSORS: dict[str, tuple[dict[str, Any], str]] = {
    "a wrong name": (tensor(name="picture"), "the model takes image"),
    "a very long name": (tensor(name="x" * 100_000), "the model takes image"),
    "a wrong datatype": (tensor(datatype="FP64"), "FP32"),
    "a datatype of bytes": (tensor(datatype="BYTES"), "FP32"),
    "a very long datatype": (tensor(datatype="x" * 100_000), "FP32"),
    "no batch axis": (tensor(shape=list(SHAPE)), "the model takes [samples, 3, 224, 224]"),
    "an axis too many": (tensor(shape=[1, 1, *SHAPE]), "the model takes"),
    "a wrong axis": (tensor(shape=[1, 3, 224, 225]), "the model takes"),
    "no axis": (tensor(shape=[]), "the model takes"),
    "a million axes": (tensor(shape=[1] * 100_000), "the model takes"),
    "a negative axis": (tensor(shape=[-1, *SHAPE]), "the model takes"),
    "no samples": (tensor(shape=[0, *SHAPE]), "the model takes"),
    "more samples than there are atoms": (tensor(shape=[1 << 70, *SHAPE]), "shape"),
    "samples with as many digits as Python writes": (tensor(shape=[10**4300 - 1, *SHAPE]), "shape"),
    "a fraction of a sample": (tensor(shape=[1.5, *SHAPE]), "shape"),
    "a true sample": (tensor(shape=[True, *SHAPE]), "shape"),
    "a shape of texts": (tensor(shape=["1", "3", "224", "224"]), "shape"),
    "a shape that is a text": (tensor(shape="1"), "shape"),
    "a size that is too small": (tensor(parameters={"binary_data_size": 10}), "602112"),
    "a size that is negative": (tensor(parameters={"binary_data_size": -1}), "602112"),
    "a size that is true": (tensor(parameters={"binary_data_size": True}), "602112"),
    "a size that is a text": (tensor(parameters={"binary_data_size": str(len(ZEROS))}), "602112"),
    "a size that is a fraction": (tensor(parameters={"binary_data_size": float(len(ZEROS))}), "602112"),
    "data twice": (tensor(data=[1]), "both"),
    "no data": (tensor(parameters={}), "no data"),
    "shared memory": (tensor(parameters={"shared_memory_region": "x", "shared_memory_byte_size": 4}), "no data"),
    "ragged data": (in_json([[1], [2, 3]]), "ragged"),
    "texts for numbers": (in_json(["1"] * NUMBERS), "not all numbers"),
    "truths for numbers": (in_json([True] * NUMBERS), "not all numbers"),
    "nothing for numbers": (in_json([None] * NUMBERS), "not all numbers"),
    "objects for numbers": (in_json([{}] * NUMBERS), "numbers"),
    "one text among numbers": (in_json([0] * (NUMBERS - 1) + ["x"]), "not all numbers"),
    "a number too few": (in_json([0] * (NUMBERS - 1)), "150527 numbers"),
    "a number too many": (in_json([0] * (NUMBERS + 1)), "150529 numbers"),
    "a text for data": (in_json("x"), "no data"),
    "samples beyond the batch": (in_json([0], shape=[BATCH + 1, *SHAPE]), ""),
}


@pytest.mark.parametrize("case", TENSORS)
def test_a_bad_tensor_is_refused_with_what_the_model_takes(gateway: Attacked, model: str, case: str) -> None:
    description, word = TENSORS[case]
    binary = ZEROS if "binary_data_size" in description["parameters"] else b""
    check_refused(infer(gateway, {"inputs": [description]}, binary), word)


DOCUMENTS: dict[str, bytes] = {
    "nothing": b"",
    "half an object": b'{"inputs":',
    "no text": b"\xff\xfe\xfd",
    "null": b"null",
    "no inputs": b"{}",
    "inputs that are none": b'{"inputs": null}',
    "inputs of numbers": b'{"inputs": [1]}',
    "empty inputs": b'{"inputs": []}',
    "an input twice": json.dumps({"inputs": [tensor(), tensor()]}).encode(),
    "an input a thousand times": json.dumps({"inputs": [tensor()] * 1000}).encode(),
    "an unknown output": json.dumps({"inputs": [tensor()], "outputs": [{"name": "x" * 10_000}]}).encode(),
    "an id that is a number": json.dumps({"inputs": [tensor()], "id": 5}).encode(),
    "depth": b"[" * 100_000,
    "depth in the parameters": json.dumps({"inputs": [tensor()], "parameters": {"a": "DEPTH"}})
    .encode()
    .replace(b'"DEPTH"', b"[" * 900 + b"]" * 900),
    "depth in the data": json.dumps({"inputs": [in_json("DEPTH")]}).encode().replace(b'"DEPTH"', b"[" * 50_000 + b"]" * 50_000),
    "a number beyond all": json.dumps({"inputs": [in_json("MUCH")]}).encode().replace(b'"MUCH"', b"[1e999999]"),
}  # fmt: skip


@pytest.mark.parametrize("case", DOCUMENTS)
def test_a_bad_document_is_refused(gateway: Attacked, model: str, case: str) -> None:
    check_refused(infer(gateway, DOCUMENTS[case], ZEROS))


@pytest.mark.parametrize("length", ["-1", "x", "", "+5", "1_0", " 5 5", str(10**30), "9" * 5000, str(len(ZEROS) * 2), "0", "5"])
def test_a_header_length_that_lies_is_refused(gateway: Attacked, model: str, length: str) -> None:
    check_refused(infer(gateway, {"inputs": [tensor()]}, ZEROS, Inference_Header_Content_Length=length))


@pytest.mark.parametrize("binary", [b"", ZEROS[:-1], ZEROS + b"x", ZEROS + ZEROS], ids=["none", "short", "long", "twice"])
def test_binary_data_that_is_not_what_was_stated_is_refused(gateway: Attacked, model: str, binary: bytes) -> None:
    check_refused(infer(gateway, {"inputs": [tensor()]}, binary), "bytes of binary data came")


def test_packed_bodies_are_unpacked_up_to_the_limit(gateway: Attacked, model: str) -> None:
    text = json.dumps({"inputs": [tensor()]}).encode()
    sizes = {"Inference_Header_Content_Length": str(len(text))}
    good = gateway.call("POST", f"/v2/models/{model}/infer", gzip.compress(text + ZEROS), Content_Encoding="gzip", **sizes)
    assert good.status == 200
    before_bytes = gateway.resident_bytes()
    for encoding, body in {
        "gzip": gzip.compress(bytes(80 << 20), 9),
        "deflate": zlib.compress(bytes(80 << 20), 9),
    }.items():
        answer = gateway.call("POST", f"/v2/models/{model}/infer", body, Content_Encoding=encoding)
        assert answer.status == 413
        check_refused(answer, "fewer samples")
    assert gateway.resident_bytes() - before_bytes < 128 << 20
    for encoding in ("gzip", "deflate", "br", "gzip, gzip", "x" * 1000):
        check_refused(infer(gateway, {"inputs": [tensor()]}, ZEROS, Content_Encoding=encoding))


COSTLY: dict[str, bytes] = {
    "zeros": b"0,",
    "numbers at the edge of a float": b"1.7976931348623157e0308,",
    "empty lists": b"[],",
    "texts": b'"",',
    "what is no number": b"NaN,",
}


@pytest.mark.parametrize("case", COSTLY)
@pytest.mark.parametrize("packed", [False, True], ids=["plain", "packed"])
def test_slow_to_parse_request_delays_no_other(gateway: Attacked, model: str, case: str, packed: bool) -> None:  # noqa: FBT001 - a parameter
    begin = b'{"inputs":[{"name":"image","shape":[1,3,224,224],"datatype":"FP32","data":['
    count = 150_000 if case.startswith("numbers") else 8_000_000
    body = begin + COSTLY[case] * count + b"0]}]}"
    if packed:
        body = gzip.compress(body, 1)
    headers = {"Content_Encoding": "gzip"} if packed else {}
    answers: list[int] = []

    def attack(enough: threading.Event) -> None:
        while not (answers and enough.is_set()):
            answers.append(gateway.call("POST", f"/v2/models/{model}/infer", body, **headers).status)

    check_served(gateway, attack)
    assert set(answers) <= {400, 413}


@pytest.fixture
def client(gateway: Attacked) -> Iterator[triton.InferenceServerClient]:
    client = triton.InferenceServerClient(gateway.url.removeprefix("http://"))
    yield client
    client.close()


@pytest.mark.parametrize(
    ("name", "values", "word"),
    [
        ("image", np.zeros((1, 3, 224, 225), np.float32), r"the model takes \[samples, 3, 224, 224\]"),
        ("image", np.zeros((1, *SHAPE), np.float64), "the model takes FP32"),
        ("picture", np.zeros((1, *SHAPE), np.float32), "the model takes image"),
        ("image", np.zeros((MOST_SAMPLES + 1, *SHAPE), np.float32), "one request may have at most 13"),
    ],
    ids=["shape", "datatype", "name", "samples"],
)
def test_the_public_client_is_told_what_is_wrong(
    client: triton.InferenceServerClient, model: str, name: str, values: Any, word: str
) -> None:
    wrong = triton.InferInput(name, list(values.shape), "FP64" if values.dtype == np.float64 else "FP32")
    wrong.set_data_from_numpy(values)
    with pytest.raises(InferenceServerException, match=word):
        client.infer(model, [wrong])
    with pytest.raises(InferenceServerException, match="no model"):
        client.infer("unheard-of", [wrong])


def logits(answer: urllib3.BaseHTTPResponse) -> Any:
    assert answer.status == 200, answer.data[:300]
    return np.array(answer.json()["outputs"][0]["data"], dtype=np.float32)


def test_a_tensor_of_nothing_but_nan_does_not_spread_to_its_batch(gateway: Attacked, model: str) -> None:
    rng = np.random.default_rng(7)
    good = [rng.standard_normal(NUMBERS, dtype=np.float32).tobytes() for _ in range(4)]
    poison = np.full(NUMBERS, np.nan, dtype=np.float32).tobytes()
    document = {"inputs": [tensor()]}
    alone = [logits(infer(gateway, document, data)) for data in good]
    with ThreadPoolExecutor(BATCH) as pool:
        together = list(
            pool.map(lambda data: logits(infer(gateway, document, data)), [*good, poison, *good, poison, poison, poison])
        )
    for number, expected in enumerate([*alone, None, *alone, None, None, None]):
        if expected is None:
            assert np.isnan(together[number]).all()
        else:
            np.testing.assert_allclose(together[number], expected, rtol=1e-3, atol=1e-5)


def photograph(seed: int) -> bytes:
    """Colours in large squares, so that it is quick to decode and unlike the others."""
    rng = np.random.default_rng(seed)
    pixels = np.kron(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8), np.ones((32, 32, 1), dtype=np.uint8))
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG")
    return stream.getvalue()


def enormous() -> bytes:
    """A PNG that says it has 10^10 pixels."""
    head = struct.pack(">IIBBBBB", 100_000, 100_000, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", head), (b"IDAT", zlib.compress(bytes(1000))))
    written = [struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in chunks]
    return b"\x89PNG\r\n\x1a\n" + b"".join(written)


POISON: list[tuple[bytes, tuple[int, ...]]] = [
    (b"", (400,)),
    (b"not a picture at all", (415,)),
    (bytes(range(256)) * 40, (415,)),
    (b"\x89PNG\r\n\x1a\n" + b"rubbish" * 100, (415, 422)),
    (b"\xff\xd8\xff\xe0" + b"rubbish" * 100, (415, 422)),
    (photograph(1)[:-200], (422,)),
    (enormous(), (413,)),
    (b"GIF89a" + bytes(100), (415,)),
]


def test_bad_photograph_does_not_fail_its_batch(gateway: Attacked, model: str) -> None:
    path = f"/function/{model}"
    good = [photograph(seed) for seed in range(6)]
    alone = [gateway.call("POST", path, data).json() for data in good]
    # Every sixth is bad, so that nearly every batch has one.
    sent: list[tuple[bytes, int | None]] = [
        (POISON[number // 6 % len(POISON)][0], None) if number % 6 == 5 else (good[number % 6], number % 6)
        for number in range(96)
    ]
    with ThreadPoolExecutor(2 * BATCH) as pool:
        answers = list(pool.map(lambda request: gateway.call("POST", path, request[0]), sent))
    for (data, which), answer in zip(sent, answers, strict=True):
        if which is None:
            [expected] = {statuses for poison, statuses in POISON if poison == data}
            assert answer.status in expected, (data[:20], answer.data)
            assert "Traceback" not in answer.data.decode()
            continue
        assert answer.status == 200, answer.data
        assert answer.json()["label"] == alone[which]["label"]
        # Six digits are shown, and a batch adds up in another order than one alone.
        assert answer.json()["confidence"] == pytest.approx(alone[which]["confidence"], abs=2e-6)
    batches, members = (gateway.metric(f"gnomon_batch_size_{kind}", model) for kind in ("count", "sum"))
    assert members > 1.5 * batches, "they were not batched, so that this shows nothing"

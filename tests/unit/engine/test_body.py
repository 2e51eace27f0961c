"""An instance that holds a model answers every member of a batch, and tells whose image cannot be read."""

import io
import json
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor

from gnomon_core.errors import GnomonError
from gnomon_core.launch import Launch
from gnomon_core.program import Program, dump_program
from gnomon_core.signature import ModelSignature, TensorSpec
from gnomon_core.wire import Frame, Kind, Member, decode, encode
from gnomon_runtime.body import ModelApplication
from gnomon_runtime.image_input import Preprocess, read_image

pytestmark = pytest.mark.torch
Start = Callable[..., ModelApplication]


@pytest.fixture
def start(tmp_path: Path, program: Callable[..., Program]) -> Start:
    """Write a program and its weights, and start an application of them."""

    def make(
        calls: Any,
        output: str,
        weights: dict[str, Tensor],
        signature: ModelSignature | None = None,
        options: Any = None,
        **rest: Any,
    ) -> ModelApplication:
        made = program(calls, output, weights=weights, **rest)
        if signature is not None:
            object.__setattr__(made, "signature", signature)
        (tmp_path / "program.json").write_bytes(dump_program(made))
        save_file(weights, tmp_path / "weights.safetensors")
        paths = {"program": str(tmp_path / "program.json"), "weights": str(tmp_path / "weights.safetensors")}
        return ModelApplication(Launch("model", "f.fn", "f-1", options=paths | (options or {})))

    return make


@pytest.fixture
def table(start: Start) -> ModelApplication:
    """Looks up a row of a table for two indices and adds them: raises for an index beyond the table."""
    return start(
        [("aten.embedding.default", ("%table", "%x"), "rows"), ("aten.sum.dim_IntList", ("%rows", [1]), "y")],
        "y",
        {"table": torch.arange(6.0).view(3, 2)},
        datatype="INT64",
        shape=(2,),
        out_shape=(2,),
    )


def indices(*pairs: tuple[int, int]) -> Member:
    return Member(0, len(pairs), b"", torch.tensor(pairs).numpy().tobytes())


def run(application: ModelApplication, members: list[Member], inputs: Any = None) -> Frame:
    """Through the wire and back, so that bodies are views of a buffer as in an instance."""
    specs = inputs if inputs is not None else [TensorSpec("x", "INT64", (2,)).to_json()]
    head = json.dumps({"kind": "tensors", "inputs": specs}).encode()
    answer = application.run(decode(encode(Frame(Kind.BATCH, 7, epoch=3, head=head, members=members))))
    assert isinstance(answer, Frame)
    answer = decode(encode(answer))
    assert (answer.kind, answer.batch_id, len(answer.members)) == (Kind.RESULT, 7, len(members))
    return answer


def floats(member: Member) -> list[float]:
    assert member.code == 200
    values: list[float] = torch.frombuffer(bytearray(member.body), dtype=torch.float32).tolist()
    return values


def test_members_of_several_samples_get_their_own_results(table: ModelApplication) -> None:
    answer = run(table, [indices((0, 1)), indices((2, 2), (1, 1)), indices((0, 0))])
    assert [floats(member) for member in answer.members] == [[2.0, 4.0], [8.0, 10.0, 4.0, 6.0], [0.0, 2.0]]
    assert [member.size for member in answer.members] == [1, 2, 1]
    assert answer.head_json() == {"outputs": [{"name": "y", "datatype": "FP32", "shape": [2]}]}


def test_a_member_that_makes_the_model_raise_fails_alone(table: ModelApplication) -> None:
    runs: list[int] = []
    model: Any = table._model
    original = model.executor.run

    def counted(inputs: Any) -> Any:
        runs.append(inputs[0].shape[0])
        return original(inputs)

    model.executor.run = counted
    members = [indices((0, 1)) for _ in range(16)]
    members[5] = indices((0, 99))
    answer = run(table, members)
    assert [member.code for member in answer.members] == [400 if index == 5 else 200 for index in range(16)]
    assert all(floats(member) == [2.0, 4.0] for index, member in enumerate(answer.members) if index != 5)
    assert json.loads(bytes(answer.members[5].body))["error"]["code"] == "invalid_value", "the index 99 is the client's mistake"
    assert len(runs) - 1 <= 2 * 4, "bisecting 16 members takes at most 2·log2(16) further runs"


def test_a_body_of_a_wrong_length_fails_alone(table: ModelApplication) -> None:
    answer = run(table, [indices((0, 1)), Member(0, 1, b"", b"1234567"), Member(0, 0, b"", b""), indices((1, 1))])
    assert [member.code for member in answer.members] == [200, 400, 400, 200]
    assert "need 16" in json.loads(bytes(answer.members[1].body))["error"]["message"]


def test_inputs_that_are_not_the_models_are_a_400_for_all(table: ModelApplication) -> None:
    wrong = [TensorSpec("x", "INT64", (3,)).to_json()]
    assert [member.code for member in run(table, [indices((0, 1))] * 2, wrong).members] == [400, 400]
    assert [member.code for member in run(table, [indices((0, 1))], []).members] == [400]


def test_bool_inputs_are_true_for_any_byte_but_zero(start: Start) -> None:
    made = start([("aten.where.ScalarOther", ("%x", "%one", 0), "y")], "y", {"one": torch.ones(3)}, datatype="BOOL", shape=(3,))
    answer = run(made, [Member(0, 1, b"", b"\x00\x02\xff")], [TensorSpec("x", "BOOL", (3,)).to_json()])
    assert floats(answer.members[0]) == [0.0, 1.0, 1.0]


def test_hello_says_what_is_served_and_what_the_start_cost(table: ModelApplication) -> None:
    hello = table.hello()
    assert (hello["kind"], hello["model"], hello["version"], hello["weight_mode"]) == ("model", "m", "1", "shared")
    assert hello["warm_up_ms"]["1"] > 0
    assert json.loads(json.dumps(hello)) == hello


def test_threads_follow_the_instances_cores(table: ModelApplication) -> None:
    before = torch.get_num_threads()
    try:
        table.resize(2)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_a_program_with_another_hash_is_refused(start: Start) -> None:
    with pytest.raises(GnomonError, match="SHA-256"):
        start([("aten.relu.default", ("%x",), "y")], "y", {"w": torch.ones(1)}, options={"sha256": {"program.json": "0" * 64}})


def classifier(start: Start) -> ModelApplication:
    """A network of three classes that answers with the colour: the mean of each channel."""
    details = {
        "labels": ["red", "green", "blue"],
        "preprocess": {
            "size": 8,
            "crop_fraction": 1.0,
            "interpolation": "bilinear",
            "mean": [0.0, 0.0, 0.0],
            "std": [25.5, 25.5, 25.5],
        },
    }
    shape = (3, 8, 8)
    signature = ModelSignature(
        "colours", "1", (TensorSpec("x", "FP32", shape),), (TensorSpec("y", "FP32", (3,)),), "image-classification", details
    )
    return start([("aten.mean.dim", ("%x", [2, 3]), "y")], "y", {"w": torch.ones(1)}, signature, shape=shape, out_shape=(3,))


def photo(colour: tuple[int, int, int]) -> Member:
    stream = io.BytesIO()
    Image.new("RGB", (16, 16), colour).save(stream, "PNG")
    return Member(0, 1, b"POST\n/\n\nContent-Type: image/png", stream.getvalue())


def test_photographs_are_classified_and_bad_ones_fail_alone(start: Start) -> None:
    made = classifier(start)
    members = [
        photo((255, 0, 0)),
        Member(0, 1, b"POST\n/\n", b"no picture"),
        photo((0, 0, 255)),
        Member(0, 1, b"GET\n/\n\n", b""),
    ]
    answer = made.run(decode(encode(Frame(Kind.BATCH, 1, members=members))))
    assert isinstance(answer, Frame)
    assert [member.code for member in answer.members] == [200, 415, 200, 400]
    assert all(member.meta == b"Content-Type: application/json" for member in answer.members)
    first, last = json.loads(bytes(answer.members[0].body)), json.loads(bytes(answer.members[2].body))
    assert (first["model"], first["label"], first["index"]) == ("colours", "red", 0)
    assert first["confidence"] == pytest.approx(1.0, abs=1e-3)
    assert last["label"] == "blue"
    assert first["top"][0]["label"] == "red"
    assert len(first["top"]) == 3


def test_a_model_of_tensors_says_how_it_is_called(table: ModelApplication) -> None:
    answer = table.run(Frame(Kind.BATCH, 1, members=[photo((1, 2, 3))]))
    assert isinstance(answer, Frame)
    assert answer.members[0].code == 415
    assert b"/v2/models" in answer.members[0].body


PREPROCESS = Preprocess.from_json(
    {"size": 8, "crop_fraction": 0.5, "interpolation": "bilinear", "mean": [127.0, 127.0, 127.0], "std": [128.0, 128.0, 128.0]}
)


def encoded(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def picture() -> Image.Image:
    """Blue with a red middle half."""
    image = Image.new("RGB", (64, 40), (0, 0, 255))
    image.paste((255, 0, 0), (22, 10, 42, 30))
    return image


def test_the_middle_square_is_cut_resized_and_normalised() -> None:
    result = read_image(encoded(picture()), PREPROCESS)
    assert result.shape == (3, 8, 8)
    assert result.dtype == np.float32
    assert result.flags.c_contiguous
    assert np.array_equal(result[:, 4, 4], np.array([1.0, -127 / 128, -127 / 128], dtype=np.float32))


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_grey_and_coloured_pictures_give_three_channels(kind: str, mode: str) -> None:
    assert read_image(encoded(picture().convert(mode), kind), PREPROCESS).shape == (3, 8, 8)


def test_transparency_and_palettes_are_read() -> None:
    assert read_image(encoded(picture().convert("RGBA")), PREPROCESS).shape == (3, 8, 8)
    assert read_image(encoded(picture().convert("P")), PREPROCESS).shape == (3, 8, 8)


def test_a_camera_held_upright_is_turned() -> None:
    image = Image.new("RGB", (40, 40), (0, 0, 0))
    image.paste((255, 255, 255), (0, 0, 20, 40))
    exif = Image.Exif()
    exif[0x0112] = 6  # the left of the stored picture is its top
    result = read_image(encoded(image, "JPEG", exif=exif, quality=95), PREPROCESS)
    assert result[0, 0].mean() > 0.9
    assert result[0, 7].mean() < -0.9


def test_a_large_jpeg_is_decoded_small_and_looks_the_same() -> None:
    rng = np.random.default_rng(0)
    coarse = Image.fromarray(rng.integers(0, 255, (16, 16, 3), dtype=np.uint8)).resize((1600, 1600), Image.Resampling.BICUBIC)
    small = read_image(encoded(coarse, "JPEG", quality=95), PREPROCESS)
    whole = read_image(encoded(coarse), PREPROCESS)
    assert np.abs(small - whole).max() < 0.05


def bomb(width: int, height: int) -> bytes:
    """A PNG that claims a size and holds next to nothing."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0")) + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"", 400, "empty_body"),
        (b"hello", 415, "unsupported_media_type"),
        (b"GIF89a" + bytes(100), 415, "unsupported_media_type"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n", 415, "unsupported_media_type"),
        (encoded(picture(), "JPEG")[:200], 422, "broken_image"),
        (encoded(picture(), "PNG")[:60], 422, "broken_image"),
        (bomb(100, 100), 422, "broken_image"),
        (bomb(10_000, 10_000), 413, "image_too_large"),
        (bomb(100_000, 100_000), 413, "image_too_large"),
    ],
)
def test_bytes_that_are_no_photograph_say_what_they_are(body: bytes, status: int, code: str) -> None:
    with pytest.raises(GnomonError) as caught:
        read_image(body, PREPROCESS)
    assert (caught.value.status, caught.value.code) == (status, code)
    assert caught.value.hint

"""ONNX files, folders of transformers and scikit-learn estimators become layer programs that answer as the originals do."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import skops.io
import torch
import transformers
from onnx import helper
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_iris
from sklearn.ensemble import (
    GradientBoostingClassifier,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
)
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.linear_model import LogisticRegression
from sklearn.mixture import GaussianMixture
from sklearn.model_selection import GridSearchCV
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from sklearn.svm import SVC, SVR, NuSVR, OneClassSVM
from torch import Tensor, nn

from gnomon_core.errors import GnomonError
from gnomon_profiler import add_from, add_model
from gnomon_profiler.capturing import CaptureRequest, capture_here
from gnomon_profiler.extractor import Description, capture
from gnomon_profiler.importing.sklearn_estimator import model_of_estimator
from gnomon_profiler.importing.transformers_folder import load_transformers
from gnomon_profiler.repository import DirectoryRepository
from gnomon_runtime.engine import load_program
from tests.integration.profiler import onnx_files
from tests.small_transformers import SMALL, bert_config

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"),
]
BATCHES = (1, 7)


@pytest.fixture
def repository(tmp_path: Path) -> DirectoryRepository:
    return DirectoryRepository(tmp_path / "models")


def run(program: Path, weights: Path, inputs: Sequence[Tensor]) -> list[Tensor]:
    return [tensor.clone() for tensor in load_program(program, weights).executor.run(list(inputs))]


def run_files(files: dict[str, bytes], folder: Path, inputs: Sequence[Tensor]) -> list[Tensor]:
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return run(folder / "program.json", folder / "weights.safetensors", inputs)


def assert_close(answers: Sequence[Tensor], expected: Sequence[Tensor]) -> None:
    for answer, own in zip(answers, expected, strict=True):
        assert answer.shape == own.shape
        assert (answer.double() - own.double()).abs().max() <= 1e-4 * max(float(own.double().abs().max()), 1e-3)


class Recurrent(nn.Module):
    def __init__(self, kind: Any, **settings: Any) -> None:
        super().__init__()
        self.layers = kind(5, 6, batch_first=True, **settings)

    def forward(self, words: Tensor) -> tuple[Tensor, Tensor]:
        output, _ = self.layers(words)
        return output, output[:, -1]


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("settings", [{}, {"num_layers": 2, "bidirectional": True}, {"bias": False}])
def test_recurrent_layers_are_captured(kind: Any, settings: dict[str, Any], tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = Recurrent(kind, **settings).eval()
    files = capture(module, [torch.zeros(1, 9, 5)], Description("recurrent"))
    for batch in BATCHES:
        words = torch.randn(batch, 9, 5)
        with torch.inference_mode():
            assert_close(run_files(files, tmp_path, [words]), module(words))


def test_an_lstm_with_projections_is_refused() -> None:
    with pytest.raises(GnomonError, match="proj_size"):
        capture(Recurrent(nn.LSTM, proj_size=3), [torch.zeros(1, 9, 5)], Description("recurrent"))


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(50, 16)
        self.layers = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, 32, batch_first=True), 1)

    def forward(self, words: Tensor) -> Tensor:
        return torch.as_tensor(self.layers(self.words(words)).mean(1))


class Images(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.up = nn.Conv2d(3, 8, 3, 2, 1), nn.GroupNorm(2, 8), nn.ConvTranspose2d(8, 4, 2, 2)

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        small = nn.functional.hardswish(self.norm(self.first(image)))
        large = nn.functional.interpolate(self.up(small), scale_factor=2, mode="bilinear")
        batch, channels, height, width = large.shape
        rows = large.reshape(batch, channels, height * width).transpose(1, 2).softmax(-1)
        pooled = nn.functional.avg_pool2d(small, 3, 2, 1, count_include_pad=False)
        return rows.argmax(-1), nn.functional.pad(pooled, (1, 2, 0, 1), mode="reflect"), torch.topk(rows.flatten(1), 4).values


@pytest.mark.parametrize("name", ["images", "encoder", "lstm", "gru"])
def test_an_onnx_file_of_torch_answers_as_onnxruntime(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    module, example = {
        "images": (Images(), torch.randn(2, 3, 16, 16)),
        "encoder": (Encoder(), torch.randint(0, 50, (2, 7))),
        "lstm": (Recurrent(nn.LSTM, bidirectional=True), torch.randn(2, 9, 5)),
        "gru": (Recurrent(nn.GRU), torch.randn(2, 9, 5)),
    }[name]
    path = tmp_path / "exported.onnx"
    torch.onnx.export(module.eval(), (example,), path, dynamo=True, dynamic_shapes=({0: "batch"},), verbose=False)
    files = capture_here(CaptureRequest("exported", source=str(path)))
    session = onnxruntime.InferenceSession(path)
    for batch in BATCHES:
        given = example[:1].repeat(batch, *([1] * (example.dim() - 1)))
        given = given + torch.randn(given.shape) if given.is_floating_point() else torch.randint(0, 50, given.shape)
        expected = session.run(None, {session.get_inputs()[0].name: given.numpy()})
        assert_close(run_files(files, tmp_path, [given]), [torch.from_numpy(array) for array in expected])


def test_an_onnx_file_with_tensors_beside_it_is_added(repository: DirectoryRepository, tmp_path: Path) -> None:
    weight = np.arange(12, dtype=np.float32).reshape(4, 3)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "w.bin").write_bytes(b"12345678" + weight.tobytes())
    path = onnx_files.linear(tmp_path / "linear.onnx", onnx_files.outside("data/w.bin", 8))
    lines: list[str] = []
    entry = add_from(repository, "linear", str(path), progress=lines.append)
    given = torch.randn(7, 4)
    assert_close(run(entry.program, entry.weights, [given]), [given @ torch.from_numpy(weight) + 1])
    assert [spec.name for spec in (*entry.signature.inputs, *entry.signature.outputs)] == ["x", "y"]
    assert lines[-2:] == ["linear: comparing it with the source", lines[-1]]
    assert entry.layers is not None


def _outside_linked(folder: Path) -> Path:
    (folder / "elsewhere").write_bytes(bytes(48))
    (folder / "w.bin").symlink_to(folder / "elsewhere")
    return onnx_files.linear(folder / "model.onnx", onnx_files.outside("w.bin"))


def _outside_short(folder: Path) -> Path:
    (folder / "w.bin").write_bytes(bytes(40))
    return onnx_files.linear(folder / "model.onnx", onnx_files.outside("w.bin"))


def _outside_longer(folder: Path) -> Path:
    (folder / "w.bin").write_bytes(bytes(400))
    return onnx_files.linear(folder / "model.onnx", onnx_files.outside("w.bin", length=400))


def _outside_pipe(folder: Path) -> Path:
    os.mkfifo(folder / "w.bin")
    return onnx_files.linear(folder / "model.onnx", onnx_files.outside("w.bin"))


def _truncated(model: Any) -> None:
    model.graph.initializer[0].raw_data = bytes(20)


def _huge(model: Any) -> None:
    model.graph.initializer[0].dims[0] = 1 << 50


def _calls_itself(model: Any) -> None:
    calls = onnx_files.node("Loop1", ["x"], ["z"], "mine")
    model.functions.append(helper.make_function("mine", "Loop1", ["x"], ["z"], [calls], [helper.make_opsetid("mine", 1)]))
    model.graph.node.insert(0, onnx_files.node("Loop1", ["x"], ["unused"], "mine"))


def _doubles(model: Any) -> None:
    """Thirty functions, each of which calls the next one twice."""
    for number in range(30):
        inner = f"F{number + 1}" if number < 29 else "Relu"
        domain = "mine" if number < 29 else ""
        nodes = [onnx_files.node(inner, ["x"], ["h"], domain), onnx_files.node(inner, ["h"], ["z"], domain)]
        opsets = [helper.make_opsetid("mine", 1), helper.make_opsetid("", 18)]
        model.functions.append(helper.make_function("mine", f"F{number}", ["x"], ["z"], nodes, opsets))
    model.graph.node.insert(0, onnx_files.node("F0", ["x"], ["unused"], "mine"))


BROKEN: dict[str, tuple[Any, str]] = {
    "garbage": (lambda folder: _bytes(folder, b"\xff\x01garbage"), "not a protocol buffer"),
    "empty": (lambda folder: _bytes(folder, b""), "no graph"),
    "an absolute path": (
        lambda folder: onnx_files.linear(folder / "model.onnx", onnx_files.outside("/etc/passwd")),
        "relative path",
    ),
    "a path outside": (lambda folder: onnx_files.linear(folder / "model.onnx", onnx_files.outside("../w.bin")), "relative path"),
    "no path": (lambda folder: onnx_files.linear(folder / "model.onnx", onnx_files.outside("")), "relative path"),
    "a missing file": (lambda folder: onnx_files.linear(folder / "model.onnx", onnx_files.outside("w.bin")), "No such file"),
    "a link": (_outside_linked, "links are not followed"),
    "a short file": (_outside_short, "the file has 40"),
    "a longer tensor": (_outside_longer, "needs 48 bytes, its entry states 400"),
    "a pipe": (_outside_pipe, "not a regular file"),
    "a negative offset": (
        lambda folder: onnx_files.linear(folder / "model.onnx", onnx_files.outside("model.onnx", -8)),
        "states 48 from -8",
    ),
    "a truncated tensor": (lambda folder: onnx_files.linear(folder / "model.onnx", _truncated), "has 20 bytes and needs 48"),
    "a huge tensor": (lambda folder: onnx_files.linear(folder / "model.onnx", _huge), "has the shape"),
    "a function that calls itself": (lambda folder: onnx_files.linear(folder / "model.onnx", _calls_itself), "calls itself"),
    "too many nodes": (lambda folder: onnx_files.linear(folder / "model.onnx", _doubles), "more than 20000 nodes"),
    "an unknown value": (lambda folder: _nodes(folder, onnx_files.node("Relu", ["z"], ["y"])), "before anything makes it"),
    "a value twice": (lambda folder: _nodes(folder, onnx_files.node("Relu", ["x"], ["x"])), "a second time"),
    "no output": (lambda folder: _nodes(folder, onnx_files.node("Relu", ["x"], ["z"])), "no node makes its output"),
    "an unknown operator": (lambda folder: _nodes(folder, onnx_files.node("NonZero", ["x"], ["y"])), "not imported: NonZero"),
    "an unknown domain": (lambda folder: _nodes(folder, onnx_files.node("Relu", ["x"], ["y"], "other")), "without importing"),
    "a lacking input": (lambda folder: _nodes(folder, onnx_files.node("MatMul", ["x"], ["y"])), "lacks its input 1"),
    "shapes that do not fit": (
        lambda folder: onnx_files.write(
            folder / "model.onnx", [onnx_files.node("MatMul", ["x", "w"], ["y"])], {"w": np.zeros((5, 2), np.float32)}
        ),
        r"MatMul, version 18, cannot be imported",
    ),
    "a size that depends on values": (
        lambda folder: _nodes(
            folder, onnx_files.node("Cast", ["x"], ["n"], to=7), onnx_files.node("ConstantOfShape", ["n"], ["y"])
        ),
        "sizes depend on values",
    ),
    "more elements than a machine has": (
        lambda folder: onnx_files.write(
            folder / "model.onnx",
            [onnx_files.node("ConstantOfShape", ["n"], ["c"]), onnx_files.node("Add", ["x", "c"], ["y"])],
            {"n": np.array([1 << 20, 1 << 20, 4])},
        ),
        "elements and at most",
    ),
    "samples that mix": (
        lambda folder: _nodes(
            folder,
            onnx_files.node("ReduceSum", ["x", "axis"], ["s"]),
            onnx_files.node("Sub", ["x", "s"], ["y"]),
            axis=np.array([0]),
        ),
        "mixes the samples",
    ),
    "a batch that is not 1": (
        lambda folder: onnx_files.write(folder / "model.onnx", [onnx_files.node("Relu", ["x"], ["y"])], shape=(5, 4)),
        "first axis must be the batch",
    ),
}


def _bytes(folder: Path, data: bytes) -> Path:
    (folder / "model.onnx").write_bytes(data)
    return folder / "model.onnx"


def _nodes(folder: Path, *nodes: Any, **constants: Any) -> Path:
    return onnx_files.write(folder / "model.onnx", nodes, constants)


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_or_hostile_onnx_file_is_refused_with_the_reason(what: str, tmp_path: Path) -> None:
    make, says = BROKEN[what]
    with pytest.raises(GnomonError, match=says) as caught:
        capture_here(CaptureRequest("model", source=str(make(tmp_path))))
    assert 400 <= caught.value.status < 500


def test_a_refused_file_leaves_nothing_in_the_repository(repository: DirectoryRepository, tmp_path: Path) -> None:
    with pytest.raises(GnomonError, match="more than 20000 nodes") as caught:
        add_from(repository, "model", str(onnx_files.linear(tmp_path / "model.onnx", _doubles)))
    assert (caught.value.status, caught.value.code) == (422, "invalid_onnx")
    assert list(repository.list()) == []
    assert [path for path in (tmp_path / "models").rglob("*") if path.is_file()] == []


def test_a_file_for_one_sample_is_captured_for_any_batch(tmp_path: Path) -> None:
    weight = np.linspace(-1, 1, 24, dtype=np.float32).reshape(8, 3)
    nodes = [onnx_files.node("Reshape", ["x", "shape"], ["flat"]), onnx_files.node("MatMul", ["flat", "w"], ["y"])]
    path = onnx_files.write(tmp_path / "m.onnx", nodes, {"shape": np.array([1, 8]), "w": weight}, shape=(1, 2, 4))
    given = torch.randn(7, 2, 4)
    answers = run_files(capture_here(CaptureRequest("m", source=str(path))), tmp_path, [given])
    assert_close(answers, [given.reshape(7, 8) @ torch.from_numpy(weight)])


def test_sizes_that_a_file_leaves_open_are_said(repository: DirectoryRepository, tmp_path: Path) -> None:
    path = onnx_files.write(tmp_path / "m.onnx", [onnx_files.node("Relu", ["x"], ["y"])], shape=("batch", "length", 4))
    for shapes, says in (((), r"x \(\?, \?, 4\)"), (((3, 5),), "says another"), (((3, 4), (1,)), "2 shapes are given")):
        with pytest.raises(GnomonError, match=says) as caught:
            capture_here(CaptureRequest("m", source=str(path), shapes=shapes))
        assert (caught.value.status, caught.value.code) == (400, "invalid_source")
    assert add_from(repository, "m", str(path), shapes=[(6, 4)]).signature.inputs[0].shape == (6, 4)


def bert(**settings: Any) -> Any:
    return transformers.BertForSequenceClassification(bert_config(num_labels=3, **settings))


def distilbert() -> Any:
    config = transformers.DistilBertConfig(
        vocab_size=60, dim=16, n_layers=2, n_heads=2, hidden_dim=32, max_position_embeddings=24
    )
    return transformers.DistilBertForMaskedLM(config)


def roberta() -> Any:
    return transformers.RobertaModel(transformers.RobertaConfig(vocab_size=60, max_position_embeddings=26, **SMALL))


def mpnet() -> Any:
    return transformers.MPNetModel(transformers.MPNetConfig(vocab_size=60, max_position_embeddings=26, **SMALL))


def vit() -> Any:
    return transformers.ViTForImageClassification(transformers.ViTConfig(image_size=16, patch_size=4, num_labels=5, **SMALL))  # type: ignore[call-arg]


def dinov2() -> Any:
    config = transformers.Dinov2Config(image_size=16, patch_size=4, hidden_size=16, num_hidden_layers=2, num_attention_heads=2)  # type: ignore[call-arg]
    return transformers.Dinov2Model(config)


def yolos() -> Any:
    config = transformers.YolosConfig(image_size=[32, 32], patch_size=16, num_detection_tokens=4, num_labels=3, **SMALL)  # type: ignore[call-arg]
    return transformers.YolosForObjectDetection(config)


def beit() -> Any:
    """A model of images whose configuration has a vocabulary."""
    config = transformers.BeitConfig(image_size=16, patch_size=4, num_labels=3, **SMALL)  # type: ignore[call-arg]
    return transformers.BeitForImageClassification(config)


def clip_text() -> Any:
    config = transformers.CLIPTextConfig(vocab_size=60, max_position_embeddings=24, projection_dim=8, eos_token_id=59, **SMALL)  # type: ignore[call-arg]
    return transformers.CLIPTextModelWithProjection(config)


def qwen2() -> Any:
    """A decoder, as for embeddings."""
    config = transformers.Qwen2Config(vocab_size=60, max_position_embeddings=24, num_key_value_heads=1, **SMALL)
    return transformers.Qwen2Model(config)


def t5() -> Any:
    return transformers.T5EncoderModel(
        transformers.T5Config(vocab_size=60, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2)
    )


def _transformers_inputs(entry_inputs: Sequence[Any], batch: int) -> dict[str, Tensor]:
    made: dict[str, Tensor] = {}
    for spec in entry_inputs:
        if spec.name == "pixel_values":
            made[spec.name] = torch.randn(batch, *spec.shape)
        elif spec.name == "input_ids":
            made[spec.name] = torch.randint(3, 60, (batch, *spec.shape))
        else:
            made[spec.name] = (torch.arange(spec.shape[0]) < spec.shape[0] - torch.arange(batch)[:, None]).long()
    return made


@pytest.mark.parametrize(
    ("make", "outputs"),
    [
        (bert, ["logits"]),
        (distilbert, ["logits"]),
        (roberta, ["last_hidden_state", "pooler_output"]),
        (mpnet, ["last_hidden_state", "pooler_output"]),
        (vit, ["logits"]),
        (dinov2, ["last_hidden_state", "pooler_output"]),
        (yolos, ["logits", "pred_boxes", "last_hidden_state"]),
        (beit, ["logits"]),
        (clip_text, ["text_embeds", "last_hidden_state"]),
        (qwen2, ["last_hidden_state"]),
        (t5, ["last_hidden_state"]),
    ],
)
def test_a_folder_of_transformers_answers_as_its_model(make: Any, outputs: list[str], tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = make().eval()
    model.save_pretrained(tmp_path / "saved")
    files = capture_here(CaptureRequest("model", source=str(tmp_path / "saved")))
    signature = json.loads(files["program.json"])["signature"]
    assert [spec["name"] for spec in signature["outputs"]] == outputs
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    program = load_program(tmp_path / "program.json", tmp_path / "weights.safetensors")
    for batch in BATCHES:
        given = _transformers_inputs(program.signature.inputs, batch)
        with torch.inference_mode():
            answer = model(**given, return_dict=True)
        assert_close(
            [output.clone() for output in program.executor.run(list(given.values()))], [answer[name] for name in outputs]
        )


def test_a_text_model_is_added_for_sequences_of_a_length(repository: DirectoryRepository, tmp_path: Path) -> None:
    bert().save_pretrained(tmp_path / "saved")
    entry = add_from(repository, "reviews", str(tmp_path / "saved"), length=16)
    assert [(spec.name, spec.datatype, spec.shape) for spec in entry.signature.inputs] == [
        ("input_ids", "INT64", (16,)),
        ("attention_mask", "INT64", (16,)),
    ]
    assert entry.signature.details["labels"] == ["LABEL_0", "LABEL_1", "LABEL_2"]
    with pytest.raises(GnomonError, match="at most 24 tokens, not 25"):
        capture_here(CaptureRequest("reviews", source=str(tmp_path / "saved"), length=25))


def test_models_of_other_inputs_than_texts_and_images_are_refused_with_the_way_that_takes_them(tmp_path: Path) -> None:
    config = transformers.ASTConfig(max_length=32, num_mel_bins=16, **SMALL)  # type: ignore[call-arg]
    transformers.ASTForAudioClassification(config).save_pretrained(tmp_path / "saved")
    with pytest.raises(GnomonError, match=r"takes input_values; .*FILE\.py:CALLABLE") as caught:
        capture_here(CaptureRequest("sounds", source=str(tmp_path / "saved")))
    assert (caught.value.status, caught.value.code) == (422, "unsupported_model")


def gpt2() -> Any:
    """Which finds the end of a text by its last token that is not padding's, and so takes any length."""
    config = transformers.GPT2Config(vocab_size=60, n_positions=24, n_embd=16, n_layer=2, n_head=2, num_labels=3, pad_token_id=5)  # type: ignore[call-arg]
    return transformers.GPT2ForSequenceClassification(config)


@pytest.mark.parametrize(
    ("make", "number", "outputs"),
    [
        (bert, 0, []),
        (distilbert, 0, ["logits"]),
        (roberta, 1, ["last_hidden_state"]),
        (mpnet, 1, ["last_hidden_state"]),
        (gpt2, 5, []),
    ],
)
def test_text_model_says_how_shorter_sequences_are_padded(make: Any, number: int, outputs: list[str], tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = make().eval()
    model.save_pretrained(tmp_path / "saved")
    loaded = load_transformers("model", tmp_path / "saved", 12)
    assert loaded.description.details["padding"] == {
        "length": 12,
        "inputs": {"input_ids": number, "attention_mask": 0},
        "outputs": outputs,
    }


def test_model_whose_answers_depend_on_the_padding_keeps_its_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bert(initializer_range=0.5).save_pretrained(tmp_path / "saved")
    forward = transformers.BertForSequenceClassification.forward

    def unmasked(self: Any, input_ids: Tensor, attention_mask: Tensor, **options: Any) -> Any:
        return forward(self, input_ids, torch.ones_like(attention_mask), **options)

    monkeypatch.setattr(transformers.BertForSequenceClassification, "forward", unmasked)
    assert "padding" not in load_transformers("model", tmp_path / "saved", 12).description.details


def _config(folder: Path, **changes: Any) -> None:
    document = json.loads((folder / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps(document))


def _pickled(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    torch.save({}, folder / "pytorch_model.bin")


def _indexed(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"w": "../other.safetensors"}}))


def _of_another(folder: Path) -> None:
    distilbert().save_pretrained(folder / "other")
    (folder / "other" / "model.safetensors").rename(folder / "model.safetensors")


@pytest.mark.parametrize(
    ("change", "code", "says"),
    [
        (lambda folder: _config(folder, auto_map={"AutoModel": "mine.Model"}), "unsafe_source", "auto_map"),
        (lambda folder: (folder / "modeling_mine.py").write_text("raise SystemExit"), "unsafe_source", "code in the folder"),
        (_pickled, "unsafe_source", r"pytorch_model\.bin is a pickle.*safetensors"),
        (_indexed, "invalid_transformers", "no safetensors file in the folder"),
        (_of_another, "invalid_transformers", "weights lack"),
        (lambda folder: (folder / "model.safetensors").unlink(), "invalid_transformers", r"no model\.safetensors"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"\xff" * 64), "invalid_transformers", "cannot be read"),
        (lambda folder: (folder / "config.json").write_text("[1"), "invalid_transformers", r"config\.json cannot be read"),
        (lambda folder: _config(folder, architectures=[]), "invalid_transformers", "no architecture"),
        (lambda folder: _config(folder, architectures=["GPT2LMHeadModel"]), "unsupported_model", "step by step"),
        (
            lambda folder: _config(folder, architectures=["BertForNothing"]),
            "unsupported_model",
            "no model class 'BertForNothing'",
        ),
        (lambda folder: _config(folder, architectures=["AutoModel"]), "unsupported_model", "no model class 'AutoModel'"),
        (lambda folder: _config(folder, architectures=["Wav2Vec2Model"]), "invalid_transformers", "weights lack"),
        (lambda folder: _config(folder, quantization_config={}), "unsupported_model", "quantised"),
        (lambda folder: _config(folder, hidden_size=32), "invalid_transformers", "cannot be read"),
    ],
)
def test_a_folder_of_transformers_that_is_not_safe_or_whole_is_refused(change: Any, code: str, says: str, tmp_path: Path) -> None:
    bert().save_pretrained(tmp_path / "saved")
    change(tmp_path / "saved")
    with pytest.raises(GnomonError, match=says) as caught:
        capture_here(CaptureRequest("reviews", source=str(tmp_path / "saved")))
    assert caught.value.code == code
    assert 400 <= caught.value.status < 500


FEATURES, CLASSES = load_iris(return_X_y=True)
NAMES = np.array(["setosa", "versicolor", "virginica"])[CLASSES]
ESTIMATORS = {
    "logistic": (LogisticRegression(max_iter=500), CLASSES),
    "two classes": (LogisticRegression(max_iter=500), (CLASSES > 0).astype(int) + 3),
    "perceptron": (MLPClassifier((8,), max_iter=20, random_state=0), CLASSES),
    "forest": (RandomForestClassifier(5, max_depth=4, random_state=0), CLASSES),
    "boosting": (GradientBoostingClassifier(n_estimators=5, random_state=0), CLASSES),
    "boosting of two classes": (GradientBoostingClassifier(n_estimators=5, random_state=0), (CLASSES > 0).astype(int)),
    "pipeline": (make_pipeline(StandardScaler(), LogisticRegression(max_iter=500)), NAMES),
    "histogram boosting": (HistGradientBoostingClassifier(max_iter=5, random_state=0), CLASSES),
    "nearest neighbours": (make_pipeline(StandardScaler(), KNeighborsClassifier()), CLASSES),
    "best of a search": (GridSearchCV(LogisticRegression(max_iter=500), {"C": [0.5, 1.0]}), CLASSES),
    "calibrated support vectors": (CalibratedClassifierCV(SVC(), ensemble=False), CLASSES),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ESTIMATORS)
def test_an_estimator_answers_as_scikit_learn(name: str, repository: DirectoryRepository) -> None:
    estimator, classes = ESTIMATORS[name]
    estimator.fit(FEATURES, classes)
    entry = add_model(estimator, None, "iris", repository)
    assert entry.signature.details["labels"] == [str(class_name) for class_name in estimator.classes_]
    assert [spec.name for spec in entry.signature.inputs] == ["features"]
    for batch in BATCHES:
        rows = FEATURES[:: len(FEATURES) // batch][:batch].astype(np.float32)
        *labels, probabilities = run(entry.program, entry.weights, [torch.from_numpy(rows)])
        assert_close([probabilities], [torch.from_numpy(estimator.predict_proba(rows))])
        assert [label.tolist() for label in labels] == ([] if classes is NAMES else [estimator.predict(rows).tolist()])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("two", [False, True])
@pytest.mark.parametrize("kernel", ["linear", "poly", "rbf", "sigmoid"])
def test_a_support_vector_machine_gives_the_labels_and_scores_of_scikit_learn(kernel: str, two: bool, tmp_path: Path) -> None:  # noqa: FBT001 - a table's column
    classes = (CLASSES > 0).astype(int) if two else CLASSES
    machine = SVC(kernel=kernel, C=3.0).fit(FEATURES, classes)
    model = model_of_estimator(machine, Description("machine"))
    assert [*model.description.output_names] == ["label", "scores"]
    rows = FEATURES[::7].astype(np.float32)
    label, scores = run_files(capture(model.module, model.example, model.description), tmp_path, [torch.from_numpy(rows)])
    assert label.tolist() == machine.predict(rows).tolist()
    expected = torch.from_numpy(machine.decision_function(rows))
    assert_close([scores[:, 0] if two else scores], [expected])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "estimator",
    [
        SVR(),
        NuSVR(kernel="poly", degree=2),
        KNeighborsRegressor(),
        HistGradientBoostingRegressor(max_iter=5),
        GaussianProcessRegressor(alpha=0.1),
    ],
    ids=lambda estimator: type(estimator).__name__,
)
def test_a_regressor_answers_as_scikit_learn(estimator: Any, tmp_path: Path) -> None:
    estimator.fit(FEATURES[:, :3], FEATURES[:, 3])
    model = model_of_estimator(estimator, Description("regressor"))
    rows = FEATURES[::7, :3].astype(np.float32) + 0.01
    (answer,) = run_files(capture(model.module, model.example, model.description), tmp_path, [torch.from_numpy(rows)])
    assert_close([answer.reshape(-1)], [torch.from_numpy(estimator.predict(rows).reshape(-1))])


@pytest.mark.filterwarnings("ignore")
def test_probabilities_of_a_mixture_and_the_side_of_an_outlier() -> None:
    for estimator in (GaussianMixture(3, random_state=0).fit(FEATURES), OneClassSVM().fit(FEATURES)):
        model = model_of_estimator(estimator, Description("side"))
        rows = torch.from_numpy(FEATURES[::7].astype(np.float32))
        assert model.module(rows)[0].reshape(-1).tolist() == estimator.predict(rows.numpy()).tolist()


@pytest.mark.filterwarnings("ignore")
def test_an_estimator_with_a_setting_that_its_onnx_form_lacks_is_refused() -> None:
    estimator = KNeighborsRegressor(weights="distance").fit(FEATURES[:, :3], FEATURES[:, 3])
    with pytest.raises(GnomonError, match="answers otherwise than its ONNX form"):
        model_of_estimator(estimator, Description("regressor"))


@pytest.mark.filterwarnings("ignore")
def test_a_support_vector_machine_that_iterates_its_probabilities_says_what_to_take_instead() -> None:
    with pytest.raises(GnomonError, match="wrap it into CalibratedClassifierCV"):
        model_of_estimator(SVC(probability=True).fit(FEATURES, CLASSES), Description("machine"))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["perceptron", "forest", "pipeline"])
def test_an_estimator_is_read_from_a_file_of_skops(name: str, tmp_path: Path) -> None:
    estimator, classes = ESTIMATORS[name]
    estimator.fit(FEATURES, classes)
    skops.io.dump(estimator, tmp_path / "iris.skops")
    files = capture_here(CaptureRequest("iris", source=str(tmp_path / "iris.skops")))
    rows = FEATURES[::20].astype(np.float32)
    *_, probabilities = run_files(files, tmp_path, [torch.from_numpy(rows)])
    assert_close([probabilities], [torch.from_numpy(estimator.predict_proba(rows))])


def test_an_estimator_is_added_from_a_file_of_skops(repository: DirectoryRepository, tmp_path: Path) -> None:
    skops.io.dump(LogisticRegression(max_iter=500).fit(FEATURES, CLASSES), tmp_path / "iris.skops")
    assert add_from(repository, "iris", str(tmp_path / "iris.skops")).signature.details["labels"] == ["0", "1", "2"]


def test_an_estimator_is_added_from_a_callable_that_loads_it(repository: DirectoryRepository, tmp_path: Path) -> None:
    """A pickle is refused with the advice to load it in a callable, which must then do."""
    (tmp_path / "iris.pkl").write_bytes(pickle.dumps(LogisticRegression(max_iter=500).fit(FEATURES, CLASSES)))
    (tmp_path / "iris.py").write_text(
        "import pathlib, pickle\ndef load(): return pickle.loads(pathlib.Path(__file__).with_suffix('.pkl').read_bytes())\n"
    )
    entry = add_from(repository, "iris", f"{tmp_path / 'iris.py'}:load")
    assert entry.signature.details["labels"] == ["0", "1", "2"]
    with pytest.raises(GnomonError, match="whose inputs are known"):
        add_from(repository, "iris", f"{tmp_path / 'iris.py'}:load", shapes=[(4,)])


def test_estimators_that_are_not_safe_fitted_or_supported_are_refused(tmp_path: Path) -> None:
    pipeline = make_pipeline(FunctionTransformer(os.getenv), LogisticRegression())
    skops.io.dump(pipeline, tmp_path / "code.skops")
    skops.io.dump(LogisticRegression(), tmp_path / "raw.skops")
    (tmp_path / "broken.skops").write_bytes(b"PK")
    (tmp_path / "model.pkl").write_bytes(pickle.dumps(pipeline))
    words_by_file = {
        "code.skops": (400, "unsafe_source", "getenv"),
        "raw.skops": (422, "unsupported_model", "not fitted"),
        "broken.skops": (422, "invalid_skops", "not a zip file"),
        "model.pkl": (400, "unsafe_source", "would execute the code"),
        "model.joblib": (400, "unsafe_source", r"skops\.io\.dump.*FILE\.py:CALLABLE"),
        "missing.skops": (400, "invalid_source", "no file"),
    }
    for file, (status, code, says) in words_by_file.items():
        with pytest.raises(GnomonError, match=says) as caught:
            capture_here(CaptureRequest("iris", source=str(tmp_path / file)))
        assert (caught.value.status, caught.value.code) == (status, code)
    with pytest.raises(GnomonError, match="neither a torch module nor an estimator"):
        add_model(object(), None, "iris", tmp_path / "models")


def test_options_of_another_format_are_refused(repository: DirectoryRepository, tmp_path: Path) -> None:
    path = onnx_files.linear(tmp_path / "linear.onnx")
    for options, says in (({"length": 5}, "Leave out --length"), ({"weights": path}, "Leave out --weights")):
        with pytest.raises(GnomonError, match=says):
            add_from(repository, "linear", str(path), **options)  # type: ignore[arg-type]


def test_external_data_of_a_model_in_memory_is_refused(tmp_path: Path) -> None:
    from gnomon_profiler.importing.onnx_file import read_model  # noqa: PLC0415 - torch

    model = onnx.load(onnx_files.linear(tmp_path / "m.onnx", onnx_files.outside("w.bin")), load_external_data=False)
    with pytest.raises(GnomonError, match="has no folder"):
        read_model(model, "m")

"""A model in int8 on both engines: agreement and accuracy are measured, pieces answer as the whole, and refusals say why."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch import Tensor, nn

from benchmarks.profiled_variants import engines_to_measure, measure_engine
from gnomon_core.blocks import Layers
from gnomon_core.engines import (
    AGREEMENT,
    BF16,
    GRAPH_FILES,
    INT8,
    PIECES_TOLERANCE,
    REPORT,
    ChosenEngine,
    EngineReport,
    choose_engine,
    cpu_arithmetic,
    read_report,
)
from gnomon_core.errors import GnomonError
from gnomon_core.interfaces import ModelEntry
from gnomon_profiler.add import add_model
from gnomon_profiler.engines import add_engines, add_samples
from gnomon_profiler.measuring.session import MeasuringProcess, this_machine
from gnomon_profiler.repository import DirectoryRepository
from gnomon_runtime.engine.graphs import GraphModel

pytestmark = [
    pytest.mark.torch,
    pytest.mark.timeout(400),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]
pytest.importorskip("openvino", reason="the extra openvino is not installed")
pytest.importorskip("onnxruntime", reason="the extra onnxruntime is not installed")
NEEDS_BF16 = pytest.mark.skipif(BF16 not in cpu_arithmetic(), reason="this CPU has no bf16 arithmetic")
NARROW = ("onnxruntime-int8", "openvino-int8")
CLASSES = 4
AGAINST_TELEMETRY = ("CI", "TF_BUILD", "JENKINS_URL", "XDG_CACHE_HOME", "ORT_DISABLE_TELEMETRY")
"""Variables by which the libraries leave out their telemetry, or put its files elsewhere."""


class Network(nn.Module):
    """Convolutions with normalisation, two ways that join, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, 1, 1), nn.BatchNorm2d(16), nn.ReLU())
        self.blocks = nn.ModuleList(nn.Sequential(nn.Conv2d(16, 16, 3, 1, 1), nn.ReLU()) for _ in range(4))
        self.head = nn.Linear(16, CLASSES)

    def forward(self, image: Tensor) -> Tensor:
        x = self.stem(image)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x.mean((2, 3)))


def samples(count: int) -> Tensor:
    """Images of classes that differ by what they are brightest in."""
    rng = torch.Generator().manual_seed(1)
    images = torch.randn(count, 3, 16, 16, generator=rng)
    return images + 2.0 * torch.eye(3)[torch.arange(count) % 3][:, :, None, None]


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> DirectoryRepository:
    return DirectoryRepository(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The home of the user who converts the network."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def entry(repository: DirectoryRepository, home: Path, tmp_path_factory: pytest.TempPathFactory) -> ModelEntry:
    """A network with a validation set, whose labels are the answers of its program."""
    torch.manual_seed(0)
    module, images = Network().eval(), samples(96)
    with torch.inference_mode():
        labels = module(images).argmax(1)
    path = tmp_path_factory.mktemp("sets") / "validation.npz"
    np.savez(path, samples=images.numpy(), labels=labels.numpy())
    added = add_samples(repository, add_model(module, images[:1], "network", repository), validation=path)
    assert path.exists(), "a user's file stays where it is"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(home))
        for name in AGAINST_TELEMETRY:
            patch.delenv(name, raising=False)
        in_fp32 = add_engines(repository, added)
        return add_engines(repository, in_fp32, precisions=["auto"])


@pytest.fixture
def report(entry: ModelEntry) -> EngineReport:
    return read_report(entry.files[REPORT])


def test_report_has_each_engine_in_each_precision_with_agreement_and_accuracy(entry: ModelEntry, report: EngineReport) -> None:
    assert set(report.engines) == {*GRAPH_FILES, "onnxruntime-bf16"}
    assert report.validation == entry.sha256["validation.npz"]
    assert report.samples == "validation.npz, 64 samples"
    assert report.program.accuracy == 1.0
    for name in ("onnxruntime", "openvino"):
        assert (report.result(name).reason, report.result(name).accuracy) == ("", 1.0)
    for name in NARROW:
        result = report.result(name)
        assert result.agreement is not None
        assert result.accuracy is not None
        assert result.versions["onnxruntime"]
        assert set(result.latency_s) == {1, 8}
        assert result.reason or result.agreement >= AGREEMENT[INT8], "what agrees too rarely is not offered"


def test_weights_have_all_8_bits_where_the_cpu_sums_their_products_exactly(entry: ModelEntry, report: EngineReport) -> None:
    arithmetic = INT8 if INT8 in cpu_arithmetic() else ""
    graph = onnx.load(entry.files["model-int8.onnx"])
    weights = [
        onnx.numpy_helper.to_array(initializer)
        for initializer in graph.graph.initializer
        if initializer.data_type == onnx.TensorProto.INT8
    ]
    largest = max(int(abs(weight.astype(int)).max()) for weight in weights)
    assert (largest > 64) == (arithmetic == INT8)  # 7 bits: −64 to 64
    assert {report.result(name).arithmetic for name in NARROW} == {arithmetic}
    assert report.result("openvino-bf16").arithmetic in ("", BF16)


def test_conversion_and_measurement_report_nothing_to_the_makers_of_the_engines(entry: ModelEntry, home: Path) -> None:
    """Where they report, both libraries keep an identifier of this machine in the home."""
    assert entry.files.keys() >= {file for files in GRAPH_FILES.values() for file in files}
    assert [str(path) for path in home.rglob("*") if {"Microsoft", "intel"} & set(path.parts)] == []


def test_precision_without_arithmetic_on_this_cpu_says_so(report: EngineReport) -> None:
    assert report.result("onnxruntime-bf16").reason == "onnxruntime has no kernels for bf16 on CPUs"
    from gnomon_runtime.engine.openvino_graph import has_bf16  # noqa: PLC0415 - an extra

    if has_bf16():
        assert report.result("openvino-bf16").agreement is not None
    else:
        assert "no bf16 arithmetic" in report.result("openvino-bf16").reason
        chosen = choose_engine("openvino", {}, report, BF16)
        assert "no bf16 arithmetic" in chosen.shortfall


@pytest.mark.parametrize("name", NARROW)
def test_pieces_of_a_quantised_graph_answer_as_the_whole_and_row_by_row(
    entry: ModelEntry, report: EngineReport, name: str
) -> None:
    assert entry.layers is not None
    layers = Layers.from_json(json.loads(entry.layers.read_bytes()))
    model = GraphModel(name, entry.program, {file: entry.files[file] for file in GRAPH_FILES[name]}, 1)
    images = samples(4)
    [whole] = model.run([images])
    scale = whole.abs().max()
    for rows in (slice(0, 4), slice(1, 3)):
        values = dict(zip(model.program.inputs, [images[rows]], strict=True))
        for segment in model.pieces([block.end for block in layers.blocks]):
            given = [values[read] for read in segment.border.reads]
            values |= zip(segment.border.makes, segment.run(len(images[rows]), given), strict=True)
        cut = values[model.program.outputs[0]]
        assert (cut - whole[rows]).abs().max() <= 1e-5 * scale
    pieces_error = report.result(name).pieces_error
    assert pieces_error is not None
    assert pieces_error <= 1e-5


@NEEDS_BF16
def test_bf16_agrees_with_the_program_and_is_computed_in_bf16(entry: ModelEntry, report: EngineReport) -> None:
    result, whole = report.result("openvino-bf16"), report.result("openvino")
    assert result.agreement is not None
    assert result.agreement >= AGREEMENT[BF16]
    assert result.accuracy is not None
    assert 10 * whole.error < 1e-4 < result.error < 0.05, "8 bits of a number are computed with, not 24"
    assert result.pieces_error is not None
    assert result.pieces_error <= PIECES_TOLERANCE


@NEEDS_BF16
def test_rows_of_pieces_in_bf16_are_those_of_the_whole_batch(entry: ModelEntry) -> None:
    """A Shadow's results of a batch equal those of its Body, bit by bit."""
    assert entry.layers is not None
    layers = Layers.from_json(json.loads(entry.layers.read_bytes()))
    model = GraphModel("openvino-bf16", entry.program, {file: entry.files[file] for file in GRAPH_FILES["openvino-bf16"]}, 1)
    images = samples(4)
    pieces = model.pieces([block.end for block in layers.blocks])

    def through(rows: slice) -> Tensor:
        values = dict(zip(model.program.inputs, [images[rows]], strict=True))
        for segment in pieces:
            given = [values[read] for read in segment.border.reads]
            values |= zip(segment.border.makes, segment.run(len(images[rows]), given), strict=True)
        return values[model.program.outputs[0]]

    assert torch.equal(through(slice(1, 3)), through(slice(0, 4))[1:3])


def test_precisions_are_not_converted_again(repository: DirectoryRepository, entry: ModelEntry) -> None:
    lines: list[str] = []
    assert add_engines(repository, entry, progress=lines.append, precisions=[INT8]).sha256 == entry.sha256
    assert lines == []


def test_unknown_precision_is_refused_with_the_known_ones(repository: DirectoryRepository, entry: ModelEntry) -> None:
    with pytest.raises(GnomonError) as refused:
        add_engines(repository, entry, precisions=["fp8"])
    assert (refused.value.status, refused.value.code) == (400, "unknown_precision")
    assert "int8" in refused.value.hint


def test_bad_validation_set_leaves_the_entry_as_it_is(repository: DirectoryRepository, entry: ModelEntry, tmp_path: Path) -> None:
    empty, other = tmp_path / "empty.npz", tmp_path / "other.npz"
    np.savez(empty, samples=np.zeros((0, 3, 16, 16), "float32"), labels=np.zeros(0, int))
    np.savez(other, samples=samples(3).numpy(), labels=np.zeros(3, int))
    with pytest.raises(GnomonError, match="is empty"):
        add_samples(repository, entry, validation=empty)
    with pytest.raises(GnomonError) as refused:
        add_samples(repository, entry, validation=other)
    assert refused.value.code == "model_exists"
    files = {**entry.files, "validation.npz": empty}
    with pytest.raises(GnomonError, match="is empty"):
        repository.put_files("another", "1", files)
    assert repository.get("network").sha256 == entry.sha256


def test_variants_are_measured_with_what_made_them(entry: ModelEntry) -> None:
    chosen, refused = engines_to_measure(entry)
    assert {"onnxruntime-bf16"} <= set(refused)
    assert {"program", "onnxruntime", "openvino"} <= {engine.name for engine in chosen}
    with MeasuringProcess() as process:
        found = measure_engine(
            process, entry, chosen[1], this_machine(), cores=1, batches=(1, 2), repeats=3, budget_s=0.01
        )  # fmt: skip
    small, large = found.variants()
    assert (small.max_batch, large.max_batch, set(small.latency_s), set(large.latency_s)) == (1, 2, {1}, {1, 2})
    assert (small.engine, small.precision, small.accuracy, small.cost_per_s) == (chosen[1].engine, "fp32", 1.0, 1.0)
    assert found.load_s > 0
    assert found.memory_bytes > 0
    assert large.saturation_rps > 0
    assert found.versions


def test_measurement_over_its_limit_is_given_up(entry: ModelEntry) -> None:
    given: dict[str, Any] = {"cores": 1, "batches": (1,), "repeats": 3, "budget_s": 5.0}
    with MeasuringProcess() as process, pytest.raises(GnomonError, match=r"no answer for 0\.01 s") as failed:
        measure_engine(process, entry, ChosenEngine(), this_machine(), limit_s=0.01, **given)
    assert failed.value.code == "measuring_failed"

"""A model runs on ONNX Runtime and OpenVINO as it does as a layer program: whole, cut anywhere, and in parts of a batch."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

from gnomon_core.blocks import Layers
from gnomon_core.engines import GRAPH_FILES, PROGRAM, REPORT, read_report
from gnomon_core.interfaces import ModelEntry
from gnomon_core.launch import Launch
from gnomon_core.packaging import FOR_LIBRARIES
from gnomon_core.wire import Frame, Kind, Member
from gnomon_profiler.add import add_from, add_model
from gnomon_profiler.child_processes import ChildProcesses
from gnomon_profiler.engines import add_engines, convert
from gnomon_profiler.importing.transformers_folder import Named
from gnomon_profiler.repository import DirectoryRepository
from gnomon_runtime.body import ModelApplication
from gnomon_runtime.engine import LoadedProgram, load_program
from gnomon_runtime.engine.graphs import GRAPHS, GraphModel
from gnomon_runtime.measuring.measurements import sample_inputs
from tests.refusals import refused
from tests.small_transformers import SMALL, bert_config
from tests.waiting import eventually

pytestmark = [
    pytest.mark.torch,
    pytest.mark.timeout(240),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]
ENGINES = ("onnxruntime", "openvino")
pytest.importorskip("openvino", reason="the extra openvino is not installed")
pytest.importorskip("onnxruntime", reason="the extra onnxruntime is not installed")


class Residual(nn.Module):
    """Convolutions with batch normalisation, two ways that join, attention over positions, and two outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU())
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(16, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.Hardswish()) for _ in range(6)
        )
        self.attention = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.head = nn.Linear(16, 5)

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        x = self.stem(image)
        for block in self.blocks:
            x = x + block(x)
        tokens = self.attention(x.flatten(2).transpose(1, 2)).mean(1)
        return self.head(tokens), tokens


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> DirectoryRepository:
    return DirectoryRepository(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def entry(repository: DirectoryRepository) -> ModelEntry:
    torch.manual_seed(0)
    added = add_model(Residual().eval(), torch.zeros(1, 3, 24, 24), "residual", repository)
    return add_engines(repository, added)


@pytest.fixture
def program(entry: ModelEntry) -> LoadedProgram:
    return load_program(entry.program, entry.weights)


def graph(entry: ModelEntry, engine: str, cores: int = 1) -> GraphModel:
    return GraphModel(engine, entry.program, {file: entry.files[file] for file in GRAPH_FILES[engine]}, cores)


def close(found: Tensor, expected: Tensor) -> bool:
    return bool((found - expected).abs().max() <= 1e-4 * expected.abs().max())


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("batch", [1, 2, 5])
def test_engine_answers_as_the_program_at_every_batch_size(
    entry: ModelEntry, program: LoadedProgram, engine: str, batch: int
) -> None:
    model, inputs = graph(entry, engine), sample_inputs(program.program, batch)
    for found, expected in zip(model.run(inputs), program.run(inputs), strict=True):
        assert close(found, expected)
    model.resize(2)
    for found, expected in zip(model.run(inputs), program.run(inputs), strict=True):
        assert close(found, expected)


@pytest.mark.parametrize("engine", ENGINES)
def test_pieces_cut_at_any_blocks_answer_as_the_program_and_row_by_row(
    entry: ModelEntry, program: LoadedProgram, engine: str
) -> None:
    assert entry.layers is not None
    layers = Layers.from_json(json.loads(entry.layers.read_bytes()))
    model, rng, inputs = graph(entry, engine), random.Random(1), sample_inputs(program.program, 4)
    expected = program.run(inputs)
    for _ in range(4):
        chosen = rng.sample(range(len(layers.blocks)), rng.randint(1, len(layers.blocks) - 1))
        runs = [(run.begin, run.end) for run in layers.runs(chosen)]
        whole, part = (through(model, runs, [tensor[rows] for tensor in inputs]) for rows in (slice(0, 4), slice(1, 3)))
        for found, rows, answer in zip(whole, part, expected, strict=True):
            assert close(found, answer), runs
            assert close(rows, answer[1:3]), runs


def through(model: GraphModel, runs: list[tuple[int, int]], inputs: list[Tensor]) -> list[Tensor]:
    values = dict(zip(model.program.inputs, inputs, strict=True))
    for segment in model.segments(runs):
        given = [values[name] for name in segment.border.reads]
        values |= zip(segment.border.makes, segment.run(len(inputs[0]), given), strict=True)
        assert not given, "a value that only the segment holds is freed after its use"
    return [values[name] for name in model.program.outputs]


@pytest.fixture(scope="module")
def text_entry(repository: DirectoryRepository) -> ModelEntry:
    """A classifier of texts of 16 tokens, of which its vocabulary has 60."""
    torch.manual_seed(0)
    bert = Named(
        transformers.BertForSequenceClassification(bert_config(num_hidden_layers=3)), ("input_ids", "attention_mask")
    ).eval()
    example = (torch.zeros(1, 16, dtype=torch.int64), torch.ones(1, 16, dtype=torch.int64))
    return add_engines(repository, add_model(bert, example, "bert", repository))


def test_text_model_runs_on_every_engine_whole_and_in_pieces(text_entry: ModelEntry) -> None:
    """A piece behind the first layer reads neither tokens nor mask, off which the whole graph reads the batch size."""
    assert text_entry.layers is not None
    layers, report = Layers.from_json(json.loads(text_entry.layers.read_bytes())), read_report(text_entry.files[REPORT])
    program = load_program(text_entry.program, text_entry.weights)
    inputs = sample_inputs(program.program, 4)
    [expected] = program.run(inputs)
    for engine in ENGINES:
        result, model = report.result(engine), graph(text_entry, engine)
        assert (result.reason, result.has_pieces) == ("", True)
        assert result.pieces_error is not None
        assert max(result.error, result.pieces_error) < 1e-5
        for kept in range(1, len(layers.blocks)):
            [answer] = through(model, [(run.begin, run.end) for run in layers.runs(range(kept))], inputs)
            assert close(answer, expected), (engine, kept)


@pytest.mark.parametrize("engine", [*ENGINES, PROGRAM])
def test_body_serves_on_every_engine_and_refuses_wrong_inputs_alike(entry: ModelEntry, engine: str) -> None:
    options = {"program": str(entry.program), "weights": str(entry.weights), "sha256": dict(entry.sha256)}
    if engine != PROGRAM:
        options |= {"engine": engine, "graph": {file: str(entry.files[file]) for file in GRAPH_FILES[engine]}}
    body = ModelApplication(Launch("model", "f", "f-1", 1, 8, options=options))
    assert body.hello()["engine"] == engine
    head = json.dumps({"kind": "tensors", "inputs": [spec.to_json() for spec in entry.signature.inputs]}).encode()
    sample = torch.ones(3, 24, 24).numpy().tobytes()
    members = [Member(200, 1, b"", sample), Member(200, 1, b"", sample[:-4]), Member(200, 2, b"", sample * 2)]
    result = body.run(Frame(Kind.BATCH, 1, 1, head=head, members=members))
    assert isinstance(result, Frame)
    assert [member.code for member in result.members] == [200, 400, 200]


@pytest.mark.parametrize("kind", ["images", "decoder"])
def test_transformers_of_images_and_decoders_are_offered_on_every_engine(
    kind: str, repository: DirectoryRepository, tmp_path: Path
) -> None:
    """The first one's values have names that ONNX's exporter uses itself; the second one would keep values for the next token."""
    torch.manual_seed(0)
    model: Any = (
        transformers.ViTModel(transformers.ViTConfig(image_size=16, patch_size=4, **SMALL))
        if kind == "images"
        else transformers.Qwen2Model(transformers.Qwen2Config(vocab_size=60, num_key_value_heads=1, **SMALL))
    )
    model.save_pretrained(tmp_path / kind)
    added = add_engines(repository, add_from(repository, kind, str(tmp_path / kind), length=16 if kind == "decoder" else 0))
    report = read_report(added.files[REPORT])
    assert {name: (result.reason, result.has_pieces) for name, result in report.engines.items()} == dict.fromkeys(
        ENGINES, ("", True)
    )


@pytest.mark.parametrize("engine", [*ENGINES, PROGRAM])
def test_token_beyond_the_vocabulary_is_refused_on_every_engine_and_fails_no_other_member(
    text_entry: ModelEntry, engine: str
) -> None:
    """OpenVINO would answer it, as a token without meaning."""
    options: dict[str, Any] = {"program": str(text_entry.program), "weights": str(text_entry.weights)}
    if engine != PROGRAM:
        options |= {"engine": engine, "graph": {file: str(text_entry.files[file]) for file in GRAPH_FILES[engine]}}
    body = ModelApplication(Launch("model", "f", "f-1", 1, 8, options=options))
    head = json.dumps({"kind": "tensors", "inputs": [spec.to_json() for spec in text_entry.signature.inputs]}).encode()
    tokens = torch.randint(0, 60, (4, 16))
    tokens[1, 3], tokens[2, 15] = 60, -1
    members = [Member(200, 1, b"", row.numpy().tobytes() + torch.ones(16, dtype=torch.int64).numpy().tobytes()) for row in tokens]
    result = body.run(Frame(Kind.BATCH, 1, 1, head=head, members=members))
    assert isinstance(result, Frame)
    assert [member.code for member in result.members] == [200, 400, 400, 200]
    assert b"input_0 has 60; the model takes 0 to 59." in bytes(result.members[1].body)


def test_report_names_the_quickest_engine_and_what_each_was_made_with(entry: ModelEntry) -> None:
    report = read_report(entry.files[REPORT])
    assert set(report.engines) == set(ENGINES)
    for engine in ENGINES:
        result = report.result(engine)
        assert not result.reason
        assert 0 <= result.error <= report.tolerance
        assert result.versions[engine]
        assert set(result.latency_s) == set(report.program.latency_s) == {1, 8}
    assert report.share(report.auto) == min(1.0, *(report.share(engine) for engine in ENGINES if report.auto != PROGRAM))


def test_converted_model_is_not_converted_again(repository: DirectoryRepository, entry: ModelEntry) -> None:
    lines: list[str] = []
    assert add_engines(repository, entry, progress=lines.append).sha256 == entry.sha256
    assert lines == []


def test_report_of_an_earlier_version_is_measured_anew_with_the_engines_that_it_refused(tmp_path: Path) -> None:
    model, example = nn.Linear(4, 2).eval(), torch.zeros(1, 4)
    before, repository = DirectoryRepository(tmp_path / "before"), DirectoryRepository(tmp_path / "models")
    converted = add_engines(before, add_model(model, example, "linear", before))
    document = json.loads(converted.files[REPORT].read_bytes())
    document |= {"format": "gnomon-engines/1", "engines": document["engines"] | {"onnxruntime": {"reason": "its answers differ"}}}
    earlier = tmp_path / REPORT
    earlier.write_text(json.dumps(document))
    added = add_model(model, example, "linear", repository)
    files = {name: Path(shutil.copy(converted.files[name], tmp_path / name)) for name in GRAPH_FILES["openvino"]}
    outdated = repository.put_files("linear", "1", {**added.files, **files, REPORT: earlier})
    assert set(GRAPH_FILES["onnxruntime"]).isdisjoint(outdated.files)
    renewed = add_engines(repository, outdated)
    assert {name: result.reason for name, result in read_report(renewed.files[REPORT]).engines.items()} == dict.fromkeys(
        ENGINES, ""
    )
    assert add_engines(repository, renewed).sha256 == renewed.sha256


def test_unknown_engine_is_refused_with_the_known_ones(repository: DirectoryRepository, entry: ModelEntry) -> None:
    with refused(400, "unknown_engine", hint="openvino"):
        add_engines(repository, entry, ["tensorrt"])


def test_failed_conversion_is_a_reason_and_leaves_the_program_serving(entry: ModelEntry, tmp_path: Path) -> None:
    """The weights are another model's: the process that converts ends with an error, which nobody catches."""
    broken = ModelEntry("broken", "1", entry.signature, entry.program, Path(entry.program), {}, None)
    reasons = convert(broken, ENGINES, tmp_path, lambda _: None)
    assert list(tmp_path.iterdir()) == []
    assert all(reason.startswith("the conversion ended early") for reason in reasons.values())
    assert set(reasons) == set(ENGINES)


@pytest.mark.parametrize("ended_by", ["the server", "SIGTERM"])
def test_conversion_that_is_told_to_end_says_nothing_about_the_model(tmp_path: Path, ended_by: str) -> None:
    """A report of it would keep the model from ever being converted."""
    repository = DirectoryRepository(tmp_path)
    added = add_model(nn.Linear(4, 2).eval(), torch.zeros(1, 4), "linear", repository)
    processes = ChildProcesses()
    with ThreadPoolExecutor() as threads:
        adding = threads.submit(add_engines, repository, added, processes=processes)
        [process] = eventually(lambda: processes._started)
        if ended_by == "the server":
            processes.end()
        else:
            process.terminate()
        with refused(503, "stopping"):
            adding.result()
    assert REPORT not in repository.get("linear").files


def test_openvino_is_imported_without_its_tool_for_conversions_which_can_be_imported_later() -> None:
    code = (
        "import sys, gnomon_runtime.engine.openvino_graph\n"
        "assert 'openvino.tools.ovc' not in sys.modules\n"
        "from openvino.tools.ovc import convert_model\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


IN_A_FORK = """
import json, os, sys
from pathlib import Path
import torch
import {module}
from gnomon_runtime.engine.graphs import GraphModel
from gnomon_runtime.measuring.measurements import sample_inputs

assert len(os.listdir("/proc/self/task")) == 1, "a fork would not have this thread"
child = os.fork()
if child == 0:
    os.environ.clear()
    program, files = Path(sys.argv[1]), json.loads(sys.argv[2])
    model = GraphModel("{engine}", program, {{name: Path(path) for name, path in files.items()}}, 2)
    for batch in (1, 3):
        model.run(sample_inputs(model.program, batch))
    os._exit(0)
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 0
"""


@pytest.mark.parametrize("engine", ENGINES)
def test_engine_runs_in_a_fork_of_a_process_that_has_imported_it(entry: ModelEntry, engine: str) -> None:
    """Instances are forked from a zygote so: with its allocator, and then with an environment of their own."""
    code = IN_A_FORK.format(module=GRAPHS[engine].partition(":")[0], engine=engine)
    files = json.dumps({file: str(entry.files[file]) for file in GRAPH_FILES[engine]})
    environment = {**os.environ, **FOR_LIBRARIES}
    environment.pop("ORT_DISABLE_TELEMETRY", None)
    done = subprocess.run(
        [sys.executable, "-c", code, str(entry.program), files], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr

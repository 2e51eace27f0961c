"""Engines and precisions of functions: the program serves while models are converted; lower precisions answer nearly the same."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from gnomon_core.engines import BF16, GRAPH_FILES, REPORT, cpu_arithmetic, read_report
from gnomon_profiler.add import add_model
from gnomon_profiler.engines import add_engines, installed_engines
from gnomon_profiler.extractor import Description, capture
from gnomon_profiler.repository import DirectoryRepository
from tests.integration.serve.conftest import Serving, is_alive, started
from tests.waiting import eventually

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]
CONVERSION_LIMIT_S = 200.0
IMAGE = np.random.default_rng(1).random((1, 3, 16, 16), dtype=np.float32)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with a small network, on which no engine was tried yet."""
    return with_network(tmp_path_factory.mktemp("models"))


def with_network(folder: Path) -> Path:
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(8 * 14 * 14, 4))
    files = capture(module.eval(), (torch.zeros(1, 3, 16, 16),), Description("net", "1", "", {}, ("values",)))
    DirectoryRepository(folder).put("net", "1", files)
    return folder


@pytest.fixture
def serving(models: Path, tmp_path: Path) -> Iterator[Serving]:
    with started(tmp_path / "state", "--models", str(models), "--convert") as server:
        yield server


def engine_of(serving: Serving, name: str) -> str:
    engine: str = serving.call("GET", f"/gnomon/functions/{name}").json()["engine"]
    return engine


def infer(serving: Serving, name: str) -> tuple[int, list[float]]:
    document = {"inputs": [{"name": "values", "shape": [1, 3, 16, 16], "datatype": "FP32", "data": IMAGE.ravel().tolist()}]}
    answer = serving.call("POST", f"/v2/models/{name}/infer", document)
    return answer.status, answer.json()["outputs"][0]["data"] if answer.status == 200 else []


@pytest.mark.skipif("onnxruntime" not in installed_engines(), reason="the extra onnxruntime is not installed")
def test_deployed_model_changes_to_its_engine_without_losing_a_request(serving: Serving) -> None:
    annotations = {"gnomon/model": "net", "gnomon/engine": "onnxruntime"}
    assert serving.deploy("net", "", image="gnomon/body", annotations=annotations).status == 202
    eventually(lambda: infer(serving, "net")[0] == 200, "the program answers")
    assert engine_of(serving, "net").startswith("program (the model has not been converted")
    _, expected = infer(serving, "net")
    stop, answers = threading.Event(), list[tuple[int, list[float]]]()

    def ask() -> None:
        while not stop.is_set():
            answers.append(infer(serving, "net"))

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        eventually(lambda: engine_of(serving, "net") == "onnxruntime", "the model is converted", CONVERSION_LIMIT_S)
        eventually(lambda: {body["version"] for body in bodies(serving)} == {2}, "the instances are replaced", 60.0)
    finally:
        stop.set()
        asking.join()
    assert {status for status, _ in answers} == {200}
    for _, values in answers:
        np.testing.assert_allclose(values, expected, rtol=1e-3, atol=1e-5)
    serving.kill()
    serving.start("--models", str(models_of(serving)), "--convert")
    eventually(lambda: infer(serving, "net")[0] == 200, "it answers after a restart")
    assert engine_of(serving, "net") == "onnxruntime"


@pytest.mark.skipif("onnxruntime" not in installed_engines(), reason="the extra onnxruntime is not installed")
def test_server_that_stops_ends_a_conversion_which_its_next_start_does(tmp_path: Path) -> None:
    models = with_network(tmp_path / "models")
    with started(tmp_path / "state", "--models", str(models), "--convert") as server:
        assert server.deploy("net", "", image="gnomon/body", annotations={"gnomon/model": "net"}).status == 202
        conversions = eventually(lambda: server.running("gnomon_profiler.engines"), "nothing was converted")
        assert server.stop() == 0
        assert not any(map(is_alive, conversions))
        assert REPORT not in DirectoryRepository(models).get("net").files, "it has waited for the conversion"
        server.start("--models", str(models), "--convert")
        eventually(lambda: REPORT in DirectoryRepository(models).get("net").files, "it is never converted", CONVERSION_LIMIT_S)


def bodies(serving: Serving) -> list[dict[str, int]]:
    found: list[dict[str, int]] = serving.call("GET", "/gnomon/functions/net").json()["bodies"]
    return found


def models_of(serving: Serving) -> str:
    assert serving.process is not None
    arguments = list(map(str, serving.process.args)) if isinstance(serving.process.args, list) else []
    return arguments[arguments.index("--models") + 1]


NEEDS_BF16 = pytest.mark.skipif(BF16 not in cpu_arithmetic(), reason="this CPU has no bf16 arithmetic")
IMAGES = np.random.default_rng(1).standard_normal((3, 3, 16, 16), dtype=np.float32)


@pytest.fixture(scope="module")
def expected() -> list[list[float]]:
    """The answers of the module itself."""
    return []


@pytest.fixture(scope="module")
def offered(tmp_path_factory: pytest.TempPathFactory, expected: list[list[float]]) -> Path:
    """A repository with a network that is offered in every precision, however long it took when it was measured."""
    torch.manual_seed(0)
    convolutions = (torch.nn.Conv2d(3, 16, 3), torch.nn.ReLU(), torch.nn.Conv2d(16, 16, 3), torch.nn.ReLU())
    module = torch.nn.Sequential(*convolutions, torch.nn.Flatten(), torch.nn.Linear(16 * 12 * 12, 4)).eval()
    with torch.inference_mode():
        expected.extend(module(torch.from_numpy(IMAGES)).tolist())
    folder = tmp_path_factory.mktemp("models")
    repository = DirectoryRepository(folder)
    entry = add_engines(repository, add_model(module, torch.zeros(1, 3, 16, 16), "net", repository), precisions=["auto"])
    report = read_report(entry.files[REPORT])
    offered = {
        name: replace(result, reason="", files=GRAPH_FILES[name]) if result.latency_s else result
        for name, result in report.engines.items()
    }
    changed = tmp_path_factory.mktemp("report") / REPORT
    changed.write_text(json.dumps(replace(report, engines=offered).to_json()))
    repository.put_files("net", "1", {**entry.files, REPORT: changed})
    return folder


@pytest.fixture(scope="module")
def serving_offered(offered: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with started(tmp_path_factory.mktemp("serve") / "state", "--models", str(offered), "--no-convert") as server:
        yield server


@pytest.mark.skipif(set(installed_engines()) != {"onnxruntime", "openvino"}, reason="both engines are needed")
@pytest.mark.parametrize("engine", [pytest.param(name, marks=NEEDS_BF16) if BF16 in name else name for name in GRAPH_FILES])
def test_function_answers_in_its_engine_and_precision(serving_offered: Serving, expected: list[list[float]], engine: str) -> None:
    library, _, precision = engine.partition("-")
    annotations = {"gnomon/model": "net", "gnomon/engine": library, "gnomon/precision": precision or "fp32"}
    assert serving_offered.deploy(f"net-{engine}", "", image="gnomon/body", annotations=annotations).status == 202
    tensor = {"name": "input", "shape": list(IMAGES.shape), "datatype": "FP32", "data": IMAGES.ravel().tolist()}

    def ask() -> list[float]:
        answer = serving_offered.call("POST", f"/v2/models/net-{engine}/infer", {"inputs": [tensor]})
        return answer.json()["outputs"][0]["data"] if answer.status == 200 else []

    eventually(lambda: bool(ask()), f"{engine} answers")
    assert serving_offered.call("GET", f"/gnomon/functions/net-{engine}").json()["engine"] == engine
    found, wanted = np.array(ask()).reshape(len(IMAGES), -1), np.array(expected)
    error = np.abs(found - wanted).max() / np.abs(wanted).max()
    assert error <= (0.1 if precision else 1e-5)
    assert not precision or error > 1e-5, "a lower precision is computed in"

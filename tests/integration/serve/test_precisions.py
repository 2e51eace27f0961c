"""A function in a lower precision answers over HTTP as its model does, nearly, and says what computes it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from gnomon_core.engines import BF16, GRAPH_FILES, REPORT, cpu_arithmetic, read_report
from gnomon_profiler.add import add_model
from gnomon_profiler.engines import add_engines, installed_engines
from gnomon_profiler.repository import DirectoryRepository
from tests.integration.serve.conftest import Serving, started
from tests.waiting import eventually

pytestmark = [
    pytest.mark.torch,
    pytest.mark.timeout(300),
    pytest.mark.skipif(set(installed_engines()) != {"onnxruntime", "openvino"}, reason="both engines are needed"),
]
NEEDS_BF16 = pytest.mark.skipif(BF16 not in cpu_arithmetic(), reason="this CPU has no bf16 arithmetic")
IMAGES = np.random.default_rng(1).standard_normal((3, 3, 16, 16), dtype=np.float32)


@pytest.fixture(scope="module")
def expected() -> list[list[float]]:
    """The answers of the module itself."""
    return []


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory, expected: list[list[float]]) -> Path:
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
def serving(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with started(tmp_path_factory.mktemp("serve") / "state", "--models", str(models), "--no-convert") as server:
        yield server


@pytest.mark.parametrize("engine", [pytest.param(name, marks=NEEDS_BF16) if BF16 in name else name for name in GRAPH_FILES])
def test_function_answers_in_its_engine_and_precision(serving: Serving, expected: list[list[float]], engine: str) -> None:
    library, _, precision = engine.partition("-")
    annotations = {"gnomon/model": "net", "gnomon/engine": library, "gnomon/precision": precision or "fp32"}
    assert serving.deploy(f"net-{engine}", "", image="gnomon/body", annotations=annotations).status == 202
    tensor = {"name": "input", "shape": list(IMAGES.shape), "datatype": "FP32", "data": IMAGES.ravel().tolist()}

    def ask() -> list[float]:
        answer = serving.call("POST", f"/v2/models/net-{engine}/infer", {"inputs": [tensor]})
        return answer.json()["outputs"][0]["data"] if answer.status == 200 else []

    eventually(lambda: bool(ask()), f"{engine} answers")
    assert serving.call("GET", f"/gnomon/functions/net-{engine}").json()["engine"] == engine
    found, wanted = np.array(ask()).reshape(len(IMAGES), -1), np.array(expected)
    error = np.abs(found - wanted).max() / np.abs(wanted).max()
    assert error <= (0.1 if precision else 1e-5)
    assert not precision or error > 1e-5, "a lower precision is computed in"

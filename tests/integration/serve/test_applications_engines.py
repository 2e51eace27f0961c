"""A registered model has a variant on each engine that it was converted for, also by a conversion in the background."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gnomon
from gnomon_core.engines import PROGRAM, REPORT
from gnomon_core.interfaces import ModelEntry
from gnomon_core.profiles import profile_name
from gnomon_profiler.engines import add_engines, installed_engines
from gnomon_profiler.extractor import Description, capture
from gnomon_profiler.measuring.session import this_machine
from gnomon_profiler.measuring.store import FOLDER, ProfileStore
from gnomon_profiler.repository import DirectoryRepository
from tests.integration.serve.conftest import GNOMON, Serving, started
from tests.waiting import eventually

pytestmark = [pytest.mark.torch, pytest.mark.skipif(not installed_engines(), reason="no engine is installed")]
SAMPLES = np.random.default_rng(1).random((3, 12), dtype=np.float32)
# Conversion and profiling give way to whatever else runs: beside other tests they may take many minutes.
LIMIT_S = 300.0


@pytest.fixture
def module() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(12, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4)).eval()


@pytest.fixture
def right(module: torch.nn.Module) -> np.ndarray:
    """The module's own answers to the samples."""
    with torch.inference_mode():
        return module(torch.from_numpy(SAMPLES)).numpy()


@pytest.fixture
def dense(module: torch.nn.Module, tmp_path: Path) -> tuple[DirectoryRepository, ModelEntry]:
    """A repository with the module in it."""
    repository = DirectoryRepository(tmp_path / "models")
    files = capture(module, (torch.ones(2, 12),), Description("dense", "1", "", {}, ("values",)))
    return repository, repository.put("dense", "1", files)


@pytest.mark.timeout(300)
def test_each_engine_that_a_model_was_converted_for_is_a_variant_that_answers(
    dense: tuple[DirectoryRepository, ModelEntry], right: np.ndarray, tmp_path: Path
) -> None:
    assert REPORT in add_engines(*dense).files
    with started(tmp_path / "state", "--models", str(tmp_path / "models")) as serving:
        client = gnomon.Client(serving.url)
        client.register_model("dense", app="rows", accuracy=0.9)
        variants = {variant.engine: variant for variant in client.model_info("rows").variants}
        assert variants.keys() == {"program", *installed_engines()}
        for engine, variant in variants.items():
            answer = client.inference_query(SAMPLES, app="rows", variant=variant.id)
            assert answer.variant == f"dense@1/{engine}/fp32/1"
            np.testing.assert_allclose(answer.output, right, rtol=1e-3, atol=1e-4)
            member = f"rows--dense-1-{engine}-fp32-1"
            assert serving.call("GET", f"/gnomon/functions/{member}").json()["engine"] == engine


def described(serving: Serving) -> dict[str, Any]:
    document: dict[str, Any] = serving.call("GET", "/system/applications/rows").json()
    return document


def variants(serving: Serving) -> list[dict[str, Any]]:
    return [variant for variant in described(serving)["variants"] if variant["state"] in ("active", "inactive")]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("dense")
def test_registered_model_gets_variants_of_every_engine_and_says_how_far_it_is(right: np.ndarray, tmp_path: Path) -> None:
    options = ("--models", str(tmp_path / "models"), "--convert")
    with started(tmp_path / "state", *options) as serving:
        assert serving.call("PUT", "/system/applications/rows/models/dense", {"accuracy": 0.9}).status == 202
        eventually(lambda: {variant["engine"] for variant in variants(serving)} >= {PROGRAM}, "the program answers meanwhile")
        eventually(lambda: described(serving)["progress"].get("dense@1"), "no progress is shown", LIMIT_S)
        eventually(
            lambda: {variant["engine"] for variant in variants(serving)} == {PROGRAM, *installed_engines()},
            "the engines' variants are missing",
            LIMIT_S,
        )
        for variant in variants(serving):
            tensor = {"name": "values", "shape": [1, 12], "datatype": "FP32", "data": SAMPLES[0].tolist()}
            answer = serving.call("POST", "/v2/models/rows/infer", {"inputs": [tensor], "parameters": {"variant": variant["id"]}})
            assert answer.status == 200, answer.data
            np.testing.assert_allclose(answer.json()["outputs"][0]["data"], right[0], rtol=1e-3, atol=1e-4)
        eventually(lambda: "profil" in described(serving)["progress"]["dense@1"], "it is never profiled", LIMIT_S)
        shown = subprocess.run(
            [*GNOMON, "app", "describe", "rows", "-g", serving.url], capture_output=True, text=True, check=True, timeout=60
        )
        assert "dense@1" in shown.stdout
        eventually(lambda: profiled_or_refused(tmp_path / "models", described(serving)["progress"]["dense@1"]), "", LIMIT_S)


def profiled_or_refused(models: Path, line: str) -> bool:
    """True if each engine has a profile, or a disturbed machine was the reason of the last one that has none."""
    store, machine = ProfileStore(models / FOLDER), this_machine().id
    engines = (PROGRAM, *installed_engines())
    return all(store.get("dense@1", profile_name(machine, engine)) for engine in engines) or "the profile is not kept" in line

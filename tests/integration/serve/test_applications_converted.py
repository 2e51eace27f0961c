"""A model that is registered for an application is converted and profiled in the background, as a deployed one is."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gnomon_core.engines import PROGRAM
from gnomon_core.profiles import profile_name
from gnomon_profiler.engines import installed_engines
from gnomon_profiler.extractor import Description, capture
from gnomon_profiler.measuring.session import this_machine
from gnomon_profiler.measuring.store import FOLDER, ProfileStore
from gnomon_profiler.repository import DirectoryRepository
from tests.integration.serve.conftest import GNOMON, Serving, started
from tests.waiting import eventually

# Conversion and profiling give way to whatever else runs: beside other tests they may take many minutes.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.torch,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not installed_engines(), reason="no engine is installed"),
]
LIMIT_S = 300.0
VALUES = np.random.default_rng(1).random((1, 12), dtype=np.float32)


def described(serving: Serving) -> dict[str, Any]:
    document: dict[str, Any] = serving.call("GET", "/system/applications/rows").json()
    return document


def variants(serving: Serving) -> list[dict[str, Any]]:
    return [variant for variant in described(serving)["variants"] if variant["state"] in ("active", "inactive")]


def test_registered_model_gets_variants_of_every_engine_and_says_how_far_it_is(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(12, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4)).eval()
    files = capture(module, (torch.ones(2, 12),), Description("dense", "1", "", {}, ("values",)))
    DirectoryRepository(tmp_path / "models").put("dense", "1", files)
    with torch.inference_mode():
        right = module(torch.from_numpy(VALUES))[0].tolist()
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
            tensor = {"name": "values", "shape": [1, 12], "datatype": "FP32", "data": VALUES.ravel().tolist()}
            answer = serving.call("POST", "/v2/models/rows/infer", {"inputs": [tensor], "parameters": {"variant": variant["id"]}})
            assert answer.status == 200, answer.data
            np.testing.assert_allclose(answer.json()["outputs"][0]["data"], right, rtol=1e-3, atol=1e-4)
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

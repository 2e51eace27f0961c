"""A registered model that was converted for other engines has a variant on each, with numbers and answers of its own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import gnomon
from gnomon_core.engines import REPORT
from gnomon_profiler.engines import add_engines, installed_engines
from gnomon_profiler.extractor import Description, capture
from gnomon_profiler.repository import DirectoryRepository
from tests.integration.serve.conftest import started

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]
SAMPLES = np.random.default_rng(1).random((3, 12), dtype=np.float32)


@pytest.mark.skipif(not installed_engines(), reason="no engine is installed")
def test_each_engine_that_a_model_was_converted_for_is_a_variant_that_answers(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(12, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4)).eval()
    repository = DirectoryRepository(tmp_path / "models")
    files = capture(module, (torch.ones(2, 12),), Description("dense", "1", "", {}, ("values",)))
    entry = add_engines(repository, repository.put("dense", "1", files))
    assert REPORT in entry.files
    with torch.inference_mode():
        right = module(torch.from_numpy(SAMPLES)).numpy()
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

"""The engine's benchmark measures every model that is there, and says which are not."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from benchmarks import engine
from gnomon_core.errors import GnomonError
from gnomon_profiler.extractor import capture
from gnomon_runtime.engine import load_program

pytestmark = pytest.mark.torch


def test_a_model_whose_package_is_missing_is_skipped_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ultralytics.nn.tasks", None)
    assert "ultralytics:yolov8x" in engine.MODELS
    assert engine.loaded("ultralytics:yolov8x") is None
    said = capsys.readouterr().out
    assert "ultralytics:yolov8x is skipped" in said
    assert "pip install '.[yolo]'" in said


def test_a_model_that_cannot_be_had_for_another_reason_ends_the_benchmark() -> None:
    with pytest.raises(GnomonError, match="catalog"):
        engine.loaded("no-such-model")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_detector_s_several_answers_are_compared_in_their_order(tmp_path: Path) -> None:
    """SSD300 has two outputs, as YOLOv8 has several."""
    model = engine.loaded("torchvision:ssd300_vgg16")
    assert model is not None
    for file, data in capture(model.module, model.example, model.description).items():
        (tmp_path / file).write_bytes(data)
    program = load_program(tmp_path / "program.json", tmp_path / "weights.safetensors")
    with torch.inference_mode():
        answer, outputs = model.module(model.example[0]), program.executor.run([model.example[0]])
    assert engine.same(answer, outputs)
    assert not engine.same(answer, outputs[::-1])
    assert not engine.same(answer, outputs[:1])

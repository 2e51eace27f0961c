"""Networks of the catalog are captured, fall into blocks that can be split, and answer as their modules do.

With images smaller than each network is made for, which changes nothing of its weights, and of its blocks one at most. ResNet50,
InceptionV3 and EfficientNet-Lite0 have tests of whole pairs, SSD300 one of its benchmark.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
from pathlib import Path

import pytest
import torch

from gnomon_core.blocks import Layers
from gnomon_profiler.catalog import CatalogModel, UltralyticsNetwork, load_model
from gnomon_profiler.extractor import capture
from gnomon_runtime.engine import LoadedProgram, load_program

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")]


def captured(model: CatalogModel, side: int, folder: Path) -> tuple[Layers, LoadedProgram]:
    files = capture(model.module, (torch.zeros(1, 3, side, side),), model.description)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    layers = Layers.from_json(json.loads(files["layers.json"]))
    return layers, load_program(folder / "program.json", folder / "weights.safetensors")


@pytest.mark.parametrize(
    ("name", "side", "blocks"),
    [
        pytest.param("torchvision:resnet101", 64, 32, marks=pytest.mark.slow),
        ("torchvision:vgg16", 32, 15),
        ("torchvision:vgg19", 32, 17),
        pytest.param("torchvision:efficientnet_b5", 64, 36, marks=pytest.mark.slow),
        pytest.param("torchvision:vit_b_16", 224, 26, marks=pytest.mark.slow),
        ("efficientnet-lite1", 64, 26),
        ("efficientnet-lite2", 64, 26),
    ],
)
def test_a_network_is_captured_and_split(name: str, side: int, blocks: int, tmp_path: Path) -> None:
    model = load_model(name)
    layers, program = captured(model, side, tmp_path)
    held = [*model.module.parameters(), *(buffer for buffer in model.module.buffers() if buffer.is_floating_point())]
    assert len(layers.blocks) == blocks
    assert all(block.splittable for block in layers.blocks)
    assert layers.parameter_bytes() == 4 * sum(tensor.numel() for tensor in held)
    for batch in (1, 3):
        images = torch.randn(batch, 3, side, side, generator=torch.Generator().manual_seed(batch))
        with torch.inference_mode():
            expected = model.module(images)
        [answer] = program.executor.run([images])
        assert expected.any()
        assert (answer - expected).abs().max() <= 1e-5 * expected.abs().max()


@pytest.mark.slow
def test_a_detector_of_ultralytics_is_captured_where_its_package_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing here installs it: its licence is the AGPL. Its own head is told what ours reads, and computes the same."""
    monkeypatch.setenv("YOLO_CONFIG_DIR", str(tmp_path))
    if importlib.util.find_spec("ultralytics") is None:
        pytest.skip("the extra yolo is not installed")
    model = load_model("ultralytics:yolov8x")
    layers, program = captured(model, 64, tmp_path)
    assert all(block.splittable for block in layers.blocks)
    images = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(2))
    with torch.inference_mode():
        expected = model.module(images)
    for name, answer in zip(expected, program.executor.run([images]), strict=True):
        assert torch.equal(answer, expected[name]), name

    detector = importlib.import_module("ultralytics.nn.tasks").DetectionModel("yolov8x.yaml", verbose=False).eval()
    head, given = detector.model[-1], []
    head.register_forward_pre_hook(lambda _, arguments: given.extend(arguments[0]))
    with torch.inference_mode():
        detector(images)
        ours = UltralyticsNetwork(detector).eval()(images)
        for number, (feature, boxes, classes) in enumerate(zip(given, head.cv2, head.cv3, strict=True)):
            assert torch.equal(ours[f"scale_{number}"], torch.cat([boxes(feature), classes(feature)], 1))

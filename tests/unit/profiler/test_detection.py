"""The network of an Ultralytics detector: its layers, wired as they say, with the head's convolutions and nothing behind them.

A detector of our own stands in for the package's, which has another licence: a list of layers, each with the numbers of those
that it reads in `f`, and a head with a convolution for the boxes and one for the classes of each scale in `cv2` and `cv3`.
"""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gnomon_core.blocks import Layers
from gnomon_profiler.catalog import UltralyticsNetwork
from gnomon_profiler.extractor import Description, capture
from gnomon_runtime.engine import load_program

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")]
BOXES, CLASSES = 6, 3


class Convolution(nn.Module):
    def __init__(self, channels_in: int, channels_out: int, stride: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels_in, channels_out, 3, stride, 1)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.silu(self.conv(x))


class Joined(nn.Module):
    def forward(self, given: list[Tensor]) -> Tensor:
        return torch.cat(given, 1)


class Head(nn.Module):
    """Its own `forward` decodes boxes: what sizes they have depends on values."""

    def __init__(self, *channels: int) -> None:
        super().__init__()
        self.cv2 = nn.ModuleList(nn.Conv2d(width, BOXES, 1) for width in channels)
        self.cv3 = nn.ModuleList(nn.Sequential(Convolution(width, width), nn.Conv2d(width, CLASSES, 1)) for width in channels)

    def forward(self, features: list[Tensor]) -> Tensor:
        scores = torch.cat([classes(feature).flatten(2) for classes, feature in zip(self.cv3, features, strict=True)], 2)
        return scores.transpose(1, 2)[scores.amax(1) > 0]


def detector() -> tuple[Any, list[nn.Module]]:
    """Two scales, down and up again as a detector's neck goes: its list of layers is what an Ultralytics model has as `model`."""
    torch.manual_seed(0)
    wired: list[tuple[nn.Module, int | list[int]]] = [
        (Convolution(3, 4, stride=2), -1),  # 0: half of the image
        (Convolution(4, 8, stride=2), -1),  # 1: a quarter
        (nn.Upsample(scale_factor=2, mode="nearest"), -1),  # 2
        (Joined(), [-1, 0]),  # 3: 12 channels
        (Convolution(12, 5), -1),  # 4: the fine scale
        (Convolution(8, 7), 1),  # 5: the coarse one, from a layer further back
        (Head(5, 7), [4, 5]),
    ]
    for number, (layer, source) in enumerate(wired):
        layer.i, layer.f = number, source  # type: ignore[assignment]
    layers = [layer for layer, _ in wired]
    return SimpleNamespace(model=nn.Sequential(*layers).eval().requires_grad_(requires_grad=False)), layers


def by_hand(layers: list[nn.Module], image: Tensor) -> dict[str, Tensor]:
    half = layers[0](image)
    quarter = layers[1](half)
    fine, coarse = layers[4](torch.cat([layers[2](quarter), half], 1)), layers[5](quarter)
    head: Any = layers[6]
    return {
        "scale_0": torch.cat([head.cv2[0](fine), head.cv3[0](fine)], 1),
        "scale_1": torch.cat([head.cv2[1](coarse), head.cv3[1](coarse)], 1),
    }


def images(count: int) -> Tensor:
    return torch.randn(count, 3, 16, 16, generator=torch.Generator().manual_seed(count))


def test_layers_read_what_they_name_and_each_scale_has_boxes_and_scores() -> None:
    made, layers = detector()
    with torch.inference_mode():
        answer, expected = UltralyticsNetwork(made)(images(2)), by_hand(layers, images(2))
    assert {name: tuple(tensor.shape) for name, tensor in answer.items()} == {
        "scale_0": (2, BOXES + CLASSES, 8, 8),
        "scale_1": (2, BOXES + CLASSES, 4, 4),
    }
    for name, tensor in expected.items():
        assert torch.equal(answer[name], tensor), name


def test_it_is_captured_and_split_and_answers_bit_for_bit(tmp_path: Path) -> None:
    network = UltralyticsNetwork(detector()[0]).eval()
    files = capture(network, (torch.zeros(1, 3, 16, 16),), Description("detector", "1", "", {}, ("image",)))
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    program = load_program(tmp_path / "program.json", tmp_path / "weights.safetensors")
    assert [spec.name for spec in program.signature.outputs] == ["scale_0", "scale_1"]
    for batch in (1, 3, 8):
        with torch.inference_mode():
            expected = network(images(batch))
        for got, wanted in zip(program.executor.run([images(batch)]), expected.values(), strict=True):
            assert torch.equal(got, wanted)
    layers = Layers.from_json(json.loads(files["layers.json"]))
    assert all(block.splittable for block in layers.blocks)
    assert layers.parameter_bytes() == 4 * sum(weight.numel() for weight in network.parameters())
    assert [one.end for one, _ in pairwise(layers.blocks)] == [other.begin for _, other in pairwise(layers.blocks)]

"""The models that are measured, captured once and kept, and parts of them by their share of the weights."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.gnomon import MODELS
from benchmarks.pace import step
from gnomon_core.blocks import Layers
from gnomon_core.interfaces import ModelEntry
from gnomon_core.signature import ModelSignature
from gnomon_profiler.add import ensure_model
from gnomon_profiler.repository import DirectoryRepository
from gnomon_runtime.pair.testing import Model

CATALOG = {
    "resnet50": "torchvision:resnet50",
    "inception_v3": "torchvision:inception_v3",
    "vgg16": "torchvision:vgg16",
    "efficientnet-lite0": "efficientnet-lite0",
    "vit_b_16": "torchvision:vit_b_16",
    "resnet101": "torchvision:resnet101",
    "vgg19": "torchvision:vgg19",
    "efficientnet_b5": "torchvision:efficientnet_b5",
    "ssd300": "torchvision:ssd300_vgg16",
    "yolov8x": "ultralytics:yolov8x",
}
MEGABYTE = 1_000_000


@dataclass(frozen=True)
class StoredModel(Model):
    """A model of the repository, for instances that are made without a platform."""

    entry: ModelEntry

    @property
    def layers(self) -> Layers:
        return _read_layers(self._layers_file)

    @property
    def signature(self) -> ModelSignature:
        return self.entry.signature

    def options(self) -> dict[str, str]:
        return {"program": str(self.entry.program), "weights": str(self.entry.weights), "layers": str(self._layers_file)}

    @property
    def reference(self) -> str:
        """NAME@VERSION."""
        return f"{self.entry.name}@{self.entry.version}"

    @property
    def _layers_file(self) -> Path:
        if self.entry.layers is None:
            raise RuntimeError(f"{self.entry.name} has no layer blocks")
        return self.entry.layers


def repository() -> DirectoryRepository:
    """Where the captured models are."""
    return DirectoryRepository(MODELS)


def stored(name: str) -> StoredModel:
    """A model of `CATALOG`, captured first if it is not there."""
    entry = ensure_model(repository(), CATALOG[name], progress=step)
    return StoredModel(entry.program.parent, entry)


def first_blocks(layers: Layers, *, at_most_bytes: float) -> tuple[int, ...]:
    """The blocks from the input on that can be split, as many as stay within this many bytes of weights.

    Example: blocks of 1, 2 and 4 MB, the first two splittable: 6 MB gives (0, 1).
    """
    chosen: list[int] = []
    held_bytes = 0
    for number, block in enumerate(layers.blocks):
        held_bytes += block.parameter_bytes
        if not block.splittable or held_bytes > at_most_bytes:
            break
        chosen.append(number)
    return tuple(chosen)


def largest_blocks(layers: Layers, *, at_most_bytes: float) -> tuple[int, ...]:
    """The largest blocks that can be split, each that still fits into this many bytes.

    Example: blocks of 1, 2 and 4 MB: 5 MB gives the last and the first, (0, 2).
    """
    chosen: list[int] = []
    left_bytes = at_most_bytes
    for number in sorted(range(len(layers.blocks)), key=lambda number: -layers.blocks[number].parameter_bytes):
        block = layers.blocks[number]
        if block.splittable and block.parameter_bytes <= left_bytes:
            chosen.append(number)
            left_bytes -= block.parameter_bytes
    return tuple(sorted(chosen))


def first_share(layers: Layers, share: float) -> tuple[int, ...]:
    """The same, up to a share of the model's weights."""
    return first_blocks(layers, at_most_bytes=share * layers.parameter_bytes() + 0.5)


def share_of(layers: Layers, blocks: tuple[int, ...]) -> float:
    """The share of the model's weights that these blocks hold."""
    return layers.parameter_bytes(blocks) / layers.parameter_bytes()


def named(layers: Layers, blocks: tuple[int, ...]) -> str:
    """Examples: "up to layer3.5, 33 % of the weights", "9 of 18 blocks in 3 runs, 41 % of the weights"."""
    held = f"{100 * share_of(layers, blocks):.0f} % of the weights"
    if blocks == tuple(range(len(blocks))):
        return f"up to {layers.blocks[blocks[-1]].name}, {held}"
    runs = len(layers.runs(blocks))
    return f"{len(blocks)} of {len(layers.blocks)} blocks in {runs} run{'s' * (runs > 1)}, {held}"


def samples_of(model: StoredModel, batch: int, seed: int = 0) -> Tensor:
    """Normally distributed samples of the model's first input, the same for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, *model.signature.inputs[0].shape, generator=generator)


@cache
def _read_layers(path: Path) -> Layers:
    return Layers.from_json(json.loads(path.read_bytes()))


def digest(rows: Tensor) -> str:
    """What tells answers apart that are not the same to the bit."""
    return hashlib.sha256(rows.contiguous().numpy().tobytes()).hexdigest()

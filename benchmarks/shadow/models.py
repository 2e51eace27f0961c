"""The models that are measured, captured once and kept, with their profiles and blocks; and figures from samples.

A block set is chosen by its share of the model's weights. A profile is measured by the Profiler in the run that uses it.

Medians and percentiles are judged as `report` judges means, by the 95 % interval around them. That interval needs no assumption
about the distribution: its ends are the two samples whose ranks a binomial count leaves with 2.5 % on each side. With too few
samples for a rank on one side, the smallest or largest sample takes its place.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.gnomon import MODELS
from benchmarks.programs import step
from benchmarks.report import Figure
from gnomon_core.blocks import Layers
from gnomon_core.engines import AUTO, engine_of, engine_options
from gnomon_core.interfaces import ModelEntry
from gnomon_core.profiles import ModelProfile
from gnomon_core.signature import ModelSignature
from gnomon_profiler.add import ensure_model
from gnomon_profiler.engines import add_engines
from gnomon_profiler.measuring.profiling import MAX_BATCH, ProfileOptions, profile_model
from gnomon_profiler.measuring.store import ProfileStore
from gnomon_profiler.repository import DirectoryRepository
from tests.pair_harness import Model

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

    def options(self) -> dict[str, Any]:
        files = {"program": str(self.entry.program), "weights": str(self.entry.weights), "layers": str(self._layers_file)}
        return files | engine_options(engine_of(self.entry.files, self.engine))

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
    """The folder of the captured models."""
    return DirectoryRepository(MODELS)


def stored(name: str) -> StoredModel:
    """A model of `CATALOG`, captured first if it is not there."""
    entry = ensure_model(repository(), CATALOG[name], progress=step)
    return StoredModel(entry.program.parent, entry)


def on_fastest_engine(model: StoredModel) -> StoredModel:
    """The model on the engine that functions have by default, converted first if it is not."""
    return StoredModel(model.folder, add_engines(repository(), model.entry, progress=step), engine=AUTO)


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
    """The splittable blocks from the input on, up to a share of the model's weights."""
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


ONE_EACH = (1, 1)
"""Cores of the Body and of the Shadow."""


def measured_profile(model: StoredModel, repeats: int) -> ModelProfile:
    """The model on one core, batches of 1 to 8."""
    with tempfile.TemporaryDirectory(prefix="gnomon-benchmark-") as folder:
        options = ProfileOptions(cores=(1,), repeats=repeats)
        profile, _ = profile_model(model.entry, ProfileStore(Path(folder)), options, lambda _: None)
    worst = max(profile.spread.values())
    step(f"{model.entry.name}: profiled, b = {MAX_BATCH} in {1e3 * whole_s(profile, MAX_BATCH):.0f} ms, spread up to {worst:.1%}")
    return profile


def whole_s(profile: ModelProfile, batch: int) -> float:
    """Latency of a batch on a Body with one core, in seconds."""
    return known(profile.whole.at(1, batch))


def known(seconds: float | None) -> float:
    """A time that the profile must know."""
    if seconds is None:
        raise RuntimeError("the profile lacks what was measured for it")
    return seconds


_TAIL = 0.025


def quantile(values: Sequence[float], share: float) -> float:
    """The value that this share of the samples do not exceed, between two of them on the straight line.

    Example: the 0.5 quantile of 1, 2, 4 is 2, that of 1, 2 is 1.5.
    """
    ordered = sorted(values)
    at = share * (len(ordered) - 1)
    below = math.floor(at)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (at - below) * (ordered[above] - ordered[below])


def interval(values: Sequence[float], share: float) -> tuple[float, float]:
    """The 95 % interval of a quantile.

    Example: of the median of 10 samples, the second smallest and the second largest.
    """
    ordered = sorted(values)
    count = len(ordered)
    reached = 0.0
    low, high = 0, count - 1
    for below in range(count):
        reached += math.comb(count, below) * share**below * (1 - share) ** (count - below)
        # The quantile is below sample number `below`, counted from 0, where no more than so many samples are below it.
        if reached <= _TAIL:
            low = below
        if reached >= 1 - _TAIL:
            high = below
            break
    return ordered[low], ordered[high]


def at_quantile(
    key: str, values: Sequence[float], unit: str, *, share: float = 0.5, at_most: float | None = None, detail: str = ""
) -> Figure:
    """A quantile of samples as a figure; met or missed where the whole of its interval is on that side of the goal."""
    value = quantile(values, share)
    low, high = interval(values, share)
    low, high = min(low, value), max(high, value)
    said = f"{low:.4g} to {high:.4g} (95 %), {min(values):.4g} to {max(values):.4g} in {len(values)} runs"
    detail = f"{said}; {detail}" if detail else said
    if at_most is None:
        return Figure(key, value, unit, detail=detail)
    met = "met" if high <= at_most else "missed" if low > at_most else "not resolved"
    return Figure(key, value, unit, at_most, "<=", met, detail)


def counted(
    key: str, value: float, unit: str, *, at_most: float | None = None, at_least: float | None = None, detail: str = ""
) -> Figure:
    """A figure that was counted, or measured once: on its goal's side or not."""
    if at_most is not None:
        return Figure(key, value, unit, at_most, "<=", "met" if value <= at_most else "missed", detail)
    if at_least is not None:
        return Figure(key, value, unit, at_least, ">=", "met" if value >= at_least else "missed", detail)
    return Figure(key, value, unit, detail=detail)


def in_mode(figures: Iterable[Figure], mode: str = "shared") -> list[Figure]:
    """The figures, each with the weight mode that its instances were in: all on a node use one copy, or each has its own."""
    said = f"weights {mode}"
    return [replace(figure, detail=f"{figure.detail}; {said}" if figure.detail else said) for figure in figures]

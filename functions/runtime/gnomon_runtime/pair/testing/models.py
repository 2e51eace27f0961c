"""A captured model's files, and what a pair does with them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gnomon_core.blocks import Layers
from gnomon_core.launch import Sandbox
from gnomon_core.signature import ModelSignature

FUNCTION, BODY, MAX_BATCH = "f.fn", "f-1", 8
OK = 200


@dataclass(frozen=True)
class Model:
    """A captured model's files."""

    folder: Path

    @property
    def layers(self) -> Layers:
        return Layers.from_json(json.loads((self.folder / "layers.json").read_bytes()))

    @property
    def signature(self) -> ModelSignature:
        return ModelSignature.from_json(json.loads((self.folder / "program.json").read_bytes())["signature"])

    def options(self) -> dict[str, str]:
        names = {"program": "program.json", "weights": "weights.safetensors", "layers": "layers.json"}
        return {option: str(self.folder / name) for option, name in names.items()}

    def sandbox(self) -> Sandbox:
        """One in which the files can be read."""
        return Sandbox(readable=tuple(self.options().values()))


@dataclass(frozen=True)
class Task:
    """What a pair does: which blocks, how many samples of each batch, and what that is predicted to take."""

    model: Model
    blocks: Sequence[int]
    split: Sequence[int] = ()
    expected_ms: Sequence[Sequence[float]] = ()

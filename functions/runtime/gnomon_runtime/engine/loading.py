"""From two files to a model that runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from gnomon_core.program import Program
from gnomon_core.program_reader import parse_program
from gnomon_core.signature import ModelSignature
from gnomon_runtime.engine.datatypes import TORCH_DTYPES
from gnomon_runtime.engine.executor import Executor
from gnomon_runtime.engine.weights import LoadedWeights, WeightMode, load_weights


@dataclass(frozen=True, slots=True)
class LoadedProgram:
    """A model in memory."""

    signature: ModelSignature
    executor: Executor
    weights: LoadedWeights
    program: Program

    def zeros(self, batch: int) -> list[Tensor]:
        """Inputs of the right form, for a warm-up."""
        return [torch.zeros((batch, *spec.shape), dtype=TORCH_DTYPES[spec.datatype]) for spec in self.signature.inputs]


def load_program(program: Path, weights: Path, mode: WeightMode = "shared") -> LoadedProgram:
    """Check a program, load its weights and bind them.

    Raises:
        GnomonError: 422 `invalid_program` when it may not run.

    """
    parsed = parse_program(program.read_bytes())
    loaded = load_weights(weights, parsed.weights, mode)
    return LoadedProgram(parsed.signature, Executor(parsed, loaded.tensors), loaded, parsed)

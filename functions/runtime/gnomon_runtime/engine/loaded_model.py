"""A whole model in memory, ready to run: as its layer program, or as a graph of another engine.

    run(inputs)                 the whole model, for a batch
    segments([(40, 90)])        the same model in pieces, cut where these runs of operations begin and end, as a pair needs it

Both forms answer the same calls, so that a Body works alike on every engine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from gnomon_core.engines import PROGRAM
from gnomon_core.program import Program, parse_program
from gnomon_core.signature import ModelSignature
from gnomon_runtime.engine.executor import Executor
from gnomon_runtime.engine.segments import Border, Segment, segments_between
from gnomon_runtime.engine.torch_support import TORCH_DTYPES
from gnomon_runtime.engine.weights import LoadedWeights, WeightMode, load_weights


class ModelSegment(Protocol):
    """A run of a model's operations that is ready to run. One thread at a time."""

    @property
    def border(self) -> Border: ...

    def run(self, rows: int, values: list[Tensor], before_last: Callable[[], None] | None = None) -> tuple[Tensor, ...]:
        """The values that the segment makes from these rows, in the border's order. The list is emptied.

        `before_last` is called shortly before the result is there, where the engine can tell.
        """
        ...


class LoadedModel(Protocol):
    """A model in memory. One thread at a time."""

    @property
    def engine(self) -> str: ...

    @property
    def signature(self) -> ModelSignature: ...

    @property
    def program(self) -> Program: ...

    @property
    def weights(self) -> LoadedWeights: ...

    def run(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The model's outputs for one batch; the first axis of inputs and outputs is the batch.

        Raises:
            GnomonError: 422 when the program would exceed its limits or its outputs are not what its signature says.
            ValueError: the inputs are not what its signature says.

        """
        ...

    def segments(self, runs: Sequence[tuple[int, int]]) -> Sequence[ModelSegment]:
        """The whole model as segments in order: each of these runs of operations, and what lies between them."""
        ...

    def resize(self, cores: int) -> None:
        """Use this many threads from the next batch on."""
        ...


def zeros(signature: ModelSignature, batch: int) -> list[Tensor]:
    """Inputs of the right form, for a warm-up."""
    return [torch.zeros((batch, *spec.shape), dtype=TORCH_DTYPES[spec.datatype]) for spec in signature.inputs]


@dataclass(frozen=True, slots=True)
class LoadedProgram:
    """A model that the layer-program engine runs."""

    signature: ModelSignature
    executor: Executor
    weights: LoadedWeights
    program: Program

    @property
    def engine(self) -> str:
        return PROGRAM

    def run(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return self.executor.run(inputs)

    def segments(self, runs: Sequence[tuple[int, int]]) -> Sequence[Segment]:
        return segments_between(self.program, self.weights.tensors, runs)

    def resize(self, cores: int) -> None:
        torch.set_num_threads(cores)


def load_program(program: Path, weights: Path, mode: WeightMode = "shared") -> LoadedProgram:
    """Check a program, load its weights and bind them.

    Raises:
        GnomonError: 422 `invalid_program` when it may not run.

    """
    parsed = parse_program(program.read_bytes())
    loaded = load_weights(weights, parsed.weights, mode)
    return LoadedProgram(parsed.signature, Executor(parsed, loaded.tensors), loaded, parsed)

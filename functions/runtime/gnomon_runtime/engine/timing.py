"""A run of a program with a time stamp at each border between layer blocks.

The stamps are taken inside the whole run, so the pieces sum to it: a block measured by itself would find its inputs in other
caches and its memory in another state. A stamp costs some 50 ns, far below what any block takes.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor

from gnomon_core.program import Program, parse_program
from gnomon_core.signature import TensorSpec
from gnomon_runtime.engine.executor import Executor
from gnomon_runtime.engine.torch_support import TORCH_DTYPES
from gnomon_runtime.engine.weights import LoadedWeights, load_weights

_PAGE_BYTES = 4096
_SEED = 1


class TimedExecutor(Executor):
    """An executor that also says how long each piece of a run took."""

    def timed_run(self, inputs: Sequence[Tensor], ends: Sequence[int]) -> tuple[float, ...]:
        """Seconds of each piece of one run; piece i ends before operation `ends[i]`, and the last one with the program.

        The batch size must have run before: a first run is checked, and slower.
        """
        plan = self._plans[inputs[0].shape[0]]
        pieces = [replace(plan, steps=plan.steps[begin:end]) for begin, end in pairwise((0, *ends))]
        with torch.inference_mode():
            stamps_s = [time.perf_counter()]
            slots = self._given(plan.slots, inputs)
            for piece in pieces:
                self._walk(piece, slots)
                stamps_s.append(time.perf_counter())
        return tuple(end_s - begin_s for begin_s, end_s in pairwise(stamps_s))


@dataclass(frozen=True, slots=True)
class TimedProgram:
    """A model in memory that can be timed."""

    program: Program
    executor: TimedExecutor
    weights: LoadedWeights

    def inputs(self, batch: int) -> list[Tensor]:
        """Normally distributed inputs, the same at each call; zeros where an input holds no floating-point numbers."""
        generator = torch.Generator().manual_seed(_SEED)
        return [_input(spec, batch, generator) for spec in self.program.signature.inputs]


def load_timed(program: Path, weights: Path) -> TimedProgram:
    """Check a program, load its weights and bind them.

    Raises:
        GnomonError: 422 `invalid_program` when it may not run.

    """
    parsed = parse_program(program.read_bytes())
    loaded = load_weights(weights, parsed.weights)
    return TimedProgram(parsed, TimedExecutor(parsed, loaded.tensors), loaded)


def touch(tensors: Mapping[str, Tensor]) -> None:
    """Read a value of each page, so that mapped weights are resident."""
    for tensor in tensors.values():
        if tensor.numel():
            begin = tensor.storage_offset() * tensor.element_size()
            pages = -(-tensor.numel() * tensor.element_size() // _PAGE_BYTES)
            memory = torch.empty(0, dtype=torch.uint8)
            memory.set_(tensor.untyped_storage(), begin, (pages,), (_PAGE_BYTES,)).max()


def _input(spec: TensorSpec, batch: int, generator: torch.Generator) -> Tensor:
    dtype = TORCH_DTYPES[spec.datatype]
    if dtype.is_floating_point:
        return torch.randn((batch, *spec.shape), generator=generator).to(dtype)
    return torch.zeros((batch, *spec.shape), dtype=dtype)

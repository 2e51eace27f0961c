"""Runs a layer program at any batch size.

Preparation binds every operation to a callable and slots once (`binding`). A run copies the list of slots, walks the operations
and clears each slot after its last use, so that a program holds no more memory than its module does.

The first run at a batch size is functional and checked: before each operation its size rule bounds what it allocates; afterwards
the layouts of its tensors are noted, and from them comes a plan for this batch size, in which elementwise operations reuse dead
operands (`inplace`). Later runs only walk the plan: well under a microsecond for an operation beside what torch takes for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gnomon_core.program import Program, invalid_program
from gnomon_runtime.engine.allowlist import check_program
from gnomon_runtime.engine.binding import Slots, Step, bind
from gnomon_runtime.engine.checked_run import CheckedRun
from gnomon_runtime.engine.datatypes import TORCH_DTYPES
from gnomon_runtime.engine.limits import Limits


@dataclass(frozen=True, slots=True)
class _Plan:
    """How one batch size runs. `slots` holds weights and constants, and None where values will be."""

    slots: Slots
    steps: tuple[Step, ...]
    peak_bytes: int


class Executor:
    """A program that is ready to run. One thread at a time.

    Raises:
        GnomonError: 422 `invalid_program` when the program may not run.

    """

    def __init__(self, program: Program, weights: Mapping[str, Tensor], limits: Limits | None = None) -> None:
        self.signature = program.signature
        self._limits = limits or Limits()
        self._bindings = bind(program, check_program(program), weights)
        self._plans: dict[int, _Plan] = {}

    def run(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The program's outputs for one batch; the first axis of inputs and outputs is the batch.

        Raises:
            GnomonError: 422 when the program would exceed its limits or its outputs are not what its signature says.
            ValueError: the inputs are not what its signature says.

        """
        self._check_inputs(inputs)
        batch = inputs[0].shape[0]
        with torch.inference_mode():
            plan = self._plans.get(batch)
            outputs = self._walk(plan, inputs) if plan else self._first_run(batch, inputs)
        self._check_outputs(batch, outputs)
        return outputs

    def peak_bytes(self, batch: int) -> int | None:
        """The most that values held at once at this batch size, weights and inputs not counted; None before its first run."""
        plan = self._plans.get(batch)
        return plan.peak_bytes if plan else None

    def _walk(self, plan: _Plan, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        slots = plan.slots.copy()
        for slot, tensor in zip(self._bindings.inputs, inputs, strict=True):
            slots[slot] = tensor
        for call, gather, only, each, clears in plan.steps:
            result = call(*gather(slots))
            if only >= 0:
                slots[only] = result
            else:
                for position, slot in each:
                    slots[slot] = result[position]
            for slot in clears:
                slots[slot] = None
        return tuple(slots[slot] for slot in self._bindings.outputs)

    def _first_run(self, batch: int, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        constants = self._bindings.for_batch(batch)
        run = CheckedRun(self._limits, constants, dict(zip(self._bindings.inputs, inputs, strict=True)))
        steps = [run.step(operation) for operation in self._bindings.operations]
        outputs = tuple(run.slots[slot] for slot in self._bindings.outputs)
        self._plans[batch] = _Plan(constants, tuple(steps), run.peak_bytes)
        return outputs

    def _check_inputs(self, inputs: Sequence[Tensor]) -> None:
        specs = self.signature.inputs
        if len(inputs) != len(specs):
            raise ValueError(f"the model takes {len(specs)} inputs, not {len(inputs)}")
        for spec, tensor in zip(specs, inputs, strict=True):
            batch = inputs[0].shape[0] if inputs[0].dim() else 0
            if not batch or tensor.shape != (batch, *spec.shape) or tensor.dtype != TORCH_DTYPES[spec.datatype]:
                raise ValueError(f"input {spec.name} is {tensor.dtype} {tuple(tensor.shape)}; it must be a batch of {spec}")

    def _check_outputs(self, batch: int, outputs: Sequence[Tensor]) -> None:
        for spec, tensor in zip(self.signature.outputs, outputs, strict=True):
            if tensor.shape != (batch, *spec.shape) or tensor.dtype != TORCH_DTYPES[spec.datatype]:
                raise invalid_program(f"Output {spec.name} is {tensor.dtype} {tuple(tensor.shape)} and not a batch of {spec}.")

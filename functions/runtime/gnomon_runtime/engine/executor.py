"""Runs a layer program at any batch size.

Preparation binds every operation to a callable and slots once (`binding`). A run copies the list of slots, walks the operations
and clears each slot after its last use, so that a program holds no more memory than its module does. `planned` has the walk, and
the first, checked run at each batch size that the later ones follow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from gnomon_core.program import Program, invalid_program
from gnomon_runtime.engine.allowlist import check_program
from gnomon_runtime.engine.binding import bind
from gnomon_runtime.engine.datatypes import TORCH_DTYPES
from gnomon_runtime.engine.limits import Limits
from gnomon_runtime.engine.planned import PlannedOperations


class Executor(PlannedOperations):
    """A program that is ready to run. One thread at a time.

    Raises:
        GnomonError: 422 `invalid_program` when the program may not run.

    """

    def __init__(self, program: Program, weights: Mapping[str, Tensor], limits: Limits | None = None) -> None:
        self.signature = program.signature
        super().__init__(bind(program, check_program(program), weights), limits)

    def run(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The program's outputs for one batch; the first axis of inputs and outputs is the batch.

        Raises:
            GnomonError: 422 when the program would exceed its limits or its outputs are not what its signature says.
            ValueError: the inputs are not what its signature says.

        """
        batch = self.check_inputs(inputs)
        outputs = self._run(batch, batch, inputs)
        self.check_outputs(batch, outputs)
        return outputs

    def peak_bytes(self, batch: int) -> int | None:
        """The most that values held at once at this batch size, weights and inputs not counted; None before its first run."""
        plan = self._plans.get(batch)
        return plan.peak_bytes if plan else None

    def check_inputs(self, inputs: Sequence[Tensor]) -> int:
        """The batch size of inputs that are what the signature says. Raises ValueError for others."""
        specs = self.signature.inputs
        if len(inputs) != len(specs):
            raise ValueError(f"the model takes {len(specs)} inputs, not {len(inputs)}")
        for spec, tensor in zip(specs, inputs, strict=True):
            batch = inputs[0].shape[0] if inputs[0].dim() else 0
            if not batch or tensor.shape != (batch, *spec.shape) or tensor.dtype != TORCH_DTYPES[spec.datatype]:
                raise ValueError(f"input {spec.name} is {tensor.dtype} {tuple(tensor.shape)}; it must be a batch of {spec}")
        return int(inputs[0].shape[0])

    def check_outputs(self, batch: int, outputs: Sequence[Tensor]) -> None:
        """Raise 422 `invalid_program` unless the outputs are what the signature says."""
        for spec, tensor in zip(self.signature.outputs, outputs, strict=True):
            if tensor.shape != (batch, *spec.shape) or tensor.dtype != TORCH_DTYPES[spec.datatype]:
                raise invalid_program(f"Output {spec.name} is {tensor.dtype} {tuple(tensor.shape)} and not a batch of {spec}.")

"""A program's first run at a batch size: bounded before each operation, observed after it.

What it observes (who shares whose memory, in which layout) follows from shapes and strides alone and is therefore the same in
every run at this batch size. That makes the plan of the later runs safe: see `inplace`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from gnomon_core.program import invalid_program
from gnomon_runtime.engine.binding import BoundOperation, Slots, Step
from gnomon_runtime.engine.inplace import IN_PLACE, Layout, may_overwrite, storage_of
from gnomon_runtime.engine.limits import Limits

_ELEMENT_BYTES = 8
"""The widest element, since a size rule does not know the type."""


class CheckedRun:
    """One run, operation by operation. `slots` holds the values that are alive, `peak_bytes` the most they took together."""

    def __init__(self, limits: Limits, constants: Slots, inputs: Mapping[int, Tensor]) -> None:
        self._limits = limits
        self.slots = constants.copy()
        for slot, tensor in inputs.items():
            self.slots[slot] = tensor
        # Also inputs that the run frees are held until its end: their addresses must not come to stand for other tensors.
        self._held = [content for content in self.slots if isinstance(content, Tensor)]
        self._permanent = {storage_of(tensor) for tensor in self._held}
        self._made: dict[int, Tensor] = {}
        self.peak_bytes = 0

    def step(self, operation: BoundOperation) -> Step:
        """Run one operation and say how later runs at this batch size do it."""
        arguments = operation.gather(self.slots)
        self._bound(operation)
        result = operation.call(*arguments)
        self._keep(operation, result)
        call = operation.call
        if self._may_overwrite(operation, arguments, result):
            call = IN_PLACE[operation.op]
        for slot in operation.clears:
            self.slots[slot] = None
            self._made.pop(slot, None)
        return operation.step(call)

    def _bound(self, operation: BoundOperation) -> None:
        elements = operation.rule(operation.rule_gather(self.slots))
        live_bytes = self._live_bytes()
        limits = self._limits
        if elements > limits.max_elements or live_bytes + elements * _ELEMENT_BYTES > limits.max_live_bytes:
            raise invalid_program(
                f"{operation.op} could make {elements} elements beside {live_bytes} bytes that are alive.",
                f"At most {limits.max_elements} elements and {limits.max_live_bytes} bytes are allowed: use a smaller batch.",
            )

    def _keep(self, operation: BoundOperation, result: Any) -> None:
        if operation.pieces >= 0 and len(result) != operation.pieces:
            raise invalid_program(f"{operation.op} made {len(result)} results; the program names {operation.pieces}.")
        for position, slot in operation.writes:
            tensor = result if position < 0 else result[position]
            self.slots[slot] = tensor
            if storage_of(tensor) not in self._permanent:
                self._made[slot] = tensor
        self.peak_bytes = max(self.peak_bytes, self._live_bytes())

    def _live_bytes(self) -> int:
        return sum({storage_of(tensor): tensor.untyped_storage().nbytes() for tensor in self._made.values()}.values())

    def _may_overwrite(self, operation: BoundOperation, arguments: Any, result: Any) -> bool:
        if operation.op not in IN_PLACE or not operation.plain or not operation.writes:
            return False
        target = arguments[0]
        if storage_of(target) in self._permanent:
            return False
        alive_after = [
            Layout.of(tensor) for slot, tensor in self._made.items() if slot not in operation.clears and tensor is not result
        ]
        operands = [Layout.of(tensor) for tensor in arguments[1:] if isinstance(tensor, Tensor)]
        return may_overwrite(Layout.of(target), Layout.of(result), operands, alive_after)

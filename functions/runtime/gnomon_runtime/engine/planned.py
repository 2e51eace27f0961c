"""Runs bound operations by a plan for the form of their inputs.

The first run in a form is functional and checked: before each operation its size rule bounds what it allocates; afterwards the
layouts of its tensors are noted, and from them comes a plan for this form, in which elementwise operations reuse dead operands
(`inplace`). Later runs only walk the plan: well under a microsecond for an operation beside what torch takes for it.

A plan holds for the form it was made in and for no other: whether an operation gives a view or a copy follows from shapes and
strides, and so does what may be overwritten.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gnomon_runtime.engine.binding import Bindings, Slots, Step
from gnomon_runtime.engine.checked_run import CheckedRun
from gnomon_runtime.engine.limits import Limits


@dataclass(frozen=True, slots=True)
class Plan:
    """How one form runs. `slots` holds weights and constants, and None where values will be."""

    slots: Slots
    steps: tuple[Step, ...]
    peak_bytes: int


class PlannedOperations:
    """Bound operations and the plans that were made of them. One thread at a time."""

    def __init__(self, bindings: Bindings, limits: Limits | None = None) -> None:
        self._bindings = bindings
        self._limits = limits or Limits()
        self._plans: dict[Hashable, Plan] = {}

    def _run(self, form: Hashable, batch: int, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        with torch.inference_mode():
            plan = self._plans.get(form)
            return self._walk(plan, self._given(plan.slots, inputs)) if plan else self._first_run(form, batch, inputs)

    def _given(self, constants: Slots, inputs: Sequence[Tensor]) -> Slots:
        slots = constants.copy()
        for slot, tensor in zip(self._bindings.inputs, inputs, strict=True):
            slots[slot] = tensor
        return slots

    def _walk(self, plan: Plan, slots: Slots, before_last: Callable[[], None] | None = None) -> tuple[Tensor, ...]:
        """Run a plan on its slots. `before_last` is called before the last operation."""
        if before_last is None:
            _take(plan.steps, slots)
        else:
            _take(plan.steps[:-1], slots)
            before_last()
            _take(plan.steps[-1:], slots)
        return tuple(slots[slot] for slot in self._bindings.outputs)

    def _first_run(self, form: Hashable, batch: int, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        constants = self._bindings.for_batch(batch)
        run = CheckedRun(self._limits, constants, dict(zip(self._bindings.inputs, inputs, strict=True)))
        steps = [run.step(operation) for operation in self._bindings.operations]
        outputs = tuple(run.slots[slot] for slot in self._bindings.outputs)
        self._plans[form] = Plan(constants, tuple(steps), run.peak_bytes)
        return outputs


def _take(steps: Sequence[Step], slots: Slots) -> None:
    for call, gather, only, each, clears in steps:
        result = call(*gather(slots))
        if only >= 0:
            slots[only] = result
        else:
            for position, slot in each:
                slots[slot] = result[position]
        for slot in clears:
            slots[slot] = None

"""Runs a part of a layer program: the operations `begin` … `end` − 1, from the values that they read to those that others need.

    operations   0 ………… 40 ………… 90 ………… 174
                 └ Body ─┴ both ──┴ Body ─┘      three segments of one program, two borders

Which values cross a border follows from the program alone, so two processes that cut it at the same operations agree on them and
on their order. A value that has crossed a border is never overwritten, in either segment: the rows that a Shadow computes are
computed again from them when it fails. It is freed after its last use all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gnomon_core.program import Program
from gnomon_runtime.engine.allowlist import check_program
from gnomon_runtime.engine.executor import PlannedOperations, bind
from gnomon_runtime.engine.torch_support import Limits

MAX_PLANS = 64
"""The most forms of input whose plans a segment keeps: a peer that invents new forms only makes each run a first one."""


@dataclass(frozen=True, slots=True)
class Border:
    """The values that cross the borders of a segment.

    `reads` are values from before it, in the order of their first use, weights not counted; `makes` those of its values that are
    used after it or are outputs of the program. `passing` are the reads that nothing after it needs.
    """

    begin: int
    end: int
    reads: tuple[str, ...]
    makes: tuple[str, ...]
    passing: tuple[str, ...]
    weights: tuple[str, ...]


class Flow:
    """The last use of each value of a program."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._last_use: dict[str, int] = {}
        for index, operation in enumerate(program.operations):
            self._last_use |= dict.fromkeys(operation.reads(), index)
        self._last_use |= dict.fromkeys(program.outputs, len(program.operations))

    def border(self, begin: int, end: int) -> Border:
        """The values that cross the borders of the operations `begin` … `end` − 1.

        Raises:
            ValueError: they are none, or the program does not have them.

        """
        operations = self._program.operations
        if not 0 <= begin < end <= len(operations):
            raise ValueError(f"operations {begin} to {end} of a program of {len(operations)}")
        inside = operations[begin:end]
        results = dict.fromkeys(name for operation in inside for name in operation.results if name is not None)
        read = [name for name in dict.fromkeys(n for operation in inside for n in operation.reads()) if name not in results]
        values = tuple(name for name in read if name not in self._program.weights)
        return Border(
            begin,
            end,
            values,
            tuple(name for name in results if self._last_use.get(name, -1) >= end),
            tuple(name for name in values if self._last_use[name] < end),
            tuple(name for name in read if name in self._program.weights),
        )


class Segment(PlannedOperations):
    """A part of a program that is ready to run. One thread at a time.

    Raises:
        GnomonError: 422 `invalid_program` when one of its operations may not run.

    """

    def __init__(self, program: Program, border: Border, weights: Mapping[str, Tensor], limits: Limits | None = None) -> None:
        self.border = border
        part = replace(
            program,
            inputs=border.reads,
            outputs=border.makes,
            weights={name: program.weights[name] for name in border.weights},
            operations=program.operations[border.begin : border.end],
        )
        checked = check_program(program, border.begin, border.end)
        super().__init__(bind(part, checked, weights, border.passing), limits)

    def run(self, rows: int, values: list[Tensor], before_last: Callable[[], None] | None = None) -> tuple[Tensor, ...]:
        """The values that the segment makes from these rows, in the border's order.

        It empties the list, so that a value which only this run holds is freed after its last use. `before_last` is called before
        its last operation; not in the first run in a form.

        Raises:
            GnomonError: 422 when the values would exceed its limits.

        """
        form = (rows, *((tensor.dtype, tensor.shape, tensor.stride()) for tensor in values))
        with torch.inference_mode():
            plan = self._plans.get(form)
            if plan is None:
                if len(self._plans) >= MAX_PLANS:
                    # All at once: a peer in good order has few forms, and the order of use need not be kept for it.
                    self._plans.clear()
                return self._first_run(form, rows, values)
            slots = self._given(plan.slots, values)
            values.clear()
            return self._walk(plan, slots, before_last)


def borders_between(flow: Flow, operations: int, runs: Sequence[tuple[int, int]]) -> list[Border]:
    """The borders of a whole program's segments in order: each of these runs of operations, and what lies between them.

    Raises:
        ValueError: the runs overlap, are out of order, or touch each other.

    """
    borders: list[Border] = []
    at = 0
    for begin, end in runs:
        if begin < at or (begin == at and at > 0):
            raise ValueError("runs of operations that are not apart")
        if begin > at:
            borders.append(flow.border(at, begin))
        borders.append(flow.border(begin, end))
        at = end
    if at < operations:
        borders.append(flow.border(at, operations))
    return borders


def segments_between(program: Program, weights: Mapping[str, Tensor], runs: Sequence[tuple[int, int]]) -> list[Segment]:
    """A whole program as segments (`borders_between`).

    Raises:
        ValueError: the runs overlap, are out of order, or touch each other.

    """
    borders = borders_between(Flow(program), len(program.operations), runs)
    return [Segment(program, border, weights) for border in borders]

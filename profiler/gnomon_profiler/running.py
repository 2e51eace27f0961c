"""Runs operations of a layer program one after the other, to learn about them: their shapes, and what they answer for parts.

Serving has an engine of its own, which binds, bounds and plans; here an operation is looked up and called.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from gnomon_core.program import ALLOWED_OPERATORS, Argument, BatchSize, Constant, Operation, Program, Value, invalid_program
from gnomon_profiler.flow import Flow


class Runner:
    """A program with its weights.

    Raises:
        GnomonError: 422 `invalid_program` for an operator that is not on the allow-list.

    """

    def __init__(self, program: Program, weights: Mapping[str, Tensor]) -> None:
        refused = sorted(set(program.operators()) - ALLOWED_OPERATORS)
        if refused:
            raise invalid_program(f"Operators that may not run: {', '.join(refused)}.")
        self._operations = program.operations
        self._overloads = {name: _overload(name) for name in program.operators()}
        self._weights = weights
        self._flow = Flow.of(program)

    def run(self, begin: int, end: int, reads: Mapping[str, Tensor], batch: int) -> dict[str, Tensor]:
        """What the operations `begin` … `end` − 1 make for those after them, from the values they read."""
        makes = self._flow.border(begin, end).makes
        kept: dict[str, Tensor] = {}
        for _, results in self.walk(begin, end, reads, batch):
            kept |= {name: tensor for name, tensor in results.items() if name in makes}
        return kept

    def walk(
        self, begin: int, end: int, reads: Mapping[str, Tensor], batch: int
    ) -> Iterator[tuple[list[Any], dict[str, Tensor]]]:
        """Run operation by operation: the arguments and the named results of each. A value is forgotten after its last use."""
        values = dict(reads)
        for number in range(begin, end):
            operation = self._operations[number]
            arguments = [self._resolve(argument, values, batch) for argument in operation.args]
            keywords = {name: self._resolve(argument, values, batch) for name, argument in operation.kwargs.items()}
            with torch.no_grad():
                answer = self._overloads[operation.op](*arguments, **keywords)
            results = _named(operation, answer)
            yield arguments, results
            values |= {name: tensor for name, tensor in results.items() if name in self._flow.last_read}
            for name in self._flow.reads[number]:
                if self._flow.last_read[name] <= number:
                    values.pop(name, None)

    def _resolve(self, argument: Argument, values: Mapping[str, Tensor], batch: int) -> Any:
        match argument:
            case Value(name):
                return values[name] if name in values else self._weights[name]
            case BatchSize():
                return argument.at(batch)
            case Constant("device", name):
                return torch.device(name)
            case Constant(_, name):
                return getattr(torch, name)
            case tuple():
                return [self._resolve(item, values, batch) for item in argument]
        return argument


def _overload(name: str) -> Any:
    _, base, overload = name.split(".")
    return getattr(getattr(torch.ops.aten, base), overload)


def _named(operation: Operation, answer: Any) -> dict[str, Tensor]:
    answers = [answer] if isinstance(answer, Tensor) else answer
    return {name: tensor for name, tensor in zip(operation.results, answers, strict=True) if name is not None}

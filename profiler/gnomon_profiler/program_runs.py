"""Runs the operations of a layer program to measure them: their MACs and shapes, and their outputs for parts of a batch.

The program runs twice on tensors without content, as torch.export does, with batches of two sizes: a whole network takes a
fraction of a second, and its values have the strides that they have when it really runs. What grows with the batch belongs to the
samples; what does not, such as a table of positions that is computed from weights, is done once for all of them. A value whose
first axis is the batch, and no other axis depends on it, can be handed over by rows.

Multiply-accumulates follow from the shapes of an operation's arguments. Counted are the operators that are sums of products:
convolutions, products of matrices and attention. Elementwise operations, normalisation, pooling and moves count nothing, as in
the published figures of networks (ResNet50: 4.1 G at 224 × 224).

    conv2d, 64 → 128 channels, 3 × 3, on 56 × 56 outputs: 128·56·56 sums of 64·3·3 products = 231 M

Serving has an engine of its own, which binds, bounds and plans; here (`Runner`) an operation is looked up and called.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from gnomon_core.program import ALLOWED_OPERATORS, Argument, BatchSize, Constant, Operation, Program, Value, invalid_program
from gnomon_profiler.layers_file import Flow
from gnomon_profiler.weights import TORCH_TYPES

Rule: TypeAlias = Callable[[Sequence[Any], Tensor], int]
"""A count of multiply-accumulates from an operation's arguments, in the schema's order, and its result."""


def macs_of(op: str, arguments: Sequence[Any], result: Tensor | None) -> int:
    """The multiply-accumulates of one operation; 0 for one that is no sum of products."""
    rule = _RULES.get(op)
    return rule(arguments, result) if rule is not None and result is not None else 0


def _convolution(arguments: Sequence[Any], result: Tensor) -> int:
    """Convolution: each result sums over one group's input channels and the kernel, the weight's axes after the first."""
    return int(result.numel() * math.prod(arguments[1].shape[1:]))


def _transposed_convolution(arguments: Sequence[Any], _result: Tensor) -> int:
    """Transposed convolution: each input is multiplied with one group's output channels and the kernel."""
    return int(arguments[0].numel() * math.prod(arguments[1].shape[1:]))


def _either_convolution(arguments: Sequence[Any], result: Tensor) -> int:
    transposed = arguments[6]
    return (_transposed_convolution if transposed else _convolution)(arguments, result)


def _product(arguments: Sequence[Any], result: Tensor) -> int:
    """`linear`, `mm`, `bmm` and `matmul`: each result sums over the first factor's last axis."""
    return result.numel() * int(arguments[0].shape[-1])


def _added_product(arguments: Sequence[Any], result: Tensor) -> int:
    return _product(arguments[1:], result)


def _attention(arguments: Sequence[Any], result: Tensor) -> int:
    """Query times key for each score, scores times value for each result."""
    query, key = arguments[:2]
    source = int(key.shape[-2])
    return int(query.numel()) * source + result.numel() * source


def _einsum(arguments: Sequence[Any], _result: Tensor) -> int:
    """The product of all indices' sizes, where two factors are multiplied."""
    equation, operands = arguments[:2]
    terms = equation.replace(" ", "").partition("->")[0].split(",")
    sizes = {
        letter: int(size)
        for term, operand in zip(terms, operands, strict=False)
        for letter, size in zip(term, operand.shape, strict=False)
    }
    return math.prod(sizes.values()) if len(terms) > 1 else 0


_RULES: Mapping[str, Rule] = {
    **{
        f"aten.{name}": _convolution
        for name in ("conv1d.default", "conv1d.padding", "conv2d.default", "conv2d.padding", "conv3d.default", "conv3d.padding")
    },
    **{
        f"aten.{name}": _transposed_convolution
        for name in ("conv_transpose1d.default", "conv_transpose2d.input", "conv_transpose3d.input")
    },
    "aten.convolution.default": _either_convolution,
    **{f"aten.{name}.default": _product for name in ("linear", "matmul", "mm", "bmm")},
    **{f"aten.{name}.default": _added_product for name in ("addmm", "baddbmm")},
    "aten.scaled_dot_product_attention.default": _attention,
    "aten.einsum.default": _einsum,
}


BATCHES = (2, 3)
"""Two sizes that differ by one sample; not 1, which broadcasts."""


@dataclass(frozen=True, slots=True)
class Measures:
    """`macs` by operation and `value_bytes` by name, per sample.

    `by_rows` are the values that are one row for each sample; `templates` is every value at the smaller batch size, with its
    strides and without content.
    """

    macs: tuple[int, ...]
    value_bytes: Mapping[str, int]
    by_rows: frozenset[str]
    templates: Mapping[str, Tensor]


def measure(program: Program, weights: Mapping[str, Tensor]) -> Measures:
    """Run the program for its shapes."""
    with FakeTensorMode() as mode:
        runner = Runner(program, {name: mode.from_tensor(tensor) for name, tensor in weights.items()})
        (fewer_macs, fewer), (more_macs, more) = (_walk(program, runner, batch) for batch in BATCHES)
    return Measures(
        tuple(more - fewer for fewer, more in zip(fewer_macs, more_macs, strict=True)),
        {name: _bytes(more[name]) - _bytes(fewer[name]) for name in fewer},
        frozenset(name for name in fewer if _is_by_rows(fewer[name], more[name])),
        fewer,
    )


def _inputs(program: Program, batch: int) -> dict[str, Tensor]:
    return {
        name: torch.empty((batch, *spec.shape), dtype=TORCH_TYPES[spec.datatype])
        for name, spec in zip(program.inputs, program.signature.inputs, strict=True)
    }


def _walk(program: Program, runner: Runner, batch: int) -> tuple[list[int], dict[str, Tensor]]:
    values = _inputs(program, batch)
    macs: list[int] = []
    tensors = dict(values)
    for operation, (arguments, results) in zip(
        program.operations, runner.walk(0, len(program.operations), values, batch), strict=True
    ):
        macs.append(macs_of(operation.op, arguments, next(iter(results.values()), None)))
        tensors |= results
    return macs, tensors


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _is_by_rows(small_batch: Tensor, large_batch: Tensor) -> bool:
    return (
        small_batch.dim() > 0
        and (small_batch.shape[0], large_batch.shape[0]) == BATCHES
        and small_batch.shape[1:] == large_batch.shape[1:]
    )


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
        self._overloads = {name: overload_of(name) for name in program.operators()}
        self._weights = weights
        self._flow = Flow.of(program)

    def run(self, begin: int, end: int, reads: Mapping[str, Tensor], batch: int) -> dict[str, Tensor]:
        """Run the operations `begin` … `end` − 1 and return the values that later operations read."""
        makes = self._flow.border(begin, end).makes
        outputs: dict[str, Tensor] = {}
        for _, results in self.walk(begin, end, reads, batch):
            outputs |= {name: tensor for name, tensor in results.items() if name in makes}
        return outputs

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
            case Constant():
                return constant_of(argument)
            case tuple():
                return [self._resolve(item, values, batch) for item in argument]
        return argument


def constant_of(constant: Constant) -> Any:
    """The object of torch that a constant of a program names."""
    return torch.device(constant.name) if constant.kind == "device" else getattr(torch, constant.name)


def overload_of(name: str) -> Any:
    """The ATen overload of this name, which the caller has compared with the allow-list."""
    _, base, overload = name.split(".")
    return getattr(getattr(torch.ops.aten, base), overload)


def _named(operation: Operation, answer: Any) -> dict[str, Tensor]:
    answers = [answer] if isinstance(answer, Tensor) else answer
    return {name: tensor for name, tensor in zip(operation.results, answers, strict=True) if name is not None}

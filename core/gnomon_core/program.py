"""A layer program: a model as data.

The Extractor writes it, the engine runs it, and neither needs the other: a list of operations, each an ATen overload by name, its
arguments, and the names of the values it makes. Every value is made once, by an operation, an input or a weight, before it is
read. Operations are functional: none changes a value in place, so running one again gives the same answer.

    {"op": "aten.conv2d.default", "args": [{"value": "x"}, {"value": "w"}, null, [2, 2]], "results": ["conv2d"]}

What JSON has no word for is an object with one meaning: `{"value": name}`, `{"dtype": "float32"}`, `{"float": "inf"}`,
`{"memory_format": …}`, `{"layout": …}`, `{"device": "cpu"}`, and sizes that follow the batch: `{"batch": 4, "plus": 1, "over":
2}` is (4·batch + 1) // 2. No coefficient is negative, so a size never shrinks when the batch grows: what fits at the largest
batch fits at all of them.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, Union

from gnomon_core.errors import GnomonError
from gnomon_core.signature import ModelSignature

FORMAT = "gnomon-layer-program/1"


def invalid_program(message: str, hint: str = "Capture the model again with gnomon's Extractor.") -> GnomonError:
    """422: the document is not a layer program that can be run."""
    return GnomonError(422, "invalid_program", message, hint)


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor by name: an input, a weight or a result."""

    name: str


@dataclass(frozen=True, slots=True)
class BatchSize:
    """A size that follows the batch: (times · batch + plus) // over."""

    times: int
    plus: int = 0
    over: int = 1

    def at(self, batch: int) -> int:
        """The size at this batch."""
        return (self.times * batch + self.plus) // self.over


@dataclass(frozen=True, slots=True)
class Constant:
    """A named constant of the tensor library: `kind` is dtype, memory_format, layout or device."""

    kind: str
    name: str


Argument: TypeAlias = Union[bool, int, float, str, Value, BatchSize, Constant, tuple["Argument", ...], None]  # noqa: UP007 - recursive
CONSTANT_KINDS = ("dtype", "memory_format", "layout", "device")


@dataclass(frozen=True, slots=True)
class Operation:
    """One ATen overload applied to arguments. A result that nobody reads has the name None."""

    op: str
    args: tuple[Argument, ...]
    results: tuple[str | None, ...]
    kwargs: Mapping[str, Argument] = field(default_factory=dict)

    def reads(self) -> Iterator[str]:
        """The names of the values that it reads, as often as it does."""
        yield from values_in((*self.args, *self.kwargs.values()))


@dataclass(frozen=True, slots=True)
class Weight:
    """A tensor of the weight file.

    `order` is its axes from the slowest to the fastest in memory where that is not 0, 1, 2, …: the file holds it with its axes in
    that order, and the engine turns them back.
    """

    datatype: str
    shape: tuple[int, ...]
    order: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Program:
    """A layer program. `schema_sha256` is of the operators' schemas at capture; the engine compares it with its own."""

    torch_version: str
    schema_sha256: str
    signature: ModelSignature
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    weights: Mapping[str, Weight]
    operations: tuple[Operation, ...]

    def operators(self) -> tuple[str, ...]:
        """The names of the operators it uses, sorted."""
        return tuple(sorted({operation.op for operation in self.operations}))


def values_in(arguments: Sequence[Argument]) -> Iterator[str]:
    """The names of the values in arguments, however deeply nested."""
    for argument in arguments:
        if isinstance(argument, Value):
            yield argument.name
        elif isinstance(argument, tuple):
            yield from values_in(argument)


def dump_program(program: Program) -> bytes:
    """The JSON document of a program. The same program gives the same bytes."""
    document = {
        "format": FORMAT,
        "torch": program.torch_version,
        "schema_sha256": program.schema_sha256,
        "signature": program.signature.to_json(),
        "inputs": list(program.inputs),
        "outputs": list(program.outputs),
        "weights": {name: _dump_weight(weight) for name, weight in program.weights.items()},
        "operations": [_dump_operation(operation) for operation in program.operations],
    }
    return json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def _dump_weight(weight: Weight) -> dict[str, Any]:
    document: dict[str, Any] = {"datatype": weight.datatype, "shape": list(weight.shape)}
    return document | ({"order": list(weight.order)} if weight.order else {})


def _dump_operation(operation: Operation) -> dict[str, Any]:
    document: dict[str, Any] = {
        "op": operation.op,
        "args": [_dump_argument(argument) for argument in operation.args],
        "results": list(operation.results),
    }
    if operation.kwargs:
        document["kwargs"] = {name: _dump_argument(argument) for name, argument in operation.kwargs.items()}
    return document


def _dump_argument(argument: Argument) -> Any:
    match argument:
        case Value(name):
            return {"value": name}
        case BatchSize(times, plus, over):
            return {"batch": times} | ({"plus": plus} if plus else {}) | ({"over": over} if over != 1 else {})
        case Constant(kind, name):
            return {kind: name}
        case tuple():
            return [_dump_argument(item) for item in argument]
        case float() if not math.isfinite(argument):
            return {"float": str(argument)}
    return argument


def schema_sha256(schemas: Iterable[str]) -> str:
    """The hash of operators' schemas, in any order: what a program states of the operators it was captured with."""
    return hashlib.sha256("\n".join(sorted(schemas)).encode()).hexdigest()

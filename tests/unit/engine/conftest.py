"""Layer programs written by hand: what a repository's file may hold, good and bad."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from gnomon_core.program import Argument, Operation, Program, Value, Weight, schema_sha256
from gnomon_core.signature import ModelSignature, TensorSpec
from gnomon_runtime.engine import Executor, Limits

Call = tuple[Any, ...]


def value(argument: Any) -> Argument:
    """Texts that begin with `%` are values, as in a printed graph."""
    if isinstance(argument, str) and argument.startswith("%"):
        return Value(argument[1:])
    return tuple(value(item) for item in argument) if isinstance(argument, list | tuple) else argument


def schemas(names: set[str]) -> str:
    found = []
    for name in names:
        _, base, overload = name.split(".")
        packet = getattr(torch.ops.aten, base, None)
        operator = getattr(packet, overload, None)
        found.append(str(operator._schema) if operator is not None else name)
    return schema_sha256(found)


@pytest.fixture
def program() -> Callable[..., Program]:
    """`program([("aten.relu.default", ("%x",), "y")], output="y")`: one input x of `shape`, weights by name."""

    def make(
        calls: Sequence[Call],
        output: str,
        *,
        shape: tuple[int, ...] = (4,),
        out_shape: tuple[int, ...] | None = None,
        weights: Mapping[str, Tensor] | None = None,
        datatype: str = "FP32",
    ) -> Program:
        operations = []
        for op, args, results, *kwargs in calls:
            names = results if isinstance(results, tuple) else (results,)
            operations.append(Operation(op, tuple(value(argument) for argument in args), names, dict(*kwargs)))
        return Program(
            torch_version=torch.__version__,
            schema_sha256=schemas({operation.op for operation in operations}),
            signature=ModelSignature(
                "m",
                "1",
                (TensorSpec("x", datatype, shape),),
                (TensorSpec("y", "FP32", shape if out_shape is None else out_shape),),
            ),
            inputs=("x",),
            outputs=(output,),
            weights={name: Weight("FP32", tuple(tensor.shape)) for name, tensor in (weights or {}).items()},
            operations=tuple(operations),
        )

    return make


@pytest.fixture
def executor(program: Callable[..., Program]) -> Callable[..., Executor]:
    """The executor of the program, ready to run."""

    def make(calls: Sequence[Call], output: str, *, limits: Limits | None = None, **rest: Any) -> Executor:
        return Executor(program(calls, output, **rest), rest.get("weights") or {}, limits)

    return make


@pytest.fixture
def ramp() -> Callable[..., Tensor]:
    """A batch of numbers around zero, none of them equal."""

    def make(batch: int, *shape: int) -> Tensor:
        return torch.arange(batch * math.prod(shape), dtype=torch.float32).reshape(batch, *shape) - batch

    return make

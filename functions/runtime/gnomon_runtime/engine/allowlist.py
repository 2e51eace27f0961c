"""Checks that a program runs only operators of the allow-list, with arguments of the types that their schemas state.

ATen names include ones that read files, adopt storages and allocate without a bound. An operator is looked up only after its name
was found in `ALLOWED_OPERATORS` and its size rule in `sizes.RULES`; its arguments are compared with the schema one by one, so
that no text ever reaches a place where a number belongs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from gnomon_core.program import (
    ALLOWED_OPERATORS,
    Argument,
    BatchSize,
    Constant,
    Operation,
    Program,
    Value,
    invalid_program,
    schema_sha256,
    values_in,
)
from gnomon_runtime.engine.torch_support import aten, schema_of

_DTYPES = {
    name: getattr(torch, name)
    for name in (
        "bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64",
    )
}  # fmt: skip
_MEMORY_FORMATS = {
    name: getattr(torch, name) for name in ("contiguous_format", "preserve_format", "channels_last", "channels_last_3d")
}
_CONSTANTS: Mapping[str, Mapping[str, Any]] = {
    "dtype": _DTYPES,
    "memory_format": _MEMORY_FORMATS,
    "layout": {"strided": torch.strided},
    "device": {"cpu": torch.device("cpu")},
}
_CONSTANT_TYPES = {"ScalarType": "dtype", "MemoryFormat": "memory_format", "Layout": "layout", "Device": "device"}


@dataclass(frozen=True, slots=True)
class Parameter:
    """An argument of an operator: its type, the number of axes that one number stands for, and its default."""

    name: str
    kind: str
    kwarg_only: bool
    count: int | None
    optional: bool
    default: Argument


@dataclass(frozen=True, slots=True)
class Operator:
    """The facts of an operator's schema, read once: torch creates new objects at each access."""

    overload: Any
    schema: str
    positional: tuple[Parameter, ...]
    by_name: Mapping[str, Parameter]
    returns: int
    listed: bool
    """The operator returns a list of tensors."""


@dataclass(frozen=True, slots=True)
class CheckedOperation:
    """An operation whose operator and arguments are in order.

    `args` are in the schema's order, without trailing defaults; `kwargs` holds only keyword-only arguments, never values.
    `many` says whether the operator returns several tensors.
    """

    operation: Operation
    overload: Any
    args: tuple[Argument, ...]
    kwargs: Mapping[str, Argument]
    many: bool


def check_program(program: Program, begin: int = 0, end: int | None = None) -> list[CheckedOperation]:
    """The operations `begin` … `end` − 1 of a program, all unless told otherwise, checked.

    The operators are checked of the whole program in any case: it states one hash of all their schemas.

    Raises:
        GnomonError: 422 `invalid_program`: an operator that is not allowed, an argument of a wrong type, or operators that have
            changed since the capture.

    """
    refused = sorted(set(program.operators()) - ALLOWED_OPERATORS)
    if refused:
        raise invalid_program(
            f"Operators that may not run: {', '.join(refused)}.", "Only the operators of Gnomon's allow-list run."
        )
    operators = {name: operator_of(name) for name in program.operators()}
    if schema_sha256(operator.schema for operator in operators.values()) != program.schema_sha256:
        raise invalid_program(
            f"The program was captured with torch {program.torch_version}; the operators of torch {torch.__version__} differ."
        )
    return [
        _check_operation(index, operation, operators[operation.op])
        for index, operation in enumerate(program.operations[begin:end], begin)
    ]


def constant(argument: Constant) -> Any:
    """The tensor library's object that a constant names.

    Raises:
        GnomonError: 422 for a name that is not known.

    """
    try:
        return _CONSTANTS[argument.kind][argument.name]
    except KeyError:
        raise invalid_program(f"{argument.kind} {argument.name!r} is not known.") from None


@cache
def operator_of(name: str) -> Operator:
    """An operator of the allow-list.

    Raises:
        GnomonError: 422 `invalid_program`: this torch has none of that name.

    """
    _, base, overload_name = name.split(".")
    try:
        overload = getattr(getattr(aten, base), overload_name)
    except AttributeError:
        raise invalid_program(f"torch {torch.__version__} has no operator {name}.") from None
    schema = schema_of(overload)
    parameters = [_parameter(argument) for argument in schema.arguments]
    return Operator(
        overload,
        str(schema),
        tuple(parameter for parameter in parameters if not parameter.kwarg_only),
        {parameter.name: parameter for parameter in parameters},
        len(schema.returns),
        str(schema.returns[0].type) == "List[Tensor]",
    )


def _parameter(argument: Any) -> Parameter:
    optional = bool(argument.has_default_value())
    default = argument.default_value if optional else None
    return Parameter(
        argument.name,
        str(argument.real_type),
        bool(argument.kwarg_only),
        argument.N,
        optional,
        tuple(default) if isinstance(default, list) else default,
    )


def _check_operation(index: int, operation: Operation, operator: Operator) -> CheckedOperation:
    positional, by_name = operator.positional, operator.by_name
    label = f"Operation {index}, {operation.op},"
    if len(operation.args) > len(positional):
        raise invalid_program(f"{label} has {len(operation.args)} arguments; it takes {len(positional)}.")
    arguments: dict[str, Argument] = {argument.name: value for argument, value in zip(positional, operation.args, strict=False)}
    for name, value in operation.kwargs.items():
        if name not in by_name or name in arguments:
            raise invalid_program(f"{label} has no argument {name!r}, or has it twice.")
        arguments[name] = value
    for name, value in arguments.items():
        if not _fits(value, by_name[name].kind):
            raise invalid_program(f"{label} needs {by_name[name].kind} as {name}, not {str(value)[:100]}.")
        if by_name[name].kwarg_only and (any(values_in((value,))) or isinstance(value, BatchSize)):
            raise invalid_program(f"{label} has {name} that is not a constant.")
    missing = [parameter.name for parameter in by_name.values() if parameter.name not in arguments and not parameter.optional]
    if missing:
        raise invalid_program(f"{label} lacks {', '.join(missing)}.")
    if not operator.listed and len(operation.results) != operator.returns:
        raise invalid_program(f"{label} names {len(operation.results)} results; it makes {operator.returns}.")
    many = operator.returns > 1 or operator.listed
    keywords = {name: arguments[name] for name, parameter in by_name.items() if parameter.kwarg_only and name in arguments}
    return CheckedOperation(operation, operator.overload, _in_order(positional, arguments), keywords, many)


def _in_order(positional: Sequence[Parameter], arguments: Mapping[str, Argument]) -> tuple[Argument, ...]:
    last = max((index for index, parameter in enumerate(positional) if parameter.name in arguments), default=-1)
    return tuple(
        _spread(arguments[parameter.name], parameter.count) if parameter.name in arguments else parameter.default
        for parameter in positional[: last + 1]
    )


def _spread(value: Argument, count: int | None) -> Argument:
    """Repeat a number that stands for all axes once for each axis, as the size rules expect."""
    if not count or value is None:
        return value
    items = value if isinstance(value, tuple) else (value,)
    return items * count if len(items) == 1 else items


def _is_integer(argument: Argument) -> bool:
    return isinstance(argument, BatchSize) or (isinstance(argument, int) and not isinstance(argument, bool))


_CHECKS: Mapping[str, Callable[[Argument], bool]] = {
    # torch takes a number where a tensor belongs, as in x * 0.5, and captures write it so.
    "Tensor": lambda argument: isinstance(argument, Value | int | float) and not isinstance(argument, bool),
    "bool": lambda argument: isinstance(argument, bool),
    "int": _is_integer,
    "float": lambda argument: isinstance(argument, float | int) and not isinstance(argument, bool),
    "number": lambda argument: isinstance(argument, bool | int | float | BatchSize),
    "str": lambda argument: isinstance(argument, str),
}


def _fits(argument: Argument, kind: str) -> bool:
    if kind.startswith("Optional["):
        return argument is None or _fits(argument, kind[len("Optional[") : -1])
    if kind.startswith("List["):
        inner = kind[len("List[") : -1]
        if isinstance(argument, tuple):
            return all(_fits(item, inner) for item in argument)
        return inner == "int" and _is_integer(argument)  # one number stands for all axes, as torch has it
    if kind in _CONSTANT_TYPES:
        return isinstance(argument, Constant) and argument.kind == _CONSTANT_TYPES[kind]
    check = _CHECKS.get(kind)
    return check is not None and check(argument)

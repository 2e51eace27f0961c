"""How an argument of a captured graph is written in a layer program."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import sympy  # type: ignore[import-untyped]  # it ships no types
import torch
from torch.fx import Node

from gnomon_core.errors import GnomonError
from gnomon_core.program import Argument, BatchSize, Constant, Value


def unsupported(message: str, hint: str = "") -> GnomonError:
    """422: the model cannot become a layer program."""
    return GnomonError(422, "unsupported_model", message, hint)


def argument_of(argument: Any, values: Mapping[str, str]) -> Argument:
    """The argument as data. `values` maps the names of nodes to those of values."""
    match argument:
        case None | bool() | int() | float() | str():
            return argument
        case Node():
            return _node(argument, values)
        case torch.SymInt():
            return batch_size(argument)
        case list() | tuple():
            return tuple(argument_of(item, values) for item in argument)
    return _constant(argument)


def _constant(argument: Any) -> Constant:
    for kind in (torch.dtype, torch.memory_format, torch.layout):
        if isinstance(argument, kind):
            return Constant(kind.__name__, str(argument).rpartition(".")[2])
    if argument == torch.device("cpu"):
        return Constant("device", "cpu")
    raise unsupported(f"An operation has the argument {str(argument)[:200]!r}, which cannot be written as data.")


def is_batch(size: Any) -> bool:
    """Whether a size is the batch itself."""
    return isinstance(size, torch.SymInt) and batch_size(size) == BatchSize(1)


def batch_size(size: Any) -> BatchSize:
    """A size as (times · batch + plus) // over.

    Raises:
        GnomonError: 422 for a size that depends on the batch in any other way.

    """
    expression = sympy.sympify(size.node.expr)
    over = 1
    if expression.func.__name__ in ("FloorDiv", "CleanDiv") and expression.args[1].is_Integer:
        expression, over = expression.args[0], int(expression.args[1])
    symbols = list(expression.free_symbols)
    polynomial = sympy.Poly(expression, *symbols) if len(symbols) == 1 and expression.is_polynomial(*symbols) else None
    if polynomial is None or polynomial.degree() != 1:
        raise unsupported(f"A size follows the batch as {size}: only multiples of the batch are supported.")
    times, plus = polynomial.all_coeffs()
    scale = math.lcm(int(times.q), int(plus.q))
    found = BatchSize(int(times * scale), int(plus * scale), over * scale)
    if found.times < 0 or found.plus < 0:
        raise unsupported(f"A size follows the batch as {size}: it must not shrink when the batch grows.")
    return found


def _node(node: Node, values: Mapping[str, str]) -> Argument:
    value = node.meta.get("val")
    if isinstance(value, torch.SymInt):
        return batch_size(value)
    if isinstance(value, int | float | bool):
        return value
    return Value(values[node.name])

"""Reading arguments and counting elements of shapes, as the rules of `sizes` need it: for any arguments, also hostile ones."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor


def tensors_in(arguments: Iterable[Any]) -> list[Tensor]:
    """Every tensor among the arguments, those in lists included."""
    found: list[Tensor] = []
    for argument in arguments:
        if isinstance(argument, Tensor):
            found.append(argument)
        elif isinstance(argument, list | tuple):
            found.extend(tensors_in(argument))
    return found


def product(sizes: Iterable[float]) -> int:
    """The elements of a shape; sizes below 0 count as none, fractions as a whole one."""
    return math.prod(math.ceil(max(size, 0)) for size in sizes)


def each_axis(value: Any, count: int) -> list[Any]:
    """A setting for each axis: one number stands for all of them."""
    items = list(value) if isinstance(value, list | tuple) else [value]
    return items * count if len(items) == 1 else items


def argument_at(arguments: Sequence[Any], index: int, default: Any) -> Any:
    """The argument at a place, or the default where it is absent or None."""
    return arguments[index] if index < len(arguments) and arguments[index] is not None else default


def broadcast_shape(tensors: Iterable[Tensor]) -> list[int]:
    """The shape that these tensors broadcast to."""
    shape: list[int] = []
    for tensor in tensors:
        sizes = list(tensor.shape)
        shape = [1] * (len(sizes) - len(shape)) + shape
        offset = len(shape) - len(sizes)
        for axis, size in enumerate(sizes):
            # 1 gives way to any size, 0 included; two other sizes are an error that torch reports.
            shape[offset + axis] = size if shape[offset + axis] == 1 else max(shape[offset + axis], size)
    return shape


def broadcast_elements(shapes: Iterable[Sequence[int]]) -> int:
    """The elements of what these shapes broadcast to."""
    return math.prod(max(sizes) for sizes in _aligned([list(shape) for shape in shapes]))


def _aligned(shapes: list[list[int]]) -> list[tuple[int, ...]]:
    length = max(len(shape) for shape in shapes)
    return list(zip(*([1] * (length - len(shape)) + shape for shape in shapes), strict=True))

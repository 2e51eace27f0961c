"""How large the results of sums of products can get: convolutions, matrices, attention, einsum. See `sizes`.

The bounds count what an operator allocates on its way as well, such as the unfolded operands of a matrix product.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from gnomon_core.program import invalid_program
from gnomon_runtime.engine.shape_counts import argument_at, broadcast_elements, each_axis, product, tensors_in


def convolution(arguments: Sequence[Any]) -> int:
    """`(input, weight, bias, stride, padding, …)`: as large as with a stride of 1."""
    tensor, weight = arguments[0], arguments[1]
    axes = weight.dim() - 2
    padding = argument_at(arguments, 4, 0)
    spatial = list(tensor.shape[-axes:])
    if isinstance(padding, str):
        grown = spatial
    else:
        grown = [size + 2 * pad for size, pad in zip(spatial, each_axis(padding, axes), strict=False)]
    leading = tensor.shape[0] if tensor.dim() == weight.dim() else 1
    return int(leading * weight.shape[0] * product(grown))


def transposed_convolution(arguments: Sequence[Any]) -> int:
    """`(input, weight, bias, stride, padding, output_padding, groups, dilation)`."""
    tensor, weight = arguments[0], arguments[1]
    axes = weight.dim() - 2
    strides, extra = each_axis(argument_at(arguments, 3, 1), axes), each_axis(argument_at(arguments, 5, 0), axes)
    dilations = each_axis(argument_at(arguments, 7, 1), axes)
    spatial = (
        size * stride + dilation * kernel + more
        for size, stride, kernel, dilation, more in zip(
            tensor.shape[-axes:], strides, weight.shape[2:], dilations, extra, strict=False
        )
    )
    leading = tensor.shape[0] if tensor.dim() == weight.dim() else 1
    return int(leading * weight.shape[1] * max(argument_at(arguments, 6, 1), 1) * product(spatial))


def general_convolution(arguments: Sequence[Any]) -> int:
    """`convolution(input, weight, bias, stride, padding, dilation, transposed, output_padding, groups)`."""
    if not arguments[6]:
        return convolution(arguments)
    reordered = [*arguments[:5], arguments[7], arguments[8], arguments[5]]
    return transposed_convolution(reordered)


def linear(arguments: Sequence[Any]) -> int:
    """`(input, weight, …)`."""
    tensor, weight = arguments[0], arguments[1]
    return int(tensor.numel() // max(tensor.shape[-1], 1) * weight.shape[0])


def _product_of_matrices(first: Tensor, second: Tensor) -> int:
    rows, inner = first.shape[-2] if first.dim() > 1 else 1, first.shape[-1]
    columns = second.shape[-1] if second.dim() > 1 else 1
    batch = broadcast_elements([first.shape[:-2], second.shape[:-2]])
    return batch * (rows * columns + rows * inner + inner * columns)


def matmul(arguments: Sequence[Any]) -> int:
    """`(first, second)`."""
    return _product_of_matrices(arguments[0], arguments[1])


def addmm(arguments: Sequence[Any]) -> int:
    """`(input, first, second, …)`."""
    return _product_of_matrices(arguments[1], arguments[2])


def attention(arguments: Sequence[Any]) -> int:
    """`(query, key, value, …)`: the weights of every pair of positions, and the result."""
    query, key, value = arguments[:3]
    batch = broadcast_elements([query.shape[:-2], key.shape[:-2], value.shape[:-2]])
    length, source = query.shape[-2], key.shape[-2]
    return int(batch * (length * source + length * value.shape[-1]))


def einsum(arguments: Sequence[Any]) -> int:
    """`(equation, operands)`."""
    equation, operands = arguments[0].replace(" ", ""), arguments[1]
    if not re.fullmatch(r"[A-Za-z]+(,[A-Za-z]+)?(->[A-Za-z]*)?", equation):
        raise invalid_program(f"einsum {equation!r} is not over one or two operands with letters for their axes.")
    left, _, right = equation.partition("->")
    labels: dict[str, int] = {}
    for text, operand in zip(left.split(","), operands, strict=False):
        for letter, size in zip(text, operand.shape, strict=False):
            labels[letter] = max(labels.get(letter, 1), size)
    kept = right if "->" in equation else "".join(labels)
    return product(labels.get(letter, 1) for letter in kept) + sum(operand.numel() for operand in tensors_in(operands))

"""Upper bounds of result sizes, from the arguments, before the operation runs.

One rule for each kind of operator gives an upper bound of the number of elements that it allocates. The bound need not be tight;
it must hold for any arguments, hostile ones included. An operator without a rule does not run.

How large the results of sums of products can get: convolutions, matrices, attention, einsum. See `sizes`.

The bounds count what an operator allocates on its way as well, such as the unfolded operands of a matrix product.

Reading arguments and counting elements of shapes, as the rules of `sizes` need it: for any arguments, also hostile ones.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from gnomon_core.program import ALLOWED_OPERATORS, MAX_LIST, invalid_program


def tensors_in(arguments: Iterable[Any]) -> list[Tensor]:
    """Every tensor among the arguments, those in lists included."""
    tensors: list[Tensor] = []
    for argument in arguments:
        if isinstance(argument, Tensor):
            tensors.append(argument)
        elif isinstance(argument, list | tuple):
            tensors.extend(tensors_in(argument))
    return tensors


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
        size * stride + dilation * kernel + output_padding
        for size, stride, kernel, dilation, output_padding in zip(
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
    input_labels, _, right = equation.partition("->")
    labels: dict[str, int] = {}
    for text, operand in zip(input_labels.split(","), operands, strict=False):
        for letter, size in zip(text, operand.shape, strict=False):
            labels[letter] = max(labels.get(letter, 1), size)
    output_labels = right if "->" in equation else "".join(labels)
    return product(labels.get(letter, 1) for letter in output_labels) + sum(operand.numel() for operand in tensors_in(operands))


Rule: TypeAlias = Callable[[Sequence[Any]], int]
"""The arguments in the schema's order, and the bound in elements."""


def _same(arguments: Sequence[Any]) -> int:
    return sum(tensor.numel() for tensor in tensors_in(arguments))


def _broadcast(arguments: Sequence[Any]) -> int:
    return product(broadcast_shape(tensors_in(arguments)))


def _extreme(arguments: Sequence[Any]) -> int:
    """`max` and `min` of two tensors, or along an axis: a value and its index."""
    return 2 * _broadcast(arguments)


def _nothing(_arguments: Sequence[Any]) -> int:
    return 0


def _split(arguments: Sequence[Any]) -> int:
    """`split(x, size, dim)` and `split_with_sizes(x, sizes, dim)` make views, but as many as the arguments say."""
    tensor, size = arguments[:2]
    if isinstance(size, list | tuple):
        return _pieces(len(size))
    return _pieces(tensor.shape[argument_at(arguments, 2, 0)] // max(size, 1) + 1)


def _unbound(arguments: Sequence[Any]) -> int:
    return _pieces(arguments[0].shape[argument_at(arguments, 1, 0)])


def _pieces(count: int) -> int:
    if count > MAX_LIST:
        raise invalid_program(f"An operation makes {count} pieces; at most {MAX_LIST} are made.")
    return 0


def _padded(arguments: Sequence[Any]) -> int:
    tensor, pads = arguments[0], list(arguments[1])
    sizes = list(tensor.shape)
    for index, pad in enumerate(pads[: 2 * len(sizes)]):
        sizes[-1 - index // 2] += max(pad, 0)
    return product(sizes)


def _pooled(arguments: Sequence[Any]) -> int:
    """Windows never overlap into more results than elements plus one for each axis; with indices there are two results."""
    tensor = arguments[0]
    return int(2 * math.prod(size + 1 for size in tensor.shape))


def _adaptively_pooled(arguments: Sequence[Any]) -> int:
    tensor, sizes = arguments[0], each_axis(arguments[1], 1)
    return 2 * product(tensor.shape[: max(tensor.dim() - len(sizes), 0)]) * product(sizes)


def _upsampled(arguments: Sequence[Any]) -> int:
    """`(input, output_size)` or `(input, output_size?, …, scale_factors?)`."""
    tensor = arguments[0]
    leading = int(tensor.shape[0] * tensor.shape[1])
    if arguments[1] is not None:
        return leading * product(arguments[1])
    factors = [argument for argument in arguments[2:] if isinstance(argument, list | tuple)]
    scales = factors[0] if factors else []
    return leading * product(size * scale + 1 for size, scale in zip(tensor.shape[2:], scales, strict=False))


def _sampled(arguments: Sequence[Any]) -> int:
    tensor, grid = arguments[:2]
    return int(tensor.shape[0] * tensor.shape[1] * math.prod(grid.shape[1:-1]))


def _filled(arguments: Sequence[Any]) -> int:
    return product(arguments[0])


def _new_filled(arguments: Sequence[Any]) -> int:
    return product(arguments[1])


def _range(arguments: Sequence[Any]) -> int:
    numbers = [argument for argument in arguments if isinstance(argument, int | float) and not isinstance(argument, bool)]
    start, end = (0, numbers[0]) if len(numbers) == 1 else (numbers[0], numbers[1])
    step = numbers[2] if len(numbers) > 2 else 1  # noqa: PLR2004 - start, end, step
    if not step or not all(map(math.isfinite, numbers)):
        raise invalid_program(f"A range from {start} to {end} by {step} has no bound.")
    return math.ceil(abs((end - start) / step)) + 1


def _evenly(arguments: Sequence[Any]) -> int:
    return max(int(arguments[2]), 0)


def _square(arguments: Sequence[Any]) -> int:
    return max(int(arguments[0]), 0) ** 2


def _repeated(arguments: Sequence[Any]) -> int:
    return int(arguments[0].numel()) * product(each_axis(arguments[1], 1))


def _embedded(arguments: Sequence[Any]) -> int:
    weight, indices = arguments[:2]
    return int(indices.numel() * weight.shape[-1])


def _indexed(arguments: Sequence[Any]) -> int:
    tensor, indices = arguments[:2]
    picked = [index for index in indices if index is not None]
    if any(index.dtype in (torch.bool, torch.uint8) for index in picked):
        raise invalid_program("An operation indexes by a mask: the size of its result would depend on values.")
    row_size = math.prod(size for axis, size in enumerate(tensor.shape) if axis >= len(indices) or indices[axis] is None)
    return int(max(_broadcast(picked), 1) * row_size)


def _selected(arguments: Sequence[Any]) -> int:
    tensor, axis, index = arguments[:3]
    return int(tensor.numel() // max(tensor.shape[axis] if tensor.dim() else 1, 1) * index.numel())


_BY_RULE: dict[Rule, str] = {
    _nothing: """
        view permute transpose t squeeze unsqueeze expand select slice narrow alias detach numpy_T movedim diagonal unflatten
    """,
    _split: "split split_with_sizes",
    _unbound: "unbind",
    convolution: "conv1d conv2d conv3d",
    transposed_convolution: "conv_transpose1d conv_transpose2d conv_transpose3d",
    general_convolution: "convolution",
    linear: "linear",
    matmul: "matmul mm bmm",
    addmm: "addmm baddbmm",
    attention: "scaled_dot_product_attention",
    einsum: "einsum",
    _padded: "pad constant_pad_nd reflection_pad1d reflection_pad2d replication_pad2d",
    _pooled: """
        max_pool1d max_pool2d max_pool3d max_pool2d_with_indices max_pool3d_with_indices avg_pool1d avg_pool2d avg_pool3d
    """,
    _adaptively_pooled: """
        adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d adaptive_max_pool2d
        _adaptive_avg_pool2d _adaptive_avg_pool3d
    """,
    _upsampled: """
        upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_bilinear2d upsample_bicubic2d upsample_trilinear3d
    """,
    _sampled: "grid_sampler grid_sampler_2d",
    _filled: "full zeros ones",
    _new_filled: "new_zeros new_ones new_full",
    _range: "arange",
    _evenly: "linspace",
    _square: "eye",
    _repeated: "repeat tile repeat_interleave",
    _embedded: "embedding",
    _indexed: "index",
    _selected: "index_select",
    _broadcast: """
        add sub rsub mul div pow remainder fmod floor_divide maximum minimum lerp addcmul addcdiv atan2 clamp
        eq ne lt le gt ge logical_and logical_or logical_xor bitwise_and bitwise_or bitwise_xor __and__ __or__
        where masked_fill
    """,
    _extreme: "max min",
}
_SPECIAL: dict[str, Rule] = {name: rule for rule, names in _BY_RULE.items() for name in names.split()}

RULES: dict[str, Rule] = {name: _SPECIAL.get(name.split(".")[1], _same) for name in ALLOWED_OPERATORS}
"""The rule of each allowed operator. What is not special makes at most as many elements as its tensors hold together:
activations, normalisations, reductions, joins and scatters."""

"""ONNX operators that move a window over an image or sample it: convolutions, pooling, `Pad` and `Resize`.

Padding is written as ONNX has it, the begins of all axes and then their ends; torch takes one number for both sides of an axis,
so unequal ones are padded before the operator.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from gnomon_profiler.importing.onnx_values import Call, Unsupported

_CONVOLUTIONS: Mapping[int, Callable[..., Tensor]] = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}
_TRANSPOSED: Mapping[int, Callable[..., Tensor]] = {
    1: functional.conv_transpose1d,
    2: functional.conv_transpose2d,
    3: functional.conv_transpose3d,
}
_MAX_POOLS: Mapping[int, Callable[..., Tensor]] = {1: functional.max_pool1d, 2: functional.max_pool2d, 3: functional.max_pool3d}
_AVERAGE_POOLS: Mapping[int, Callable[..., Tensor]] = {
    1: functional.avg_pool1d,
    2: functional.avg_pool2d,
    3: functional.avg_pool3d,
}


def convolution(call: Call) -> Tensor:
    """`Conv(X, W, B)`."""
    tensor, weight, bias = call.tensor(0), call.tensor(1), call.optional(2)
    axes = _axes(tensor)
    strides, dilations = call.attribute("strides", [1] * axes), call.attribute("dilations", [1] * axes)
    tensor, padding = _padded(tensor, _pads(call, tensor, [int(size) for size in weight.shape[2:]], strides, dilations))
    return _CONVOLUTIONS[axes](tensor, weight, bias, strides, padding, dilations, call.attribute("group", 1))


def transposed_convolution(call: Call) -> Tensor:
    """`ConvTranspose(X, W, B)` with its padding stated."""
    tensor, weight, bias = call.tensor(0), call.tensor(1), call.optional(2)
    axes = _axes(tensor)
    if "output_shape" in call.step.attributes or call.attribute("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        raise Unsupported("its padding follows from the result's size")
    pads = call.attribute("pads", [0] * 2 * axes)
    if pads[:axes] != pads[axes:]:
        raise Unsupported("its padding differs between the sides of an axis")
    return _TRANSPOSED[axes](
        tensor,
        weight,
        bias,
        call.attribute("strides", [1] * axes),
        pads[:axes],
        call.attribute("output_padding", [0] * axes),
        call.attribute("group", 1),
        call.attribute("dilations", [1] * axes),
    )


def max_pool(call: Call) -> Tensor:
    """`MaxPool(X)` without indices."""
    tensor, kernel = call.tensor(0), call.attribute("kernel_shape")
    axes = _axes(tensor)
    strides, dilations = call.attribute("strides", [1] * axes), call.attribute("dilations", [1] * axes)
    pads = _pads(call, tensor, kernel, strides, dilations)
    tensor, padding = _padded(tensor, pads, -math.inf, [size // 2 for size in kernel])
    return _MAX_POOLS[axes](tensor, kernel, strides, padding, dilations, bool(call.attribute("ceil_mode", 0)))


def average_pool(call: Call) -> Tensor:
    """`AveragePool(X)`."""
    tensor, kernel = call.tensor(0), call.attribute("kernel_shape")
    axes = _axes(tensor)
    strides = call.attribute("strides", [1] * axes)
    if any(dilation != 1 for dilation in call.attribute("dilations", [1] * axes)):
        raise Unsupported("its windows are dilated")
    pads = _pads(call, tensor, kernel, strides, [1] * axes)
    rounded_up, counted = bool(call.attribute("ceil_mode", 0)), bool(call.attribute("count_include_pad", 0))
    pool = _AVERAGE_POOLS[axes]
    padded, padding = _padded(tensor, pads, 0, [size // 2 for size in kernel])
    if not any(pads) or any(padding) or counted:
        return pool(padded, kernel, strides, padding, rounded_up, counted or not any(pads))
    # Of unequal padding that is not counted: the sum over a window by the share of it that lies in the image.
    ones, _ = _padded(torch.ones(1, 1, *(int(size) for size in tensor.shape[2:]), dtype=tensor.dtype), pads, 0, [0] * axes)
    return pool(padded, kernel, strides, 0, rounded_up) / pool(ones, kernel, strides, 0, rounded_up)


def pad(call: Call) -> Tensor:
    """`Pad(X, pads, value, axes)`."""
    tensor = call.tensor(0)
    widths_of_axes = call.setting("pads", 1, "widths") or []
    axes = [axis % tensor.dim() for axis in call.integers(3, "axes")] if call.has(3) else list(range(tensor.dim()))
    widths = [(0, 0)] * tensor.dim()
    for number, axis in enumerate(axes):
        widths[axis] = (int(widths_of_axes[number]), int(widths_of_axes[number + len(axes)]))
    mode = {"constant": "constant", "reflect": "reflect", "edge": "replicate"}.get(call.attribute("mode", "constant"))
    if mode is None:
        raise Unsupported(f"the mode {call.attribute('mode')!r} is not supported")
    first = next((axis for axis, width in enumerate(widths) if any(width)), tensor.dim())
    if mode != "constant":
        first = min(first, 2)
    flat = [side for width in reversed(widths[first:]) for side in width]
    if mode != "constant":
        return functional.pad(tensor, flat, mode)
    value = call.attribute("value", 0.0) if not call.has(2) else call.numbers(2, "value")[0]
    return functional.pad(tensor, flat, value=float(value))


def resize(call: Call) -> Tensor:
    """`Resize(X, roi, scales, sizes)`, or `Resize(X, scales)` of version 10, of the axes behind the channels."""
    tensor = call.tensor(0)
    axes = call.attribute("axes") or list(range(tensor.dim()))
    axes = [axis % tensor.dim() for axis in axes]
    old = len(call.values) == 2  # noqa: PLR2004 - version 10
    scales = call.numbers(1 if old else 2, "factors") if call.has(1 if old else 2) else []
    if call.attribute("keep_aspect_ratio_policy", "stretch") != "stretch" or call.attribute("antialias", 0):
        raise Unsupported("only plain resampling is supported")
    if scales:
        factors = dict(zip(axes, map(float, scales), strict=True))
        if any(factors.get(axis, 1.0) != 1 for axis in (0, 1)):
            raise Unsupported("it resamples batch or channels")
        target = [math.floor(int(size) * factors.get(axis, 1.0)) for axis, size in enumerate(tensor.shape) if axis > 1]
    else:
        target_sizes = dict(zip(axes, call.integers(3, "sizes"), strict=True))
        target = [int(target_sizes.get(axis, size)) for axis, size in enumerate(tensor.shape) if axis > 1]
    return _resampled(tensor, target, call)


def upsample(call: Call) -> Tensor:
    """`Upsample(X, scales)`, which `Resize` replaced."""
    tensor = call.tensor(0)
    scales = call.attribute("scales") or call.numbers(1, "factors")
    target = [math.floor(int(size) * float(scale)) for size, scale in zip(tensor.shape[2:], scales[2:], strict=True)]
    return _resampled(tensor, target, call, "asymmetric")


def _resampled(tensor: Tensor, target: Sequence[int], call: Call, default: str = "half_pixel") -> Tensor:
    mode = call.attribute("mode", "nearest")
    coordinates = call.attribute("coordinate_transformation_mode", default)
    axes = _axes(tensor)
    if mode == "nearest":
        is_integer_factor = all(new % int(old) == 0 for new, old in zip(target, tensor.shape[2:], strict=True))
        floor = coordinates == "asymmetric" and call.attribute("nearest_mode", "floor") == "floor"
        if not floor and not (is_integer_factor and call.attribute("nearest_mode", "round_prefer_floor") != "ceil"):
            raise Unsupported(f"nearest values by {coordinates} and {call.attribute('nearest_mode')} are not supported")
        return functional.interpolate(tensor, list(target), mode="nearest")
    names = {("linear", 1): "linear", ("linear", 2): "bilinear", ("linear", 3): "trilinear", ("cubic", 2): "bicubic"}
    if (mode, axes) not in names or coordinates not in ("half_pixel", "pytorch_half_pixel", "align_corners"):
        raise Unsupported(f"the mode {mode!r} by {coordinates!r} is not supported")
    if mode == "cubic" and call.attribute("cubic_coeff_a", -0.75) != -0.75:  # noqa: PLR2004 - torch's
        raise Unsupported("its cubic coefficient is not torch's")
    return functional.interpolate(tensor, list(target), mode=names[mode, axes], align_corners=coordinates == "align_corners")


def _axes(tensor: Tensor) -> int:
    axes = tensor.dim() - 2
    if axes not in _CONVOLUTIONS:
        raise Unsupported(f"its input has {tensor.dim()} axes")
    return axes


def _pads(call: Call, tensor: Tensor, kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]) -> list[int]:
    axes = _axes(tensor)
    mode = call.attribute("auto_pad", "NOTSET")
    if mode == "NOTSET":
        return [int(pad) for pad in call.attribute("pads", [0] * 2 * axes)]
    if mode == "VALID":
        return [0] * 2 * axes
    begins, ends = [], []
    for size, window, stride, dilation in zip(tensor.shape[2:], kernel, strides, dilations, strict=True):
        count = math.ceil(int(size) / stride)
        missing = max((count - 1) * stride + (window - 1) * dilation + 1 - int(size), 0)
        before, after = missing // 2, missing - missing // 2
        begins.append(before if mode == "SAME_UPPER" else after)
        ends.append(after if mode == "SAME_UPPER" else before)
    return begins + ends


def _padded(
    tensor: Tensor, pads: Sequence[int], value: float = 0.0, most: Sequence[int] | None = None
) -> tuple[Tensor, list[int]]:
    """The tensor and the padding that is left to the operator: all of it where both sides agree and it takes as much."""
    axes = len(pads) // 2
    begins, ends = list(pads[:axes]), list(pads[axes:])
    if begins == ends and (most is None or all(pad_width <= bound for pad_width, bound in zip(begins, most, strict=True))):
        return tensor, begins
    flat: list[Any] = [
        pad_width for begin, end in zip(reversed(begins), reversed(ends), strict=True) for pad_width in (begin, end)
    ]
    return functional.pad(tensor, flat, value=value), [0] * axes

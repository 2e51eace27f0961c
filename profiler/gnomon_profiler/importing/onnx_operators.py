"""ONNX operators of the default domain as torch operations: one function for each, for all versions in use (7 to 24).

Each takes a `Call` and returns the results in ONNX's order. Those on shapes compute with numbers where all inputs are known
(`_on_numbers`). What ONNX defines and torch has no functional operation for is said with `Unsupported`. The definitions are those
of https://onnx.ai/onnx/operators; the padding of windows and the coordinates of `Resize` are in `onnx_windows`.

**LSTM and GRU.** ONNX has the time as first axis, the batch as second, and results of shape (time, directions, batch, hidden).
Gates of an LSTM are in the order i, o, f, c and torch's i, f, g, o; those of a GRU z, r, h and torch's r, z, n. Both are captured
as torch's are, one step of time after the other (`gnomon_profiler.recurrent`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from gnomon_profiler.importing import onnx_windows
from gnomon_profiler.importing.onnx_file import Fill
from gnomon_profiler.importing.onnx_values import (
    MAX_KNOWN,
    Call,
    Known,
    Results,
    Unsupported,
    Value,
    as_tensor,
    constant,
    known,
    sizes,
)
from gnomon_profiler.recurrent import gru_layers, lstm_layers

Function: TypeAlias = Callable[[Call], Results]

_TYPES: Mapping[int, torch.dtype] = {
    1: torch.float32, 2: torch.uint8, 3: torch.int8, 5: torch.int16, 6: torch.int32, 7: torch.int64, 9: torch.bool,
    10: torch.float16, 11: torch.float64, 16: torch.bfloat16,
}  # fmt: skip
"""TensorProto.DataType."""
_BEFORE_AXES_ARE_INPUTS = 13
_SOFTMAX_OF_ONE_AXIS = 13


def _unary(function: Callable[..., Tensor]) -> Function:
    return lambda call: function(call.tensor(0))


def _binary(function: Callable[[Tensor, Tensor], Tensor]) -> Function:
    return lambda call: function(call.tensor(0), call.tensor(1))


def _folded(function: Callable[[Tensor, Tensor], Tensor]) -> Function:
    """A function of two over any number of inputs."""

    def run(call: Call) -> Tensor:
        first, *rest = call.tensors()
        for tensor in rest:
            first = function(first, tensor)
        return first

    return run


def _on_numbers(numbers: Callable[..., Any], tensors: Function) -> Function:
    """`numbers` on arrays where every input is known, else the function on tensors."""

    def run(call: Call) -> Results:
        if call.values and all(isinstance(value, Known) for value in call.values):
            result = known(numbers(*(value.array for value in call.values if isinstance(value, Known))))
            if result.array.size <= MAX_KNOWN:
                return result
        return tensors(call)

    return run


def _shape(call: Call) -> Value:
    shape = _shape_of(call.value(0))
    return sizes(shape[slice(call.attribute("start", 0), call.attribute("end"))])


def _shape_of(value: Value) -> list[Any]:
    return list(value.shape) if isinstance(value, Tensor) else list(value.array.shape)


def _size(call: Call) -> Value:
    return sizes([math.prod(_shape_of(call.value(0)))], scalar=True)


def _cast(call: Call) -> Results:
    dtype = _dtype(call.attribute("to"))
    value = call.value(0)
    if isinstance(value, Known):
        if dtype in (torch.int32, torch.int64):
            return value if value.array.dtype == object else Known(value.array.astype(np.int64))
        if dtype in (torch.float32, torch.float64) and value.array.dtype != object:
            return Known(value.array.astype(np.float32 if dtype is torch.float32 else np.float64))
    return as_tensor(value).to(dtype)


def _dtype(number: Any) -> torch.dtype:
    if number not in _TYPES:
        raise Unsupported(f"the type {number} is not supported")
    return _TYPES[number]


def _divide(call: Call) -> Tensor:
    first, second = call.tensor(0), call.tensor(1)
    return first / second if first.is_floating_point() else torch.div(first, second, rounding_mode="trunc")


def _divided(first: Any, second: Any) -> Any:
    """Divide; whole numbers, which are sizes and not negative, by whole-number division."""
    return first // second if first.dtype.kind in "iO" and second.dtype.kind in "iO" else first / second


def _power(call: Call) -> Tensor:
    base = call.tensor(0)
    value = call.value(1)
    if isinstance(value, Known) and value.array.size == 1 and value.array.dtype != object:
        return torch.pow(base, value.array.reshape(-1)[0].item()).to(base.dtype)
    return torch.pow(base, as_tensor(value)).to(base.dtype)


def _modulo(call: Call) -> Tensor:
    return (torch.fmod if call.attribute("fmod", 0) else torch.remainder)(call.tensor(0), call.tensor(1))


def _mean(call: Call) -> Tensor:
    return torch.as_tensor(_folded(torch.add)(call)) / len(call.tensors())


def _clip(call: Call) -> Tensor:
    tensor = call.tensor(0)
    for name, index, function in (("min", 1, torch.maximum), ("max", 2, torch.minimum)):
        if name in call.step.attributes:
            tensor = torch.clamp(tensor, **{name: call.attribute(name)})
        elif call.has(index):
            value = call.value(index)
            if isinstance(value, Known) and value.array.dtype != object:
                tensor = torch.clamp(tensor, **{name: value.array.reshape(-1)[0].item()})
            else:
                tensor = function(tensor, as_tensor(value))
    return tensor


def _prelu(call: Call) -> Tensor:
    tensor = call.tensor(0)
    return torch.where(tensor < 0, tensor * call.tensor(1), tensor)


def _selu(call: Call) -> Tensor:
    tensor = call.tensor(0)
    alpha, gamma = call.attribute("alpha", 1.6732632423543772), call.attribute("gamma", 1.0507009873554805)
    return torch.mul(torch.where(tensor > 0, tensor, alpha * torch.expm1(tensor)), gamma)


def _hard_sigmoid(call: Call) -> Tensor:
    return torch.clamp(call.attribute("alpha", 0.2) * call.tensor(0) + call.attribute("beta", 0.5), 0, 1)


def _thresholded(call: Call) -> Tensor:
    tensor = call.tensor(0)
    return torch.where(tensor > call.attribute("alpha", 1.0), tensor, torch.zeros_like(tensor))


def _softmax(function: Callable[..., Tensor]) -> Function:
    def run(call: Call) -> Tensor:
        tensor = call.tensor(0)
        if call.step.version >= _SOFTMAX_OF_ONE_AXIS:
            return function(tensor, dim=call.attribute("axis", -1))
        axis = call.attribute("axis", 1) % max(tensor.dim(), 1)
        return function(torch.flatten(tensor, axis), dim=axis).reshape(tensor.shape)

    return run


def _matmul(call: Call) -> Tensor:
    return torch.matmul(call.tensor(0), call.tensor(1))


def _gemm(call: Call) -> Tensor:
    first, second, added = call.tensor(0), call.tensor(1), call.optional(2)
    alpha, beta = call.attribute("alpha", 1.0), call.attribute("beta", 1.0)
    first = first.t() if call.attribute("transA", 0) else first
    simple = alpha == 1 and beta == 1 and (added is None or added.dim() == 1)
    if call.attribute("transB", 0) and simple:
        return functional.linear(first, second, added)
    product = torch.matmul(first, second.t() if call.attribute("transB", 0) else second)
    product = product if alpha == 1 else product * alpha
    return product if added is None else product + (added if beta == 1 else added * beta)


def _einsum(call: Call) -> Tensor:
    equation = str(call.attribute("equation", "")).replace(" ", "")
    if "." in equation or len(call.values) > 2:  # noqa: PLR2004 - what the size rule of a program's einsum reads
        raise Unsupported("only equations of one or two operands with letters are supported")
    return torch.einsum(equation, *call.tensors())


def _batch_normalisation(call: Call) -> Tensor:
    if call.attribute("training_mode", 0):
        raise Unsupported("it normalises as in training, over the batch")
    tensor, scale, bias, mean, variance = (call.tensor(index) for index in range(5))
    return functional.batch_norm(tensor, mean, variance, scale, bias, eps=call.attribute("epsilon", 1e-5))


def _layer_normalisation(call: Call) -> Tensor:
    tensor, scale, bias = call.tensor(0), call.tensor(1), call.optional(2)
    axis = call.attribute("axis", -1) % tensor.dim()
    shape = [int(size) for size in tensor.shape[axis:]]
    epsilon = call.attribute("epsilon", 1e-5)
    if list(scale.shape) == shape and (bias is None or list(bias.shape) == shape):
        return functional.layer_norm(tensor, shape, scale, bias, epsilon)
    normal = functional.layer_norm(tensor, shape, eps=epsilon) * scale
    return normal if bias is None else normal + bias


def _rms_normalisation(call: Call) -> Tensor:
    tensor = call.tensor(0)
    axes = list(range(call.attribute("axis", -1) % tensor.dim(), tensor.dim()))
    mean = tensor.square().mean(axes, keepdim=True)
    return tensor * torch.rsqrt(mean + call.attribute("epsilon", 1e-5)) * call.tensor(1)


def _group_normalisation(call: Call) -> Tensor:
    tensor, scale, bias, groups = call.tensor(0), call.tensor(1), call.tensor(2), call.attribute("num_groups")
    if scale.shape[0] != tensor.shape[1]:  # before version 21 a factor for each group
        scale, bias = (parameter.repeat_interleave(int(tensor.shape[1]) // groups) for parameter in (scale, bias))
    return functional.group_norm(tensor, groups, scale, bias, call.attribute("epsilon", 1e-5))


def _instance_normalisation(call: Call) -> Tensor:
    """Convert to a group normalisation with one group per channel, which keeps batch and channels separate."""
    tensor = call.tensor(0)
    return functional.group_norm(tensor, int(tensor.shape[1]), call.tensor(1), call.tensor(2), call.attribute("epsilon", 1e-5))


def _lp_normalisation(call: Call) -> Tensor:
    tensor, axis = call.tensor(0), call.attribute("axis", -1)
    if call.attribute("p", 2) == 1:
        return tensor / tensor.abs().sum(axis, keepdim=True)
    return tensor / tensor.square().sum(axis, keepdim=True).sqrt()


def _local_response(call: Call) -> Tensor:
    return functional.local_response_norm(
        call.tensor(0),
        call.attribute("size"),
        call.attribute("alpha", 1e-4),
        call.attribute("beta", 0.75),
        call.attribute("bias", 1.0),
    )


def _reduced(function: Callable[[Tensor, list[int], bool], Tensor]) -> Function:
    """A reduction over axes: an attribute, or an input since version 13 (sums) or 18; over all axes where none are given."""

    def run(call: Call) -> Tensor:
        tensor = call.tensor(0)
        axes = call.setting("axes", 1, "axes")
        if not axes:
            if call.attribute("noop_with_empty_axes", 0):
                return tensor
            axes = list(range(tensor.dim()))
        return function(tensor, [int(axis) for axis in axes], bool(call.attribute("keepdims", 1)))

    return run


def _product(tensor: Tensor, axes: Sequence[int], keep: bool) -> Tensor:  # noqa: FBT001 - the shape of `_reduced`
    for axis in sorted((axis % tensor.dim() for axis in axes), reverse=True):
        tensor = tensor.prod(axis, keepdim=keep)
    return tensor


_REDUCTIONS: Mapping[str, Callable[[Tensor, list[int], bool], Tensor]] = {
    "ReduceMean": lambda x, axes, keep: x.mean(axes, keepdim=keep),
    "ReduceSum": lambda x, axes, keep: x.sum(axes, keepdim=keep),
    "ReduceMax": lambda x, axes, keep: x.amax(axes, keepdim=keep),
    "ReduceMin": lambda x, axes, keep: x.amin(axes, keepdim=keep),
    "ReduceProd": _product,
    "ReduceL1": lambda x, axes, keep: x.abs().sum(axes, keepdim=keep),
    "ReduceL2": lambda x, axes, keep: x.square().sum(axes, keepdim=keep).sqrt(),
    "ReduceSumSquare": lambda x, axes, keep: x.square().sum(axes, keepdim=keep),
    "ReduceLogSum": lambda x, axes, keep: x.sum(axes, keepdim=keep).log(),
    "ReduceLogSumExp": lambda x, axes, keep: torch.logsumexp(x, axes, keepdim=keep),
}


def _arg(function: Callable[..., Tensor]) -> Function:
    def run(call: Call) -> Tensor:
        if call.attribute("select_last_index", 0):
            raise Unsupported("it takes the last of equal values")
        return function(call.tensor(0), dim=call.attribute("axis", 0), keepdim=bool(call.attribute("keepdims", 1)))

    return run


def _cumulative_sum(call: Call) -> Tensor:
    tensor, (axis,) = call.tensor(0), call.integers(1, "axis")
    reverse = bool(call.attribute("reverse", 0))
    summed = torch.cumsum(tensor.flip(axis) if reverse else tensor, axis)
    summed = summed.flip(axis) if reverse else summed
    return summed - tensor if call.attribute("exclusive", 0) else summed


def _top(call: Call) -> Results:
    count = call.setting("k", 1, "number of results") or [1]
    largest, ordered = bool(call.attribute("largest", 1)), bool(call.attribute("sorted", 1))
    values, indices = torch.topk(call.tensor(0), count[0], call.attribute("axis", -1), largest, ordered)
    return values, indices


def _reshape(call: Call) -> Results:
    value = call.value(0)
    shape = call.setting("shape", 1, "sizes") or []
    own = _shape_of(value)
    if not call.attribute("allowzero", 0):
        shape = [own[axis] if isinstance(size, int) and size == 0 else size for axis, size in enumerate(shape)]
    if isinstance(value, Known):
        return Known(value.array.reshape([int(size) for size in shape]))
    if own and isinstance(own[0], torch.SymInt) and shape and isinstance(shape[0], int) and shape[0] == 1:
        shape = [own[0], *shape[1:]]  # of a file whose batch is fixed to 1
    return value.reshape(shape)


def _flatten(call: Call) -> Tensor:
    tensor = call.tensor(0)
    axis = call.attribute("axis", 1)
    axis = axis + tensor.dim() if axis < 0 else axis
    if axis == 1:
        return torch.flatten(tensor, 1)
    return tensor.reshape(math.prod(tensor.shape[:axis]), math.prod(tensor.shape[axis:]))


def _transpose(call: Call) -> Results:
    value = call.value(0)
    order = call.attribute("perm") or list(reversed(range(len(_shape_of(value)))))
    return Known(value.array.transpose(order)) if isinstance(value, Known) else value.permute(order)


def _squeeze(call: Call) -> Results:
    value = call.value(0)
    shape = _shape_of(value)
    axes = call.setting("axes", 1, "axes")
    if axes is None:
        axes = [axis for axis, size in enumerate(shape) if isinstance(size, int) and size == 1]
    axes = [axis % max(len(shape), 1) for axis in axes]
    if isinstance(value, Known):
        return Known(value.array.reshape([size for axis, size in enumerate(shape) if axis not in axes]))
    for axis in sorted(axes, reverse=True):
        value = value.squeeze(axis)
    return value


def _unsqueeze(call: Call) -> Results:
    value = call.value(0)
    axes = call.setting("axes", 1, "axes") or []
    count = len(_shape_of(value)) + len(axes)
    for axis in sorted(axis % count for axis in axes):
        value = Known(np.expand_dims(value.array, axis)) if isinstance(value, Known) else value.unsqueeze(axis)
    return value


def _concatenate(call: Call) -> Results:
    axis = call.attribute("axis", 0)
    known = [value.array for value in call.values if isinstance(value, Known)]
    if len(known) == len(call.values) and sum(array.size for array in known) <= MAX_KNOWN:
        return Known(np.concatenate(known, axis))
    return torch.cat(call.tensors(), axis)


def _split(call: Call) -> Results:
    tensor, axis = call.tensor(0), call.attribute("axis", 0)
    count = len(call.step.outputs)
    parts = call.setting("split", 1, "sizes of the parts")
    if parts is None:
        size = math.ceil(int(tensor.shape[axis]) / count)
        parts = [min(size, int(tensor.shape[axis]) - size * number) for number in range(count)]
    return tuple(torch.split(tensor, parts, axis))


def _slice(call: Call) -> Results:
    starts, ends = call.setting("starts", 1, "begin") or [], call.setting("ends", 2, "end") or []
    axes = call.setting("axes", 3, "axes") or list(range(len(starts)))
    steps = call.setting("steps", 4, "steps") or [1] * len(starts)
    value = call.value(0)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        if isinstance(value, Known):
            value = Known(value.array[(slice(None),) * (axis % value.array.ndim) + (slice(start, end, step),)])
        elif step > 0:
            value = value[(slice(None),) * (axis % value.dim()) + (slice(start, end, step),)]
        else:
            chosen = range(*slice(start, end, step).indices(int(value.shape[axis])))
            value = value.index_select(axis, constant(list(chosen), torch.int64))
    return value


def _gather(call: Call) -> Results:
    value, places, axis = call.value(0), call.value(1), call.attribute("axis", 0)
    if isinstance(value, Known) and isinstance(places, Known):
        return known(np.take(value.array, places.array.astype(np.int64), axis))
    tensor = as_tensor(value)
    if isinstance(places, Known) and not places.array.ndim:
        return tensor.select(axis, int(places.array))
    indices = as_tensor(places)
    axis %= tensor.dim()
    if not axis and tensor.dim() == 2 and isinstance(places, Tensor):  # noqa: PLR2004 - a table of rows, as of words
        return functional.embedding(indices, tensor)
    outer_shape = tensor.shape[:axis], tensor.shape[axis + 1 :]
    picked = tensor.index_select(axis, _from_end(indices, tensor.shape[axis]).reshape(-1))
    return picked.reshape([*outer_shape[0], *indices.shape, *outer_shape[1]])


def _from_end(indices: Tensor, size: Any) -> Tensor:
    """Indices with the negative ones counted from the end."""
    return torch.where(indices < 0, indices + size, indices)


def _gather_elements(call: Call) -> Tensor:
    tensor, axis = call.tensor(0), call.attribute("axis", 0)
    return torch.gather(tensor, axis, _from_end(call.tensor(1), tensor.shape[axis]))


def _scatter_elements(call: Call) -> Tensor:
    if call.attribute("reduction", "none") != "none":
        raise Unsupported("reduction is not none")
    tensor, axis = call.tensor(0), call.attribute("axis", 0)
    return torch.scatter(tensor, axis, _from_end(call.tensor(1), tensor.shape[axis]), call.tensor(2))


def _gather_nd(call: Call) -> Tensor:
    if call.attribute("batch_dims", 0):
        raise Unsupported("batch_dims is not 0")
    return call.tensor(0)[tuple(call.tensor(1).unbind(-1))]


def _scatter_nd(call: Call) -> Tensor:
    if call.attribute("reduction", "none") != "none":
        raise Unsupported("reduction is not none")
    return torch.index_put(call.tensor(0), tuple(call.tensor(1).unbind(-1)), call.tensor(2))


def _expand(call: Call) -> Tensor:
    tensor, target_sizes = call.tensor(0), call.integers(1, "sizes")
    own = list(tensor.shape)
    own = [1] * (len(target_sizes) - len(own)) + own
    target_sizes = [1] * (len(own) - len(target_sizes)) + target_sizes
    target = [own_size if isinstance(size, int) and size == 1 else size for own_size, size in zip(own, target_sizes, strict=True)]
    return tensor.expand(target)


def _tile(call: Call) -> Tensor:
    return call.tensor(0).repeat(call.integers(1, "repetitions"))


def _range(call: Call) -> Results:
    start, limit, step = (call.numbers(index, "ends")[0] for index in range(3))
    if all(isinstance(bound, int | np.integer) for bound in (start, limit, step)):
        numbers = np.arange(start, limit, step) if abs((limit - start) / step) <= MAX_KNOWN else None
        return torch.arange(int(start), int(limit), int(step)) if numbers is None else Known(numbers.astype(np.int64))
    if any(isinstance(bound, torch.SymInt) for bound in (start, limit, step)):
        return torch.arange(start, limit, step)
    return torch.arange(float(start), float(limit), float(step))


def _constant_of_shape(call: Call) -> Results:
    shape = call.integers(0, "sizes")
    fill = call.attribute("value", Fill(0.0, torch.float32))
    if fill.dtype == torch.int64 and all(isinstance(size, int) for size in shape) and math.prod(shape) <= MAX_KNOWN:
        return Known(np.full(shape, fill.number, dtype=np.int64))
    return torch.full(shape, fill.number, dtype=fill.dtype)


def _one_hot(call: Call) -> Tensor:
    indices, (depth,), values = call.tensor(0), call.integers(1, "number of classes"), call.tensor(2)
    axis = call.attribute("axis", -1) % (indices.dim() + 1)
    shape = [1] * (indices.dim() + 1)
    shape[axis] = depth
    mask = _from_end(indices, depth).unsqueeze(axis) == torch.arange(depth).reshape(shape)
    return torch.where(mask, values[1], values[0])


def _triangle(call: Call) -> Tensor:
    diagonal = call.integers(1, "diagonal")[0] if call.has(1) else 0
    return (torch.triu if call.attribute("upper", 1) else torch.tril)(call.tensor(0), diagonal)


def _depth_to_space(call: Call) -> Tensor:
    tensor, block = call.tensor(0), call.attribute("blocksize")
    if call.attribute("mode", "DCR") == "CRD":
        return functional.pixel_shuffle(tensor, block)
    batch, channels, height, width = tensor.shape
    parted = tensor.reshape(batch, block, block, channels // block**2, height, width).permute(0, 3, 4, 1, 5, 2)
    return parted.reshape(batch, channels // block**2, height * block, width * block)


def _space_to_depth(call: Call) -> Tensor:
    tensor, block = call.tensor(0), call.attribute("blocksize")
    batch, channels, height, width = tensor.shape
    parted = tensor.reshape(batch, channels, height // block, block, width // block, block).permute(0, 3, 5, 1, 2, 4)
    return parted.reshape(batch, channels * block**2, height // block, width // block)


def _dropout(call: Call) -> Results:
    if call.has(2) and any(call.numbers(2, "mode")):
        raise Unsupported("it drops values as in training")
    return call.value(0)


def _where(call: Call) -> Tensor:
    return torch.where(call.tensor(0).bool(), call.tensor(1), call.tensor(2))


def _attention_scale(call: Call) -> Tensor:
    """`Attention` of version 23 with heads as the second axis, without a cache of keys."""
    query, key, value, mask = call.tensor(0), call.tensor(1), call.tensor(2), call.optional(3)
    if query.dim() != 4 or call.has(4) or call.has(5) or call.attribute("softcap", 0.0):  # noqa: PLR2004 - batch, heads, …
        raise Unsupported("only tensors of four axes without past keys and softcap are supported")
    return functional.scaled_dot_product_attention(
        query, key, value, mask, is_causal=bool(call.attribute("is_causal", 0)), scale=call.attribute("scale")
    )


_LSTM_GATES, _GRU_GATES = (0, 2, 3, 1), (1, 0, 2)
_ACTIVATIONS = {"LSTM": ["Sigmoid", "Tanh", "Tanh"], "GRU": ["Sigmoid", "Tanh"]}


def lstm(call: Call) -> Results:
    """`LSTM(X, W, R, B, sequence_lens, initial_h, initial_c, P)`: Y, Y_h, Y_c."""
    if call.has(7):
        raise Unsupported("it has peepholes")
    if call.attribute("input_forget", 0):
        raise Unsupported("it couples input and forget gates")
    directions = _directions(call)
    tensor, hidden, cell = call.tensor(0), _initial_state(call, 5, directions), _initial_state(call, 6, directions)
    weights = _gate_weights(call, _LSTM_GATES)
    output, last, last_cell = lstm_layers(tensor, (hidden, cell), weights, *_layer_settings(directions))
    return _by_direction(output, directions), last, last_cell


def gru(call: Call) -> Results:
    """`GRU(X, W, R, B, sequence_lens, initial_h)`: Y, Y_h."""
    if not call.attribute("linear_before_reset", 0):
        raise Unsupported("its reset gate is applied before the product (linear_before_reset = 0), and torch's behind it")
    directions = _directions(call)
    tensor, hidden = call.tensor(0), _initial_state(call, 5, directions)
    output, last = gru_layers(tensor, hidden, _gate_weights(call, _GRU_GATES), *_layer_settings(directions))
    return _by_direction(output, directions), last


def _layer_settings(directions: int) -> tuple[Any, ...]:
    """Biases, one layer, no dropout, not in training, whether both directions, time first: torch's settings of these layers."""
    return True, 1, 0.0, False, directions > 1, False


def _directions(call: Call) -> int:
    """1 or 2; anything else that torch's cells do not have is refused."""
    direction = call.attribute("direction", "forward")
    if direction not in ("forward", "bidirectional"):
        raise Unsupported(f"the direction {direction!r} is not supported")
    if call.has(4):
        raise Unsupported("its sequences differ in length")
    if "clip" in call.step.attributes or call.attribute("layout", 0):
        raise Unsupported("only layout 0 without clipping is supported")
    directions = 2 if direction == "bidirectional" else 1
    expected = _ACTIVATIONS[call.step.operator] * directions
    if [activation.capitalize() for activation in call.attribute("activations", expected)] != expected:
        raise Unsupported("its activations are not the usual ones")
    return directions


def _initial_state(call: Call, index: int, directions: int) -> Tensor:
    if call.has(index):
        return call.tensor(index)
    tensor = call.tensor(0)
    return tensor.new_zeros(directions, tensor.shape[1], call.attribute("hidden_size"))


def _gate_weights(call: Call, gates: tuple[int, ...]) -> list[Tensor]:
    """The weights of the input and the state, and their biases, of each direction."""
    inputs, states, count = call.tensor(1), call.tensor(2), len(gates)
    hidden = int(states.shape[-1])
    biases = call.optional(3)
    if biases is None:
        biases = inputs.new_zeros(inputs.shape[0], 2 * count * hidden)

    def ordered(tensor: Tensor) -> Tensor:
        parts = torch.split(tensor, hidden)
        return torch.cat([parts[gate] for gate in gates])

    parameters: list[Tensor] = []
    for number in range(int(inputs.shape[0])):
        first, second = torch.split(biases[number], count * hidden)
        parameters += [ordered(inputs[number]), ordered(states[number]), ordered(first), ordered(second)]
    return parameters


def _by_direction(output: Tensor, directions: int) -> Tensor:
    time, batch, width = output.shape
    return output.reshape(time, batch, directions, width // directions).transpose(1, 2)


_UNARY: Mapping[str, Callable[..., Tensor]] = {
    "Abs": torch.abs,
    "Atan": torch.atan,
    "Cos": torch.cos,
    "Erf": torch.erf,
    "Exp": torch.exp,
    "IsInf": torch.isinf,
    "IsNaN": torch.isnan,
    "Log": torch.log,
    "Mish": functional.mish,
    "Not": torch.logical_not,
    "Reciprocal": torch.reciprocal,
    "Relu": torch.relu,
    "Round": torch.round,
    "Sigmoid": torch.sigmoid,
    "Sign": torch.sign,
    "Sin": torch.sin,
    "Softplus": functional.softplus,
    "Softsign": functional.softsign,
    "Sqrt": torch.sqrt,
    "Tan": torch.tan,
    "Tanh": torch.tanh,
    "HardSwish": functional.hardswish,
}

OPERATORS: Mapping[str, Function] = {
    **{name: _unary(function) for name, function in _UNARY.items()},
    **{
        name: _binary(function)
        for name, function in {
            "And": torch.logical_and, "Or": torch.logical_or, "Xor": torch.logical_xor, "Greater": torch.gt, "Less": torch.lt,
            "GreaterOrEqual": torch.ge, "LessOrEqual": torch.le,
        }.items()
    },
    **{name: _reduced(function) for name, function in _REDUCTIONS.items() if name != "ReduceProd"},
    "ReduceProd": _on_numbers(lambda array, *_: np.prod(array, keepdims=False), _reduced(_product)),
    "Add": _on_numbers(np.add, _binary(torch.add)),
    "ArgMax": _arg(torch.argmax),
    "ArgMin": _arg(torch.argmin),
    "Attention": _attention_scale,
    "AveragePool": onnx_windows.average_pool,
    "BatchNormalization": _batch_normalisation,
    "Cast": _cast,
    "Ceil": _on_numbers(np.ceil, _unary(torch.ceil)),
    "CastLike": lambda call: call.tensor(0).to(call.tensor(1).dtype),
    "Celu": lambda call: functional.celu(call.tensor(0), call.attribute("alpha", 1.0)),
    "Clip": _clip,
    "Concat": _concatenate,
    "ConstantOfShape": _constant_of_shape,
    "Conv": onnx_windows.convolution,
    "ConvTranspose": onnx_windows.transposed_convolution,
    "CumSum": _cumulative_sum,
    "DepthToSpace": _depth_to_space,
    "Div": _on_numbers(_divided, _divide),
    "Dropout": _dropout,
    "Einsum": _einsum,
    "Elu": lambda call: functional.elu(call.tensor(0), call.attribute("alpha", 1.0)),
    "Equal": _on_numbers(np.equal, _binary(torch.eq)),
    "Expand": _expand,
    "Flatten": _flatten,
    "Floor": _on_numbers(np.floor, _unary(torch.floor)),
    "GRU": gru,
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
    "Gelu": lambda call: functional.gelu(call.tensor(0), approximate=call.attribute("approximate", "none")),
    "Gemm": _gemm,
    "GlobalAveragePool": lambda call: call.tensor(0).mean(list(range(2, call.tensor(0).dim())), keepdim=True),
    "GlobalMaxPool": lambda call: call.tensor(0).amax(list(range(2, call.tensor(0).dim())), keepdim=True),
    "GroupNormalization": _group_normalisation,
    "HardSigmoid": _hard_sigmoid,
    "Identity": lambda call: call.value(0),
    "InstanceNormalization": _instance_normalisation,
    "LRN": _local_response,
    "LSTM": lstm,
    "LayerNormalization": _layer_normalisation,
    "LeakyRelu": lambda call: functional.leaky_relu(call.tensor(0), call.attribute("alpha", 0.01)),
    "LogSoftmax": _softmax(functional.log_softmax),
    "LpNormalization": _lp_normalisation,
    "MatMul": _matmul,
    "Max": _on_numbers(lambda first, *rest: np.maximum.reduce([first, *rest]), _folded(torch.maximum)),
    "MaxPool": onnx_windows.max_pool,
    "Mean": _mean,
    "Min": _on_numbers(lambda first, *rest: np.minimum.reduce([first, *rest]), _folded(torch.minimum)),
    "Mod": _on_numbers(np.mod, _modulo),
    "Mul": _on_numbers(np.multiply, _binary(torch.mul)),
    "Neg": _on_numbers(np.negative, _unary(torch.neg)),
    "OneHot": _one_hot,
    "PRelu": _prelu,
    "Pad": onnx_windows.pad,
    "Pow": _power,
    "RMSNormalization": _rms_normalisation,
    "Range": _range,
    "Reshape": _reshape,
    "Resize": onnx_windows.resize,
    "ScatterElements": _scatter_elements,
    "ScatterND": _scatter_nd,
    "Selu": _selu,
    "Shape": _shape,
    "Size": _size,
    "Slice": _slice,
    "Softmax": _softmax(functional.softmax),
    "SpaceToDepth": _space_to_depth,
    "Split": _split,
    "Squeeze": _squeeze,
    "Sub": _on_numbers(np.subtract, _binary(torch.sub)),
    "Sum": _folded(torch.add),
    "ThresholdedRelu": _thresholded,
    "Tile": _tile,
    "TopK": _top,
    "Transpose": _transpose,
    "Trilu": _triangle,
    "Unsqueeze": _unsqueeze,
    "Upsample": onnx_windows.upsample,
    "Where": _on_numbers(lambda condition, first, second: np.where(condition.astype(bool), first, second), _where),
}  # fmt: skip

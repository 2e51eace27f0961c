"""Which callable runs an operator.

Any operator can be called through its overload, whose arguments are parsed by a generic interpreter in 1.5 to 7 µs. For those
that fill most networks torch has a generated binding of the same operator with the same arguments that needs 1 to 5 µs; the
kernels behind both are the same, so the bits are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from gnomon_core.program import Argument
from gnomon_runtime.engine.allowlist import CheckedOperation
from gnomon_runtime.engine.torch_names import bindings, callable_of

BINDINGS: Mapping[str, Callable[..., Any]] = {
    "aten.conv2d.default": torch.conv2d,
    "aten.linear.default": bindings.linear,
    "aten.relu.default": torch.relu,
    "aten.hardtanh.default": bindings.hardtanh,
    "aten.silu.default": bindings.silu,
    "aten.hardswish.default": bindings.hardswish,
    "aten.hardsigmoid.default": bindings.hardsigmoid,
    "aten.gelu.default": bindings.gelu,
    "aten.sigmoid.default": torch.sigmoid,
    "aten.tanh.default": torch.tanh,
    "aten.add.Tensor": torch.add,
    "aten.sub.Tensor": torch.sub,
    "aten.mul.Tensor": torch.mul,
    "aten.div.Tensor": torch.div,
    "aten.matmul.default": torch.matmul,
    "aten.cat.default": torch.cat,
    "aten.max_pool2d.default": torch.max_pool2d,
    "aten.avg_pool2d.default": bindings.avg_pool2d,
    "aten.adaptive_avg_pool2d.default": bindings.adaptive_avg_pool2d,
    "aten.pad.default": bindings.pad,
    "aten.permute.default": torch.permute,
    "aten.transpose.int": torch.transpose,
    "aten.layer_norm.default": torch.layer_norm,
    "aten.scaled_dot_product_attention.default": bindings.scaled_dot_product_attention,
}
_BATCH_NORM = "aten._native_batch_norm_legit_no_training.default"


def direct_call(checked: CheckedOperation) -> tuple[Callable[..., Any], tuple[Argument, ...], bool]:
    """The callable, its arguments, and whether it returns several tensors.

    Inference's batch normalisation names three results, of which two are empty; the plain one returns the first alone.
    """
    operation = checked.operation
    if operation.op == _BATCH_NORM and operation.results[1:] == (None, None):
        *tensors, momentum, epsilon = checked.args
        return torch.batch_norm, (*tensors, False, momentum, epsilon, False), False
    return BINDINGS.get(operation.op, callable_of(checked.overload)), checked.args, checked.many

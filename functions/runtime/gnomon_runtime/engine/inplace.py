"""Where a program may reuse a dead operand's memory instead of asking for new.

Programs are functional: a ReLU makes a new tensor where the module it was captured from overwrote one. Asking for memory that was
never touched costs a page fault each 4 KiB, so the difference shows. An elementwise operation may write into its first operand if
nothing reads that operand, or any other view of its storage, afterwards. Both sides of that are observed in a first, functional
run at the same batch size rather than derived: whether two tensors share a storage follows from shapes and strides alone, which
are the same in every run at that size. Inputs and weights are never written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from gnomon_runtime.engine.torch_names import aten, bindings, callable_of

IN_PLACE: Mapping[str, Callable[..., Tensor]] = {
    "aten.relu.default": torch.relu_,
    "aten.hardtanh.default": bindings.hardtanh_,
    "aten.silu.default": bindings.silu_,
    "aten.hardswish.default": bindings.hardswish_,
    "aten.hardsigmoid.default": bindings.hardsigmoid_,
    "aten.leaky_relu.default": bindings.leaky_relu_,
    "aten.elu.default": bindings.elu_,
    "aten.sigmoid.default": torch.sigmoid_,
    "aten.tanh.default": torch.tanh_,
    "aten.gelu.default": callable_of(aten.gelu_.default),
    "aten.add.Tensor": callable_of(aten.add_.Tensor),
    "aten.sub.Tensor": callable_of(aten.sub_.Tensor),
    "aten.mul.Tensor": callable_of(aten.mul_.Tensor),
    "aten.div.Tensor": callable_of(aten.div_.Tensor),
}


def storage_of(tensor: Tensor) -> int:
    """Which memory a tensor is a view of. Only tensors that are alive at once can be compared: addresses are used again.

    Empty storages are all at 0 and pass for one, which forbids a reuse that would gain nothing.
    """
    return int(tensor.untyped_storage().data_ptr())


@dataclass(frozen=True, slots=True)
class Layout:
    """What must be equal for one tensor to be written over another."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    storage: int

    @staticmethod
    def of(tensor: Tensor) -> Layout:
        return Layout(tensor.dtype, tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset()), storage_of(tensor))

    def same_form(self, other: Layout) -> bool:
        """Whether both have one type, shape and strides."""
        return (self.dtype, self.shape, self.strides) == (other.dtype, other.shape, other.strides)


def may_overwrite(target: Layout, result: Layout, operands: list[Layout], alive_after: list[Layout]) -> bool:
    """Whether an elementwise operation may write its result over its first operand.

    `operands` are its other tensors: one may be the very same view, which is read element by element before it is written, but
    no other view of the same storage. `alive_after` is everything that something reads later, inputs and weights included.
    """
    if not target.same_form(result):
        return False
    if any(operand.storage == target.storage and operand != target for operand in operands):
        return False
    return all(layout.storage != target.storage for layout in alive_after)

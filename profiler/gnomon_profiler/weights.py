"""The weights of a captured model: each tensor once, in a safetensors file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from gnomon_core.program import Weight

DATATYPES: Mapping[torch.dtype, str] = {
    torch.bool: "BOOL", torch.uint8: "UINT8", torch.uint16: "UINT16", torch.uint32: "UINT32", torch.uint64: "UINT64",
    torch.int8: "INT8", torch.int16: "INT16", torch.int32: "INT32", torch.int64: "INT64",
    torch.float16: "FP16", torch.bfloat16: "BF16", torch.float32: "FP32", torch.float64: "FP64",
}  # fmt: skip


class WeightFile:
    """Collects tensors by name. Tied weights, one tensor under two names, are kept once."""

    def __init__(self) -> None:
        self._tensors: dict[str, Tensor] = {}
        self._names: dict[Any, str] = {}

    def add(self, name: str, tensor: Tensor) -> str:
        """Take a tensor and return the name it is kept under."""
        tensor = tensor.detach()
        if tensor.numel() == 0:
            identity: Any = name
        else:
            identity = (tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype)
        kept = self._names.setdefault(identity, name)
        self._tensors[kept] = tensor
        return kept

    def keep(self, names: set[str]) -> None:
        """Forget what nothing reads, such as batch normalisation's counters."""
        self._tensors = {name: tensor for name, tensor in self._tensors.items() if name in names}

    def described(self) -> dict[str, Weight]:
        """What the program says of each."""
        return {
            name: Weight(DATATYPES[tensor.dtype], tuple(tensor.shape), _order(tensor)) for name, tensor in self._tensors.items()
        }

    def file_bytes(self) -> bytes:
        """The safetensors file."""
        return save(
            {
                name: tensor.permute(_order(tensor) or list(range(tensor.dim()))).contiguous()
                for name, tensor in self._tensors.items()
            }
        )


def _order(tensor: Tensor) -> tuple[int, ...]:
    """The axes from the slowest to the fastest in memory where they permute a dense tensor, such as channels-last; else ()."""
    if tensor.is_contiguous():
        return ()
    order = tuple(sorted(range(tensor.dim()), key=tensor.stride, reverse=True))
    return order if tensor.permute(order).is_contiguous() else ()

"""The weights of a captured model: each tensor once, in a safetensors file whose tensors begin at multiples of 64 bytes.

Where a tensor lies decides how a kernel splits its loop, and with it the last bit of a sum: mapped at 8 bytes beside a cache
line, EfficientNet-Lite0's weights gave other bits than the module's own. The format has no alignment and no holes, so the header
is filled with spaces and the gaps are tensors of their own, named `__gap__/…`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from safetensors.torch import load
from torch import Tensor

from gnomon_core.errors import bad_request
from gnomon_core.program import Weight
from gnomon_profiler.tensor_index import ALIGNMENT_BYTES, GAP_PREFIX, with_header

DATATYPES: Mapping[torch.dtype, str] = {
    torch.bool: "BOOL", torch.uint8: "UINT8", torch.uint16: "UINT16", torch.uint32: "UINT32", torch.uint64: "UINT64",
    torch.int8: "INT8", torch.int16: "INT16", torch.int32: "INT32", torch.int64: "INT64",
    torch.float16: "FP16", torch.bfloat16: "BF16", torch.float32: "FP32", torch.float64: "FP64",
}  # fmt: skip
TORCH_TYPES: Mapping[str, torch.dtype] = {name: dtype for dtype, name in DATATYPES.items()}

_STORED_AS: Mapping[torch.dtype, str] = {
    torch.bool: "BOOL", torch.uint8: "U8", torch.uint16: "U16", torch.uint32: "U32", torch.uint64: "U64",
    torch.int8: "I8", torch.int16: "I16", torch.int32: "I32", torch.int64: "I64",
    torch.float16: "F16", torch.bfloat16: "BF16", torch.float32: "F32", torch.float64: "F64",
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
        shared_name = self._names.setdefault(identity, name)
        self._tensors[shared_name] = tensor
        return shared_name

    def keep(self, names: set[str]) -> None:
        """Forget what nothing reads, such as batch normalisation's counters."""
        self._tensors = {name: tensor for name, tensor in self._tensors.items() if name in names}

    def tensors(self) -> Mapping[str, Tensor]:
        """The tensors by name."""
        return dict(self._tensors)

    def described(self) -> dict[str, Weight]:
        """The program's description of each weight: data type, shape and order of axes."""
        return {
            name: Weight(DATATYPES[tensor.dtype], tuple(tensor.shape), _order(tensor)) for name, tensor in self._tensors.items()
        }

    def file_bytes(self) -> bytes:
        """The safetensors file."""
        header: dict[str, Any] = {}
        pieces: list[bytes] = []
        end = 0
        for name, tensor in self._tensors.items():
            data = _raw(tensor)
            stored_shape = [tensor.shape[axis] for axis in _order(tensor) or range(tensor.dim())]
            header[name] = {"dtype": _STORED_AS[tensor.dtype], "shape": stored_shape, "data_offsets": [end, end + len(data)]}
            end += len(data)
            gap = -end % ALIGNMENT_BYTES
            if gap:
                header[f"{GAP_PREFIX}{name}"] = {"dtype": "U8", "shape": [gap], "data_offsets": [end, end + gap]}
            pieces += [data, bytes(gap)]
            end += gap
        return with_header(header, pieces)


def read_weights(file: bytes, described: Mapping[str, Weight]) -> dict[str, Tensor]:
    """The tensors of a safetensors file that a program names, with their axes as the program has them.

    Raises:
        GnomonError: 400 `invalid_model` where the file lacks one.

    """
    stored = load(file)
    missing = sorted(described.keys() - stored.keys())
    if missing:
        raise bad_request("invalid_model", f"The weights lack {', '.join(missing)[:500]}.", "Capture the model again.")
    return {name: _turned(stored[name], weight.order) for name, weight in described.items()}


def _turned(tensor: Tensor, order: tuple[int, ...]) -> Tensor:
    return tensor.permute([order.index(axis) for axis in range(len(order))]) if order else tensor


def _raw(tensor: Tensor) -> bytes:
    ordered = tensor.permute(_order(tensor)) if _order(tensor) else tensor
    return ordered.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def _order(tensor: Tensor) -> tuple[int, ...]:
    """The axes from the slowest to the fastest in memory where they permute a dense tensor, such as channels-last; else ()."""
    if tensor.is_contiguous():
        return ()
    order = tuple(sorted(range(tensor.dim()), key=tensor.stride, reverse=True))
    return order if tensor.permute(order).is_contiguous() else ()

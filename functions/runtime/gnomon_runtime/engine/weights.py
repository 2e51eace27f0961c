"""A program's weights from its safetensors file, in one of two declared modes.

`shared`: the file is mapped, so every instance on a node reads the same pages and only the tensors that are used become resident.
`private`: the instance reads its own copy, as a plain container or a Lambda does; how long that took is part of the answer, since
a figure that names this mode needs its bandwidth.

A tensor that does not begin at a multiple of 64 bytes is copied in either mode: kernels split their loops by alignment, and the
last bit of a sum with them. Gnomon's own files have none.

Nothing writes to weights: programs are functional and the executor never reuses their memory. The file itself is immutable: a
model repository replaces it only by renaming, since truncating it would kill every process that maps it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from safetensors import SafetensorError, safe_open
from torch import Tensor

from gnomon_core.program import Weight, invalid_program
from gnomon_runtime.engine.torch_support import TORCH_DTYPES

WeightMode = Literal["shared", "private"]
ALIGNMENT_BYTES = 64


@dataclass(frozen=True, slots=True)
class LoadedWeights:
    """Tensors by name, and what loading them took."""

    tensors: Mapping[str, Tensor]
    mode: WeightMode
    file_bytes: int
    load_s: float


def load_weights(path: Path, expected: Mapping[str, Weight], mode: WeightMode = "shared") -> LoadedWeights:
    """The tensors that a program names, checked against what it says of them.

    Raises:
        GnomonError: 422 `invalid_program` when the file lacks one or holds it in another form.

    """
    began_s = time.perf_counter()
    try:
        with safe_open(path, framework="pt") as file:
            present = set(file.keys())
            stored = {name: _placed(file.get_tensor(name), mode) for name in expected if name in present}
    except SafetensorError as error:
        raise invalid_program(f"The weight file cannot be read: {error}.") from None
    tensors = {name: checked(name, stored.get(name), weight) for name, weight in expected.items()}
    return LoadedWeights(tensors, mode, path.stat().st_size, time.perf_counter() - began_s)


def _placed(mapped: Tensor, mode: WeightMode) -> Tensor:
    """The mapped tensor itself, or its own copy, which torch's allocator aligns."""
    return mapped.clone() if mode == "private" or mapped.data_ptr() % ALIGNMENT_BYTES else mapped


def checked(name: str, tensor: Tensor | None, weight: Weight) -> Tensor:
    """A tensor of the file in the form that the program uses it in.

    Raises:
        GnomonError: 422 `invalid_program` where the file has it in another form or not at all.

    """
    order = weight.order or tuple(range(len(weight.shape)))
    stored_shape = tuple(weight.shape[axis] for axis in order)
    if tensor is None or tensor.shape != stored_shape or tensor.dtype != TORCH_DTYPES[weight.datatype]:
        found = "nothing" if tensor is None else f"{tensor.dtype} {tuple(tensor.shape)}"
        raise invalid_program(f"Weight {name!r} must be {weight.datatype} {stored_shape} in the file, which holds {found}.")
    return tensor.permute([order.index(axis) for axis in range(len(order))]) if weight.order else tensor

"""Values while an ONNX graph runs as a torch module: tensors, and numbers that are known when the graph is captured.

ONNX computes shapes with the operators that it computes everything with: `Shape`, `Gather`, `Concat`, then `Reshape`. A layer
program has no operation whose result's size depends on a value. So small constants and shapes stay numbers here, which the
operators on shapes compute with in numpy; the size of the batch is one of them, a symbol while torch.export traces. An operator
that needs a tensor gets one (`Call.tensor`), one that needs numbers gets these (`Call.integers`) or says what it lacks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from gnomon_core.errors import GnomonError
from gnomon_profiler.importing.onnx_file import Step

MAX_KNOWN = 1024
"""The most elements of a value that is kept as numbers."""
NUMPY_TYPES: Mapping[torch.dtype, Any] = {
    torch.bool: np.bool_, torch.int32: np.int64, torch.int64: np.int64, torch.float32: np.float32, torch.float64: np.float64,
}  # fmt: skip
"""Types of values that are kept as numbers."""


_NUMPY_NAMES: Mapping[torch.dtype, str] = {
    torch.bool: "bool", torch.int64: "int64", torch.int32: "int32", torch.float32: "float32", torch.float64: "float64",
    torch.float16: "float16",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Known:
    """Numbers: an array of them, or of objects where a size of the batch is among them; and the constant they come from."""

    array: Any
    constant: Tensor | None = None


Value: TypeAlias = Tensor | Known
Results: TypeAlias = Value | tuple[Value | None, ...]


class Unsupported(Exception):  # noqa: N818 - it says what, not that
    """A part of an operator that a layer program cannot hold or this importer does not know."""


@dataclass(frozen=True, slots=True)
class Call:
    """A step with the values of its inputs."""

    step: Step
    values: tuple[Value | None, ...]

    def has(self, index: int) -> bool:
        """True if this input is given."""
        return index < len(self.values) and self.values[index] is not None

    def value(self, index: int) -> Value:
        """An input as it is.

        Raises:
            Unsupported: the step lacks the input.

        """
        stored = self.values[index] if index < len(self.values) else None
        if stored is None:
            raise Unsupported(f"it lacks its input {index}")
        return stored

    def tensor(self, index: int) -> Tensor:
        """An input as a tensor."""
        return as_tensor(self.value(index))

    def tensors(self) -> list[Tensor]:
        """All given inputs as tensors."""
        return [as_tensor(value) for value in self.values if value is not None]

    def optional(self, index: int) -> Tensor | None:
        """An input as a tensor, None where it is absent."""
        return self.tensor(index) if self.has(index) else None

    def numbers(self, index: int, what: str) -> list[Any]:
        """An input as numbers that are known now.

        Raises:
            Unsupported: the input is computed from the model's inputs.

        """
        value = self.value(index)
        if not isinstance(value, Known):
            raise Unsupported(f"its {what} depend on values of the model's inputs")
        return list(value.array.reshape(-1))

    def integers(self, index: int, what: str) -> list[Any]:
        """`numbers` as integers and sizes of the batch."""
        return [number if isinstance(number, torch.SymInt) else int(number) for number in self.numbers(index, what)]

    def attribute(self, name: str, default: Any = None) -> Any:
        """An attribute; the default where it is absent."""
        return self.step.attributes.get(name, default)

    def setting(self, name: str, index: int, what: str) -> list[Any] | None:
        """Integers that were an attribute in older versions and are an input in newer ones; None where neither is given."""
        if name in self.step.attributes:
            value = self.attribute(name)
            return list(value) if isinstance(value, list) else [value]
        return self.integers(index, what) if self.has(index) else None


def as_tensor(value: Value) -> Tensor:
    """The value as a tensor."""
    if isinstance(value, Tensor):
        return value
    if value.constant is not None:
        return value.constant
    if value.array.dtype != object:
        return torch.from_numpy(np.array(value.array))
    scalars = [torch.scalar_tensor(number, dtype=torch.int64) for number in value.array.reshape(-1)]
    return torch.stack(scalars).reshape(value.array.shape) if value.array.ndim else scalars[0]


def constant(numbers: Sequence[Any], dtype: torch.dtype) -> Tensor:
    """Numbers of a step as a tensor. torch.export traces what builds a tensor with torch, number by number, and not numpy."""
    return torch.from_numpy(np.asarray(numbers, dtype=_NUMPY_NAMES[dtype]))


def known(numbers: Any) -> Known:
    """The result that numpy computed of known numbers; numpy gives a scalar of objects as the object itself."""
    if isinstance(numbers, np.ndarray):
        return Known(numbers)
    array = np.empty((), dtype=object if isinstance(numbers, torch.SymInt) else np.asarray(numbers).dtype)
    array[()] = numbers
    return Known(array)


def sizes(items: Sequence[Any], *, scalar: bool = False) -> Known:
    """Sizes as numbers: a list of them, or a scalar."""
    plain = not any(isinstance(item, torch.SymInt) for item in items)
    array = np.empty(len(items), dtype=np.int64 if plain else object)
    array[:] = [int(item) for item in items] if plain else list(items)
    return Known(array.reshape(()) if scalar else array)


def fits_known(tensor: Tensor) -> bool:
    """True if a constant is small and of a type that is kept as numbers."""
    return tensor.numel() <= MAX_KNOWN and tensor.dtype in NUMPY_TYPES


def known_of(tensor: Tensor) -> Any:
    """The numbers of a constant."""
    return tensor.numpy().astype(NUMPY_TYPES[tensor.dtype])


def invalid_step(step: Step, reason: str) -> GnomonError:
    """422: a step cannot become operations of a layer program."""
    return GnomonError(
        422,
        "unsupported_model",
        f"The ONNX operator {step.label()}, version {step.version}, cannot be imported: {reason[:300]}.",
        "Export the network alone with a free batch axis and all other sizes fixed; post-processing belongs in a handler.",
    )

"""Reads an ONNX file as data: a list of steps, the constants, and what the graph takes and gives.

The file may come from a stranger. Sizes are compared with bounds before anything is built, tensors outside the file are read only
from beside it, and a graph with sub-graphs, text or unknown types is refused by name. Nothing is executed here.

External data: ONNX keeps large tensors in files that it names by a path relative to the model. Each part of that path is opened
below the model's folder without following links, so that no name leads elsewhere, and the range must lie in the file and be as
long as the tensor.
"""

from __future__ import annotations

import importlib
import math
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gnomon_core.errors import GnomonError
from gnomon_core.packaging import import_package
from gnomon_profiler.importing.sources import ONNX, unreadable

MAX_FILE_BYTES = (2 << 30) - 1
"""The largest ONNX file, a limit of protocol buffers; larger models keep their tensors in other files."""
MAX_TENSOR_BYTES = 16 << 30
MAX_NODES = 20_000
_EXPORT_AGAIN = "Export the model again, for example with torch.onnx.export, and compare it with onnx.checker.check_model."
_TORCH_TYPES: Mapping[str, torch.dtype] = {
    "FLOAT": torch.float32, "DOUBLE": torch.float64, "FLOAT16": torch.float16, "BFLOAT16": torch.bfloat16, "BOOL": torch.bool,
    "INT8": torch.int8, "INT16": torch.int16, "INT32": torch.int32, "INT64": torch.int64, "UINT8": torch.uint8,
}  # fmt: skip
_CONSTANTS: Mapping[str, torch.dtype | None] = {
    "value": None,
    "value_int": torch.int64,
    "value_ints": torch.int64,
    "value_float": torch.float32,
    "value_floats": torch.float32,
}
"""The attributes of `Constant`, and what their numbers are."""


@dataclass(frozen=True, slots=True)
class GraphInput:
    """An input of the graph. A size that the file leaves open is None."""

    name: str
    dtype: torch.dtype
    shape: tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class Fill:
    """The number that `ConstantOfShape` repeats."""

    number: float
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class Step:
    """A node: an operator of a domain, in the version that the file imports, applied to values by name. "" is an absent one."""

    operator: str
    domain: str
    version: int
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]

    def label(self) -> str:
        """The operator with the node's name, for messages."""
        domain = f"{self.domain}." if self.domain else ""
        return f"{domain}{self.operator}" + (f" ({self.name[:100]})" if self.name else "")


@dataclass(frozen=True, slots=True)
class Graph:
    """An ONNX model whose steps are in the order of execution."""

    inputs: tuple[GraphInput, ...]
    outputs: tuple[str, ...]
    steps: tuple[Step, ...]
    constants: Mapping[str, Tensor]
    producer: str


def read_onnx(path: Path) -> Graph:
    """The graph in a file.

    Raises:
        GnomonError: 422 `invalid_onnx` for a file that is broken or names files elsewhere; 422 `unsupported_model` for what no
            layer program can hold.

    """
    size_bytes = path.stat().st_size
    if size_bytes > MAX_FILE_BYTES:
        raise _invalid(
            path.name, f"it has {size_bytes} bytes and at most {MAX_FILE_BYTES} are read", "Keep tensors as external data."
        )
    return read_model(_parse(path.name, path.read_bytes()), path.name, path.parent)


def read_model(model: Any, name: str, folder: Path | None = None) -> Graph:
    """The graph of an `onnx.ModelProto`; its external tensors are read from the folder.

    Raises:
        GnomonError: as `read_onnx`.

    """
    try:
        return _Reader(_without_functions(model, name), name, folder).graph()
    except GnomonError:
        raise
    except Exception as error:  # onnx, protobuf and numpy raise many kinds, all of them about the file
        raise _invalid(name, _in_short(error)) from error


def _parse(name: str, data: bytes) -> Any:
    onnx = import_package(ONNX, ONNX)
    try:
        model = onnx.ModelProto.FromString(data)
    except Exception as error:  # protobuf's DecodeError, whose module depends on its version
        raise _invalid(name, f"it is not a protocol buffer of ONNX ({_in_short(error)})") from error
    if not model.HasField("graph") or not model.graph.node:
        raise _invalid(name, "it has no graph with nodes")
    return model


def _without_functions(model: Any, name: str) -> Any:
    """The model with its local functions expanded; how many nodes that makes is counted first."""
    bodies = {(function.domain, function.name): function.node for function in model.functions}
    counts: dict[tuple[str, str], int] = {}

    def count(nodes: Iterable[Any], above: tuple[tuple[str, str], ...] = ()) -> int:
        total = 0
        for node in nodes:
            key = (node.domain, node.op_type)
            if key in above:
                raise _invalid(name, f"its function {node.op_type[:100]!r} calls itself")
            if key in bodies and key not in counts:
                counts[key] = count(bodies[key], (*above, key))
            total += counts.get(key, 1)
            if total > MAX_NODES:
                raise _invalid(name, f"it has more than {MAX_NODES} nodes")
        return total

    count(model.graph.node)
    return importlib.import_module("onnx.inliner").inline_local_functions(model) if model.functions else model


class _Reader:
    """Reads one model; `_total` counts the bytes of its tensors."""

    def __init__(self, model: Any, name: str, folder: Path | None) -> None:
        self._onnx = import_package(ONNX, ONNX)
        self._model, self._name, self._folder = model, name, folder
        self._total_bytes = 0
        self._versions = {("" if opset.domain == "ai.onnx" else opset.domain): int(opset.version) for opset in model.opset_import}

    def graph(self) -> Graph:
        graph = self._model.graph
        if graph.sparse_initializer:
            raise _unsupported(self._name, "it has sparse tensors")
        constants = {tensor.name: self._tensor(tensor) for tensor in graph.initializer}
        steps = []
        for node in graph.node:
            step = self._step(node)
            if (step.domain, step.operator) == ("", "Constant") and len(step.outputs) == 1 and step.outputs[0] not in constants:
                constants[step.outputs[0]] = self._constant(step)
            else:
                steps.append(step)
        inputs = tuple(self._input(info) for info in graph.input if info.name not in constants)
        self._check_order(inputs, constants, steps, [info.name for info in graph.output])
        producer = f"{self._model.producer_name} {self._model.producer_version}".strip()[:100]
        return Graph(inputs, tuple(info.name for info in graph.output), tuple(steps), constants, producer)

    def _check_order(
        self, inputs: tuple[GraphInput, ...], constants: Mapping[str, Tensor], steps: list[Step], outputs: list[str]
    ) -> None:
        defined = {"", *(value.name for value in inputs), *constants}
        for step in steps:
            if unknown := [name for name in step.inputs if name not in defined]:
                raise _invalid(self._name, f"{step.label()} reads {unknown[0][:100]!r} before anything makes it")
            if again := [name for name in step.outputs if name and name in defined]:
                raise _invalid(self._name, f"{step.label()} makes {again[0][:100]!r} a second time")
            defined.update(step.outputs)
        if not inputs or not outputs:
            raise _invalid(self._name, "it has no inputs or no outputs")
        if unknown := [name for name in outputs if not name or name not in defined]:
            raise _invalid(self._name, f"no node makes its output {unknown[0][:100]!r}")

    def _input(self, info: Any) -> GraphInput:
        kind = info.type
        if not kind.HasField("tensor_type"):
            raise _unsupported(self._name, f"its input {info.name[:100]!r} is not a tensor")
        if not kind.tensor_type.HasField("shape"):
            raise _unsupported(self._name, f"its input {info.name[:100]!r} has no shape")
        shape = tuple(
            int(size.dim_value) if size.HasField("dim_value") and size.dim_value > 0 else None
            for size in kind.tensor_type.shape.dim
        )
        return GraphInput(info.name, self._dtype(kind.tensor_type.elem_type, info.name), shape)

    def _step(self, node: Any) -> Step:
        domain = "" if node.domain == "ai.onnx" else node.domain
        if domain not in self._versions:
            raise _invalid(self._name, f"it uses the domain {domain[:100]!r} without importing it")
        attributes = {attribute.name: self._attribute(node, attribute) for attribute in node.attribute}
        return Step(node.op_type, domain, self._versions[domain], node.name, tuple(node.input), tuple(node.output), attributes)

    def _constant(self, step: Step) -> Tensor:
        for name, dtype in _CONSTANTS.items():
            if name in step.attributes:
                value = step.attributes[name]
                return value if isinstance(value, Tensor) else torch.tensor(value, dtype=dtype)
        raise _unsupported(self._name, f"{step.label()} holds text or a sparse tensor")

    def _attribute(self, node: Any, attribute: Any) -> Any:
        kinds = self._onnx.AttributeProto
        if attribute.type in (kinds.GRAPH, kinds.GRAPHS):
            raise _unsupported(self._name, f"{node.op_type[:100]} has a sub-graph, which depends on values")
        value = self._onnx.helper.get_attribute_value(attribute)
        match attribute.type:
            case kinds.TENSOR:
                tensor = self._tensor(value)
                if node.op_type == "ConstantOfShape" and tensor.numel() == 1:
                    return Fill(tensor.item(), tensor.dtype)
                return tensor
            case kinds.STRING:
                return value.decode("utf-8", "replace")
            case kinds.STRINGS:
                return [text.decode("utf-8", "replace") for text in value]
            case kinds.FLOAT | kinds.INT:
                return value
            case kinds.FLOATS | kinds.INTS:
                return list(value)
        raise _unsupported(self._name, f"{node.op_type[:100]} has an attribute {attribute.name[:100]!r} of an unknown type")

    def _dtype(self, number: int, of: str) -> torch.dtype:
        kinds = self._onnx.TensorProto.DataType
        kind = kinds.Name(number) if number in kinds.values() else str(number)
        if kind not in _TORCH_TYPES:
            raise _unsupported(self._name, f"{of[:100]!r} has the type {kind}; known are {', '.join(_TORCH_TYPES)}")
        return _TORCH_TYPES[kind]

    def _tensor(self, tensor: Any) -> Tensor:
        dtype = self._dtype(tensor.data_type, tensor.name or "a tensor")
        shape = [int(size) for size in tensor.dims]
        length = math.prod(shape) * dtype.itemsize if min(shape, default=0) >= 0 else -1
        self._total_bytes += max(length, 0)
        if length < 0 or self._total_bytes > MAX_TENSOR_BYTES:
            raise _invalid(self._name, f"the tensor {tensor.name[:100]!r} has the shape {shape[:8]}")
        if tensor.data_location == self._onnx.TensorProto.EXTERNAL:
            data = self._external(tensor, length)
            return torch.frombuffer(data, dtype=dtype).reshape(shape) if length else torch.zeros(shape, dtype=dtype)
        if tensor.HasField("raw_data") and len(tensor.raw_data) != length:
            raise _invalid(self._name, f"the tensor {tensor.name[:100]!r} has {len(tensor.raw_data)} bytes and needs {length}")
        array = np.ascontiguousarray(self._onnx.numpy_helper.to_array(tensor))
        if dtype is torch.bfloat16:
            return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16).reshape(shape)
        return torch.from_numpy(array.copy()).reshape(shape)

    def _external(self, tensor: Any, length: int) -> bytearray:
        entries = {entry.key: entry.value for entry in tensor.external_data}
        subject = f"the external data of {tensor.name[:100]!r}"
        if self._folder is None:
            raise _invalid(self._name, f"{subject} is outside a model that has no folder")
        try:
            offset = int(entries.get("offset", "0"))
            stated = int(entries.get("length", str(length)))
        except ValueError:
            raise _invalid(self._name, f"{subject} has an offset or a length that is no number") from None
        with _beside(self._folder, entries.get("location", ""), self._name, subject) as file:
            file_bytes = os.fstat(file).st_size
            if stated != length or offset < 0 or offset + length > file_bytes:
                message = (
                    f"{subject} needs {length} bytes, its entry states {stated} from {offset} on, and the file has {file_bytes}"
                )
                raise _invalid(self._name, message)
            data = bytearray(length)
            view, read = memoryview(data), 0
            while read < length:
                count = os.preadv(file, [view[read:]], offset + read)
                if not count:
                    raise _invalid(self._name, f"{subject} ended while it was read")
                read += count
        return data


@contextmanager
def _beside(folder: Path, location: str, name: str, subject: str) -> Iterator[int]:
    """A descriptor of the regular file at a path below a folder, opened part by part without following a link."""
    parts = PurePosixPath(location).parts
    if not parts or location.startswith("/") or ".." in parts or "\\" in location or "\0" in location:
        raise _invalid(
            name,
            f"{subject} is at {location[:200]!r}",
            "External data must lie in the model's folder: a relative path without '..'.",
        )
    descriptors = [os.open(folder, os.O_RDONLY | os.O_DIRECTORY)]
    try:
        for part in parts[:-1]:
            descriptors.append(os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=descriptors[-1]))
        descriptors.append(os.open(parts[-1], os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=descriptors[-1]))
        if not stat.S_ISREG(os.fstat(descriptors[-1]).st_mode):
            raise _invalid(name, f"{subject} is at {location[:200]!r}, which is not a regular file")
        yield descriptors[-1]
    except OSError as error:
        hint = "Put the file into the model's folder; links are not followed."
        raise _invalid(name, f"{subject} is at {location[:200]!r}: {error.strerror}", hint) from error
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _in_short(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__


def _invalid(name: str, reason: str, hint: str = _EXPORT_AGAIN) -> GnomonError:
    return unreadable("invalid_onnx", name, reason, hint)


def _unsupported(name: str, reason: str) -> GnomonError:
    return GnomonError(
        422,
        "unsupported_model",
        f"{name[:200]} cannot become a layer program: {reason}.",
        "Export the network alone, in float types and without control flow; post-processing belongs in a handler.",
    )

"""ONNX files for tests, written node by node."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Size = int | str
Change = Callable[[Any], None]


def node(operator: str, inputs: Sequence[str], outputs: Sequence[str], domain: str = "", **attributes: Any) -> Any:
    return helper.make_node(operator, list(inputs), list(outputs), domain=domain, **attributes)


def write(
    path: Path,
    nodes: Sequence[Any],
    constants: Mapping[str, Any] | None = None,
    shape: Sequence[Size] = ("batch", 4),
    change: Change | None = None,
) -> Path:
    """A file whose input is `x`, float32 of this shape, and whose output is `y`."""
    graph = helper.make_graph(
        list(nodes),
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, list(shape))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in (constants or {}).items()],
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 3), helper.make_opsetid("mine", 1)]
    model = helper.make_model(graph, opset_imports=opsets)
    if change is not None:
        change(model)
    path.write_bytes(model.SerializeToString())
    return path


def linear(path: Path, change: Change | None = None) -> Path:
    """y = x·w + b."""
    weight = np.arange(12, dtype=np.float32).reshape(4, 3)
    return write(path, [node("Gemm", ["x", "w", "b"], ["y"])], {"w": weight, "b": np.ones(3, np.float32)}, change=change)


def outside(location: str, offset: int = 0, length: int = 48) -> Change:
    """Move the linear model's weight to another file."""

    def change(model: Any) -> None:
        tensor = model.graph.initializer[0]
        tensor.ClearField("raw_data")
        tensor.data_location = onnx.TensorProto.EXTERNAL
        for key, value in {"location": location, "offset": str(offset), "length": str(length)}.items():
            tensor.external_data.add(key=key, value=value)

    return change

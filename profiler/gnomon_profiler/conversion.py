"""Converts a layer program into graphs of other engines, with the converters of PyTorch and OpenVINO.

    program + weights ─▶ fx module ─▶ torch.export, batch dynamic ─┬─▶ openvino.convert_model ─▶ openvino.xml, openvino.bin
                         outputs: the program's, then every         └─▶ torch.onnx.export      ─▶ model.onnx
                         value at a border between its blocks

A graph has the program's value names at its inputs, outputs and borders, so that `gnomon_runtime.engine.graphs` can compile the
whole model or any run of blocks from one file. Whether a graph is right and worth it is measured afterwards (`engines`).
"""

from __future__ import annotations

import operator
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor, fx

from gnomon_core.blocks import Layers
from gnomon_core.engines import not_convertible
from gnomon_core.program import Argument, BatchSize, Constant, Operation, Program, Value
from gnomon_profiler.program_runs import constant_of, overload_of
from gnomon_profiler.weights import TORCH_TYPES

BATCH_AT_EXPORT = 3
"""The batch of the example: not 0 or 1, which torch.export takes for constants, nor a size that networks have otherwise."""
MAX_BATCH = 1024
Files: TypeAlias = dict[str, bytes]
_BATCH_NORM = "aten._native_batch_norm_legit_no_training.default"


@dataclass(frozen=True, slots=True)
class Exported:
    """A program as torch exports it. `outputs` names its results in order."""

    program: torch.export.ExportedProgram
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def export(program: Program, weights: Mapping[str, Tensor], layers: Layers | None) -> Exported:
    """The program with the values at its borders as further outputs, exported with a dynamic batch.

    Raises:
        GnomonError: 422 `not_convertible` with torch's reason.

    """
    inputs = set(program.inputs)
    borders = () if layers is None else (name for name in layers.value_bytes if name not in inputs)
    outputs = tuple(dict.fromkeys((*program.outputs, *borders)))
    module = graph_module(program, weights, outputs)
    example = tuple(
        torch.zeros((BATCH_AT_EXPORT, *spec.shape), dtype=TORCH_TYPES[spec.datatype]) for spec in program.signature.inputs
    )
    batch = torch.export.Dim("batch", min=1, max=MAX_BATCH)
    try:
        exported = torch.export.export(module, example, dynamic_shapes=tuple({0: batch} for _ in example), strict=False)
    except Exception as error:  # noqa: BLE001 - a converter may raise anything; it is the reason that the engine is not offered
        raise not_convertible("torch.export", "convert", error) from None
    return Exported(exported, program.inputs, outputs)


def graph_module(program: Program, weights: Mapping[str, Tensor], outputs: tuple[str, ...]) -> fx.GraphModule:
    """The program's operations as an fx graph, which returns these values."""
    graph, root = fx.Graph(), torch.nn.Module()
    nodes: dict[str, fx.Node] = {name: graph.placeholder(f"input_{index}") for index, name in enumerate(program.inputs)}
    for index, name in enumerate(program.weights):
        root.register_buffer(f"weight_{index}", weights[name])
        nodes[name] = graph.get_attr(f"weight_{index}")
    batch = graph.call_function(torch.ops.aten.sym_size.int, (nodes[program.inputs[0]], 0))
    for operation in program.operations:
        _add(graph, operation, nodes, batch)
    graph.output(tuple(nodes[name] for name in outputs))
    return fx.GraphModule(root, graph)


def _add(graph: fx.Graph, operation: Operation, nodes: dict[str, fx.Node], batch: fx.Node) -> None:
    args = [_argument(graph, argument, nodes, batch) for argument in operation.args]
    kwargs = {name: _argument(graph, argument, nodes, batch) for name, argument in operation.kwargs.items()}
    if operation.op == _BATCH_NORM and operation.results[1:] == (None, None):
        # Converters know the plain operator; inference's own names two further results, which are empty.
        *tensors, momentum, epsilon = args
        nodes[str(operation.results[0])] = graph.call_function(torch.batch_norm, (*tensors, False, momentum, epsilon, False))
        return
    overload = overload_of(operation.op)
    result = graph.call_function(overload, tuple(args), kwargs)
    if len(overload._schema.returns) == 1 and "[]" not in str(overload._schema.returns[0].type) and len(operation.results) == 1:  # noqa: SLF001 - torch has no public schema
        if operation.results[0] is not None:
            nodes[operation.results[0]] = result
        return
    for index, name in enumerate(operation.results):
        if name is not None:
            nodes[name] = graph.call_function(operator.getitem, (result, index))


def _argument(graph: fx.Graph, argument: Argument, nodes: Mapping[str, fx.Node], batch: fx.Node) -> Any:
    match argument:
        case Value(name):
            return nodes[name]
        case BatchSize(times, plus, over):
            size: Any = batch if times == 1 else graph.call_function(operator.mul, (batch, times))
            size = graph.call_function(operator.add, (size, plus)) if plus else size
            return graph.call_function(operator.floordiv, (size, over)) if over != 1 else size
        case Constant():
            return constant_of(argument)
        case tuple():
            return [_argument(graph, item, nodes, batch) for item in argument]
    return argument


def to_openvino(exported: Exported) -> Files:
    """The IR of OpenVINO: a graph and its constants.

    Raises:
        GnomonError: 422 `not_convertible`.

    """
    import openvino  # type: ignore[import-untyped]  # noqa: PLC0415 - an extra, without types
    from openvino.tools.ovc import convert_model  # type: ignore[import-untyped]  # noqa: PLC0415 - which an engine leaves out

    try:
        model = convert_model(exported.program)
    except Exception as error:  # noqa: BLE001 - a converter may raise anything; it is the reason that the engine is not offered
        # Its first line names a line of OpenVINO's code, the last ones the operations.
        operations = [line.strip(" -") for line in str(error).splitlines() if "Conversion is failed for" in line]
        raise not_convertible("openvino.convert_model", "convert", ValueError(operations[0]) if operations else error) from None
    for port, name in zip(model.inputs, exported.inputs, strict=True):
        port.get_tensor().set_names({name})
    for port, name in zip(model.outputs, exported.outputs, strict=True):
        port.get_tensor().set_names({name})
    with tempfile.TemporaryDirectory(prefix="gnomon-openvino-") as folder:
        path = Path(folder) / "openvino.xml"
        openvino.save_model(model, path, compress_to_fp16=False)
        return {file.name: file.read_bytes() for file in sorted(Path(folder).iterdir())}


def to_onnx(exported: Exported) -> Files:
    """An ONNX file, and its weights in another, which instances map.

    Raises:
        GnomonError: 422 `not_convertible`.

    """
    import onnxscript  # noqa: F401, PLC0415 - torch's exporter needs it; an extra

    try:
        converted = torch.onnx.export(
            exported.program,
            dynamo=True,
            input_names=list(exported.inputs),
            output_names=list(exported.outputs),
            verbose=False,
        )
        assert converted is not None, "an exporter without a file returns its program"
        _rename_doubles(converted.model.graph)
        with tempfile.TemporaryDirectory(prefix="gnomon-onnx-") as folder:
            converted.save(Path(folder) / "model.onnx", external_data=True)
            return {file.name: file.read_bytes() for file in sorted(Path(folder).iterdir())}
    except Exception as error:  # noqa: BLE001 - a converter may raise anything; it is the reason that the engine is not offered
        raise not_convertible("torch.onnx.export", "convert", error) from None


def _rename_doubles(graph: Any) -> None:
    """Rename values inside a graph that have the name of an output: torch's exporter does not look when it names outputs."""
    outputs = {value.name: value for value in graph.outputs}
    for node in graph:
        for value in node.outputs:
            if outputs.get(value.name, value) is not value:
                value.name = f"{value.name}/inside"


CONVERTERS: Mapping[str, Callable[[Exported], Files]] = {"onnxruntime": to_onnx, "openvino": to_openvino}

"""A model as a graph of OpenVINO: an IR, in which each border value's tensor has the value's name.

A part is cut out by putting a parameter in the place of each value that it reads, and by taking the values that it makes as
results; OpenVINO then drops everything that the results do not need. The weights file is mapped: what a part does not use is
never read.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import torch
from torch import Tensor

from gnomon_core.engines import BF16, FP32, INT8

# The package imports its tool for conversions if it can, which takes longer than all the rest and starts a thread that reports
# its use. A module that is None cannot be imported; the converter imports the tool itself.
_TOOL = "openvino.tools.ovc"
_hidden = sys.modules.setdefault(_TOOL, cast("ModuleType", None)) is None
import openvino  # type: ignore[import-untyped]  # noqa: E402 - it ships no types
from openvino import opset15  # noqa: E402

if _hidden:
    del sys.modules[_TOOL]

MODEL, WEIGHTS = "openvino.xml", "openvino.bin"
INT8_MODEL, INT8_WEIGHTS = "openvino-int8.xml", "openvino-int8.bin"


class OpenVinoGraph:
    """The graph in an IR's two files. Each part is compiled from a graph that is read anew, since cutting changes it."""

    def __init__(self, files: Mapping[str, Path], precision: str = FP32) -> None:
        model, weights = (INT8_MODEL, INT8_WEIGHTS) if precision == INT8 else (MODEL, WEIGHTS)
        self._model, self._weights, self._precision = files[model], files[weights], precision
        self._core = _core()

    def compile(self, reads: Sequence[str], makes: Sequence[str], cores: int) -> OpenVinoPart:
        part = cut(self._core.read_model(self._model, self._weights), reads, makes)
        return OpenVinoPart(self._core.compile_model(part, "CPU", configuration(cores, self._precision)))


def _core() -> openvino.Core:
    # TBB loads a library of its own so that it does not see a preloaded allocator, and then frees with glibc what jemalloc
    # allocated (oneTBB issue 1645). With this variable, which it reads at its first use, it does not.
    os.environ.setdefault("TBB_ENABLE_SANITIZERS", "1")
    return openvino.Core()


def has_bf16() -> bool:
    """True if this CPU has bf16 arithmetic. Elsewhere OpenVINO computes a graph in fp32 that is to be narrowed."""
    return "BF16" in _core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")


def configuration(cores: int, precision: str = FP32) -> dict[str, Any]:
    """Configuration for one request at a time on this many threads, which inherit the process's CPU affinity."""
    return {
        "INFERENCE_NUM_THREADS": cores,
        "NUM_STREAMS": 1,
        "PERFORMANCE_HINT": "LATENCY",
        "ENABLE_CPU_PINNING": False,
        # A part answers what the program answers: fp32 is narrowed only where the function says so. What a quantised graph has in
        # fp32 stays so.
        "INFERENCE_PRECISION_HINT": "bf16" if precision == BF16 else "f32",
    }


def cut(model: openvino.Model, reads: Sequence[str], makes: Sequence[str]) -> openvino.Model:
    """The part of a model that computes the values `makes` from `reads`.

    Raises:
        ValueError: the model has no such value, or the part needs another input.

    """
    # Every value at a border is a result of the graph in the file. Results that are not wanted are tied to a constant: as
    # consumers of a value they would stay part of what is compiled.
    results = {name: result for result in model.get_results() for name in result.input(0).get_source_output().get_names()}
    ports = {name: result.input(0).get_source_output() for name, result in results.items()}
    ports |= {name: port for port in model.inputs for name in port.get_names()}
    missing = [name for name in (*reads, *makes) if name not in ports]
    if missing:
        raise ValueError(f"the graph has no value {missing[0]!r}")
    nothing = opset15.constant(0.0)
    for name, result in results.items():
        if name not in makes:
            result.input(0).replace_source_output(nothing.output(0))
    parameters = []
    for name in reads:
        port = ports[name]
        if port.get_node().get_type_name() == "Parameter":
            parameters.append(port.get_node())
            continue
        parameter = opset15.parameter(port.get_partial_shape(), port.get_element_type())
        again = _quantised_again(port, parameter.output(0))
        for target in port.get_target_inputs():
            target.replace_source_output(again)
        parameters.append(parameter)
    _read_batch_off(parameters[0].output(0), [port for port in model.inputs if port.get_names().isdisjoint(reads)])
    try:
        return openvino.Model([results[name] for name in makes], parameters, "part")
    except RuntimeError as error:
        raise ValueError(f"the part needs more than {', '.join(reads)}: {str(error).splitlines()[-1][:200]}") from None


def _read_batch_off(value: openvino.Output, absent: Sequence[openvino.Output]) -> None:
    """Let the part read the batch size off a value that it is given where the whole graph reads it off an input.

    The batch is the one size of a graph that is not a constant, and the first axis of all values.
    """
    for port in absent:
        for target in port.get_target_inputs():
            if target.get_node().get_type_name() == "ShapeOf":
                target.replace_source_output(value)


def _quantised_again(port: openvino.Output, value: openvino.Output) -> openvino.Output:
    """A value behind a copy of the FakeQuantize that makes this port; the value itself where another operation makes it.

    The copy gives the numbers that it is given, and lets the operations behind it be computed in integers, as in the whole graph.
    """
    node = port.get_node()
    if node.get_type_name() != "FakeQuantize":
        return value
    ranges = [bound.get_node() for bound in node.input_values()[1:]]
    return opset15.fake_quantize(value, *ranges, levels=int(node.get_attributes()["levels"])).output(0)


class OpenVinoPart:
    """A compiled part with its one request."""

    def __init__(self, compiled: openvino.CompiledModel) -> None:
        self._request = compiled.create_infer_request()
        self._inputs = range(len(compiled.inputs))
        self._outputs = range(len(compiled.outputs))

    def run(self, values: Sequence[Tensor]) -> tuple[Tensor, ...]:
        request = self._request
        for index in self._inputs:
            # The tensors stay alive until the request is done: `values` holds them.
            array = values[index].contiguous().numpy()
            request.set_input_tensor(index, openvino.Tensor(array, shared_memory=True))
        request.infer()
        # The request's own memory is overwritten by its next run.
        return tuple(torch.from_numpy(request.get_output_tensor(index).data.copy()) for index in self._outputs)

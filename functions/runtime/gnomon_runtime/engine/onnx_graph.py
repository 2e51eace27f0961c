"""A model as a graph of ONNX Runtime: an ONNX file in which each border value has the value's name, and its weights in another.

A part is the nodes that lead from the values it reads to those it makes. ONNX Runtime can leave out what a result does not need,
but it cannot be given a value from the middle of a graph, so a part is a graph of its own. The file of weights is mapped:
instances of a node share the pages of what the kernels use as it is, and a part touches the weights of its nodes alone. A
quantised graph has its weights in the file itself: they are a quarter.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import onnx
import torch
from onnx.utils import Extractor
from torch import Tensor

from gnomon_core.engines import FP32

# ONNX Runtime reports its use to Microsoft unless this is set when it is imported. It would also start a thread for that, which
# no zygote may have.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
import onnxruntime  # type: ignore[import-untyped]

MODEL, WEIGHTS = "model.onnx", "model.onnx.data"
INT8_MODEL = "model-int8.onnx"
_PAIR = ("QuantizeLinear", "DequantizeLinear")
_WEIGHTS_FOLDER = "session.model_external_initializers_file_folder_path"


class OnnxGraph:
    """The graph in an ONNX file and its file of weights. The precision is the file's."""

    def __init__(self, files: Mapping[str, Path], precision: str = FP32) -> None:
        self._file = files[MODEL if precision == FP32 else INT8_MODEL]
        self._weights = files.get(WEIGHTS)

    def compile(self, reads: Sequence[str], makes: Sequence[str], cores: int) -> OnnxPart:
        part = cut(onnx.load(self._file, load_external_data=False), reads, makes)
        chosen = options(cores)
        if self._weights is None:
            return OnnxPart(onnxruntime.InferenceSession(part.SerializeToString(), chosen, ["CPUExecutionProvider"]), makes)
        for tensor in part.graph.initializer:
            for entry in tensor.external_data:
                if entry.key == "location":
                    # A repository names files by their content.
                    entry.value = self._weights.name
        chosen.add_session_config_entry(_WEIGHTS_FOLDER, str(self._weights.parent))
        return OnnxPart(onnxruntime.InferenceSession(part.SerializeToString(), chosen, ["CPUExecutionProvider"]), makes)


def options(cores: int) -> onnxruntime.SessionOptions:
    """One request at a time, on this many threads, which sleep while there is none."""
    chosen = onnxruntime.SessionOptions()
    chosen.intra_op_num_threads = cores
    chosen.inter_op_num_threads = 1
    chosen.log_severity_level = 3
    # A thread that spins for its next task takes the core from the other instances of a node.
    chosen.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return chosen


def cut(model: onnx.ModelProto, reads: Sequence[str], makes: Sequence[str]) -> onnx.ModelProto:
    """The part of a model that computes the values `makes` from `reads`.

    Raises:
        ValueError: the model has no such value, or the part needs another input.

    """
    try:
        part = Extractor(model).extract_model(list(reads), list(makes))
    except (KeyError, ValueError) as error:
        raise ValueError(f"the graph has no part from {', '.join(reads)} to {', '.join(makes)}: {error}") from None
    _read_batch_off(part, model, reads)
    _quantise_reads(part, model, reads)
    return part


def _read_batch_off(part: onnx.ModelProto, model: onnx.ModelProto, reads: Sequence[str]) -> None:
    """Let the part read the batch size off a value that it is given where the whole graph reads it off an input.

    The batch is the one size of a graph that is not a constant, and the first axis of all values.

    Raises:
        ValueError: a node reads another value that the part lacks.

    """
    absent = {value.name for value in model.graph.input} - set(reads)
    for node in part.graph.node:
        if absent.isdisjoint(node.input):
            continue
        if node.op_type != "Shape":
            raise ValueError(f"the part needs more than {', '.join(reads)}: {', '.join(absent & set(node.input))}")
        node.input[:] = [reads[0]]


def _quantise_reads(part: onnx.ModelProto, model: onnx.ModelProto, reads: Sequence[str]) -> None:
    """Quantise what a part reads as the whole graph does where it makes that value.

    A border's value is the result of a DequantizeLinear. Its kernels fuse with the operations behind it only if a pair of
    QuantizeLinear and DequantizeLinear is before them; of a value that was quantised already the pair makes the same numbers.
    """
    makers = {output: node for node in model.graph.node if node.op_type in _PAIR for output in node.output}
    weights = {tensor.name: tensor for tensor in model.graph.initializer}
    initializers = {tensor.name for tensor in part.graph.initializer}
    for name in reads:
        back = makers.get(name)
        maker = None if back is None else makers.get(back.input[0])
        if back is None or maker is None:
            continue
        for node in part.graph.node:
            node.input[:] = [f"{name}/again" if value == name else value for value in node.input]
        pair = [onnx.NodeProto(), onnx.NodeProto()]
        pair[0].CopyFrom(maker)
        pair[1].CopyFrom(back)
        pair[0].input[0], pair[0].output[0], pair[0].name = name, f"{name}/quantised", f"{name}/quantise"
        pair[1].input[0], pair[1].output[0], pair[1].name = f"{name}/quantised", f"{name}/again", f"{name}/dequantise"
        nodes = [*pair, *part.graph.node]
        del part.graph.node[:]
        part.graph.node.extend(nodes)
        for weight in (*maker.input[1:], *back.input[1:]):
            if weight in weights and weight not in initializers:
                part.graph.initializer.append(weights[weight])
                initializers.add(weight)


class OnnxPart:
    """A session for a part. Its results are new arrays in every run."""

    def __init__(self, session: onnxruntime.InferenceSession, makes: Sequence[str]) -> None:
        self._session = session
        self._names = [value.name for value in session.get_inputs()]
        self._makes = list(makes)

    def run(self, values: Sequence[Tensor]) -> tuple[Tensor, ...]:
        feeds = {name: tensor.contiguous().numpy() for name, tensor in zip(self._names, values, strict=True)}
        return tuple(torch.from_numpy(array) for array in self._session.run(self._makes, feeds))

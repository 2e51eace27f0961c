"""An ONNX graph as a torch module, and as a model to capture.

The module's forward runs the graph's steps by the functions of `onnx_operators` and `onnx_ml`; torch.export traces it as it
traces any module, so whatever serves a layer program serves the model.

A file whose batch is fixed to 1 is captured with a free batch as well, where its operators allow that: a `Reshape` to
(1, …) of a value that has the batch as first axis is one to (batch, …). The captured program is compared with the file, sample
by sample, before anything is stored (`row_check`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from gnomon_core.errors import GnomonError, bad_request
from gnomon_profiler.catalog import CatalogModel
from gnomon_profiler.extractor import Description
from gnomon_profiler.importing.onnx_file import Graph, GraphInput, Step, read_onnx
from gnomon_profiler.importing.onnx_ml import MICROSOFT_OPERATORS, ML_OPERATORS
from gnomon_profiler.importing.onnx_operators import OPERATORS
from gnomon_profiler.importing.onnx_values import Call, Known, Unsupported, Value, as_tensor, fits_known, invalid_step, known_of

MAX_ELEMENTS = 1 << 28
"""The most elements of one value at a batch of 1: 1 GiB of float32."""
_DOMAINS: Mapping[str, Mapping[str, Any]] = {
    "": OPERATORS,
    "ai.onnx.ml": ML_OPERATORS,
    "com.microsoft": MICROSOFT_OPERATORS,
}
_NAME = re.compile(r"[A-Za-z0-9_.:/-]{1,255}")


def load_onnx(name: str, path: Path, shapes: Sequence[Sequence[int]] = ()) -> CatalogModel:
    """The model in an ONNX file. `shapes` are of one sample of each input, for files that leave other sizes than the batch open.

    Raises:
        GnomonError: 400 `invalid_source` for shapes that do not fit; 422 `invalid_onnx` or `unsupported_model`.

    """
    return model_of(read_onnx(path), Description(name, details={"weights": f"from {path.name}"}), shapes)


def model_of(graph: Graph, description: Description, shapes: Sequence[Sequence[int]] = ()) -> CatalogModel:
    """A graph as a model to capture. The description's details gain the graph's producer.

    Raises:
        GnomonError: as `load_onnx`.

    """
    refuse_unknown_operators(graph)
    example = _example(graph.inputs, shapes)
    module = OnnxModule(graph).eval()
    _check_sizes(module, example)
    details = dict(description.details or {}) | ({"producer": graph.producer} if graph.producer else {})
    return CatalogModel(
        module,
        example,
        Description(
            description.model,
            description.version,
            description.kind,
            details,
            _tensor_names([value.name for value in graph.inputs], "input"),
            _tensor_names(graph.outputs, "output"),
        ),
        random_inputs=True,
    )


class OnnxModule(nn.Module):
    """Runs a graph. Its constants are buffers, named as in the file as far as torch allows."""

    def __init__(self, graph: Graph) -> None:
        super().__init__()
        self._steps, self._inputs, self._outputs = graph.steps, [value.name for value in graph.inputs], graph.outputs
        self._functions = [_DOMAINS[step.domain][step.operator] for step in graph.steps]
        self._last_reads = _last_reads(graph)
        self.weights = nn.Module()
        self._buffers_by_name: dict[str, str] = {}
        self._known: dict[str, Any] = {}
        for name, tensor in graph.constants.items():
            self._buffers_by_name[name] = buffer = f"{re.sub(r'[^A-Za-z0-9_]', '_', name)[:100]}_{len(self._buffers_by_name)}"
            self.weights.register_buffer(buffer, tensor)
            if fits_known(tensor):
                self._known[name] = known_of(tensor)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        values: dict[str, Value] = dict(zip(self._inputs, inputs, strict=True))
        for name, buffer in self._buffers_by_name.items():
            constant = getattr(self.weights, buffer)
            values[name] = Known(self._known[name], constant) if name in self._known else constant
        for number, (step, function) in enumerate(zip(self._steps, self._functions, strict=True)):
            results = _run(step, function, tuple(values[value] if value else None for value in step.inputs))
            named = zip(step.outputs, results, strict=False)
            values |= {name: result for name, result in named if name and isinstance(result, Tensor | Known)}
            for name in self._last_reads.get(number, ()):
                values.pop(name, None)
        return tuple(as_tensor(values[name]) for name in self._outputs)


def _run(step: Step, function: Any, values: tuple[Value | None, ...]) -> tuple[Value | None, ...]:
    try:
        results = function(Call(step, values))
    except (Unsupported, ValueError, TypeError, IndexError, KeyError, RuntimeError) as error:
        if type(error).__module__.startswith("torch.fx"):  # of the trace, such as a branch on a value
            raise
        raise invalid_step(step, " ".join(str(error).split()) or type(error).__name__) from error
    outputs = results if isinstance(results, tuple) else (results,)
    if any(name and (index >= len(outputs) or outputs[index] is None) for index, name in enumerate(step.outputs)):
        raise invalid_step(step, f"its output {len(outputs)} is not supported")
    for value in outputs:
        elements: Any = value.numel() if isinstance(value, Tensor) else 0
        if isinstance(elements, int) and elements > MAX_ELEMENTS:  # a number of the batch while torch.export traces
            raise invalid_step(step, f"its result has {elements} elements and at most {MAX_ELEMENTS} are computed")
    return outputs


def _last_reads(graph: Graph) -> dict[int, list[str]]:
    """The values that no step after this one reads, by step, so that a run keeps only what it needs."""
    last: dict[str, int] = {}
    for number, step in enumerate(graph.steps):
        last |= dict.fromkeys((*step.inputs, *step.outputs), number)
    ends: dict[int, list[str]] = {}
    for name, number in last.items():
        if name not in graph.outputs:
            ends.setdefault(number, []).append(name)
    return ends


def refuse_unknown_operators(graph: Graph) -> None:
    """Refuse a graph with operators that have no function here, naming all of them.

    Raises:
        GnomonError: 422 `unsupported_model`.

    """
    unknown = sorted(
        {step.label().partition(" (")[0] for step in graph.steps if step.operator not in _DOMAINS.get(step.domain, {})}
    )
    if unknown:
        raise GnomonError(
            422,
            "unsupported_model",
            f"The model uses ONNX operators that are not imported: {', '.join(unknown)[:500]}.",
            "Export the network in float types without these, or serve it from a handler (docs/howto).",
        )


def _example(inputs: Sequence[GraphInput], shapes: Sequence[Sequence[int]]) -> tuple[Tensor, ...]:
    if shapes and len(shapes) != len(inputs):
        raise bad_request(
            "invalid_source",
            f"{len(shapes)} shapes are given and the model has {len(inputs)} inputs: {_listed(inputs)}.",
            "Give --shape once for each input, in this order, without the batch.",
        )
    tensors = []
    for number, graph_input in enumerate(inputs):
        described = f"The input {graph_input.name[:100]!r} has the shape {_written(graph_input)}"
        if not graph_input.shape or graph_input.shape[0] not in (None, 1):
            raise GnomonError(
                422,
                "unsupported_model",
                f"{described}: its first axis must be the batch, open or 1.",
                "Export the model with a dynamic first axis.",
            )
        shape = tuple(shapes[number]) if shapes else graph_input.shape[1:]
        fixed = graph_input.shape[1:]
        if len(shape) != len(fixed) or any(size is None for size in shape):
            raise bad_request(
                "invalid_source",
                f"The model leaves sizes open beside the batch: {_listed(inputs)}.",
                "Say the shape of one sample of each input: --shape 128, or --shape 3x224x224.",
            )
        if any(own not in (None, size) for own, size in zip(fixed, shape, strict=True)):
            raise bad_request(
                "invalid_source",
                f"{described} in the file, and --shape says another.",
                "Leave --shape out, or give sizes only for open axes.",
            )
        tensors.append(torch.zeros(1, *(int(size or 0) for size in shape), dtype=graph_input.dtype))
    return tuple(tensors)


def _listed(inputs: Sequence[GraphInput]) -> str:
    return ", ".join(f"{value.name[:100]} {_written(value)}" for value in inputs[:10])


def _written(graph_input: GraphInput) -> str:
    return f"({', '.join('?' if size is None else str(size) for size in graph_input.shape)})"


def _check_sizes(module: OnnxModule, example: tuple[Tensor, ...]) -> None:
    """Run the graph at a batch of 1 on tensors without content: sizes that no machine has are refused before any is allocated."""
    try:
        with torch.no_grad(), FakeTensorMode(allow_non_fake_inputs=True) as mode:
            module(*(mode.from_tensor(tensor) for tensor in example))
    except GnomonError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split())[:300]
        raise GnomonError(
            422, "unsupported_model", f"The model's sizes cannot be computed: {reason}", "No size may depend on values."
        ) from error


def _tensor_names(names: Sequence[str], kind: str) -> tuple[str, ...]:
    """The names as the protocol and a program take them; numbered where the file has others."""
    cleaned = [re.sub(r"[^A-Za-z0-9_.:/-]", "_", name)[:255] for name in names]
    unique = len(set(cleaned)) == len(cleaned) and all(_NAME.fullmatch(name) for name in cleaned)
    return tuple(cleaned) if unique else tuple(f"{kind}_{index}" for index in range(len(names)))

"""Runs a model as a graph of ONNX Runtime or OpenVINO instead of as its layer program.

    layer program ──converted once, when the model is added──▶ graph file: every value at a border between blocks has its name

    graph ─▶ compile(inputs, outputs)      the whole model: the engine fuses across blocks
          ─▶ compile(reads, makes)         a run of blocks, for a Body and its Shadow

A graph file has the program's value names at its borders, so any run of blocks can be cut out of the one file, and Body and
Shadow agree on the values that cross. The layer program stays the reference: it names the values, and a graph is only offered
after its answers agreed with the program's (`gnomon_profiler.engines`).

A graph in int8 quantises each value at a border before it leaves a part, and again where another part reads it, which gives the
same numbers: parts compute in integers as the whole does. In bf16 OpenVINO narrows the fp32 graph when it is compiled.

Compiling reorders weights for the kernels: a compiled graph has its own copy of the weights that it uses, in either weight mode.
A cut holds those of its blocks alone. The number of threads is part of a compiled graph: one is kept for each number of cores
that the instance has had, so that cores which come and go compile once.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol, cast

import torch
from torch import Tensor

from gnomon_core.engines import PROGRAM, split_name
from gnomon_core.errors import GnomonError
from gnomon_core.packaging import how_to_install
from gnomon_core.program import Program, parse_program
from gnomon_runtime.engine.executor import check_inputs, check_outputs
from gnomon_runtime.engine.loaded_model import LoadedModel, load_program
from gnomon_runtime.engine.segments import Border, Flow, borders_between
from gnomon_runtime.engine.weights import LoadedWeights

GRAPHS = {
    "onnxruntime": "gnomon_runtime.engine.onnx_graph:OnnxGraph",
    "openvino": "gnomon_runtime.engine.openvino_graph:OpenVinoGraph",
}
"""Engines by name, without precisions; a module is imported when the first model needs it."""


class CompiledGraph(Protocol):
    """A graph, or a part of one, that is ready to run with a fixed number of threads."""

    def run(self, values: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The results for one batch, which later runs do not overwrite. The first axis of all tensors is the batch."""
        ...


class Graph(Protocol):
    """A graph file of which parts can be compiled."""

    def compile(self, reads: Sequence[str], makes: Sequence[str], cores: int) -> CompiledGraph:
        """The part that computes the values `makes` from the values `reads`.

        Raises:
            ValueError: the graph has no such value, or the part needs another value.

        """
        ...


def open_graph(engine: str, files: Mapping[str, Path]) -> Graph:
    """The graph in these files, by the names that the engine's converter gave them. The engine's name has its precision.

    Raises:
        GnomonError: 501 `engine_missing` where the engine is not installed.

    """
    library, precision = split_name(engine)
    module, _, name = GRAPHS[library].partition(":")
    try:
        opened = getattr(importlib.import_module(module), name)
    except ImportError as error:
        raise GnomonError(
            501, "engine_missing", f"The engine {library} cannot be imported: {error}.", how_to_install(library)
        ) from None
    return cast("Graph", opened(files, precision))


class GraphPart:
    """A part of a graph, compiled for the present number of cores."""

    def __init__(self, graph: Graph, reads: Sequence[str], makes: Sequence[str], cores: int) -> None:
        self._graph = graph
        self._reads, self._makes = tuple(reads), tuple(makes)
        self._compiled: dict[int, CompiledGraph] = {}
        self._current = self._for(cores)

    def resize(self, cores: int) -> None:
        self._current = self._for(cores)

    def run(self, values: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return self._current.run(values)

    def _for(self, cores: int) -> CompiledGraph:
        if cores not in self._compiled:
            self._compiled[cores] = self._graph.compile(self._reads, self._makes, cores)
        return self._compiled[cores]


class GraphSegment:
    """A run of a model's operations that an engine computes."""

    def __init__(self, graph: Graph, border: Border, cores: int) -> None:
        self.border = border
        self._part = GraphPart(graph, border.reads, border.makes, cores)

    def resize(self, cores: int) -> None:
        self._part.resize(cores)

    def run(self, rows: int, values: list[Tensor], before_last: Callable[[], None] | None = None) -> tuple[Tensor, ...]:  # noqa: ARG002 - rows are the values' first axis
        """The values that the segment makes, in the border's order. `before_last` is called before it begins.

        An engine does not say when its last operation begins, and a hint that comes early only wakes the other side early.
        """
        inputs = list(values)
        values.clear()  # as `ModelSegment.run` promises, although the engine holds the values until it ends
        if before_last is not None:
            before_last()
        return self._part.run(inputs)


class GraphModel:
    """A model that another engine runs.

    Raises:
        GnomonError: 422 `invalid_program`; 501 `engine_missing`.
        ValueError: the graph is not of this program.

    """

    def __init__(self, engine: str, program: Path, files: Mapping[str, Path], cores: int) -> None:
        started_s = time.perf_counter()
        self.engine = engine
        self.program: Program = parse_program(program.read_bytes())
        self.signature = self.program.signature
        self._graph = open_graph(engine, files)
        self._cores = cores
        self._whole = GraphPart(self._graph, self.program.inputs, self.program.outputs, cores)
        self._segments: dict[tuple[int, int], GraphSegment] = {}
        size = sum(file.stat().st_size for file in files.values())
        self.weights = LoadedWeights({}, "private", size, time.perf_counter() - started_s)

    def run(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        batch = check_inputs(self.signature, inputs)
        outputs = self._whole.run(inputs)
        check_outputs(self.signature, batch, outputs)
        return outputs

    def segments(self, runs: Sequence[tuple[int, int]]) -> Sequence[GraphSegment]:
        """The model in pieces. Compiled pieces of the last call are used again, those that are not needed are given up."""
        borders = borders_between(Flow(self.program), len(self.program.operations), runs)
        cached = self._segments
        self._segments = {
            (border.begin, border.end): cached.get((border.begin, border.end)) or GraphSegment(self._graph, border, self._cores)
            for border in borders
        }
        return list(self._segments.values())

    def pieces(self, ends: Sequence[int]) -> Sequence[GraphSegment]:
        """The whole model in pieces, of which piece i ends before operation `ends[i]`; neighbours may touch."""
        flow = Flow(self.program)
        return [GraphSegment(self._graph, flow.border(begin, end), self._cores) for begin, end in pairwise((0, *ends))]

    def resize(self, cores: int) -> None:
        self._cores = cores
        torch.set_num_threads(cores)
        self._whole.resize(cores)
        for segment in self._segments.values():
            segment.resize(cores)


def load_model(options: Mapping[str, Any], cores: int) -> LoadedModel:
    """The model that these options of a launch name, on the engine that they name: "program" unless they say otherwise.

    Raises:
        GnomonError: 422 `invalid_program`; 501 `engine_missing`.

    """
    program = Path(options["program"])
    engine = options.get("engine", PROGRAM)
    if engine == PROGRAM:
        return load_program(program, Path(options["weights"]), options.get("weight_mode", "shared"))
    return GraphModel(engine, program, graph_files(options), cores)


def graph_files(options: Mapping[str, Any]) -> dict[str, Path]:
    """The files of the graph that these options of a launch name."""
    return {name: Path(path) for name, path in options["graph"].items()}

"""The blocks of a model that a Shadow holds: their weights, and segments of the program that are ready to run.

A hand-over may name any run of operations that begins and ends with held blocks: while a pair's blocks are being changed, the
Shadow holds the old and the new ones, and its Body still uses the old runs. Of the program only the operations of the blocks are
checked and bound; they are compared with the allow-list and bounded in size as a Body's are.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import torch

from gnomon_core.blocks import Layers
from gnomon_core.engines import PROGRAM
from gnomon_core.program import parse_program
from gnomon_runtime.engine.executor import Executor
from gnomon_runtime.engine.graphs import GraphModel, GraphSegment, graph_files, open_graph
from gnomon_runtime.engine.loaded_model import LoadedModel, LoadedProgram, ModelSegment
from gnomon_runtime.engine.segments import Flow, Segment
from gnomon_runtime.engine.weights import BlockWeights, LoadedWeights, WeightMode
from gnomon_runtime.pair.headers import Kind, Message
from gnomon_runtime.pair.link import SharedBuffer


def compute_answer(
    model: HeldModel | None, request: Message, to: SharedBuffer, back: SharedBuffer, before_last: Callable[[], None] | None = None
) -> Message:
    """Compute a hand-over whose tensors lie in `to`, and write the result to `back`. Returns the answer for the Body.

    `before_last` is called before the last operation: the wake-up hint for the answer.
    """
    started_s = time.monotonic()
    kind, rows = Kind.REFUSED, None
    try:
        segment = None if model is None else model.segment(request.begin, request.end)
        if segment is not None and len(segment.border.reads) == len(request.rows):
            with torch.inference_mode():
                rows = back.write(segment.run(request.samples, to.read(request.rows), before_last))
            kind = Kind.FAILED if rows is None else Kind.DONE
    except Exception:  # noqa: BLE001 - a kernel may raise anything; the Body computes the samples and learns what
        kind = Kind.FAILED
    seconds = time.monotonic() - started_s
    return Message(kind, request.sequence, request.begin, request.end, request.samples, rows or (), seconds)


def read_layers(path: Path, program_sha256: str) -> Layers:
    """The layer blocks of the program with this hash.

    Raises:
        ValueError: the file describes none, or those of another program.
        OSError: it cannot be read.

    """
    layers = Layers.from_json(json.loads(path.read_bytes()))
    if layers.program_sha256 != program_sha256:
        raise ValueError("the layer blocks are of another program")
    return layers


class HeldModel(Protocol):
    """A model of which some blocks are held, on any engine."""

    @property
    def layers(self) -> Layers: ...

    @property
    def blocks(self) -> tuple[int, ...]:
        """The numbers of the blocks that are held, ascending."""
        ...

    @property
    def resident_bytes(self) -> int:
        """The memory of their weights."""
        ...

    def hold(self, blocks: Iterable[int]) -> None:
        """Hold these blocks and no others. New blocks are ready to run when this returns.

        Raises:
            ValueError: the model has no such block.
            GnomonError: 422 `invalid_program`: one may not run, or the files do not fit each other.

        """
        ...

    def segment(self, begin: int, end: int) -> ModelSegment | None:
        """The segment of these operations; None where they are not whole blocks that are held."""
        ...

    def resize(self, cores: int) -> None:
        """Use this many threads from the next hand-over on."""
        ...

    def load_remaining(self, piece_bytes: int) -> Iterator[int]:
        """Load the rest of the model, a piece with each step. Blocks that are held for a Body stay as they are."""
        ...

    def whole(self, load_s: float = 0.0) -> LoadedModel:
        """The model as a Body has it, once the rest of it is loaded."""
        ...


def hold_model(options: Mapping[str, Any], cores: int) -> HeldModel:
    """The model that these options of a launch or a load name, no block of it held yet, on the engine that they name.

    Raises:
        GnomonError: 422 `invalid_program`; 501 `engine_missing`.
        ValueError: the files do not belong together.
        OSError: one cannot be read.

    """
    program, weights, layers = (Path(options[name]) for name in ("program", "weights", "layers"))
    engine = options.get("engine", PROGRAM)
    if engine == PROGRAM:
        return HeldBlocks(program, weights, layers, options.get("weight_mode", "shared"))
    return HeldGraph(engine, program, layers, graph_files(options), cores)


def _checked(blocks: Iterable[int], layers: Layers) -> frozenset[int]:
    """The numbers of blocks, which the model has. Raises ValueError for others, or for none."""
    chosen = frozenset(blocks)
    if not chosen or not chosen <= frozenset(range(len(layers.blocks))):
        raise ValueError(f"blocks {sorted(chosen)} of a model that has {len(layers.blocks)}")
    return chosen


class HeldBlocks:
    """A model of which some blocks are held as operations of its layer program.

    Raises:
        GnomonError: 422 `invalid_program`.
        ValueError: the files do not belong together.
        OSError: one cannot be read.

    """

    def __init__(self, program: Path, weights: Path, layers: Path, mode: WeightMode) -> None:
        document = program.read_bytes()
        self.layers = read_layers(layers, hashlib.sha256(document).hexdigest())
        self._program = parse_program(document)
        self._flow = Flow(self._program)
        self._weights = BlockWeights(weights, self._program.weights, mode)
        self._blocks: frozenset[int] = frozenset()
        self._segments: dict[tuple[int, int], Segment] = {}
        self._weight_names: dict[int, tuple[str, ...]] = {}

    @property
    def blocks(self) -> tuple[int, ...]:
        """The numbers of the blocks that are held, ascending."""
        return tuple(sorted(self._blocks))

    @property
    def resident_bytes(self) -> int:
        """The memory of their weights."""
        return self._weights.resident_bytes

    def hold(self, blocks: Iterable[int]) -> None:
        """Hold these blocks and no others. New blocks are resident and bound when this returns.

        Raises:
            ValueError: the model has no such block.
            GnomonError: 422 `invalid_program`: one may not run, or the weight file does not fit it.

        """
        blocks_to_hold = _checked(blocks, self.layers)
        for block in sorted(blocks_to_hold - self._blocks):
            self._weights.hold(self._weights_of(block))
        self._blocks |= blocks_to_hold
        for run in self.layers.runs(blocks_to_hold):
            self.segment(run.begin, run.end)
        self._drop_others(blocks_to_hold)

    def resize(self, cores: int) -> None:
        torch.set_num_threads(cores)

    def load_remaining(self, piece_bytes: int) -> Iterator[int]:
        """Make the rest of the model resident, a piece with each step. Blocks that are held for a Body stay as they are."""
        return self._weights.holding(self._program.weights, piece_bytes)

    def whole(self, load_s: float = 0.0) -> LoadedProgram:
        """The model as a Body has it, once the rest of it is resident.

        Raises:
            GnomonError: 422 `invalid_program`: it may not run.

        """
        weights = self._weights
        loaded = LoadedWeights(dict(weights.held), weights.mode, weights.file_bytes, load_s)
        return LoadedProgram(self._program.signature, Executor(self._program, loaded.tensors), loaded, self._program)

    def segment(self, begin: int, end: int) -> Segment | None:
        """The segment of these operations; None where they are not whole blocks that are held."""
        if (begin, end) not in self._segments:
            inside = [number for number, block in enumerate(self.layers.blocks) if begin <= block.begin and block.end <= end]
            is_whole_run = inside and self.layers.blocks[inside[0]].begin == begin and self.layers.blocks[inside[-1]].end == end
            if not is_whole_run or not self._blocks.issuperset(inside):
                return None
            self._segments[begin, end] = Segment(self._program, self._flow.border(begin, end), self._weights.held)
        return self._segments[begin, end]

    def _drop_others(self, blocks_to_hold: frozenset[int]) -> None:
        self._blocks = blocks_to_hold
        kept_blocks = [self.layers.blocks[number] for number in blocks_to_hold]
        operations = {number for block in kept_blocks for number in range(block.begin, block.end)}
        self._segments = {ends: segment for ends, segment in self._segments.items() if operations.issuperset(range(*ends))}
        self._weights.keep_only(name for number in blocks_to_hold for name in self._weights_of(number))

    def _weights_of(self, block: int) -> tuple[str, ...]:
        if block not in self._weight_names:
            layer_block = self.layers.blocks[block]
            self._weight_names[block] = self._flow.border(layer_block.begin, layer_block.end).weights
        return self._weight_names[block]


class HeldGraph:
    """A model of which some blocks are held as compiled parts of a graph: one for each run of neighbours.

    A part has its own copy of the weights of its blocks, so nothing of the layer program's weight file is read.

    Raises:
        GnomonError: 422 `invalid_program`; 501 `engine_missing`.
        ValueError: the files do not belong together.
        OSError: one cannot be read.

    """

    def __init__(self, engine: str, program: Path, layers: Path, files: Mapping[str, Path], cores: int) -> None:
        document = program.read_bytes()
        self.layers = read_layers(layers, hashlib.sha256(document).hexdigest())
        self._engine, self._program, self._files, self._cores = engine, program, files, cores
        self._flow = Flow(parse_program(document))
        self._graph = open_graph(engine, files)
        self._blocks: frozenset[int] = frozenset()
        self._segments: dict[tuple[int, int], GraphSegment] = {}
        self._whole: GraphModel | None = None

    @property
    def blocks(self) -> tuple[int, ...]:
        return tuple(sorted(self._blocks))

    @property
    def resident_bytes(self) -> int:
        return self.layers.parameter_bytes(self._blocks) if self._blocks else 0

    def hold(self, blocks: Iterable[int]) -> None:
        block_numbers = _checked(blocks, self.layers)
        runs = {(run.begin, run.end) for run in self.layers.runs(block_numbers)}
        self._segments = {
            (begin, end): self._segments.get((begin, end))
            or GraphSegment(self._graph, self._flow.border(begin, end), self._cores)
            for begin, end in runs
        }
        self._blocks = block_numbers

    def release(self) -> None:
        """Give up all blocks."""
        self._segments, self._blocks = {}, frozenset()

    def segment(self, begin: int, end: int) -> GraphSegment | None:
        """The compiled part of a run that is held. Another run, even within it, is another part: None."""
        return self._segments.get((begin, end))

    def resize(self, cores: int) -> None:
        self._cores = cores
        torch.set_num_threads(cores)
        for segment in self._segments.values():
            segment.resize(cores)

    def load_remaining(self, piece_bytes: int) -> Iterator[int]:  # noqa: ARG002 - an engine compiles the whole graph in one piece
        self._whole = GraphModel(self._engine, self._program, self._files, self._cores)
        yield self.layers.parameter_bytes()

    def whole(self, load_s: float = 0.0) -> LoadedModel:
        assert self._whole is not None, "the rest of the model has been loaded"
        self._whole.weights = replace(self._whole.weights, load_s=load_s)
        return self._whole

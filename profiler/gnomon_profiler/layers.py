"""A program's layer blocks, found, measured and tried: the third file of a repository entry.

Shapes and MACs come from a run without content, the cuts from those, and whether a block may be split from running it on a batch
and on the parts of that batch. All of it follows from the program and its weights; the names of modules, where the capture knew
them, only name the blocks.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from itertools import pairwise

from torch import Tensor

from gnomon_core.blocks import Block, Layers
from gnomon_core.program import Program, dump_program
from gnomon_profiler.block_names import block_names
from gnomon_profiler.cuts import Costs, choose_cuts
from gnomon_profiler.flow import Flow
from gnomon_profiler.layers_file import weight_bytes
from gnomon_profiler.running import Runner
from gnomon_profiler.splitting import split_difference
from gnomon_profiler.tensor_shapes import measure


def find_layers(
    program: Program, weights: Mapping[str, Tensor], *, document: bytes | None = None, modules: Sequence[str] = ()
) -> Layers:
    """The blocks of a program.

    `document` is the program's JSON where it was not written by this version of `dump_program`; `modules` is the path of the
    module that each operation was captured from, "" where there is none.

    Raises:
        ValueError: a program without operations.

    """
    if not program.operations:
        raise ValueError("a program without operations has no blocks")
    finder = _Finder(program, weights)
    pieces = finder.pieces()
    names = block_names(finder.flow, pieces, modules, finder.measures.macs)
    blocks = [finder.block(name, *piece) for name, piece in zip(names, pieces, strict=True)]
    crossing = dict.fromkeys(name for block in blocks for name in (*block.reads, *block.makes))
    return Layers(
        hashlib.sha256(document or dump_program(program)).hexdigest(),
        program.outputs,
        tuple(blocks),
        {name: finder.measures.value_bytes[name] for name in crossing},
    )


def dump_layers(layers: Layers) -> bytes:
    """The JSON document. The same blocks give the same bytes."""
    return json.dumps(layers.to_json(), ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


class _Finder:
    """A program with what is measured of it."""

    def __init__(self, program: Program, weights: Mapping[str, Tensor]) -> None:
        self.flow = Flow.of(program)
        self.measures = measure(program, weights)
        self._sizes = weight_bytes(program)
        self._runner = Runner(program, weights)

    def pieces(self) -> list[tuple[int, int]]:
        measures = self.measures
        costs = Costs(measures.macs, _where_first_read(self.flow, self._sizes), measures.value_bytes, measures.by_rows)
        return list(pairwise(choose_cuts(self.flow, costs)))

    def block(self, name: str, begin: int, end: int) -> Block:
        border, measures = self.flow.border(begin, end), self.measures
        by_rows = bool(border.reads and border.makes) and measures.by_rows.issuperset((*border.reads, *border.makes))
        templates = {read: measures.templates[read] for read in border.reads}
        difference = split_difference(self._runner, (begin, end), templates) if by_rows else None
        return Block(
            name=name,
            begin=begin,
            end=end,
            reads=border.reads,
            makes=border.makes,
            weights=border.weights,
            macs=sum(measures.macs[begin:end]),
            parameter_bytes=sum(self._sizes[weight] for weight in border.weights),
            splittable=difference is not None,
            difference=float(f"{difference or 0.0:.1e}"),
        )


def _where_first_read(flow: Flow, sizes: Mapping[str, int]) -> list[int]:
    """The bytes of weights by operation, each weight once."""
    seen: set[str] = set()
    found = []
    for names in flow.weights:
        found.append(sum(sizes[name] for name in names if name not in seen))
        seen.update(names)
    return found

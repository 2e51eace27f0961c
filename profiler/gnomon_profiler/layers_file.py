"""Reads an entry's `layers.json` and checks it against the program; `Flow` says which values cross a cut of a program.

A Shadow is given block numbers and trusts them to mean the same operations and values as its Body's; a file that describes
another program, or borders that are not that program's, is refused before it is stored.

A program is a straight line of operations, so a cut is a place between two of them. A range of operations reads values
that were made before it, and makes those of its values that are read after it:

    operation   0: a = f(x)   1: b = g(a)   2: c = h(b)   3: d = a + c          output d
    run [1, 3)  reads a, makes c;  b lives and dies inside it

This module imports no torch: a repository checks an entry's blocks with it.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gnomon_core.blocks import Block, Layers
from gnomon_core.errors import GnomonError
from gnomon_core.program import Program
from gnomon_core.signature import DATATYPE_BYTES

LAYERS = "layers.json"


def invalid_layers(message: str) -> GnomonError:
    """422: the document does not describe the blocks of its program."""
    return GnomonError(422, "invalid_layers", message, "Capture the model again with gnomon's Extractor.")


def check_layers(data: bytes, document: bytes, program: Program) -> Layers:
    """The blocks in a `layers.json`, checked against this program; `document` is the program's JSON.

    Raises:
        GnomonError: 422 `invalid_layers`, naming what is wrong.

    """
    try:
        layers = Layers.from_json(json.loads(data))
    except (ValueError, AttributeError, RecursionError) as error:
        raise invalid_layers(f"The layer blocks cannot be read: {error}.") from None
    if layers.program_sha256 != hashlib.sha256(document).hexdigest():
        raise invalid_layers("The layer blocks are those of another program.")
    if layers.outputs != program.outputs or layers.blocks[-1].end != len(program.operations):
        raise invalid_layers("The layer blocks do not cover the program.")
    flow, sizes = Flow.of(program), weight_bytes(program)
    for block in layers.blocks:
        border = flow.border(block.begin, block.end)
        stated = (block.reads, block.makes, block.weights, block.parameter_bytes)
        if stated != (border.reads, border.makes, border.weights, sum(sizes[name] for name in border.weights)):
            raise invalid_layers(f"Block {block.name[:100]!r} has other borders than its operations.")
        if block.macs < 0 or (block.splittable and not _can_be_handed_over(block)):
            raise invalid_layers(f"Block {block.name[:100]!r} has negative work, or says that it can be split and cannot.")
    return layers


def weight_bytes(program: Program) -> dict[str, int]:
    """The size of each of a program's weights."""
    return {name: math.prod(weight.shape) * DATATYPE_BYTES[weight.datatype] for name, weight in program.weights.items()}


def _can_be_handed_over(block: Block) -> bool:
    return bool(block.reads and block.makes)


@dataclass(frozen=True, slots=True)
class Border:
    """The values that a run of operations reads and makes, and its weights, each once and in order."""

    reads: tuple[str, ...]
    makes: tuple[str, ...]
    weights: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Flow:
    """A program's values by name.

    `made` is the number of the operation that makes a value, −1 for an input; `last_read` that of the last one that reads it,
    and the number of operations for an output; values without a reader are not in it. `reads` and `results` are by operation,
    without weights and without results that have no name.
    """

    length: int
    made: Mapping[str, int]
    last_read: Mapping[str, int]
    reads: tuple[tuple[str, ...], ...]
    results: tuple[tuple[str, ...], ...]
    weights: tuple[tuple[str, ...], ...]

    @staticmethod
    def of(program: Program) -> Flow:
        makers = dict.fromkeys(program.inputs, -1)
        last_read: dict[str, int] = {}
        reads, results, weights = [], [], []
        for number, operation in enumerate(program.operations):
            names = tuple(dict.fromkeys(operation.reads()))
            reads.append(tuple(name for name in names if name not in program.weights))
            weights.append(tuple(name for name in names if name in program.weights))
            results.append(tuple(name for name in operation.results if name is not None))
            last_read |= dict.fromkeys(reads[-1], number)
            makers |= dict.fromkeys(results[-1], number)
        length = len(program.operations)
        last_read |= {name: length for name in program.outputs if name in makers}
        return Flow(length, makers, last_read, tuple(reads), tuple(results), tuple(weights))

    def border(self, begin: int, end: int) -> Border:
        """The border of the operations `begin` … `end` − 1."""
        return Border(
            _unique(name for names in self.reads[begin:end] for name in names if self.made[name] < begin),
            _unique(name for names in self.results[begin:end] for name in names if self.last_read.get(name, -1) >= end),
            _unique(name for names in self.weights[begin:end] for name in names),
        )

    def crossing(self, at: int) -> tuple[str, ...]:
        """The values made before operation `at` that it or a later one reads."""
        return tuple(name for name, last in self.last_read.items() if self.made[name] < at <= last)


def _unique(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))

"""Layer blocks: the pieces of a layer program that a Shadow can hold, as data.

A block is a run of consecutive operations. The blocks of a program follow each other and cover all of it, so that a set of block
numbers names a part of the model, and neighbours in the set need no border between them:

    blocks   0      1      2      3      4           chosen {1, 2, 4}  ->  runs [1, 2] and [4]
                    └── offloaded ──┘    └ off. ┘

A run that is offloaded reads the values that were made before it and gives back those that are read after it: these cross the
border between Body and Shadow, and their bytes per sample are what a transfer costs. A block is `splittable` when its results for
a batch are the concatenation of its results for the parts of that batch, which the Extractor has verified by running both.

AsyFunc, section 3.3 (layer blocks) and section 5.2 (offloading).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

FORMAT = "gnomon-layer-blocks/1"


@dataclass(frozen=True, slots=True)
class Block:
    """The operations `begin` … `end` − 1 of a program.

    `reads` are the values it takes from before it, inputs of the program included and weights not; `makes` those of its values
    that are read after it, or are outputs of the program. `macs` are multiply-accumulates per sample, `parameter_bytes` the size
    of its `weights`. `difference` is how far the answers of a splittable block's parts were from the whole's when the Extractor
    tried, relative to the largest number; 0 is bit-equal.
    """

    name: str
    begin: int
    end: int
    reads: tuple[str, ...]
    makes: tuple[str, ...]
    weights: tuple[str, ...]
    macs: int
    parameter_bytes: int
    splittable: bool
    difference: float = 0.0


@dataclass(frozen=True, slots=True)
class Run:
    """Blocks `first` … `last` offloaded together: one hand-over there, one back. Bytes are per sample."""

    first: int
    last: int
    begin: int
    end: int
    reads: tuple[str, ...]
    makes: tuple[str, ...]
    input_bytes: int
    output_bytes: int


@dataclass(frozen=True, slots=True)
class Layers:
    """A program's blocks. `value_bytes` is the size per sample of every value that crosses a border between blocks."""

    program_sha256: str
    outputs: tuple[str, ...]
    blocks: tuple[Block, ...]
    value_bytes: Mapping[str, int] = field(default_factory=dict)

    def runs(self, chosen: Iterable[int]) -> tuple[Run, ...]:
        """The chosen blocks as runs of neighbours, in the program's order."""
        runs: list[Run] = []
        for first, last in _neighbours(sorted(set(chosen))):
            inside = self.blocks[first : last + 1]
            made_inside = {name for block in inside for name in block.makes}
            wanted_later = {name for block in self.blocks[last + 1 :] for name in block.reads} | set(self.outputs)
            reads = _unique(name for block in inside for name in block.reads if name not in made_inside)
            makes = _unique(name for block in inside for name in block.makes if name in wanted_later)
            runs.append(
                Run(
                    first,
                    last,
                    inside[0].begin,
                    inside[-1].end,
                    reads,
                    makes,
                    sum(self.value_bytes[name] for name in reads),
                    sum(self.value_bytes[name] for name in makes),
                )
            )
        return tuple(runs)

    def parameter_bytes(self, chosen: Iterable[int] | None = None) -> int:
        """The weights of the chosen blocks; of all without an argument."""
        numbers = range(len(self.blocks)) if chosen is None else set(chosen)
        return sum(self.blocks[number].parameter_bytes for number in numbers)

    def macs(self, chosen: Iterable[int] | None = None) -> int:
        """Multiply-accumulates per sample of the chosen blocks; of all without an argument."""
        numbers = range(len(self.blocks)) if chosen is None else set(chosen)
        return sum(self.blocks[number].macs for number in numbers)

    def weights(self, chosen: Iterable[int]) -> tuple[str, ...]:
        """The names of the weights that the chosen blocks read."""
        return _unique(name for number in sorted(set(chosen)) for name in self.blocks[number].weights)

    def to_json(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "program_sha256": self.program_sha256,
            "outputs": list(self.outputs),
            "value_bytes": dict(self.value_bytes),
            "blocks": [
                {
                    "name": block.name,
                    "operations": [block.begin, block.end],
                    "reads": list(block.reads),
                    "makes": list(block.makes),
                    "weights": list(block.weights),
                    "macs": block.macs,
                    "parameter_bytes": block.parameter_bytes,
                    "splittable": block.splittable,
                    "difference": block.difference,
                }
                for block in self.blocks
            ],
        }

    @staticmethod
    def from_json(document: Mapping[str, Any]) -> Layers:
        """The blocks that a document describes.

        Raises:
            ValueError: it describes none, or blocks that do not follow each other from the first operation on.

        """
        if document.get("format") != FORMAT:
            raise ValueError(f"not {FORMAT}")
        try:
            blocks = tuple(_block(block) for block in document["blocks"])
            value_bytes = {str(name): int(size) for name, size in document["value_bytes"].items()}
            layers = Layers(str(document["program_sha256"]), tuple(map(str, document["outputs"])), blocks, value_bytes)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"no layer blocks: {type(error).__name__}: {error}") from None
        at = 0
        for block in blocks:
            if block.begin != at or block.end <= block.begin:
                raise ValueError(f"block {block.name!r} does not begin where the one before it ends")
            if not set(block.reads) | set(block.makes) <= value_bytes.keys():
                raise ValueError(f"block {block.name!r} has a border value of unknown size")
            at = block.end
        if not blocks or min(value_bytes.values(), default=0) < 0:
            raise ValueError("no blocks, or a negative size")
        return layers


def _block(document: Mapping[str, Any]) -> Block:
    begin, end = document["operations"]
    return Block(
        str(document["name"]),
        int(begin),
        int(end),
        tuple(map(str, document["reads"])),
        tuple(map(str, document["makes"])),
        tuple(map(str, document["weights"])),
        int(document["macs"]),
        int(document["parameter_bytes"]),
        bool(document["splittable"]),
        float(document.get("difference", 0.0)),
    )


def _neighbours(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """[1, 2, 4] -> [(1, 2), (4, 4)]."""
    neighbours: list[tuple[int, int]] = []
    for number in numbers:
        if neighbours and neighbours[-1][1] == number - 1:
            neighbours[-1] = (neighbours[-1][0], number)
        else:
            neighbours.append((number, number))
    return neighbours


def _unique(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))

"""Which values live where in a layer program: who makes each, who reads it last, and what crosses a border.

A program is a straight line of operations, so a cut is a place between two of them. What a run of operations reads are values
made before it; what it makes for others are those of its values that are read after it:

    operation   0: a = f(x)   1: b = g(a)   2: c = h(b)   3: d = a + c          output d
    run [1, 3)  reads a, makes c;  b lives and dies inside it

Nothing here needs torch: a repository checks an entry's blocks with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gnomon_core.program import Program


@dataclass(frozen=True, slots=True)
class Border:
    """What a run of operations takes from before it and leaves for after it, and the weights it uses, each once and in order."""

    reads: tuple[str, ...]
    makes: tuple[str, ...]
    weights: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Flow:
    """A program's values by name.

    `made` is the number of the operation that makes a value, −1 for an input; `last_read` that of the last one that reads it,
    and the number of operations for an output; values that nobody reads are not in it. `reads` and `results` are by operation,
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
        made = dict.fromkeys(program.inputs, -1)
        last_read: dict[str, int] = {}
        reads, results, weights = [], [], []
        for number, operation in enumerate(program.operations):
            names = tuple(dict.fromkeys(operation.reads()))
            reads.append(tuple(name for name in names if name not in program.weights))
            weights.append(tuple(name for name in names if name in program.weights))
            results.append(tuple(name for name in operation.results if name is not None))
            last_read |= dict.fromkeys(reads[-1], number)
            made |= dict.fromkeys(results[-1], number)
        length = len(program.operations)
        last_read |= {name: length for name in program.outputs if name in made}
        return Flow(length, made, last_read, tuple(reads), tuple(results), tuple(weights))

    def border(self, begin: int, end: int) -> Border:
        """Of the operations `begin` … `end` − 1."""
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

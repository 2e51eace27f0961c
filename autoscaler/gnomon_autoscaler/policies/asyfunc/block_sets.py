"""Which layer blocks a Shadow may hold: the candidates of Algorithm 2, in the order in which they are added (lines 7 to 9).

    L: candidates by MACs / parameter size, the most first     Φ: the first; the first two; the first three …

Only splittable blocks are candidates. A block without parameters has an infinite ratio, and alone it would cost a hand-over for
little work: it joins its neighbour, the one before it where that is a candidate, else the one after it.

A set that grows by ratio is scattered over the model and has a hand-over for each run of neighbours. A `contiguous` one begins
with the best candidate and takes the better of its two neighbours each time: one hand-over, at the price of a worse ratio.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from gnomon_core.blocks import Layers, Run


@dataclass(frozen=True, slots=True)
class BlockSet:
    """A set that a Shadow may hold."""

    blocks: tuple[int, ...]
    runs: tuple[Run, ...]
    parameter_bytes: int


def block_sets(layers: Layers, *, contiguous: bool = False) -> tuple[BlockSet, ...]:
    """Φ as it grows, from one candidate to all; empty where no block can be split."""
    groups = candidates(layers)
    order = _by_neighbour(layers, groups) if contiguous else _by_ratio(layers, groups)
    sets: list[BlockSet] = []
    chosen: list[int] = []
    known: dict[tuple[int, int], Run] = {}
    for group in order:
        chosen += group
        blocks = tuple(sorted(chosen))
        sets.append(BlockSet(blocks, _runs(layers, blocks, known), layers.parameter_bytes(blocks)))
    return tuple(sets)


def _runs(layers: Layers, blocks: Sequence[int], known: dict[tuple[int, int], Run]) -> tuple[Run, ...]:
    """`layers.runs(blocks)`; a run that an earlier set had is not worked out again."""
    ends = [number for number, after in pairwise((*blocks, -1)) if after != number + 1]
    begins = [number for before, number in pairwise((-2, *blocks)) if number != before + 1]
    found: list[Run] = []
    for first, last in zip(begins, ends, strict=True):
        if (first, last) not in known:
            known[first, last] = layers.runs(range(first, last + 1))[0]
        found.append(known[first, last])
    return tuple(found)


def candidates(layers: Layers) -> list[tuple[int, ...]]:
    """The candidates in the model's order, each a block and the neighbours without parameters that joined it.

    Example: parameters 0, 5, 0, 0, 7 with all splittable: (0, 1, 2, 3) and (4,).
    """
    groups: list[list[int]] = []
    for number, block in enumerate(layers.blocks):
        if not block.splittable:
            continue
        joins = bool(groups) and groups[-1][-1] == number - 1 and (not block.parameter_bytes or not _weighs(layers, groups[-1]))
        if joins:
            groups[-1].append(number)
        else:
            groups.append([number])
    return [tuple(group) for group in groups if _weighs(layers, group)]


def _weighs(layers: Layers, group: Sequence[int]) -> bool:
    return layers.parameter_bytes(group) > 0


def _ratio(layers: Layers, group: Sequence[int]) -> float:
    return layers.macs(group) / layers.parameter_bytes(group)


def _by_ratio(layers: Layers, groups: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    return sorted(groups, key=lambda group: (-_ratio(layers, group), group[0]))


def _by_neighbour(layers: Layers, groups: Sequence[tuple[int, ...]]) -> Iterator[tuple[int, ...]]:
    if not groups:
        return
    joined = {left[-1] for left, right in pairwise(groups) if right[0] == left[-1] + 1}
    best = groups.index(_by_ratio(layers, groups)[0])
    first = last = best
    yield groups[best]
    while True:
        before = first - 1 if first > 0 and groups[first - 1][-1] in joined else None
        after = last + 1 if groups[last][-1] in joined else None
        either = [number for number in (before, after) if number is not None]
        if not either:
            return
        chosen = max(either, key=lambda number: (_ratio(layers, groups[number]), -number))
        first, last = min(first, chosen), max(last, chosen)
        yield groups[chosen]

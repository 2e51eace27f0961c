"""Where a program is cut into layer blocks.

A good block is a useful share of the model, such as a bottleneck of ResNet or a branch group of Inception, takes one tensor and
gives one. Each possible block has a value, and the cuts are those whose blocks are worth most together:

    value = min(1, share / SHARE)            up to one for its work, so that small neighbours gain nothing by staying apart
          − EXTRA for each tensor beyond one that it reads or makes
          − BYTES · bytes read / the mean over all cuts
          − BLOCK                             where nothing else decides, fewer blocks
          − TOO_MUCH · (share − LARGEST)², if more;  − BARE if it has no parameters and the model has some

The share of work is the mean of the shares of MACs and of parameters: a Shadow is chosen by both. What little a normalisation has
counts with the operation before it, lest a cut goes between them for its sake. Blocks without parameters would have infinitely
many MACs for a byte, so each is part of a neighbour. A cut is possible where every value that crosses it is one row for each
sample. Among equals the later cut is taken: a ReLU goes with the convolution before it.

Worked example: conv (share 0.10), batch norm, ReLU, then the same again, SHARE = 1/48. As one block they are worth 1,
with a cut after the first ReLU 2; a cut before that ReLU is worth as much, but it is earlier and so not taken. If a sum with the
input follows, as in a residual, the second part reads two tensors: 2 − EXTRA < 1, and all stay together.

AsyFunc, section 3.3, says what a layer block is, not how to find it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from gnomon_profiler.flow import Flow

SHARE = 1 / 48
LITTLE = SHARE / 4
EXTRA = 4.0
BYTES = 0.5
BLOCK = 1e-3
LARGEST = 1 / 3
TOO_MUCH = 100.0
BARE = 1000.0
_EQUAL = 1e-9
REACH = 150
"""So many possible cuts ahead a block may end; a bound on the work, far beyond what a block should hold."""


@dataclass(frozen=True, slots=True)
class Costs:
    """What cutting looks at. `macs` and `parameter_bytes` are by operation; a weight counts where it is first read."""

    macs: Sequence[int]
    parameter_bytes: Sequence[int]
    value_bytes: Mapping[str, int]
    by_rows: frozenset[str]


@dataclass(slots=True)
class _Candidate:
    end: int
    reads: frozenset[str]
    makes: int
    share: float
    bare: bool


def choose_cuts(flow: Flow, costs: Costs) -> list[int]:
    """The places of the cuts, from 0 to the number of operations, both included."""
    places = [0, *(at for at in range(1, flow.length) if _possible(flow, costs, at)), flow.length]
    shares = _shares(costs)
    mean_bytes = _mean_bytes(flow, costs, places)
    some_parameters = any(costs.parameter_bytes)
    best: dict[int, tuple[float, int]] = {0: (0.0, 0)}
    for begin in places:
        if begin not in best:
            continue
        for block in _candidates(flow, costs, shares, begin, places):
            value = best[begin][0] + _value(block, costs, mean_bytes, some_parameters=some_parameters)
            if block.end not in best or value >= best[block.end][0] - _EQUAL:
                best[block.end] = (value, begin)
    if flow.length not in best:
        return [0, flow.length]
    cuts = [flow.length]
    while cuts[-1] > 0:
        cuts.append(best[cuts[-1]][1])
    return cuts[::-1]


def _possible(flow: Flow, costs: Costs, at: int) -> bool:
    crossing = flow.crossing(at)
    return bool(crossing) and costs.by_rows.issuperset(crossing)


def _shares(costs: Costs) -> list[float]:
    """Each operation's part of the model's work; of all operations where none has any."""
    known = [column for column in (costs.macs, costs.parameter_bytes) if sum(column)]
    if not known:
        return [1 / len(costs.macs)] * len(costs.macs)
    shares = [sum(column[number] / sum(column) for column in known) / len(known) for number in range(len(costs.macs))]
    for number in range(len(shares) - 1, 0, -1):
        if not costs.macs[number] and shares[number] < LITTLE:
            shares[number - 1] += shares[number]
            shares[number] = 0.0
    return shares


def _mean_bytes(flow: Flow, costs: Costs, places: Sequence[int]) -> float:
    sizes = [sum(costs.value_bytes[name] for name in flow.crossing(at)) for at in places[:-1]]
    return max(1.0, math.fsum(sizes) / max(1, len(sizes)))


def _candidates(flow: Flow, costs: Costs, shares: Sequence[float], begin: int, places: Sequence[int]) -> Iterator[_Candidate]:
    """The blocks that begin here, shortest first. One without a tensor to read or to make could not be handed over."""
    later = [place for place in places if place > begin][:REACH]
    ends = set(later)
    reads: set[str] = set()
    alive: set[str] = set()
    share, parameters = 0.0, 0
    for number in range(begin, later[-1] if later else begin):
        reads |= {name for name in flow.reads[number] if flow.made[name] < begin}
        alive |= {name for name in flow.results[number] if name in flow.last_read}
        share += shares[number]
        parameters += costs.parameter_bytes[number]
        if number + 1 in ends:
            alive = {name for name in alive if flow.last_read[name] > number}
            if reads and alive:
                yield _Candidate(number + 1, frozenset(reads), len(alive), share, bare=not parameters)


def _value(block: _Candidate, costs: Costs, mean_bytes: float, *, some_parameters: bool) -> float:
    extra = len(block.reads) - 1 + block.makes - 1
    return (
        min(1.0, block.share / SHARE)
        - EXTRA * extra
        - BYTES * sum(costs.value_bytes[name] for name in block.reads) / mean_bytes
        - BLOCK
        - TOO_MUCH * max(0.0, block.share - LARGEST) ** 2
        - BARE * (block.bare and some_parameters)
    )

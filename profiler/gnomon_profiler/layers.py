"""Finds a program's layer blocks, measures them and tests whether they can be split: the third file of a repository entry.

Shapes and MACs come from a run without content, the cuts from those, and whether a block may be split from running it on a batch
and on the parts of that batch. All of it follows from the program and its weights; the names of modules, where the capture knew
them, only name the blocks.

Cuts. A good block is a useful share of the model, such as a bottleneck of ResNet or a branch group of Inception, takes one
tensor and gives one. Each possible block has a value, and the cuts are those whose blocks are worth most together:

    value = min(1, share / SHARE)            up to one for its work, so that small neighbours gain nothing by staying apart
          − EXTRA for each tensor beyond one that it reads or makes
          − BYTES · bytes read / the mean over all cuts
          − BLOCK                             where nothing else decides, fewer blocks
          − TOO_MUCH · (share − LARGEST)², if more;  − BARE if it has no parameters and the model has some

The share of work is the mean of the shares of MACs and of parameters: a Shadow is chosen by both. The few parameters of a
normalisation count with the operation before it, so that no cut goes between the two. Blocks without parameters would have
infinitely many MACs for a byte, so each is part of a neighbour. A cut is possible where every value that crosses it is one row
for each sample. Among equals the later cut is taken: a ReLU goes with the convolution before it.

Worked example: conv (share 0.10), batch norm, ReLU, then the same again, SHARE = 1/48. As one block they are worth 1,
with a cut after the first ReLU 2; a cut before that ReLU is worth as much, but it is earlier and so not taken. If a sum with the
input follows, as in a residual, the second part reads two tensors: 2 − EXTRA < 1, and all stay together.

AsyFunc, section 3.3, defines a layer block, and does not say how to find one.

Names. A block is named by the module that it comes from, else by its first and last value. A block that holds all of a module
has its path, `layer1.0`; one that holds parts of several has the first and the last path with work in it,
`features.0..features.4`. No name is given twice.

Splits. Whether a block's output for a batch is the concatenation of its outputs for the parts of that batch is tested, not
assumed. The block runs on a batch of three, then on its first row as the Body has it, a view, and on the other two as a Shadow
gets them, copied without gaps. Its inputs are random from a fixed seed, with the strides that they have in the program: values
propagated from the model's input could vanish in a network with random weights and hide a block that mixes its samples. A
statistic over the batch, a sum or a sort across it, a constant number of rows: each shows.

Equal bits are the rule. Kernels may choose another order of summation for another batch size, so a difference of at most 1e-5 of
the answer's largest number is accepted and recorded. One thread: how several share a sum may vary from run to run.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from gnomon_core.blocks import Block, Layers
from gnomon_core.program import Program, dump_program
from gnomon_profiler.layers_file import Flow, weight_bytes
from gnomon_profiler.program_runs import Runner, measure


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
    first_reads = []
    for names in flow.weights:
        first_reads.append(sum(sizes[name] for name in names if name not in seen))
        seen.update(names)
    return first_reads


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
"""The most possible cuts that a block may span: a bound on the work, far beyond a useful block."""


@dataclass(frozen=True, slots=True)
class Costs:
    """The costs that cuts are chosen by. `macs` and `parameter_bytes` are by operation; a weight counts at its first read."""

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


def _candidates(flow: Flow, costs: Costs, shares: Sequence[float], begin: int, borders: Sequence[int]) -> Iterator[_Candidate]:
    """The blocks that begin here, shortest first. One without a tensor to read or to make could not be handed over."""
    later = [border for border in borders if border > begin][:REACH]
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


def block_names(flow: Flow, pieces: Sequence[tuple[int, int]], modules: Sequence[str], macs: Sequence[int]) -> list[str]:
    """A unique name for each piece; a piece is its first operation and the one after its last."""
    names = [_by_module(piece, flow, modules, macs) or _by_values(piece, flow) for piece in pieces]
    uses: Counter[str] = Counter()
    unique_names = []
    for name in names:
        uses[name] += 1
        unique_names.append(name if uses[name] == 1 else f"{name}#{uses[name]}")
    return unique_names


def _by_module(piece: tuple[int, int], flow: Flow, modules: Sequence[str], macs: Sequence[int]) -> str:
    begin, end = piece
    if not any(modules):
        return ""
    inside = [path for path in modules[begin:end] if path]
    if not inside:
        return ""
    common = _common(inside)
    outside = (*modules[:begin], *modules[end:])
    if common and not any(_within(path, common) for path in outside):
        return common
    working = [modules[at] for at in range(begin, end) if modules[at] and (macs[at] or flow.weights[at])] or inside
    return working[0] if working[0] == working[-1] else f"{working[0]}..{working[-1]}"


def _common(paths: Sequence[str]) -> str:
    """The longest path that is the beginning of all, in whole steps: layer1.0 of layer1.0.conv1 and layer1.0.bn1."""
    steps = [path.split(".") for path in paths]
    shared = []
    for names in zip(*steps, strict=False):
        if len(set(names)) > 1:
            break
        shared.append(names[0])
    return ".".join(shared)


def _within(path: str, module: str) -> bool:
    return path == module or path.startswith(f"{module}.")


def _by_values(piece: tuple[int, int], flow: Flow) -> str:
    named = [results[0] for results in flow.results[slice(*piece)] if results]
    return named[0] if len(named) == 1 else f"{named[0]}..{named[-1]}" if named else f"operations {piece[0]}..{piece[1] - 1}"


PARTS = (1, 2)
BATCH = sum(PARTS)
LARGEST_DIFFERENCE = 1e-5
SEED = 0


def split_difference(runner: Runner, operations: tuple[int, int], reads: Mapping[str, Tensor]) -> float | None:
    """The largest difference between the whole's answer and its parts', relative to the answer's largest number.

    0.0 is bit-equal; None where the whole or a part fails, or the parts have other shapes or differ by more than
    `LARGEST_DIFFERENCE`. `reads` are templates of what the block reads: their types, sizes per sample and strides count.
    """
    begin, end = operations
    with one_thread():
        generator = torch.Generator().manual_seed(SEED)
        whole_reads = {name: _filled(template, generator) for name, template in reads.items()}
        body, shadow = (
            {name: tensor[: PARTS[0]] for name, tensor in whole_reads.items()},
            {name: tensor[PARTS[0] :].clone(memory_format=torch.contiguous_format) for name, tensor in whole_reads.items()},
        )
        try:
            unsplit = runner.run(begin, end, whole_reads, BATCH)
            parts = [runner.run(begin, end, part, batch) for part, batch in zip((body, shadow), PARTS, strict=True)]
        except (RuntimeError, IndexError, ValueError):  # sizes that do not fit, or values: indices
            return None
    differences = [_difference(unsplit[name], [part[name] for part in parts]) for name in unsplit]
    if not differences or any(difference is None for difference in differences):
        return None
    largest = max(difference for difference in differences if difference is not None)
    return largest if largest <= LARGEST_DIFFERENCE else None


@contextmanager
def one_thread() -> Iterator[None]:
    """Operators on this thread alone."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _filled(template: Tensor, generator: torch.Generator) -> Tensor:
    """A batch like the template: normal numbers, 0 and 1 for integers, which may be indices."""
    tensor = _empty_like(template)
    if template.dtype.is_floating_point:
        return tensor.normal_(generator=generator)
    return tensor.random_(2, generator=generator)


def _empty_like(template: Tensor) -> Tensor:
    """An empty tensor with the template's strides if those permute a dense tensor, contiguous otherwise."""
    shape = (BATCH, *template.shape[1:])
    order = sorted(range(template.dim()), key=template.stride, reverse=True)
    if not template.permute(order).is_contiguous():
        return torch.empty(shape, dtype=template.dtype)
    dense = torch.empty([shape[axis] for axis in order], dtype=template.dtype)
    return dense.permute([order.index(axis) for axis in range(len(order))])


def _difference(unsplit: Tensor, parts: Sequence[Tensor]) -> float | None:
    rows_fit = all(part.dim() and part.shape[0] == rows for part, rows in zip(parts, PARTS, strict=True))
    if not rows_fit or any(part.shape[1:] != unsplit.shape[1:] for part in parts):
        return None
    together = torch.cat(list(parts))
    if torch.equal(unsplit, together):
        return 0.0
    if (
        unsplit.shape != together.shape
        or not unsplit.dtype.is_floating_point
        or not torch.equal(unsplit.isnan(), together.isnan())
    ):
        return None
    numbers, joint = unsplit.nan_to_num().double(), together.nan_to_num().double()
    gap, largest = (numbers - joint).abs().max().item(), numbers.abs().max().item()
    return gap / largest if gap else 0.0

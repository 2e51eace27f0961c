"""Whether a block's answer for a batch is the concatenation of its answers for the parts of that batch: tried, not assumed.

The block runs on a batch of three, then on its first row as the Body has it, a view, and on the other two as a Shadow gets them,
copied without gaps. Its inputs are random from a fixed seed, with the strides that they have in the program: values propagated
from the model's input could vanish in a network with random weights and hide a block that mixes its samples. A statistic over
the batch, a sum or a sort across it, a constant number of rows: each shows.

Equal bits are the rule. Kernels may choose another order of summation for another batch size, so a difference of at most 1e-5 of
the answer's largest number is accepted and recorded. One thread: how several share a sum may vary from run to run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from gnomon_profiler.running import Runner

PARTS = (1, 2)
BATCH = sum(PARTS)
LARGEST_DIFFERENCE = 1e-5
SEED = 0


def split_difference(runner: Runner, operations: tuple[int, int], reads: Mapping[str, Tensor]) -> float | None:
    """The largest difference between the whole's answer and its parts', relative to the answer's largest number.

    0.0 is bit-equal; None where the parts fail, have other shapes, or differ by more than `LARGEST_DIFFERENCE`. `reads` are
    templates of what the block reads: their types, sizes per sample and strides count.
    """
    begin, end = operations
    with one_thread():
        generator = torch.Generator().manual_seed(SEED)
        whole_reads = {name: _filled(template, generator) for name, template in reads.items()}
        whole = runner.run(begin, end, whole_reads, BATCH)
        body, shadow = (
            {name: tensor[: PARTS[0]] for name, tensor in whole_reads.items()},
            {name: tensor[PARTS[0] :].clone(memory_format=torch.contiguous_format) for name, tensor in whole_reads.items()},
        )
        try:
            parts = [runner.run(begin, end, part, batch) for part, batch in zip((body, shadow), PARTS, strict=True)]
        except (RuntimeError, IndexError, ValueError):  # what operators raise for sizes that do not fit
            return None
    differences = [_difference(whole[name], [part[name] for part in parts]) for name in whole]
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
    """With the template's order of axes in memory where that permutes a dense tensor, in the usual order else."""
    shape = (BATCH, *template.shape[1:])
    order = sorted(range(template.dim()), key=template.stride, reverse=True)
    if not template.permute(order).is_contiguous():
        return torch.empty(shape, dtype=template.dtype)
    dense = torch.empty([shape[axis] for axis in order], dtype=template.dtype)
    return dense.permute([order.index(axis) for axis in range(len(order))])


def _difference(whole: Tensor, parts: Sequence[Tensor]) -> float | None:
    rows_fit = all(part.dim() and part.shape[0] == rows for part, rows in zip(parts, PARTS, strict=True))
    if not rows_fit or any(part.shape[1:] != whole.shape[1:] for part in parts):
        return None
    together = torch.cat(list(parts))
    if torch.equal(whole, together):
        return 0.0
    if whole.shape != together.shape or not whole.dtype.is_floating_point or not torch.equal(whole.isnan(), together.isnan()):
        return None
    numbers, others = whole.nan_to_num().double(), together.nan_to_num().double()
    gap, largest = (numbers - others).abs().max().item(), numbers.abs().max().item()
    return gap / largest if gap else 0.0

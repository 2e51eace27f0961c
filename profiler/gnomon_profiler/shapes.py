"""What each operation costs and how large each value is, per sample.

The program runs twice on tensors without content, as torch.export does, with batches of two sizes: a whole network takes a
fraction of a second, and its values have the strides that they have when it really runs. What grows with the batch belongs to the
samples; what does not, such as a table of positions that is computed from weights, is done once for all of them. A value whose
first axis is the batch, and no other axis depends on it, can be handed over by rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode  # private by its path, but what torch.export is documented with

from gnomon_core.program import Program
from gnomon_profiler.macs import macs_of
from gnomon_profiler.running import Runner
from gnomon_profiler.weights import DATATYPES

BATCHES = (2, 3)
"""Two sizes that differ by one sample; not 1, which broadcasts."""


@dataclass(frozen=True, slots=True)
class Measures:
    """`macs` by operation and `value_bytes` by name, per sample.

    `by_rows` are the values that are one row for each sample; `templates` is every value at the smaller batch size, with its
    strides and without content.
    """

    macs: tuple[int, ...]
    value_bytes: Mapping[str, int]
    by_rows: frozenset[str]
    templates: Mapping[str, Tensor]


def measure(program: Program, weights: Mapping[str, Tensor]) -> Measures:
    """Run the program for its shapes."""
    with FakeTensorMode() as mode:
        runner = Runner(program, {name: mode.from_tensor(tensor) for name, tensor in weights.items()})
        (fewer_macs, fewer), (more_macs, more) = (_walk(program, runner, batch) for batch in BATCHES)
    return Measures(
        tuple(more - fewer for fewer, more in zip(fewer_macs, more_macs, strict=True)),
        {name: _bytes(more[name]) - _bytes(fewer[name]) for name in fewer},
        frozenset(name for name in fewer if _is_by_rows(fewer[name], more[name])),
        fewer,
    )


def _inputs(program: Program, batch: int) -> dict[str, Tensor]:
    dtypes = {name: dtype for dtype, name in DATATYPES.items()}
    return {
        name: torch.empty((batch, *spec.shape), dtype=dtypes[spec.datatype])
        for name, spec in zip(program.inputs, program.signature.inputs, strict=True)
    }


def _walk(program: Program, runner: Runner, batch: int) -> tuple[list[int], dict[str, Tensor]]:
    values = _inputs(program, batch)
    macs: list[int] = []
    made = dict(values)
    for operation, (arguments, results) in zip(
        program.operations, runner.walk(0, len(program.operations), values, batch), strict=True
    ):
        macs.append(macs_of(operation.op, arguments, next(iter(results.values()), None)))
        made |= results
    return macs, made


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _is_by_rows(fewer: Tensor, more: Tensor) -> bool:
    return fewer.dim() > 0 and (fewer.shape[0], more.shape[0]) == BATCHES and fewer.shape[1:] == more.shape[1:]

"""Random inputs that a model can compute with, for comparing and timing what runs it.

    float                                           normally distributed
    whole numbers that pick rows of a table         any row of the table: a token of the vocabulary
    8-bit numbers without sign                      0 … 255: the bytes of an image
    other whole numbers, and truth values           0 or 1, the first of each sample 1: a mask that hides less than everything

Zeros would not do: a mask of zeros hides all tokens, and answers about nothing are undefined, so that two right engines differ.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gnomon_core.program import Program, Value
from gnomon_core.signature import NUMPY_TYPES, TensorSpec

if TYPE_CHECKING:
    import numpy as np

_NO_NUMPY_TYPE = "<f4"
"""Type of the numbers of an input whose datatype numpy lacks: BF16."""
_KEEPS_NUMBERS = """
    to.dtype to.dtype_layout _to_copy.default type_as.default clone.default contiguous.default alias.default detach.default
    lift_fresh_copy.default view.default reshape.default _unsafe_view.default flatten.using_ints unflatten.int expand.default
    permute.default transpose.int t.default squeeze.default squeeze.dim squeeze.dims unsqueeze.default select.int slice.Tensor
    narrow.default repeat.default tile.default split.Tensor split_with_sizes.default unbind.int
"""
_SAME_NUMBERS = frozenset(f"aten.{name}" for name in _KEEPS_NUMBERS.split())
"""Operators whose results hold numbers of their first argument and no others."""


def example_inputs(program: Program, batch: int, seed: int = 0) -> list[Any]:
    """An array for each input of a program, batch first, in the input's numpy type. The same arguments give the same numbers."""
    import numpy as np  # noqa: PLC0415 - optional for importers of this module

    rng, ranges = np.random.default_rng(seed), index_ranges(program)
    inputs = zip(program.inputs, program.signature.inputs, strict=True)
    return [_example(rng, spec, batch, ranges.get(name)) for name, spec in inputs]


def _example(rng: np.random.Generator, spec: TensorSpec, batch: int, indices: range | None) -> Any:
    import numpy as np  # noqa: PLC0415

    dtype, shape = np.dtype(NUMPY_TYPES.get(spec.datatype, _NO_NUMPY_TYPE)), (batch, *spec.shape)
    if dtype.kind == "f":
        return rng.standard_normal(shape).astype(dtype)
    if indices is not None:
        return rng.integers(0, min(indices.stop, np.iinfo(dtype).max + 1), shape).astype(dtype)
    if spec.datatype == "UINT8":
        return rng.integers(0, 256, shape).astype(dtype)
    array = rng.integers(0, 2, shape).astype(dtype)
    array.reshape(batch, -1)[:, :1] = 1
    return array


def index_ranges(program: Program) -> dict[str, range]:
    """The indices that every table has from which an input's numbers pick, by the input's name in the program.

    A table is a weight that an embedding, `index_select` or an index along its first axis reads. Only the last counts negative
    numbers from the table's end.
    """
    origin = {name: name for name in program.inputs}
    ranges: dict[str, range] = {}
    for operation in program.operations:
        for source, indices in _picks(operation.op, operation.args, program):
            if source in origin:
                known = ranges.get(origin[source], indices)
                ranges[origin[source]] = range(max(known.start, indices.start), min(known.stop, indices.stop))
        first = operation.args[0] if operation.args else None
        if operation.op in _SAME_NUMBERS and isinstance(first, Value) and first.name in origin:
            origin |= {name: origin[first.name] for name in operation.results if name is not None}
    return ranges


def _picks(op: str, args: tuple[Any, ...], program: Program) -> list[tuple[str, range]]:
    """The value whose numbers pick from a weight in this operation, with the indices that the weight has."""
    axis, least = 0, 0
    match op, args:
        case "aten.embedding.default", (Value(table), Value(picking), *_):
            pass
        case "aten.index_select.default", (Value(table), int(axis), Value(picking)):
            pass
        case "aten.index.Tensor", (Value(table), (Value(picking),)):
            least = -1
        case _:
            return []
    if table not in program.weights:
        return []
    size = program.weights[table].shape[axis]
    return [(picking, range(least * size, size))]

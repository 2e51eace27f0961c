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

    rng, rows = np.random.default_rng(seed), table_rows(program)
    inputs = zip(program.inputs, program.signature.inputs, strict=True)
    return [_example(rng, spec, batch, rows.get(name)) for name, spec in inputs]


def _example(rng: np.random.Generator, spec: TensorSpec, batch: int, rows: int | None) -> Any:
    import numpy as np  # noqa: PLC0415

    dtype, shape = np.dtype(NUMPY_TYPES.get(spec.datatype, _NO_NUMPY_TYPE)), (batch, *spec.shape)
    if dtype.kind == "f":
        return rng.standard_normal(shape).astype(dtype)
    if rows is not None:
        return rng.integers(0, min(rows, np.iinfo(dtype).max + 1), shape).astype(dtype)
    if spec.datatype == "UINT8":
        return rng.integers(0, 256, shape).astype(dtype)
    array = rng.integers(0, 2, shape).astype(dtype)
    array.reshape(batch, -1)[:, :1] = 1
    return array


def table_rows(program: Program) -> dict[str, int]:
    """The number of rows of the smallest table that an input's numbers pick from, by the input's name in the program.

    A table is a weight that an embedding, `index_select` or an index along its first axis reads.
    """
    origin = {name: name for name in program.inputs}
    rows: dict[str, int] = {}
    for operation in program.operations:
        for source, size in _picks(operation.op, operation.args, program):
            if source in origin:
                rows[origin[source]] = min(size, rows.get(origin[source], size))
        first = operation.args[0] if operation.args else None
        if operation.op in _SAME_NUMBERS and isinstance(first, Value) and first.name in origin:
            origin |= {name: origin[first.name] for name in operation.results if name is not None}
    return rows


def _picks(op: str, args: tuple[Any, ...], program: Program) -> list[tuple[str, int]]:
    """The value whose numbers pick from a weight in this operation, with the weight's size along that axis."""
    match op, args:
        case "aten.embedding.default", (Value(table), Value(indices), *_):
            axis = 0
        case "aten.index_select.default", (Value(table), int(axis), Value(indices)):
            pass
        case "aten.index.Tensor", (Value(table), (Value(indices),)):
            axis = 0
        case _:
            return []
    return [(indices, program.weights[table].shape[axis])] if table in program.weights else []

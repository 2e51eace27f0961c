"""Random inputs that a model can compute with, for comparing and timing what runs it.

    float                                           normally distributed
    whole numbers that pick rows of a table         any row of the table: a token of the vocabulary
    8-bit numbers without sign                      0 … 255: the bytes of an image
    other whole numbers, and truth values           0 or 1, the first of each sample 1: a mask that hides less than everything

Zeros would not do: a mask of zeros hides all tokens, and answers about nothing are undefined, so that two right engines differ.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gnomon_core.program import Program, index_ranges
from gnomon_core.signature import TensorSpec

if TYPE_CHECKING:
    import numpy as np


def example_inputs(program: Program, batch: int, seed: int = 0) -> list[Any]:
    """An array for each input of a program, batch first, in the input's numpy type. The same arguments give the same numbers."""
    import numpy as np  # noqa: PLC0415 - optional for importers of this module

    rng, ranges = np.random.default_rng(seed), index_ranges(program)
    return [_example(rng, spec, batch, ranges.get(spec.name)) for spec in program.signature.inputs]


def _example(rng: np.random.Generator, spec: TensorSpec, batch: int, indices: range | None) -> Any:
    import numpy as np  # noqa: PLC0415

    dtype, shape = np.dtype(spec.numpy_type), (batch, *spec.shape)
    if dtype.kind == "f":
        return rng.standard_normal(shape).astype(dtype)
    if indices is not None:
        return rng.integers(0, min(indices.stop, np.iinfo(dtype).max + 1), shape).astype(dtype)
    if spec.datatype == "UINT8":
        return rng.integers(0, 256, shape).astype(dtype)
    array = rng.integers(0, 2, shape).astype(dtype)
    array.reshape(batch, -1)[:, :1] = 1
    return array

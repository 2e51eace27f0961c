"""Padding: sequences shorter than the model's are padded before the batch, and the padding is cut off in the answer.

    [2, 5] of a model of length 8 ─▶ [2, 8], tokens and attention mask filled up ─▶ model ─▶ [2, 8, 4] ─▶ [2, 5, 4]

So requests of all lengths up to the model's share batches. A batch costs what the model's length costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from gnomon_core.errors import bad_request
from gnomon_core.signature import NUMPY_TYPES, ModelSignature, Padding, TensorSpec

_MANY = 16
"""The most lengths that an error lists."""


def sequence_length(padding: Padding, shapes: Sequence[tuple[str, Sequence[int]]]) -> int:
    """The length of a request's sequences. `shapes` are the names and shapes of its inputs; axis 0 counts samples, axis 1 tokens.

    Raises:
        GnomonError: 400 `invalid_tensor`: the lengths differ, or the model does not take this length.

    """
    lengths = [shape[1] for name, shape in shapes if name in padding.inputs and len(shape) > 1]
    if not lengths or any(length != lengths[0] for length in lengths) or not 0 < lengths[0] <= padding.length:
        found = ", ".join(map(str, lengths[:_MANY])) or "none"
        raise bad_request(
            "invalid_tensor",
            f"The inputs have sequences of the lengths {found}.",
            f"The model takes 1 to {padding.length} tokens, as many in each input.",
        )
    return lengths[0]


def at_length(signature: ModelSignature, padding: Padding, length: int) -> ModelSignature:
    """The signature of requests with sequences of this length."""
    inputs = tuple(
        replace(spec, shape=(length, *spec.shape[1:])) if spec.name in padding.inputs else spec for spec in signature.inputs
    )
    return replace(signature, inputs=inputs)


def pad(signature: ModelSignature, padding: Padding, body: bytes | memoryview, samples: int, length: int) -> bytes:
    """Pad the inputs of `samples` samples, whose sequences have `length` tokens, to the model's length."""
    parts: list[bytes | memoryview] = []
    data, offset = memoryview(body), 0
    for spec, short in zip(signature.inputs, at_length(signature, padding, length).inputs, strict=True):
        size = samples * short.sample_bytes
        part = data[offset : offset + size]
        offset += size
        parts.append(_padded(spec, part, samples, padding.inputs[spec.name]) if spec.name in padding.inputs else part)
    return b"".join(parts)


def cut(spec: TensorSpec, body: memoryview, samples: int, length: int) -> tuple[TensorSpec, memoryview]:
    """Cut the rows of padding tokens off an output of shape [samples, model length, …]; returns its new spec and bytes."""
    token_bytes = spec.sample_bytes // spec.shape[0]
    rows = np.frombuffer(body, np.uint8).reshape(samples, spec.shape[0], token_bytes)
    return replace(spec, shape=(length, *spec.shape[1:])), memoryview(rows[:, :length].tobytes())


def _padded(spec: TensorSpec, part: memoryview, samples: int, pad_value: int) -> bytes:
    dtype = np.dtype(NUMPY_TYPES[spec.datatype])
    sequences = np.frombuffer(part, dtype).reshape(samples, -1, *spec.shape[1:])
    padded = np.full((samples, *spec.shape), pad_value, dtype)
    padded[:, : sequences.shape[1]] = sequences
    return padded.tobytes()

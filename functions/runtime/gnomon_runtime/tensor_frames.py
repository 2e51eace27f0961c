"""Between the batch channel's raw bytes and tensors.

A member of a tensors batch holds its samples as raw bytes, one input after the other; a result its outputs in the same way. Bytes
are copied once, straight into the batch.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import torch
from torch import Tensor

from gnomon_core.errors import bad_request
from gnomon_core.signature import TensorSpec
from gnomon_core.wire import Member
from gnomon_runtime.engine.torch_support import TORCH_DTYPES


def check_member(member: Member, specs: Sequence[TensorSpec]) -> None:
    """Raise a 400 `GnomonError` unless the member's body is as long as its samples of these inputs are."""
    expected = member.size * sum(spec.sample_bytes for spec in specs)
    if member.size < 1 or len(member.body) != expected:
        raise bad_request(
            "wrong_size",
            f"{member.size} samples come in {len(member.body)} bytes; they need {expected}.",
            f"Send {', '.join(f'{spec.name}: {spec.datatype} {list(spec.shape)}' for spec in specs)} for each sample.",
        )


def read_batch(members: Sequence[Member], specs: Sequence[TensorSpec]) -> list[Tensor]:
    """One tensor for each input, the members' samples one after the other along the first axis."""
    samples = sum(member.size for member in members)
    inputs: list[Tensor] = []
    before = 0
    for spec in specs:
        raw = torch.empty(samples * spec.sample_bytes, dtype=torch.uint8)
        target, at = memoryview(raw.numpy().data), 0
        for member in members:
            offset, length = member.size * before, member.size * spec.sample_bytes
            target[at : at + length] = memoryview(member.body)[offset : offset + length]
            at += length
        inputs.append(_typed(raw, spec).view(samples, *spec.shape))
        before += spec.sample_bytes
    return inputs


def _typed(raw: Tensor, spec: TensorSpec) -> Tensor:
    # A byte other than 0 and 1 is no bool to torch's kernels, so a client's bytes are compared rather than reinterpreted.
    return raw.ne(0) if spec.datatype == "BOOL" else raw.view(TORCH_DTYPES[spec.datatype])


def write_sample(outputs: Sequence[Tensor]) -> bytes | memoryview:
    """The raw bytes of a member's outputs, one after the other."""
    views = [memoryview(output.contiguous().view(-1).view(torch.uint8).numpy().data) for output in outputs]
    return views[0] if len(views) == 1 else b"".join(views)


def head_of(outputs: Sequence[TensorSpec]) -> bytes:
    """The head of a RESULT frame of tensors."""
    return json.dumps({"outputs": [spec.to_json() for spec in outputs]}).encode()

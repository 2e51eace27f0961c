"""Tensors go through a pair's shared memory with their bits and their layout, and nothing a peer writes there can do harm."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from gnomon_core import shared_memory
from gnomon_runtime.pair.headers import DATATYPES, MAX_TENSORS, Kind, Message, Row, decode, encode
from gnomon_runtime.pair.link import SharedBuffer, joined, memory_order

pytestmark = pytest.mark.torch
SIZE = 1 << 20


@pytest.fixture
def both() -> Iterator[tuple[SharedBuffer, SharedBuffer]]:
    """The writer's and the reader's mapping of one buffer."""
    descriptor = shared_memory.make("test", SIZE)
    other = shared_memory.reader(descriptor)
    writer, reader = SharedBuffer(descriptor, writable=True), SharedBuffer(other, writable=False)
    os.close(descriptor)
    os.close(other)
    yield writer, reader
    writer.close()
    reader.close()


def through(both: tuple[SharedBuffer, SharedBuffer], tensors: list[Tensor], begin: int = 0) -> list[Tensor]:
    """Written, described by a message, and read."""
    writer, reader = both
    rows = writer.write(tensors, begin)
    assert rows is not None
    message = Message(Kind.COMPUTE, 1, 0, 1, len(tensors[0]) - begin, rows)
    return reader.read(decode(encode(message), reader.size_bytes).rows)


def numbers(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3))


LAYOUTS = {
    "rows": numbers(4, 3, 5, 7),
    "channels last": numbers(4, 3, 5, 7).to(memory_format=torch.channels_last),
    "other order": numbers(4, 7, 3, 5).permute(0, 2, 3, 1),
    "every second": numbers(4, 3, 5, 14)[..., ::2],
    "batch is not slowest": numbers(3, 4, 5, 7).permute(1, 0, 2, 3),
    "expanded": numbers(4, 1, 5, 7).expand(4, 3, 5, 7),
    "one axis": numbers(4),
    "a column, whose last row is one element with any stride": numbers(4, 5)[:, 2],
    "a column of columns": numbers(4, 5, 3)[:, 2:3, 1],
    "with a gradient": numbers(4, 3).requires_grad_(),
    "its sign kept aside": torch._neg_view(numbers(4, 3)),
    "no elements": numbers(4, 0, 5),
}


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("begin", [0, 1, 3])
def test_values_and_layouts_arrive(both: tuple[SharedBuffer, SharedBuffer], name: str, begin: int) -> None:
    tensor = LAYOUTS[name]
    [arrived] = through(both, [tensor], begin)
    assert torch.equal(arrived, tensor[begin:])
    if memory_order(tensor) != tuple(range(tensor.dim())):
        assert arrived.stride() == tensor[begin:].clone(memory_format=torch.preserve_format).stride()
    assert arrived.data_ptr() % 64 == 0


def test_every_type_arrives(both: tuple[SharedBuffer, SharedBuffer]) -> None:
    from gnomon_runtime.engine.torch_support import TORCH_DTYPES  # noqa: PLC0415 - imports torch

    tensors = [torch.tensor([[0, 1, 2], [3, 4, 5]]).to(TORCH_DTYPES[name]) for name in DATATYPES]
    arrived = through(both, tensors)
    assert all(torch.equal(one, other) and one.dtype == other.dtype for one, other in zip(arrived, tensors, strict=True))


def test_floats_are_views_and_whole_numbers_copies(both: tuple[SharedBuffer, SharedBuffer]) -> None:
    """A kernel checks an index and then uses it: nobody may change it in between."""
    writer, _ = both
    floats, indices, truths = through(both, [torch.ones(2, 8), torch.ones(2, 8, dtype=torch.int64), torch.ones(2, 8).bool()])
    writer._raw.fill_(255)
    assert torch.isnan(floats).all()
    assert indices.eq(1).all()
    assert truths.all()


def test_a_truth_value_is_0_or_1_whatever_the_peer_wrote(both: tuple[SharedBuffer, SharedBuffer]) -> None:
    writer, reader = both
    writer._raw[:4] = torch.tensor([0, 1, 2, 255], dtype=torch.uint8)
    [truths] = reader.read([Row(0, 4, "BOOL", (4,), (0,))])
    assert truths.view(torch.uint8).tolist() == [0, 1, 1, 1]


def test_oversized_tensor_is_not_written(both: tuple[SharedBuffer, SharedBuffer]) -> None:
    writer, _ = both
    assert writer.write([torch.zeros(1, SIZE // 4)]) is not None
    assert writer.write([torch.zeros(1, SIZE // 4 + 1)]) is None
    assert writer.write([torch.zeros(1, 1), torch.zeros(1, SIZE // 4 - 8)]) is None
    assert writer.write([torch.zeros(1)] * (MAX_TENSORS + 1)) is None
    assert writer.write([torch.zeros([1] * 9)]) is None
    assert writer.write([torch.zeros(())]) is None
    assert writer.write([torch.zeros(2, dtype=torch.complex64)]) is None


def test_closing_unmaps() -> None:
    def mapped() -> int:
        return sum("gone-when-closed" in line for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines())

    descriptor = shared_memory.make("gone-when-closed", SIZE)
    buffers = [SharedBuffer(descriptor, writable=True) for _ in range(3)]
    os.close(descriptor)
    assert mapped() == 3
    [kept] = buffers[0].read([Row(0, 4, "FP32", (1,), (0,))])
    for buffer in buffers:
        buffer.close()
    assert mapped() == 1
    del kept, buffers, buffer
    assert mapped() == 0


def test_joined_rows_lie_as_the_whole_would() -> None:
    for tensor in LAYOUTS.values():
        whole = joined(tensor[:3], tensor[3:])
        assert torch.equal(whole, tensor)
        assert memory_order(whole) == memory_order(tensor[:3])

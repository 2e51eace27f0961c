"""Tensors in shared memory: rows of tensors written into one buffer, and read from the other without a copy.

Memory is written in the order in which the tensor has it, so that the other side computes on the same layout and gets the same
bits. What is read is a view of the buffer, except where a peer that writes meanwhile could do harm: whole numbers may be indices,
which a kernel checks and then uses, and truth values must be 0 or 1; both are copied first.

Bytes are copied by the C library (through numpy: torch copies by a loop of its own), which passes the cache by with a large
block: the writer never looks at it again, and need not fetch first what the other side's processor has of it.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import warnings
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from gnomon_core import shared_memory
from gnomon_core.shared_memory import aligned
from gnomon_runtime.engine.torch_support import TORCH_DTYPES
from gnomon_runtime.pair.headers import MAX_AXES, MAX_TENSORS, Row

_NAMES = {dtype: name for name, dtype in TORCH_DTYPES.items()}
_POPULATE_READ, _POPULATE_WRITE = 22, 23
"""MADV_…, since Linux 5.14."""


class SharedBuffer:
    """One direction's memory, mapped. The descriptor stays the caller's.

    Raises:
        ValueError: it could change its size under us.
        OSError: it cannot be mapped so.

    """

    def __init__(self, descriptor: int, *, writable: bool) -> None:
        self.size_bytes = shared_memory.check(descriptor)
        protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        self._map = mmap.mmap(descriptor, self.size_bytes, mmap.MAP_SHARED, protection)
        self._writable = writable
        with warnings.catch_warnings():
            # Nobody writes to a buffer that is read; torch has no type for that.
            warnings.filterwarnings("ignore", "The given buffer is not writable")
            self._raw = torch.frombuffer(self._map, dtype=torch.uint8)

    def prepare(self, used_bytes: int) -> None:
        """Have this much of it mapped and allocated before the first batch needs it."""
        length = min(-(-used_bytes // mmap.PAGESIZE) * mmap.PAGESIZE, self.size_bytes)
        with contextlib.suppress(OSError):
            self._map.madvise(_POPULATE_WRITE if self._writable else _POPULATE_READ, 0, length)

    def write(self, tensors: Sequence[Tensor], begin: int = 0) -> tuple[Row, ...] | None:
        """Copy the rows from `begin` on of each tensor. None where they do not fit, or a tensor is of no shape for it."""
        rows: list[Row] = []
        at = 0
        if len(tensors) > MAX_TENSORS:
            return None
        for tensor in tensors:
            if not 1 <= tensor.dim() <= MAX_AXES or tensor.dtype not in _NAMES:
                return None
            part = tensor[begin:]
            order = memory_order(part)
            dense = part.permute(order)
            length = part.numel() * part.element_size()
            if at + length > self.size_bytes:
                return None
            _copy(dense, self._raw[at : at + length])
            rows.append(Row(at, length, _NAMES[part.dtype], tuple(part.shape), order))
            at = aligned(at + length)
        return tuple(rows)

    def read(self, rows: Sequence[Row]) -> list[Tensor]:
        """The tensors of rows that `decode` has checked against this buffer's size: views, good until the other side writes."""
        return [self._tensor(row) for row in rows]

    def view(self, length: int) -> memoryview:
        """Its first bytes as they are, for a socket to read or to write."""
        return memoryview(self._map)[:length]

    def close(self) -> None:
        """Let go of it. It is unmapped with the last view that somebody has: torch would not notice an unmapping under it."""
        del self._raw, self._map

    def _tensor(self, row: Row) -> Tensor:
        dtype = TORCH_DTYPES[row.datatype]
        raw = self._raw[row.offset : row.offset + row.length]
        if dtype is torch.bool:
            flat = raw.ne(0)
        else:
            flat = raw.view(dtype)
            flat = flat if dtype.is_floating_point else flat.clone()
        dense = flat.view([row.shape[axis] for axis in row.order])
        return dense.permute([row.order.index(axis) for axis in range(len(row.order))])


class OwnBuffer(SharedBuffer):
    """The same for one process alone, whose other side is reached over a network. It grows when more of it is prepared."""

    def __init__(self, size_bytes: int) -> None:
        self._make(size_bytes)

    def prepare(self, used_bytes: int) -> None:
        if used_bytes > self.size_bytes:
            self._make(used_bytes)
        super().prepare(used_bytes)

    def _make(self, size_bytes: int) -> None:
        descriptor = shared_memory.make("hand-over", max(size_bytes, 1))
        try:
            super().__init__(descriptor, writable=True)
        finally:
            os.close(descriptor)


def _copy(dense: Tensor, place: Tensor) -> None:
    """A tensor's elements, one after the other, into so many bytes."""
    # One element, or none, is contiguous whatever its stride, and bytes are seen only where that is 1.
    if dense.numel() > 1 and dense.is_contiguous() and not (dense.requires_grad or dense.is_neg()):
        np.copyto(place.numpy(), dense.view(-1).view(torch.uint8).numpy())
    else:
        place.view(dense.dtype).view(dense.shape).copy_(dense)


def datatype_of(tensor: Tensor) -> str | None:
    """The tensor's type as a row names it."""
    return _NAMES.get(tensor.dtype)


def memory_order(tensor: Tensor) -> tuple[int, ...]:
    """The tensor's axes from the slowest to the fastest; 0, 1, 2, … for one that is not dense, or not row by row."""
    straight = tuple(range(tensor.dim()))
    if tensor.is_contiguous():
        return straight
    strides = tensor.stride()
    order = tuple(sorted(straight, key=lambda axis: (-strides[axis], axis)))
    return order if order[0] == 0 and tensor.permute(order).is_contiguous() else straight


def joined(first: Tensor, *others: Tensor) -> Tensor:
    """The rows of all of them, in the memory layout of the first: what one tensor of all of them would be."""
    order = memory_order(first)
    parts = (first, *others)
    if order == tuple(range(first.dim())):
        return torch.cat(parts)
    rows = sum(part.shape[0] for part in parts)
    whole = torch.empty_permuted((rows, *first.shape[1:]), order, dtype=first.dtype)
    at = 0
    for part in parts:
        whole[at : at + part.shape[0]] = part
        at += part.shape[0]
    return whole

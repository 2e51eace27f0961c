"""An end of a pair's data path: tensors handed over, results taken back, late results recognised.

`DataPath` is the interface for a Body's model. Late, duplicate and invalid messages are recognised and harmless: a hand-over has
a sequence number, and a side reads the buffer `back` only between an answer to its newest number and its own next message.

A waiting side sleeps, and so may its processor: to wake a virtual CPU takes 0.2 ms, in which 2 MB are copied. So a side sends a
wake-up hint (`send_hint`) before the operation that makes the tensors of its next message. The other side wakes meanwhile, and
then polls for the message without sleeping (`awaited`), for `HINT_S` at most.

`Link` is the path within a node: a data socket that never blocks, and two buffers that both sides have mapped. The path to
another node is `gnomon_runtime.pair.remote_link`.

Buffers: rows of tensors are written into one buffer, and read from the other without a copy. Memory is written in the order in
which the tensor has it, so that the other side computes on the same layout and gets the same bits. What is read is a view of
the buffer, except where a peer that writes meanwhile could do harm: whole numbers may be indices, which a kernel checks and
then uses, and truth values must be 0 or 1; both are copied first.

Bytes are copied by the C library's memcpy (through numpy: torch has a copy loop of its own), which uses non-temporal stores for
large blocks: the writer does not read them again, and need not first fetch cache lines that the other side's CPU holds.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import select
import socket
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from enum import StrEnum

import numpy as np
import torch
from torch import Tensor

from gnomon_core import packets, shared_memory
from gnomon_core.shared_memory import aligned
from gnomon_runtime.engine.torch_support import TORCH_DTYPES
from gnomon_runtime.pair.headers import MAX_AXES, MAX_BYTES, MAX_TENSORS, Kind, Message, NonsenseError, Row, decode, encode
from gnomon_runtime.pair.orders import close, three_of

MAX_PENDING = 256
"""The most messages that are read from the socket at once; a peer that sends more unrequested ones breaks the protocol."""

HINT_S = 0.002
"""Seconds for which a side polls after a wake-up hint before it sleeps again. It yields the processor between two polls."""


class Outcome(StrEnum):
    """The outcome of a hand-over."""

    ANSWERED = "answered"
    LATE = "late"
    HURRIED = "hurried"
    """The batch had no time to wait as long as the Shadow should take."""
    FAILED = "failed"
    REFUSED = "refused"
    NONSENSE = "nonsense"
    FULL = "full"
    """The message or the tensors did not fit: the Shadow reads nothing, or the buffers are too small."""
    GONE = "gone"


class DataPath(ABC):
    """The transport of hand-overs and results. Tensors lie in `to` and `back`, however they reach the other side."""

    elsewhere = False
    """Whether the other side is on another node."""

    def __init__(self, to: SharedBuffer, back: SharedBuffer) -> None:
        self.to = to
        self.back = back
        self.sequence = 0
        self.announced = False
        """Whether the coordinator was notified that the path is ready."""
        self.late: list[Message] = []
        """Late answers to earlier hand-overs, from which latencies are learned."""
        self._poll_until_s = 0.0

    @property
    def ready(self) -> bool:
        """True if a message can be sent to the other side."""
        return True

    @abstractmethod
    def send_hint(self) -> None:
        """Send a wake-up hint: a message follows shortly."""

    def awaited(self, until_s: float = math.inf) -> bool:
        """Poll without sleeping for the message after a wake-up hint, at most until this time. Returns whether it has come."""
        while time.monotonic() < min(self._poll_until_s, until_s):
            if self._readable(0.0):
                return True
            os.sched_yield()
        return False

    @abstractmethod
    def fileno(self) -> int:
        """The descriptor that becomes readable when there is a message, or the path has ended."""

    def hand_over(self, begin: int, end: int, values: Sequence[Tensor], first_row: int) -> Outcome | None:
        """Send the Shadow the rows from `first_row` on of a run's inputs. None on success, else `Outcome.FULL`.

        Raises:
            PeerGoneError: the Shadow has closed its end.

        """
        with contextlib.suppress(NonsenseError):
            self.late += self.pending()
        self.sequence += 1
        rows = self.to.write(values, first_row)
        if rows is None:
            return Outcome.FULL
        message = Message(Kind.COMPUTE, self.sequence, begin, end, rows[0].shape[0] if rows else 0, rows)
        return None if self.send(message) else Outcome.FULL

    def take_back(self, until_s: float) -> Message | Outcome:
        """Wait for the answer to the newest hand-over, until this time of the monotonic clock.

        Raises:
            PeerGoneError: the Shadow has closed its end.

        """
        while True:
            if not self.awaited(until_s) and not self._readable(max(0.0, until_s - time.monotonic())):
                return Outcome.LATE
            try:
                message = self._next()
            except NonsenseError:
                return Outcome.NONSENSE
            if message is None:
                if time.monotonic() > until_s:
                    return Outcome.LATE
            elif message.sequence != self.sequence:
                self.late.append(message)
                del self.late[:-MAX_PENDING]
                if time.monotonic() > until_s:
                    return Outcome.LATE
            elif message.kind is Kind.DONE:
                return message
            else:
                return {Kind.FAILED: Outcome.FAILED, Kind.REFUSED: Outcome.REFUSED}.get(message.kind, Outcome.NONSENSE)

    def pending(self) -> list[Message]:
        """The results that have arrived.

        Raises:
            PeerGoneError: the other side has closed its end.
            NonsenseError: it sends an invalid message, or too many messages.

        """
        messages: list[Message] = []
        for _ in range(MAX_PENDING):
            message = self._receive()
            if message is None:
                return messages
            if not self._is_hint(message):
                messages.append(message)
        raise NonsenseError("unexpected messages")

    def _next(self) -> Message | None:
        """The next message; None if there is none, or only a wake-up hint."""
        message = self._receive()
        return None if message is None or self._is_hint(message) else message

    def _is_hint(self, message: Message) -> bool:
        """True if the message is a wake-up hint, which starts the polling period."""
        soon = message.kind is Kind.SOON
        self._poll_until_s = time.monotonic() + HINT_S if soon else 0.0
        return soon

    @abstractmethod
    def send(self, message: Message) -> bool:
        """Send a message. Returns False if the path has no free capacity.

        Raises:
            PeerGoneError: the other side has closed its end.

        """

    @abstractmethod
    def close(self) -> None:
        """Release the path's descriptors and memory."""

    @abstractmethod
    def _readable(self, wait_s: float) -> bool: ...

    @abstractmethod
    def _receive(self) -> Message | None: ...


class Link(DataPath):
    """The data path within a node.

    `descriptors` are those of "pair" or "join": the socket, the buffer to the Shadow, the one from it.

    Raises:
        ValueError: not these three, or buffers whose size could change.
        OSError: they cannot be mapped.

    """

    def __init__(self, descriptors: list[int], *, body: bool) -> None:
        try:
            data, to_shadow, from_shadow = three_of(descriptors)
            super().__init__(SharedBuffer(to_shadow, writable=body), SharedBuffer(from_shadow, writable=not body))
            self._socket = socket.socket(fileno=data)
            descriptors.remove(data)
        finally:
            close(descriptors)
        self._socket.setblocking(False)  # noqa: FBT003 - the signature is socket's
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)
        self._incoming = self.back if body else self.to

    def fileno(self) -> int:
        return self._socket.fileno()

    def send_hint(self) -> None:
        with contextlib.suppress(packets.PeerGoneError):
            self.send(Message(Kind.SOON, self.sequence, 0, 1, 1))

    def send(self, message: Message) -> bool:
        try:
            self._socket.send(encode(message))
        except BlockingIOError:
            return False
        except (BrokenPipeError, ConnectionResetError) as error:
            raise packets.PeerGoneError from error
        return True

    def close(self) -> None:
        self._socket.close()
        self.to.close()
        self.back.close()

    def _readable(self, wait_s: float) -> bool:
        return bool(self._poll.poll(1e3 * wait_s))

    def _receive(self) -> Message | None:
        try:
            data = self._socket.recv(MAX_BYTES + 1)
        except BlockingIOError:
            return None
        except ConnectionResetError as error:
            raise packets.PeerGoneError from error
        if not data:
            raise packets.PeerGoneError
        return decode(data, self._incoming.size_bytes)


_NAMES = {dtype: name for name, dtype in TORCH_DTYPES.items()}
_POPULATE_READ, _POPULATE_WRITE = 22, 23
"""MADV_…, since Linux 5.14."""


class SharedBuffer:
    """The mapped memory of one direction. The caller closes the descriptor.

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
            # A buffer that is read is never written here; torch has no read-only tensors.
            warnings.filterwarnings("ignore", "The given buffer is not writable")
            self._raw = torch.frombuffer(self._map, dtype=torch.uint8)

    def prepare(self, used_bytes: int) -> None:
        """Map and allocate this much of the buffer before the first batch needs it."""
        length = min(-(-used_bytes // mmap.PAGESIZE) * mmap.PAGESIZE, self.size_bytes)
        with contextlib.suppress(OSError):
            self._map.madvise(_POPULATE_WRITE if self._writable else _POPULATE_READ, 0, length)

    def write(self, tensors: Sequence[Tensor], begin: int = 0) -> tuple[Row, ...] | None:
        """Copy the rows from `begin` on of each tensor. None if they do not fit, or a tensor has an unsuitable shape."""
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
        """The first `length` bytes of the buffer without a copy, for a socket to read or write."""
        return memoryview(self._map)[:length]

    def close(self) -> None:
        """Release the buffer. It is unmapped with its last view, because torch does not notice when memory is unmapped."""
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
    """A buffer of this process alone, for a peer across the network. It grows when more of it is prepared."""

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


def _copy(dense: Tensor, target: Tensor) -> None:
    """Copy a tensor's elements, in memory order, to these bytes."""
    # One element, or none, is contiguous whatever its stride, and bytes are seen only where that is 1.
    if dense.numel() > 1 and dense.is_contiguous() and not (dense.requires_grad or dense.is_neg()):
        np.copyto(target.numpy(), dense.view(-1).view(torch.uint8).numpy())
    else:
        target.view(dense.dtype).view(dense.shape).copy_(dense)


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


def joined(first: Tensor, *further: Tensor) -> Tensor:
    """Concatenate the rows of these tensors, in the memory layout of the first."""
    order = memory_order(first)
    parts = (first, *further)
    if order == tuple(range(first.dim())):
        return torch.cat(parts)
    rows = sum(part.shape[0] for part in parts)
    joint = torch.empty_permuted((rows, *first.shape[1:]), order, dtype=first.dtype)
    at = 0
    for part in parts:
        joint[at : at + part.shape[0]] = part
        at += part.shape[0]
    return joint

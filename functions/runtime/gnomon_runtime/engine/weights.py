"""A program's weights from its safetensors file, in one of two declared modes.

`shared`: the file is mapped, so every instance on a node reads the same pages and only the tensors that are used become resident.
`private`: the instance reads its own copy, as a plain container or a Lambda does; how long that took is part of the answer, since
a figure that names this mode needs its bandwidth.

A tensor that does not begin at a multiple of 64 bytes is copied in either mode: kernels split their loops by alignment, and the
last bit of a sum with them. Gnomon's own files have none.

Nothing writes to weights: programs are functional and the executor never reuses their memory. The file itself is immutable: a
model repository replaces it only by renaming, since truncating it would kill every process that maps it.

`BlockWeights` holds the weights of some blocks, as a Shadow does. `shared`: the file is mapped for reading, and the pages of
the blocks that are held are made resident at once, so that no batch waits for them; letting a block go gives its pages back.
`private`: each block is read into memory of its own, which goes back to the kernel with it. Both modes touch nothing of the
other blocks.
"""

from __future__ import annotations

import json
import mmap
import os
import time
import warnings
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from gnomon_core.program import Weight, invalid_program
from gnomon_runtime.engine.torch_support import TORCH_DTYPES

WeightMode = Literal["shared", "private"]
ALIGNMENT_BYTES = 64


@dataclass(frozen=True, slots=True)
class LoadedWeights:
    """Tensors by name, with the size of the file and the loading time in seconds."""

    tensors: Mapping[str, Tensor]
    mode: WeightMode
    file_bytes: int
    load_s: float


def load_weights(path: Path, expected: Mapping[str, Weight], mode: WeightMode = "shared") -> LoadedWeights:
    """The tensors that a program names, checked against what it says of them.

    Raises:
        GnomonError: 422 `invalid_program` when the file lacks one or holds it in another form.

    """
    started_s = time.perf_counter()
    try:
        with safe_open(path, framework="pt") as file:
            present = set(file.keys())
            stored = {name: _placed(file.get_tensor(name), mode) for name in expected if name in present}
    except SafetensorError as error:
        raise invalid_program(f"The weight file cannot be read: {error}.") from None
    tensors = {name: checked(name, stored.get(name), weight) for name, weight in expected.items()}
    return LoadedWeights(tensors, mode, path.stat().st_size, time.perf_counter() - started_s)


def _placed(mapped: Tensor, mode: WeightMode) -> Tensor:
    """The mapped tensor itself, or its own copy, which torch's allocator aligns."""
    return mapped.clone() if mode == "private" or mapped.data_ptr() % ALIGNMENT_BYTES else mapped


def checked(name: str, tensor: Tensor | None, weight: Weight) -> Tensor:
    """A tensor of the file in the form that the program uses it in.

    Raises:
        GnomonError: 422 `invalid_program` where the file has it in another form or not at all.

    """
    order = weight.order or tuple(range(len(weight.shape)))
    stored_shape = tuple(weight.shape[axis] for axis in order)
    if tensor is None or tensor.shape != stored_shape or tensor.dtype != TORCH_DTYPES[weight.datatype]:
        actual = "nothing" if tensor is None else f"{tensor.dtype} {tuple(tensor.shape)}"
        raise invalid_program(f"Weight {name!r} must be {weight.datatype} {stored_shape} in the file, which holds {actual}.")
    return tensor.permute([order.index(axis) for axis in range(len(order))]) if weight.order else tensor


MAX_HEADER_BYTES = 100 << 20
HUGE_BYTES = 2 << 20
WHOLE_BYTES = 1 << 62
"""Size of a piece that is larger than any file: everything is read in one step."""
_LENGTH_BYTES = 8
_POPULATE_READ = 22
"""MADV_POPULATE_READ, since Linux 5.14."""
_DTYPES = {
    "BOOL": torch.bool, "U8": torch.uint8, "U16": torch.uint16, "U32": torch.uint32, "U64": torch.uint64,
    "I8": torch.int8, "I16": torch.int16, "I32": torch.int32, "I64": torch.int64,
    "F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float64,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Place:
    """The position and form of a tensor in the weight file."""

    begin: int
    end: int
    dtype: torch.dtype
    shape: tuple[int, ...]


class BlockWeights:
    """A weight file of which some tensors are held.

    Raises:
        GnomonError: 422 `invalid_program`: the file is no safetensors file.

    """

    def __init__(self, path: Path, expected: Mapping[str, Weight], mode: WeightMode = "shared") -> None:
        self._expected = expected
        self.mode = mode
        self._held: dict[str, Tensor] = {}
        with path.open("rb") as file:
            self.file_bytes = size = os.fstat(file.fileno()).st_size
            self._places = _places(file.fileno(), size)
            self._file = os.dup(file.fileno()) if mode == "private" else -1
            self._map = mmap.mmap(file.fileno(), size, mmap.MAP_SHARED, mmap.PROT_READ) if mode == "shared" else None

    @property
    def held(self) -> Mapping[str, Tensor]:
        """The tensors that are held now, by name."""
        return self._held

    @property
    def resident_bytes(self) -> int:
        """The memory that they take: whole pages in shared mode."""
        if self._map is None:
            return sum(tensor.nbytes for tensor in self._held.values())
        return sum(end - begin for begin, end in self._ranges(self._held))

    def hold(self, names: Iterable[str]) -> None:
        """Hold these tensors too, resident when this returns. Those that go together are best held by one call.

        Raises:
            GnomonError: 422 `invalid_program`: the file lacks one, or has another form of it than the program.

        """
        deque(self.holding(names), maxlen=0)

    def holding(self, names: Iterable[str], piece_bytes: int = WHOLE_BYTES) -> Iterator[int]:
        """Hold these tensors in steps: each makes at most `piece_bytes` resident and yields the number. All are held at the end.

        The caller may do other work between two steps: the held tensors do not change until the last one.
        """
        new = [name for name in dict.fromkeys(names) if name not in self._held]
        places = {name: self._place(name) for name in new}
        loaded = yield from self._mapped(places, piece_bytes) if self._map is not None else self._read(places, piece_bytes)
        self._held |= {name: checked(name, loaded[name], self._expected[name]) for name in new}

    def keep_only(self, names: Iterable[str]) -> None:
        """Release every other tensor. A tensor in use stays alive, but in shared mode its pages may be read anew."""
        names_to_keep = set(names)
        gone = [name for name in self._held if name not in names_to_keep]
        for name in gone:
            del self._held[name]
        if self._map is not None:
            # A page at the edge may be shared with a held tensor: it is faulted in again at its next use, from the page cache.
            for begin, end in self._ranges(gone):
                self._map.madvise(mmap.MADV_DONTNEED, begin, end - begin)

    def close(self) -> None:
        """Release every tensor and the file."""
        self.keep_only(())
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _place(self, name: str) -> Place:
        try:
            return self._places[name]
        except KeyError:
            raise invalid_program(f"The weight file has no {name!r}.") from None

    def _mapped(self, places: Mapping[str, Place], piece_bytes: int) -> Generator[int, None, dict[str, Tensor]]:
        assert self._map is not None
        for begin, end in self._ranges(places):
            for first, last in _pieces(begin, end, piece_bytes):
                _populate(self._map, first, last)
                yield last - first
        raw = _bytes_of(self._map)
        return {name: _view(raw, stored, stored.begin) for name, stored in places.items()}

    def _read(self, places: Mapping[str, Place], piece_bytes: int) -> Generator[int, None, dict[str, Tensor]]:
        """Read the tensors into an anonymous mapping, with one read for each contiguous range of the file."""
        if not any(stored.end > stored.begin for stored in places.values()):
            return {name: torch.empty(stored.shape, dtype=stored.dtype) for name, stored in places.items()}
        stretches = _merged(
            [(stored.begin, stored.end) for stored in places.values() if stored.end > stored.begin], ALIGNMENT_BYTES
        )
        memory = mmap.mmap(-1, sum(_up(end - begin) for begin, end in stretches), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if len(memory) >= HUGE_BYTES:
            memory.madvise(mmap.MADV_HUGEPAGE)
        at, offsets = 0, dict[str, int]()
        for begin, end in stretches:
            for first, last in _pieces(begin, end, piece_bytes):
                with memoryview(memory) as view:
                    _read_fully(self._file, view[at + first - begin : at + last - begin], first)
                yield last - first
            offsets |= {name: at + stored.begin - begin for name, stored in places.items() if begin <= stored.begin < end}
            at += _up(end - begin)
        raw = _bytes_of(memory)
        return {name: _view(raw, stored, offsets.get(name, 0)) for name, stored in places.items()}

    def _ranges(self, names: Iterable[str]) -> list[tuple[int, int]]:
        """The pages of these tensors, as ranges of the file."""
        page = mmap.PAGESIZE
        stored_tensors = [stored for stored in (self._places[name] for name in names) if stored.end > stored.begin]
        return _merged([(stored.begin // page * page, -(-stored.end // page) * page) for stored in stored_tensors], 0)


def _places(file: int, size: int) -> dict[str, Place]:
    """The header of a safetensors file: its length, then JSON with each tensor's type, shape and offsets behind the header."""
    try:
        # A length beyond the end of the file reads a shorter header, which is then invalid JSON.
        length = min(int.from_bytes(os.pread(file, _LENGTH_BYTES, 0), "little"), MAX_HEADER_BYTES)
        document = json.loads(os.pread(file, length, _LENGTH_BYTES))
        data = _LENGTH_BYTES + length
        return {str(name): _read_place(stored, data, size) for name, stored in document.items() if name != "__metadata__"}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise invalid_program(f"The weight file cannot be read: {error}.") from None


def _read_place(document: Mapping[str, Any], data: int, size: int) -> Place:
    begin, end = document["data_offsets"]
    shape, dtype = tuple(int(extent) for extent in document["shape"]), _DTYPES[document["dtype"]]
    elements = 1
    for extent in shape:
        elements *= extent
    if min((*shape, 0)) < 0 or not 0 <= begin <= end <= size - data or end - begin != elements * dtype.itemsize:
        raise ValueError("a tensor that is not in the file")
    return Place(data + int(begin), data + int(end), dtype, shape)


def _bytes_of(memory: mmap.mmap) -> Tensor:
    with warnings.catch_warnings():
        # Weights are never written; torch has no read-only tensors.
        warnings.filterwarnings("ignore", "The given buffer is not writable")
        return torch.frombuffer(memory, dtype=torch.uint8)


def _view(raw: Tensor, stored: Place, offset: int) -> Tensor:
    """The tensor at this offset, aligned as torch would have it."""
    part = raw[offset : offset + stored.end - stored.begin]
    if part.data_ptr() % ALIGNMENT_BYTES:
        part = part.clone()
    return part.view(stored.dtype).view(stored.shape)


def _populate(memory: mmap.mmap, begin: int, end: int) -> None:
    """Map the pages of this range now. One system call; a read of each page on a kernel that has none for it."""
    length = min(end, -(-len(memory) // mmap.PAGESIZE) * mmap.PAGESIZE) - begin
    try:
        memory.madvise(_POPULATE_READ, begin, length)
    except OSError:
        sum(memory[at] for at in range(begin, min(end, len(memory)), mmap.PAGESIZE))


def _read_fully(file: int, into: memoryview, at: int) -> None:
    while into:
        count = os.preadv(file, [into], at)
        if count == 0:
            raise invalid_program("The weight file ends early.")
        into, at = into[count:], at + count


def _merged(ranges: Sequence[tuple[int, int]], gap: int) -> list[tuple[int, int]]:
    """Ranges in order, joined where less than `gap` + 1 bytes lie between them."""
    merged: list[tuple[int, int]] = []
    for begin, end in sorted(ranges):
        if merged and begin <= merged[-1][1] + gap:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((begin, end))
    return merged


def _pieces(begin: int, end: int, piece_bytes: int) -> Iterator[tuple[int, int]]:
    """A range in parts of at most so many bytes, whole pages where the piece is."""
    for first in range(begin, end, piece_bytes):
        yield first, min(first + piece_bytes, end)


def _up(size: int) -> int:
    return -(-size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES

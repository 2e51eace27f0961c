"""An index of the tensors in a weight file, and smaller weight files with some of them.

A remote repository keeps this index beside the weights: with it a Shadow requests only the bytes of its blocks' tensors. Each
tensor is compared with its own SHA-256, since the hash of the whole file cannot verify parts of it. The smaller
file is a weight file like any other, and its tensors begin at multiples of 64 bytes too (`weights` says why).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from mmap import mmap
from typing import Any, BinaryIO

from gnomon_core.errors import GnomonError, bad_request

FORMAT = "gnomon-tensor-index/1"
ALIGNMENT_BYTES = 64
GAP_PREFIX = "__gap__/"
_LENGTH_BYTES = 8
_NEAR_BYTES = 256 << 10
"""Tensors nearer than this are fetched together: another request costs more than the bytes between."""


_METADATA = "__metadata__"
_MOST_HEADER_BYTES = 100_000_000
"""The limit of the safetensors library."""
_UNREADABLE = (ValueError, KeyError, TypeError, AttributeError, RecursionError)


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor's bytes, from `begin` up to `end` in the weight file, and what the file says of it."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int
    sha256: str


@dataclass(frozen=True, slots=True)
class TensorIndex:
    """The tensors of a weight file by name, gaps left out."""

    tensors: Mapping[str, StoredTensor]

    @staticmethod
    def of(file: bytes | mmap) -> TensorIndex:
        """The index of a safetensors file.

        Raises:
            GnomonError: 400 `invalid_model` for a file that is none.

        """
        try:
            start = _LENGTH_BYTES + int.from_bytes(file[:_LENGTH_BYTES], "little")
            header = json.loads(file[_LENGTH_BYTES:start])
            return TensorIndex(
                {
                    name: _stored(file, start, entry)
                    for name, entry in header.items()
                    if name != _METADATA and not name.startswith(GAP_PREFIX)
                }
            )
        except _UNREADABLE as error:
            raise _invalid(error) from None

    def to_bytes(self) -> bytes:
        tensors = {
            name: {
                "dtype": tensor.dtype,
                "shape": list(tensor.shape),
                "bytes": [tensor.begin, tensor.end],
                "sha256": tensor.sha256,
            }
            for name, tensor in self.tensors.items()
        }
        return json.dumps({"format": FORMAT, "tensors": tensors}, separators=(",", ":"), sort_keys=True).encode()

    @staticmethod
    def from_bytes(data: bytes) -> TensorIndex:
        """The index in a document, whose own hash its reader has compared."""
        document = json.loads(data)
        return TensorIndex(
            {
                name: StoredTensor(
                    tensor["dtype"], tuple(tensor["shape"]), tensor["bytes"][0], tensor["bytes"][1], tensor["sha256"]
                )
                for name, tensor in document["tensors"].items()
            }
        )

    def spans(self, names: Iterable[str]) -> list[tuple[int, int]]:
        """The parts of the weight file to fetch for some tensors, each from its first byte up to the one after its last."""
        places = sorted((self.tensors[name].begin, self.tensors[name].end) for name in names)
        spans: list[tuple[int, int]] = []
        for begin, end in places:
            if spans and begin - spans[-1][1] <= _NEAR_BYTES:
                spans[-1] = (spans[-1][0], max(end, spans[-1][1]))
            elif end > begin:
                spans.append((begin, end))
        return spans


def check_weights(file: BinaryIO, size_bytes: int) -> None:
    """Check the header of a safetensors file of this size; its tensors are not read.

    Raises:
        GnomonError: 400 `invalid_model`, with the reason.

    """
    try:
        length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
        data_bytes = size_bytes - _LENGTH_BYTES - length
        if data_bytes < 0 or length > _MOST_HEADER_BYTES:
            raise ValueError(f"its header states {length} bytes, and the file has {size_bytes}")
        for name, entry in json.loads(file.read(length)).items():
            if name == _METADATA:
                continue
            begin, end = entry["data_offsets"]
            if not 0 <= begin <= end <= data_bytes:
                raise ValueError(f"tensor {name[:100]!r} is from byte {begin} to {end} of {data_bytes}")
    except _UNREADABLE as error:
        raise _invalid(error) from None


def part_file(index: TensorIndex, contents: Mapping[str, bytes]) -> bytes:
    """A weight file of these tensors' bytes, in the order of the whole file's."""
    header: dict[str, Any] = {}
    pieces: list[bytes] = []
    at = 0
    for name in sorted(contents, key=lambda name: (index.tensors[name].begin, name)):
        tensor, data = index.tensors[name], contents[name]
        header[name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": [at, at + len(data)]}
        gap = -len(data) % ALIGNMENT_BYTES
        at += len(data)
        if gap:
            header[f"{GAP_PREFIX}{name}"] = {"dtype": "U8", "shape": [gap], "data_offsets": [at, at + gap]}
        pieces += [data, bytes(gap)]
        at += gap
    return with_header(header, pieces)


def with_header(header: Mapping[str, Any], pieces: Sequence[bytes]) -> bytes:
    """A safetensors file whose data begin at a multiple of 64 bytes: the header is filled with spaces."""
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(_LENGTH_BYTES + len(text)) % ALIGNMENT_BYTES)
    return b"".join([len(text).to_bytes(_LENGTH_BYTES, "little"), text, *pieces])


def _invalid(error: Exception) -> GnomonError:
    reason = f"{error} is missing" if isinstance(error, KeyError) else str(error)
    message = f"The weights are not a safetensors file: {reason}."
    return bad_request("invalid_model", message, "Save them with safetensors, and add the model again.")


def _stored(file: bytes | mmap, start: int, entry: Mapping[str, Any]) -> StoredTensor:
    begin, end = (start + int(offset) for offset in entry["data_offsets"])
    if not start <= begin <= end <= len(file):
        raise ValueError(f"a tensor from {begin} to {end} of {len(file)} bytes")
    digest = hashlib.sha256(file[begin:end]).hexdigest()
    return StoredTensor(str(entry["dtype"]), tuple(int(size) for size in entry["shape"]), begin, end, digest)

"""Names of models and of their files, and the archive in which the files are uploaded.

Names that match cannot leave a folder. The archive is a tar whose first member has the SHA-256 of all others:

    SHA256SUMS              as sha256sum writes it: HEX, two spaces, the file's name; a line for each file
    program.json            regular files without folders, in any order
    weights.safetensors
    …                       then zeros, as in every tar

Without gnomon:

    sha256sum *.json *.safetensors > SHA256SUMS
    tar --format=ustar -cf model.tar SHA256SUMS *.json *.safetensors

An archive is read as it arrives and never held in memory. Links, folders, devices and extended headers are refused: nothing of
the archive but plain names and contents reaches the disk.
"""

from __future__ import annotations

import hashlib
import re
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

from gnomon_core.errors import GnomonError, bad_request

NAME = re.compile(r"[a-z0-9][a-z0-9._:-]{0,126}")
VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
FILE = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
SHA256 = re.compile(r"[0-9a-f]{64}")


def check_name(name: str, version: str) -> None:
    """Refuse what cannot name a model.

    Raises:
        GnomonError: 400 `invalid_model_name`.

    """
    if not NAME.fullmatch(name) or not VERSION.fullmatch(version):
        raise bad_request(
            "invalid_model_name",
            f"{name[:150]!r} version {version[:100]!r} cannot name a model.",
            "Use lower-case letters, digits, '.', '_', ':' and '-', beginning with a letter or digit.",
        )


MEDIA_TYPE = "application/x-tar"
SUMS = "SHA256SUMS"
MAX_FILES = 64
_BLOCK_BYTES = tarfile.BLOCKSIZE
_CHUNK_BYTES = 256 << 10
_MAX_SUMS_BYTES = 64 << 10
_REGULAR = (tarfile.REGTYPE, tarfile.AREGTYPE)


class Archive:
    """The archive of some files, as chunks; `size_bytes` is the sum of their lengths. `sha256` is by file."""

    def __init__(self, files: Mapping[str, Path], sha256: Mapping[str, str]) -> None:
        self._files = {file: (path, path.stat().st_size) for file, path in sorted(files.items())}
        self._sums = "".join(f"{sha256[file]}  {file}\n" for file in self._files).encode()
        members = (len(self._sums), *(size for _, size in self._files.values()))
        self.size_bytes = sum(_BLOCK_BYTES + size + _padding(size) for size in members) + 2 * _BLOCK_BYTES

    def __iter__(self) -> Iterator[bytes]:
        yield _header(SUMS, len(self._sums)) + self._sums + bytes(_padding(len(self._sums)))
        for file, (path, size) in self._files.items():
            yield _header(file, size)
            with path.open("rb") as content:
                while chunk := content.read(_CHUNK_BYTES):
                    yield chunk
            yield bytes(_padding(size))
        yield bytes(2 * _BLOCK_BYTES)


def _header(name: str, size: int) -> bytes:
    member = tarfile.TarInfo(name)
    member.size = size
    return member.tobuf(tarfile.GNU_FORMAT)  # sizes above 8 GiB without an extended header


def _padding(size: int) -> int:
    return -size % _BLOCK_BYTES


class Unpacker:
    """Writes the files of an archive into a folder as its bytes arrive, and compares their hashes.

    Every method raises `GnomonError`: 400 `invalid_archive` for a malformed archive, 422 `hash_mismatch` for another content.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._sums: dict[str, str] | None = None
        self._files: dict[str, Path] = {}
        self._header = bytearray()
        self._name = ""
        self._file: BinaryIO | None = None
        self._digest = hashlib.sha256()
        self._missing_bytes = 0
        self._padding_bytes = 0
        self._text = bytearray()
        self._ended = False

    def feed(self, data: bytes) -> None:
        """Take the next bytes of the archive."""
        remaining = memoryview(data)
        while remaining:
            if self._ended:
                if any(remaining):
                    raise _invalid("Data follow its end.")
                return
            if self._missing_bytes:
                remaining = self._take_content(remaining)
            elif self._padding_bytes:
                skipped = min(self._padding_bytes, len(remaining))
                self._padding_bytes -= skipped
                remaining = remaining[skipped:]
            else:
                remaining = self._take_header(remaining)

    def finish(self) -> Mapping[str, Path]:
        """The files of the whole archive, by name."""
        if not self._ended:
            raise _invalid("It is cut off.")
        absent = sorted(set(self._sums or {}) - set(self._files))
        if absent:
            raise _invalid(f"It lacks {', '.join(absent)[:300]}, which {SUMS} names.")
        return self._files

    def close(self) -> None:
        """Close the file that is being written."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _take_header(self, remaining: memoryview) -> memoryview:
        missing_bytes = _BLOCK_BYTES - len(self._header)
        self._header += remaining[:missing_bytes]
        if len(self._header) == _BLOCK_BYTES:
            block = bytes(self._header)
            self._header.clear()
            if any(block):
                self._begin(block)
            else:
                self._ended = True
        return remaining[missing_bytes:]

    def _begin(self, block: bytes) -> None:
        try:
            member = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        except tarfile.HeaderError as error:
            raise _invalid(f"It is not a tar: {error}.") from None
        if member.type not in _REGULAR or member.size < 0:
            raise _invalid(f"{member.name[:100]!r} is not a regular file with a short name.")
        self._name, self._missing_bytes, self._padding_bytes = member.name, member.size, _padding(member.size)
        if self._sums is None:
            if member.name != SUMS or member.size > _MAX_SUMS_BYTES:
                raise _invalid(f"Its first member is not {SUMS}.")
        else:
            self._begin_file(member.name)
        if not self._missing_bytes:
            self._end()

    def _begin_file(self, name: str) -> None:
        if not FILE.fullmatch(name) or name not in (self._sums or {}):
            raise _invalid(f"{name[:100]!r} is not a plain file name that {SUMS} has.")
        if name in self._files:
            raise _invalid(f"{name} is there twice.")
        self._digest = hashlib.sha256()
        self._file = (self._folder / name).open("xb")

    def _take_content(self, remaining: memoryview) -> memoryview:
        content, remaining = remaining[: self._missing_bytes], remaining[self._missing_bytes :]
        self._missing_bytes -= len(content)
        if self._file is None:
            self._text += content
        else:
            self._digest.update(content)
            self._file.write(content)
        if not self._missing_bytes:
            self._end()
        return remaining

    def _end(self) -> None:
        """Close a complete member's file, and compare its hash."""
        if self._sums is None:
            self._sums = _read_sums(bytes(self._text))
            return
        self.close()
        if self._digest.hexdigest() != self._sums[self._name]:
            raise GnomonError(
                422, "hash_mismatch", f"{self._name} does not have the SHA-256 that {SUMS} states.", "Upload the model again."
            )
        self._files[self._name] = self._folder / self._name


def _read_sums(text: bytes) -> dict[str, str]:
    sums: dict[str, str] = {}
    for line in text.decode("utf-8", "replace").splitlines():
        digest, _, name = line.partition(" ")
        name = name[1:]  # a space or, for a binary file, an asterisk
        if not SHA256.fullmatch(digest) or not FILE.fullmatch(name) or name in sums:
            raise _invalid(f"{SUMS} has the line {line[:100]!r}.")
        sums[name] = digest
    if not 0 < len(sums) <= MAX_FILES:
        raise _invalid(f"{SUMS} names {len(sums)} files; from 1 to {MAX_FILES} are taken.")
    return sums


def _invalid(problem: str) -> GnomonError:
    return bad_request(
        "invalid_archive", f"The model's archive cannot be read. {problem}", "Upload it with `gnomon models add -g`."
    )

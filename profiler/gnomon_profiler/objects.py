"""Files that never change, in a folder: written beside their place, then renamed into it.

    objects/ab/abcdef…   a file by its SHA-256, read-only
    incoming/            what is being written

A file that has been verified is not read again while its inode, size and times stay the same. Directories and files are on disk
before anything names them; truncating or writing one in place would kill every process that maps it, so nothing does.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

from gnomon_core.whole_files import make_folder, replacing

Writer: TypeAlias = Callable[[bytes], int]
_CHUNK_BYTES = 1 << 20


class ObjectFolder:
    """Content-addressed files below a folder, which several processes may read and write."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._objects, self._incoming = root / "objects", root / "incoming"
        self._verified: dict[str, tuple[int, ...]] = {}
        for directory in (self._objects, self._incoming):
            make_if_allowed(directory)

    def path(self, digest: str) -> Path:
        return self._objects / digest[:2] / digest

    def is_whole(self, digest: str, *, afresh: bool = False) -> bool:
        """Whether the file is there with this SHA-256; `afresh` reads it again even if it has been verified."""
        try:
            with self.path(digest).open("rb") as file:
                status = os.fstat(file.fileno())
                identity = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
                if not afresh and self._verified.get(digest) == identity:
                    return True
                found = hashlib.sha256()
                while chunk := file.read(_CHUNK_BYTES):
                    found.update(chunk)
        except OSError:
            return False
        if found.hexdigest() != digest:
            self._verified.pop(digest, None)
            return False
        self._verified[digest] = identity
        return True

    @contextmanager
    def writing(self) -> Iterator[None]:
        """One writer at a time; what a killed one left behind is removed."""
        with (self.root / "lock").open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            for leftover in self._incoming.iterdir():
                leftover.unlink()
            yield

    def publish(self, data: bytes, path: Path) -> None:
        """Put a file in its place, whole. While `writing`."""
        with self.incoming(path) as write:
            write(data)

    @contextmanager
    def incoming(self, path: Path) -> Iterator[Writer]:
        """A file that grows and is put in its place at the end, or not at all. While `writing`."""
        make_folder(path.parent)
        with replacing(path, durable=True, mode=0o444, aside=self._incoming) as file:
            yield file.write


def make_if_allowed(directory: Path) -> None:
    """Make a folder, unless it is another's to fill: who only reads finds nothing in it, and no volume is written to."""
    try:
        make_folder(directory)
    except OSError as error:
        if error.errno not in (errno.EROFS, errno.EACCES, errno.EPERM):
            raise

"""What the disk has been told to keep: for tests of what must outlive a power failure, which no test can make.

A file outlives it when its content was synchronised before it got its name, the folder that holds the name after that, and every
folder above that was made with it.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest


class Disk:
    """Watches what this process synchronises from now on; everything is done as it was."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._files: set[int] = set()
        self._names: dict[int, dict[str, int]] = {}
        self._synchronise = os.fsync
        patch.setattr(os, "fsync", self._fsync)

    def keeps(self, path: Path, root: Path) -> bool:
        """True if the file is there after a power failure; `root` is a folder that is there."""
        below = [path, *path.parents]
        return all(self._named(one) for one in below[: below.index(root)])

    def _named(self, path: Path) -> bool:
        return self._names.get(path.parent.stat().st_ino, {}).get(path.name) == path.stat().st_ino

    def _fsync(self, descriptor: int) -> None:
        self._synchronise(descriptor)
        status = os.fstat(descriptor)
        if stat.S_ISDIR(status.st_mode):
            with os.scandir(descriptor) as entries:
                found = {entry.name: entry.inode() for entry in entries if entry.is_dir() or entry.inode() in self._files}
            self._names[status.st_ino] = found
        else:
            self._files.add(status.st_ino)

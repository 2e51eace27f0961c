"""Durability checks by recorded `fsync` calls: a test cannot cut the power, but can check what was synchronised.

A file survives a power failure if its content was synchronised before its rename, its folder after that, and so was every parent
folder that was created with it.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest


class Disk:
    """Records the `fsync` calls of this process, and executes them."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._files: set[int] = set()
        self._names: dict[int, dict[str, int]] = {}
        self._synchronise = os.fsync
        patch.setattr(os, "fsync", self._fsync)

    def keeps(self, path: Path, root: Path) -> bool:
        """True if the file would survive a power failure; `root` is a folder that existed before."""
        below = [path, *path.parents]
        return all(self._named(folder) for folder in below[: below.index(root)])

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

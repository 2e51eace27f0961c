"""Atomic replacement of files: a reader finds the old content or the new, also after a writer was killed.

    .new-… beside it ──content, mode──▶ synchronised? ──renamed──▶ the file ──▶ its folder synchronised?

`durable` is for what must outlive a power failure: what others rely on (epochs, user ids) and what nobody could make again.
Without it, such a failure may leave the old content, or none. A disk takes milliseconds for it; an event loop should not wait for
many.

A killed writer leaves a `.new-…` file, which is never read.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

_USUAL_MODE = 0o666


@contextmanager
def replacing(path: Path, *, durable: bool, mode: int | None = None, aside: Path | None = None) -> Iterator[BinaryIO]:
    """Open a new file, which replaces the one at `path` when the block ends, or is removed if the block raises.

    It has this `mode`, whatever the umask is; without one, what that leaves. `aside` is another folder of the same file system to
    write it in.

    Raises:
        OSError: it cannot be written there. The old content stays.

    """
    new = (path.parent if aside is None else aside) / f".new-{secrets.token_hex(8)}"
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _USUAL_MODE if mode is None else mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            if mode is not None:
                os.fchmod(descriptor, mode)
            yield file
            file.flush()
            if durable:
                os.fsync(descriptor)
        new.replace(path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise
    if durable:
        # fsync(2): a file that is synchronised may still be missing from its folder after a power failure.
        _synchronise(path.parent)


def replace_file(path: Path, content: str | bytes, *, durable: bool, mode: int | None = None) -> None:
    """Give a file this content; a text is written in UTF-8. As `replacing`."""
    with replacing(path, durable=durable, mode=mode) as file:
        file.write(content.encode() if isinstance(content, str) else content)


def move_file(file: Path, path: Path, *, mode: int) -> None:
    """Move a whole file of the same file system to its place, with this mode, so that it outlives a power failure there.

    Raises:
        OSError: it cannot be moved. The old content stays.

    """
    descriptor = os.open(file, os.O_RDONLY)
    try:
        os.fchmod(descriptor, mode)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    file.replace(path)
    _synchronise(path.parent)


def make_folder(folder: Path, mode: int = 0o777) -> None:
    """Make a folder that outlives a power failure, and those above it that are missing. It has `mode`, less the umask."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    folder.mkdir(mode, exist_ok=True)
    _synchronise(folder.parent)


def _synchronise(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

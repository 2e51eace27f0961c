"""Folders below another one, reached name by name: no link on the way is followed, whoever owns what lies there.

A pod's volumes lie in folders of the kubelet's, but a container that runs as root may write into the last of them. We are root
on the node: a path that we open by its name could lead anywhere by then, one that we walk cannot.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def opened(root: Path, names: Sequence[str]) -> Iterator[int]:
    """A descriptor of a folder below the root, closed on the way out.

    Raises:
        OSError: something on the way is missing, or is no folder.

    """
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for name in names:
            below = os.open(name, _FOLDER, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = below
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def made(parent: int, name: str, mode: int) -> Iterator[int]:
    """A folder of ours in another one, made unless it is there.

    Raises:
        OSError: it cannot be made, is no folder, or is not ours.

    """
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, mode, dir_fd=parent)
    descriptor = os.open(name, _FOLDER, dir_fd=parent)
    try:
        if os.fstat(descriptor).st_uid != os.geteuid():
            raise PermissionError(f"{name} belongs to another user")
        os.fchmod(descriptor, mode)
        yield descriptor
    finally:
        os.close(descriptor)


def removed(parent: int, name: str) -> None:
    """Remove a folder with all that is in it, or a file; links are removed and not followed. Nothing happens without one.

    Raises:
        OSError: it cannot be removed.

    """
    try:
        shutil.rmtree(name, dir_fd=parent)
    except FileNotFoundError:
        return
    except NotADirectoryError:
        os.unlink(name, dir_fd=parent)
    except OSError:
        # rmtree refuses a link with an error of its own.
        if not Path(f"/proc/self/fd/{parent}", name).is_symlink():
            raise
        os.unlink(name, dir_fd=parent)

"""A full disk as an answer, to requests that bring files."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from gnomon_core.errors import GnomonError

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def full_disk_refuses(what: str) -> Iterator[None]:
    """Turn the error of a full disk into 507 `no_disk` for a "model" or a "build"."""
    try:
        yield
    except OSError as error:
        if error.errno not in _NO_SPACE:
            raise
        raise no_disk(what) from error


def no_disk(what: str) -> GnomonError:
    """The answer to who brings this."""
    return GnomonError(
        507, "no_disk", f"The server has not enough disk space for this {what}.", "Make room there, and try again."
    )

"""The newest leader whom this node has obeyed: an older one is refused, also after a restart, and after a power failure.

A controller whose lease has gone may not know it yet. Its successor's first question carries a higher epoch, and from then on
whatever the old one asks for is answered with 409. Epochs are counted by one installation's Lease. Another one counts anew, and
has another token: the file is named by that, or a node would obey nobody until the new count has passed the old.
"""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path

from gnomon_core.errors import GnomonError
from gnomon_core.whole_files import replace_file

DIGITS = 16


def file_of(folder: Path, token: str | None) -> Path:
    """Where the newest epoch of the installation with this token is kept."""
    return folder / f"epoch-{hashlib.sha256((token or '').encode()).hexdigest()[:DIGITS]}"


class Epochs:
    """The number, and the file that keeps it."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.newest = 0
        with contextlib.suppress(FileNotFoundError, ValueError):
            self.newest = int(file.read_text(encoding="ascii"))

    def obey(self, epoch: int) -> None:
        """Take orders from this epoch on.

        Raises:
            GnomonError: 409 `stale_epoch`: a newer one has been obeyed.

        """
        if epoch < self.newest:
            text = f"This order is of epoch {epoch}; the node has obeyed {self.newest}."
            raise GnomonError(409, "stale_epoch", text, "Another controller leads by now.")
        if epoch > self.newest:
            replace_file(self._file, str(epoch), durable=True)
            self.newest = epoch

"""What the autoscaler has learned, kept over restarts in a file of the state folder."""

from __future__ import annotations

import json
import logging
from pathlib import Path

from gnomon_autoscaler.controller import Autoscaler
from gnomon_core.whole_files import replace_file

_LOG = logging.getLogger("gnomon")


class KeptScaling:
    """The file of one autoscaler. It is replaced as a whole."""

    def __init__(self, autoscaler: Autoscaler, folder: Path) -> None:
        self._autoscaler, self._file = autoscaler, folder / "autoscaler.json"

    def restore(self) -> None:
        """Go on from what was saved, if anything was."""
        try:
            self._autoscaler.import_state(json.loads(self._file.read_bytes()))
        except FileNotFoundError:
            return
        except (ValueError, KeyError, TypeError):
            _LOG.warning("%s cannot be read: the autoscaler starts afresh", self._file)

    def save(self) -> None:
        """Write what is known now."""
        replace_file(self._file, json.dumps(self._autoscaler.export_state()), durable=False)

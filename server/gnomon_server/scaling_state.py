"""The state that scaling policies have learned, kept over restarts in a file and transferred from the leader to other replicas.

    leader: windows and policy states of some functions ─ with each report request ─▶ replica keeps the newest ─▶ becomes leader

The leader sends the state of a few functions with each report request, so that a thousand idle functions are sent within fifteen
seconds. A function under load takes about 20 kB and is sent whenever its turn comes.
"""

from __future__ import annotations

import json
import logging
from bisect import bisect_right
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, cast

from gnomon_autoscaler.controller import Autoscaler
from gnomon_core.atomic_files import replace_file

MOST, ENOUGH_BYTES = 20, 8192
"""Functions in one message; fewer once their states take so many bytes. Encoding them takes the event loop 1 to 2 ms."""
_LOG = logging.getLogger("gnomon")


class SavedScalingState:
    """The state of one autoscaler in a file of the state folder, which is replaced atomically."""

    def __init__(self, autoscaler: Autoscaler, folder: Path) -> None:
        self._autoscaler, self._file = autoscaler, folder / "autoscaler.json"

    def restore(self) -> None:
        """Load the saved state, if there is any."""
        try:
            self._autoscaler.import_state(json.loads(self._file.read_bytes()))
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            _LOG.warning("the scaling state %s cannot be read: the autoscaler starts without it", self._file)

    def save(self) -> None:
        """Save the current state, if the disk takes it: the end of the gateway must go on."""
        try:
            replace_file(self._file, json.dumps(self._autoscaler.export_state()), durable=False)
        except OSError as error:
            _LOG.warning("the scaling state cannot be saved in %s: %s", self._file, error)


class ScalingStateTransfer:
    """Sends the autoscaler's state while this replica leads (`leads`), and receives it while another one does."""

    def __init__(self, autoscaler: Autoscaler, leads: Callable[[], bool]) -> None:
        self._autoscaler, self._leads = autoscaler, leads
        self._last: dict[str, str] = {}
        """The function whose state was sent last, by the replica's address."""

    def next(self, address: str) -> Mapping[str, Any] | None:
        """The state to send to the replica at this address next; None if there is none or another replica leads."""
        names = self._autoscaler.known() if self._leads() else []
        if not names:
            return None
        begin = bisect_right(names, self._last.get(address, ""))
        states: dict[str, Any] = {}
        size_bytes = 0
        for name in (names[begin:] + names[:begin])[:MOST]:
            self._last[address] = name
            state = cast("dict[str, Any]", self._autoscaler.export_state([name])["functions"])
            states |= state
            size_bytes += len(json.dumps(state))
            if size_bytes >= ENOUGH_BYTES:
                break
        return {**self._autoscaler.export_state([]), "functions": states}

    def keep(self, addresses: Collection[str]) -> None:
        """Discard the progress of all replicas but those at these addresses."""
        for address in self._last.keys() - addresses:
            del self._last[address]

    def take(self, document: Mapping[str, Any]) -> None:
        """Import a document that the leader has sent.

        Raises:
            KeyError, TypeError, ValueError, AttributeError: the document is not the state of an autoscaler.

        """
        if not self._leads():
            self._autoscaler.import_state(dict(document))

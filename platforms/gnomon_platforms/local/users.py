"""A user id of its own for every function, the same after a restart and never given twice.

Instances of two functions cannot send each other signals, read each other's files or look into each other's memory. Only root can
give a process another user; started as somebody else, functions run as that somebody.
"""

from __future__ import annotations

import ctypes
import json
import os
from pathlib import Path

from gnomon_core.whole_files import replace_file

FIRST_UID = 200_000
LAST_UID = 299_999
_PR_SET_DUMPABLE = 4


class Users:
    """The ids, kept in `users.json` in the state directory. A uid that has been returned is on disk."""

    def __init__(self, state_dir: Path) -> None:
        self._file = state_dir / "users.json"
        self._uids: dict[str, int] = json.loads(self._file.read_text(encoding="utf-8")) if self._file.exists() else {}

    def uid(self, owner: str) -> int:
        """The user id of a function, `name.namespace`, or of anything else that has a name."""
        if owner not in self._uids:
            uid = max(self._uids.values(), default=FIRST_UID - 1) + 1
            if uid > LAST_UID:
                raise RuntimeError(
                    f"all user ids from {FIRST_UID} to {LAST_UID} are taken; remove {self._file} while nothing runs"
                )
            self._save({**self._uids, owner: uid})
        return self._uids[owner]

    def _save(self, uids: dict[str, int]) -> None:
        replace_file(self._file, json.dumps(uids), durable=True)
        self._uids = uids


def function_users() -> range:
    """The user ids that functions of this process run under; empty where they can only run as we do."""
    return range(FIRST_UID, LAST_UID + 1) if os.geteuid() == 0 else range(0)


def forbid_inspection() -> None:
    """Close our environment and memory to other processes of the same user. Leaves no core dumps."""
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)

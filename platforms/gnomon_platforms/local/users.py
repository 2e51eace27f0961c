"""A user id of its own for every function, the same after a restart and never given twice.

Instances of two functions cannot send each other signals, read each other's files or look into each other's memory. Only root can
give a process another user; started as somebody else, functions run as that somebody.
"""

from __future__ import annotations

import ctypes
import json
import os
from pathlib import Path

from gnomon_core.errors import GnomonError
from gnomon_core.whole_files import replace_file

FIRST_UID = 200_000
LAST_UID = 299_999
_PR_SET_DUMPABLE = 4


class Users:
    """The ids, kept in `users.json` in the state directory. A uid that has been returned is on disk."""

    def __init__(self, state_dir: Path) -> None:
        self._file = state_dir / "users.json"
        self._uids = _read(self._file)

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


def _read(file: Path) -> dict[str, int]:
    """The ids in a file; none where there is no file.

    Raises:
        GnomonError: 500 `users_unreadable`: with an id that is another's, or root's, a function would be somebody else.

    """
    try:
        found = json.loads(file.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise _unreadable(file, str(error)) from None
    if not isinstance(found, dict) or not all(type(uid) is int and FIRST_UID <= uid <= LAST_UID for uid in found.values()):
        raise _unreadable(file, f"it is not an object of numbers from {FIRST_UID} to {LAST_UID}")
    if len(set(found.values())) < len(found):
        raise _unreadable(file, "it gives one number to two functions")
    return found


def _unreadable(file: Path, reason: str) -> GnomonError:
    return GnomonError(
        500,
        "users_unreadable",
        f"The functions' user ids in {file} cannot be read: {reason}.",
        "Restore the file, or remove it while nothing of Gnomon runs: functions get new ids then, and lose nothing.",
    )


def function_users() -> range:
    """The user ids that functions of this process run under; empty where they can only run as we do."""
    return range(FIRST_UID, LAST_UID + 1) if os.geteuid() == 0 else range(0)


def private_folders() -> tuple[Path, ...]:
    """What functions and builds need not see of the user who runs us: keys, credentials, what a shell runs when it begins."""
    home = Path.home().resolve()
    return () if home == Path(home.root) else (home,)


def forbid_inspection() -> None:
    """Close our environment and memory to other processes of the same user. Leaves no core dumps."""
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)

"""How every durable file of the gateway is opened: SQLite, so that what a call acknowledged outlives a SIGKILL or a power cut.

The write-ahead log is synchronised at each commit; deleted content is overwritten, because it may be a secret; only the owner may
read the file, and SQLite gives its companions (`-wal`, `-shm`) the same mode.
"""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from gnomon_core.errors import GnomonError

BUSY_TIMEOUT_S = 5.0


def open_database(path: Path, schema: str, version: int) -> sqlite3.Connection:
    """A connection that any thread may use, one at a time; the tables are made with `schema` where the file is new.

    Every statement is its own transaction unless one is begun.

    Raises:
        GnomonError: 500 `store_unreadable`, for a file that is no such database or that another version wrote.

    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
    path.chmod(0o600)
    connection = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)
    try:
        _prepare(connection, path, schema, version)
    except BaseException:
        connection.close()
        raise
    return connection


def _prepare(connection: sqlite3.Connection, path: Path, schema: str, version: int) -> None:
    try:
        for pragma in ("journal_mode = WAL", "synchronous = FULL", "secure_delete = ON"):
            connection.execute(f"PRAGMA {pragma}")
        found = connection.execute("PRAGMA user_version").fetchone()[0]
        if found == 0:
            connection.executescript(f"BEGIN; {schema} PRAGMA user_version = {version}; COMMIT;")
            found = version
    except sqlite3.DatabaseError as error:
        raise _unreadable(path, str(error)) from error
    if found != version:
        raise _unreadable(path, f"it has schema {found}, this version reads {version}")


def _unreadable(path: Path, reason: str) -> GnomonError:
    hint = "Use the version of Gnomon that wrote it, or another --state folder."
    return GnomonError(500, "store_unreadable", f"{path} cannot be used: {reason}.", hint)

"""The embedded store of functions, secrets, namespaces and the models of applications: one SQLite file beside the gateway.

A write returns once SQLite has synchronised its write-ahead log: acknowledged changes survive a SIGKILL or a power cut, and a
torn last write is rolled back when the file is opened. Deleted content is overwritten, because it may be a secret, and only the
owner may read the file; SQLite gives its `-wal` and `-shm` files the same mode.

A row that this version of Gnomon cannot read is left in the file and reported, with the file and the row, so that one bad row
never prevents the others from being served. A file of an earlier version gets its new tables when it is opened. `open_database`
opens every durable file of the gateway in this way.
"""

from __future__ import annotations

import json
import logging
import os
import sqlite3
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

from gnomon_core.applications import MeasuredVariant, RegisteredModel, variants_from_json, variants_to_json
from gnomon_core.errors import GnomonError
from gnomon_core.functions import FunctionKey, read_deployment
from gnomon_core.interfaces import StoredFunction, StoredNamespace, StoreHealth

SCHEMA_VERSION = 2

_SCHEMA = """
CREATE TABLE function (
    namespace TEXT NOT NULL, name TEXT NOT NULL, version INTEGER NOT NULL, created_at REAL NOT NULL, document TEXT NOT NULL,
    PRIMARY KEY (namespace, name)
) WITHOUT ROWID;
CREATE TABLE secret (
    namespace TEXT NOT NULL, name TEXT NOT NULL, value BLOB NOT NULL,
    PRIMARY KEY (namespace, name)
);
CREATE TABLE namespace (
    name TEXT NOT NULL PRIMARY KEY, labels TEXT NOT NULL, annotations TEXT NOT NULL
) WITHOUT ROWID;
"""
_MODELS = """
CREATE TABLE registered_model (
    namespace TEXT NOT NULL, application TEXT NOT NULL, model TEXT NOT NULL, accuracy REAL, registered_at REAL NOT NULL,
    variants TEXT NOT NULL,
    PRIMARY KEY (namespace, application, model)
) WITHOUT ROWID;
"""
_UPGRADES = {1: _MODELS}
"""The tables that a file of each earlier version lacks."""

_log = logging.getLogger(__name__)


class SqliteStore:
    """A `FunctionStore` and a `MetadataStore` in one file.

    Any thread may call it; one connection does the work, one call at a time.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._watchers: list[Callable[[FunctionKey], None]] = []
        self._connection = open_database(path, _SCHEMA + _MODELS, SCHEMA_VERSION, _UPGRADES)

    def close(self) -> None:
        """Write everything into the main file and let it go."""
        with self._lock:
            self._connection.close()

    def put_function(self, stored: StoredFunction) -> None:
        key = stored.spec.key
        document = json.dumps(stored.spec.raw, ensure_ascii=False)
        self._execute(
            "INSERT INTO function (namespace, name, version, created_at, document) VALUES (?, ?, ?, ?, ?)"
            " ON CONFLICT DO UPDATE SET"
            " version = excluded.version, created_at = excluded.created_at, document = excluded.document",
            (key.namespace, key.name, stored.version, stored.created_at, document),
        )
        self._tell(key)

    def delete_function(self, key: FunctionKey) -> bool:
        there = self._execute("DELETE FROM function WHERE namespace = ? AND name = ?", (key.namespace, key.name)) > 0
        if there:
            self._tell(key)
        return there

    def functions(self) -> Sequence[StoredFunction]:
        rows = self._query("SELECT namespace, name, version, created_at, document FROM function ORDER BY namespace, name")
        return [stored for row in rows if (stored := _read_function(self._path, row)) is not None]

    def put_secret(self, key: FunctionKey, value: bytes) -> None:
        self._execute(
            "INSERT INTO secret (namespace, name, value) VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET value = excluded.value",
            (key.namespace, key.name, value),
        )

    def secret(self, key: FunctionKey) -> bytes | None:
        rows = self._query("SELECT value FROM secret WHERE namespace = ? AND name = ?", (key.namespace, key.name))
        return bytes(rows[0][0]) if rows else None

    def delete_secret(self, key: FunctionKey) -> bool:
        return self._execute("DELETE FROM secret WHERE namespace = ? AND name = ?", (key.namespace, key.name)) > 0

    def secrets(self, namespace: str) -> Sequence[str]:
        return [row[0] for row in self._query("SELECT name FROM secret WHERE namespace = ? ORDER BY name", (namespace,))]

    def put_namespace(self, stored: StoredNamespace) -> None:
        self._execute(
            "INSERT INTO namespace (name, labels, annotations) VALUES (?, ?, ?)"
            " ON CONFLICT DO UPDATE SET labels = excluded.labels, annotations = excluded.annotations",
            (stored.name, json.dumps(dict(stored.labels)), json.dumps(dict(stored.annotations))),
        )

    def delete_namespace(self, name: str) -> bool:
        return self._execute("DELETE FROM namespace WHERE name = ?", (name,)) > 0

    def namespaces(self) -> Sequence[StoredNamespace]:
        rows = self._query("SELECT name, labels, annotations FROM namespace ORDER BY name")
        return [_read_namespace(self._path, *row) for row in rows]

    def put_model(self, registered: RegisteredModel) -> None:
        key = registered.application
        variants = json.dumps(variants_to_json(registered.variants))
        self._execute(
            "INSERT INTO registered_model (namespace, application, model, accuracy, registered_at, variants)"
            " VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET accuracy = excluded.accuracy,"
            " registered_at = excluded.registered_at, variants = excluded.variants",
            (key.namespace, key.name, registered.model, registered.accuracy, registered.registered_at, variants),
        )

    def delete_model(self, application: FunctionKey, model: str) -> bool:
        return (
            self._execute(
                "DELETE FROM registered_model WHERE namespace = ? AND application = ? AND model = ?",
                (application.namespace, application.name, model),
            )
            > 0
        )

    def registered_models(self) -> Sequence[RegisteredModel]:
        rows = self._query(
            "SELECT namespace, application, model, accuracy, registered_at, variants FROM registered_model"
            " ORDER BY namespace, application, model"
        )
        return [_read_model(self._path, row) for row in rows]

    def watch_models(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Do nothing: no other process changes the file."""
        del changed
        return lambda: None

    def health(self) -> StoreHealth:
        return StoreHealth("sqlite")

    def watch(self, changed: Callable[[FunctionKey], None]) -> Callable[[], None]:
        with self._lock:
            self._watchers.append(changed)

        def stop() -> None:
            with self._lock, suppress(ValueError):
                self._watchers.remove(changed)

        return stop

    def _tell(self, key: FunctionKey) -> None:
        with self._lock:
            watchers = tuple(self._watchers)
        for changed in watchers:  # outside the lock, because a watcher may read the store
            changed(key)

    def _execute(self, statement: str, values: tuple[Any, ...]) -> int:
        with self._lock:
            try:
                return self._connection.execute(statement, values).rowcount
            except sqlite3.OperationalError as error:
                raise store_failed(error) from error
            except sqlite3.DatabaseError as error:
                raise _damaged(self._path, error) from error

    def _query(self, statement: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        with self._lock:
            return read_rows(self._connection, self._path, statement, values)


def _read_function(path: Path, row: tuple[Any, ...]) -> StoredFunction | None:
    namespace, name, version, created_at, document = row
    try:
        spec = read_deployment(json.loads(document), default_namespace=namespace)
    except (GnomonError, ValueError, TypeError) as error:
        _log.error("%s: the stored function %s.%s cannot be read and is not served: %s", path, name, namespace, error)
        return None
    return StoredFunction(spec, version, created_at)


def _read_namespace(path: Path, name: str, labels: str, annotations: str) -> StoredNamespace:
    """The namespace of a row. It is served without labels and annotations that cannot be read, because functions may be in it."""
    try:
        return StoredNamespace(name, _read_texts(labels), _read_texts(annotations))
    except (ValueError, TypeError) as error:
        _log.error("%s: labels and annotations of the namespace %s cannot be read and are left out: %s", path, name, error)
        return StoredNamespace(name)


def _read_texts(document: str) -> dict[str, str]:
    """An object of texts as JSON.

    Raises:
        ValueError, TypeError: the document is something else.

    """
    texts = json.loads(document)
    if not isinstance(texts, dict) or not all(isinstance(text, str) for text in texts.values()):
        raise ValueError("it is not an object of texts")
    return texts


def _read_model(path: Path, row: tuple[Any, ...]) -> RegisteredModel:
    """The registered model of a row. Measurements that cannot be read are left out: they are taken again."""
    namespace, application, model, accuracy, registered_at, variants = row
    measured: dict[str, MeasuredVariant] = {}
    try:
        measured = variants_from_json(json.loads(variants))
    except (ValueError, KeyError, TypeError, AttributeError):
        _log.warning(
            "%s: the measurements of %s for the application %s cannot be read and are taken again", path, model, application
        )
    return RegisteredModel(FunctionKey(application, namespace), model, accuracy, registered_at, measured)


BUSY_TIMEOUT_S = 5.0
_NO_UPGRADES: Mapping[int, str] = MappingProxyType({})


INCREMENTAL = 2
"""The `auto_vacuum` of a file from which free pages can be given back to the disk."""
_WAL_BYTES = 4 << 20
"""The write-ahead log is cut to this size when it begins anew: a large transaction must not leave it large."""


def open_database(
    path: Path, schema: str, version: int, upgrades: Mapping[int, str] = _NO_UPGRADES, *, shrinks: bool = False
) -> sqlite3.Connection:
    """A connection that any thread may use, one at a time; the tables are made with `schema` where the file is new.

    With `shrinks`, free pages of the file can be given back to the disk (`auto_vacuum`), if it is new or rebuilt by VACUUM.
    `upgrades` are the statements that turn a file of an earlier version into one of the next. Every statement is its own
    transaction unless one is begun.

    Raises:
        GnomonError: 500 `store_unreadable`, for a file that is no such database or that another version wrote.

    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
    path.chmod(0o600)
    connection = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)
    try:
        _prepare(connection, path, schema, version, upgrades, shrinks=shrinks)
    except BaseException:
        connection.close()
        raise
    return connection


def read_rows(connection: sqlite3.Connection, path: Path, statement: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """All rows of a query.

    Raises:
        GnomonError: 500 `store_unreadable`, where the file's pages are damaged.

    """
    try:
        return connection.execute(statement, values).fetchall()
    except sqlite3.DatabaseError as error:
        raise _damaged(path, error) from error


def store_failed(error: sqlite3.Error) -> GnomonError:
    """507 for a write that the disk refused."""
    return GnomonError(507, "store_failed", f"Nothing was stored: {error}.", "Make room on the disk that holds the state folder.")


def _prepare(
    connection: sqlite3.Connection, path: Path, schema: str, version: int, upgrades: Mapping[int, str], *, shrinks: bool
) -> None:
    # Before the first page is written, as which the change to a write-ahead log counts.
    vacuum = ("auto_vacuum = INCREMENTAL",) if shrinks else ()
    try:
        for pragma in (
            *vacuum,
            "journal_mode = WAL",
            f"journal_size_limit = {_WAL_BYTES}",
            "synchronous = FULL",
            "secure_delete = ON",
        ):
            connection.execute(f"PRAGMA {pragma}")
        schema_version = connection.execute("PRAGMA user_version").fetchone()[0]
        if schema_version == 0:
            connection.executescript(f"BEGIN; {schema} PRAGMA user_version = {version}; COMMIT;")
            schema_version = version
        while schema_version in upgrades:
            connection.executescript(
                f"BEGIN IMMEDIATE; {upgrades[schema_version]} PRAGMA user_version = {schema_version + 1}; COMMIT;"
            )
            schema_version += 1
    except sqlite3.DatabaseError as error:
        raise _unreadable(path, str(error)) from error
    if schema_version != version:
        raise _unreadable(path, f"it has schema {schema_version}, this version reads {version}")


def _unreadable(
    path: Path, reason: str, hint: str = "Use the version of Gnomon that wrote it, or another --state folder."
) -> GnomonError:
    return GnomonError(500, "store_unreadable", f"{path} cannot be used: {reason}.", hint)


def _damaged(path: Path, error: sqlite3.Error) -> GnomonError:
    return _unreadable(path, str(error), "Restore the file from a backup, or use another --state folder.")

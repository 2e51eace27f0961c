"""Asynchronous calls: a call, the answer of its function, and the file of unfinished calls.

A call that is accepted is one row; the row is deleted once the call is finished. Writes are grouped: those requested during a
commit go into the next one, so that a burst of calls shares the disk's synchronisations. A stored call reaches its function
through `Invoke`, on the same path inside the gateway as `/function/…`.

The file shrinks after a burst: while no write waits, pages of deleted calls are given back to the disk, some at a time.

A row that cannot be read is left in the file and reported; the other calls are executed.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sqlite3
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from gnomon_core.errors import INTERNAL_HEADER, GnomonError
from gnomon_core.functions import FunctionKey
from gnomon_gateway.http.headers import DEADLINE_HEADER, read_deadline_s
from gnomon_gateway.store import INCREMENTAL, open_database, read_rows, store_failed

_LOG = logging.getLogger(__name__)
SCHEMA_VERSION = 1
_SCHEMA = """
CREATE TABLE call (
    id INTEGER PRIMARY KEY, call_id TEXT NOT NULL, name TEXT NOT NULL, namespace TEXT NOT NULL, path TEXT NOT NULL,
    query TEXT NOT NULL, headers TEXT NOT NULL, body BLOB NOT NULL, body_bytes INTEGER NOT NULL, callback_url TEXT NOT NULL,
    accepted_at REAL NOT NULL, tried INTEGER NOT NULL DEFAULT 0,
    status INTEGER, answer_headers TEXT, answer BLOB, duration_s REAL
);
"""

KEPT_FREE_PAGES = 1024
"""Free pages that stay in the file for the next calls: 4 MiB."""
GIVEN_BACK_PAGES = 256
"""Pages that are given back at a time, 1 MiB: a write waits tens of milliseconds for it at most."""
QUICK_REBUILD_BYTES = 64 << 20
"""A file of an earlier version is rebuilt when it is opened, if the calls in it are not larger than this: a second or less."""


@dataclass(frozen=True, slots=True)
class Call:
    """An asynchronous call without its bodies. `tried` counts finished attempts; `answered`: only the callback is left.

    `body_bytes` is the length of the body that is stored: the request's, or once it is answered that of the answer.
    """

    call_id: str
    function: FunctionKey
    path: str
    query: str
    headers: Headers
    body_bytes: int
    callback_url: str
    accepted_at: float
    id: int = 0
    tried: int = 0
    answered: bool = False


class CallStore:
    """The file of calls. Coroutines return when their change is on disk."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection = open_database(path, _SCHEMA, SCHEMA_VERSION, shrinks=True)
        self._rebuild_if_it_cannot_shrink()
        # Reads and commits run in threads; a SQLite connection may be used by one thread at a time.
        self._lock = threading.Lock()
        self._waiting: list[tuple[str, tuple[Any, ...], asyncio.Future[int]]] = []
        self._committing: asyncio.Task[None] | None = None
        self._closing = False

    async def close(self) -> None:
        """Commit the pending writes and close the file."""
        self._closing = True
        if self._committing is not None:
            await self._committing
        with self._lock:
            self._connection.close()

    async def add(self, call: Call, body: bytes) -> Call:
        """Store a call; returns the call with its id."""
        columns = (
            call.call_id,
            call.function.name,
            call.function.namespace,
            call.path,
            call.query,
            json.dumps(list(call.headers)),
            body,
            call.body_bytes,
            call.callback_url,
            call.accepted_at,
        )
        statement = (
            "INSERT INTO call (call_id, name, namespace, path, query, headers, body, body_bytes, callback_url, accepted_at)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
        )
        return replace(call, id=await self._write(statement, columns))

    async def note_try(self, call: Call) -> Call:
        """Store that one more attempt has finished."""
        tried = replace(call, tried=call.tried + 1)
        await self._write("UPDATE call SET tried = ? WHERE id = ?", (tried.tried, call.id))
        return tried

    async def note_answer(self, call: Call, answer: FunctionAnswer, duration_s: float) -> Call:
        """Store the answer for the callback, and delete the request's body, which is not needed any more."""
        await self._write(
            "UPDATE call SET status = ?, answer_headers = ?, answer = ?, duration_s = ?, body = x'', body_bytes = ?, tried = 0"
            " WHERE id = ?",
            (answer.status, json.dumps(list(answer.headers)), answer.body, duration_s, len(answer.body), call.id),
        )
        return replace(call, answered=True, tried=0, body_bytes=len(answer.body))

    async def finish(self, call: Call) -> None:
        """Delete a finished call."""
        await self._write("DELETE FROM call WHERE id = ?", (call.id,))

    async def body(self, call: Call) -> bytes:
        rows = await self._read("SELECT body FROM call WHERE id = ?", (call.id,))
        return bytes(rows[0][0])

    async def answer(self, call: Call) -> tuple[FunctionAnswer, float]:
        """The answer of an answered call, and how long it took in seconds."""
        rows = await self._read("SELECT status, answer_headers, answer, duration_s FROM call WHERE id = ?", (call.id,))
        status, headers, body, duration_s = rows[0]
        return FunctionAnswer(status, _pairs(headers), bytes(body)), duration_s

    async def unfinished(self) -> list[Call]:
        """All unfinished calls, oldest first, without those whose rows cannot be read."""
        rows = await self._read(
            "SELECT call_id, name, namespace, path, query, headers, body_bytes, callback_url, accepted_at, id, tried, status,"
            " answer_headers FROM call ORDER BY id"
        )
        return [call for row in rows if (call := self._read_call(row)) is not None]

    def _read_call(self, row: tuple[Any, ...]) -> Call | None:
        try:
            return _call(row)
        except (ValueError, TypeError) as error:
            call_id, row_id = row[0], row[9]
            _LOG.error(
                "%s: the call %s in row %s cannot be read and is not executed; it stays in the file: %s",
                self._path,
                call_id,
                row_id,
                error,
            )
            return None

    async def _read(self, statement: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        def read() -> list[tuple[Any, ...]]:
            with self._lock:
                return read_rows(self._connection, self._path, statement, values)

        return await asyncio.to_thread(read)

    async def _write(self, statement: str, values: tuple[Any, ...]) -> int:
        written: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting.append((statement, values, written))
        if self._committing is None:
            self._committing = asyncio.create_task(self._commit_groups())
        return await written

    async def _commit_groups(self) -> None:
        try:
            while self._waiting:
                # Group commit: writes that are requested during a commit share the next fsync.
                group, self._waiting = self._waiting, []
                try:
                    results = await asyncio.to_thread(self._commit, group)
                except sqlite3.Error as error:
                    _settle(group, [store_failed(error)] * len(group))
                else:
                    _settle(group, results)
                while not self._waiting and not self._closing and await asyncio.to_thread(self._give_back):
                    pass  # a write that comes meanwhile goes first
        finally:
            self._committing = None

    def _commit(self, group: Sequence[tuple[str, tuple[Any, ...], object]]) -> list[int]:
        with self._lock:
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                results = [self._connection.execute(statement, values).lastrowid or 0 for statement, values, _ in group]
                self._connection.execute("COMMIT")
            except BaseException:
                # SQLite has rolled back by itself after some errors, such as a full disk.
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise
            return results

    def _give_back(self) -> bool:
        """Give some free pages back to the disk. Returns whether there are more."""
        with self._lock:
            free = self._pragma("freelist_count") - KEPT_FREE_PAGES
            if free <= 0 or self._pragma("auto_vacuum") != INCREMENTAL:
                return False
            try:
                # `execute` takes one step, which would give back one page.
                self._connection.executescript(f"PRAGMA incremental_vacuum({min(free, GIVEN_BACK_PAGES)})")
            except sqlite3.Error as error:
                _LOG.warning("%s keeps the space of deleted calls for now: %s", self._path, error)
                return False
            return free > GIVEN_BACK_PAGES

    def _rebuild_if_it_cannot_shrink(self) -> None:
        """Rebuild a file that an earlier version made, which did not give back space, unless that would take long."""
        free, pages = self._pragma("freelist_count"), self._pragma("page_count")
        if self._pragma("auto_vacuum") == INCREMENTAL or (pages - free) * self._pragma("page_size") > QUICK_REBUILD_BYTES:
            return
        try:
            self._connection.execute("VACUUM")
        except sqlite3.Error as error:
            _LOG.warning("%s keeps the space of deleted calls: %s", self._path, error)

    def _pragma(self, name: str) -> int:
        return int(read_rows(self._connection, self._path, f"PRAGMA {name}")[0][0])


def _settle(group: Sequence[tuple[str, object, asyncio.Future[int]]], results: Sequence[int | GnomonError]) -> None:
    for (_, _, written), result in zip(group, results, strict=True):
        if written.done():  # its waiter was cancelled; the write stands
            continue
        if isinstance(result, GnomonError):
            written.set_exception(result)
        else:
            written.set_result(result)


def _pairs(text: str) -> tuple[tuple[str, str], ...]:
    """Header lines.

    Raises:
        ValueError, TypeError: the text is something else.

    """
    return tuple([(str(name), str(value)) for name, value in json.loads(text)])


def _call(row: tuple[Any, ...]) -> Call:
    call_id, name, namespace, path, query, headers, body_bytes, callback_url, accepted_at, row_id, tried, status, answer = row
    if status is not None:
        _pairs(answer)  # the headers of the answer, which its callback carries
    return Call(
        call_id=call_id,
        function=FunctionKey(name, namespace),
        path=path,
        query=query,
        headers=_pairs(headers),
        body_bytes=int(body_bytes),
        callback_url=callback_url,
        accepted_at=float(accepted_at),
        id=row_id,
        tried=tried,
        answered=status is not None,
    )


Headers: TypeAlias = Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class FunctionAnswer:
    """A whole response, the function's or the gateway's."""

    status: int
    headers: Headers
    body: bytes

    @property
    def is_ours(self) -> bool:
        """Return whether the platform answered instead of the function."""
        return self.header(INTERNAL_HEADER) is not None

    def header(self, name: str) -> str | None:
        """The first value of a header."""
        return next((value for key, value in self.headers if key.lower() == name.lower()), None)


@dataclass(frozen=True, slots=True)
class Invocation:
    """A request to a function. `deadline_s` is its time limit; None for the function's own deadline."""

    function: FunctionKey
    method: str
    path: str
    query: str
    headers: Headers
    body: bytes
    deadline_s: float | None = None


class Invoke(Protocol):
    """Call a function and wait for its whole answer. A refusal is an answer too, with `X-OpenFaaS-Internal`."""

    async def __call__(self, invocation: Invocation) -> FunctionAnswer: ...


def take_deadline(headers: Headers) -> tuple[float | None, Headers]:
    """The time limit of each attempt in seconds, from `X-Gnomon-Deadline-Ms`, and the other headers, for the function.

    Raises:
        GnomonError: 400 `invalid_deadline`.

    """
    name = DEADLINE_HEADER.decode()
    allowed_s = [read_deadline_s(value.encode("latin-1", "replace")) for key, value in headers if key.lower() == name]
    return min(allowed_s, default=None), [(key, value) for key, value in headers if key.lower() != name]


def answer_of(error: GnomonError) -> FunctionAnswer:
    """An error of the platform as an answer."""
    return FunctionAnswer(error.status, tuple(error.headers().items()), error.body())

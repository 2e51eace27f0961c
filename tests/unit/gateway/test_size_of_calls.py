"""The file of asynchronous calls does not stay as large as the largest burst made it."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import pytest

from gnomon_core.functions import FunctionKey
from gnomon_gateway.asynchronous import calls
from gnomon_gateway.asynchronous.calls import KEPT_FREE_PAGES, Call, CallStore
from tests.waiting import until

BODY = b"x" * (1 << 20)
BURST = 12
KEPT_BYTES = KEPT_FREE_PAGES * 4096
SPARE_BYTES = 1 << 20


async def burst(store: CallStore) -> list[Call]:
    new = [Call(str(number), FunctionKey("fn"), "/", "", (), len(BODY), "", 0.0) for number in range(BURST)]
    return list(await asyncio.gather(*(store.add(call, BODY) for call in new)))


def used_bytes(path: Path) -> int:
    """The size of the database. The file may be larger until the write-ahead log is copied into it."""
    with sqlite3.connect(path) as connection:
        (pages,), (page_bytes,) = (connection.execute(f"PRAGMA {name}").fetchone() for name in ("page_count", "page_size"))
    connection.close()
    return int(pages * page_bytes)


def earlier_version(path: Path) -> None:
    """Make a file whose deleted calls left free pages that cannot be given back."""
    with sqlite3.connect(path, isolation_level=None) as connection:
        connection.executescript("PRAGMA auto_vacuum = NONE; PRAGMA journal_mode = WAL;" + calls._SCHEMA)
        connection.execute(f"PRAGMA user_version = {calls.SCHEMA_VERSION}")
        connection.execute(
            "INSERT INTO call (call_id, name, namespace, path, query, headers, body, body_bytes, callback_url, accepted_at)"
            " VALUES ('kept', 'fn', 'openfaas-fn', '/', '', '[]', x'00', 1, '', 0.0), "
            "('gone', 'fn', 'openfaas-fn', '/', '', '[]', zeroblob(20000000), 1, '', 0.0)"
        )
        connection.execute("DELETE FROM call WHERE call_id = 'gone'")
    connection.close()


async def test_file_shrinks_once_the_calls_of_a_burst_are_finished(tmp_path: Path) -> None:
    path = tmp_path / "calls.db"
    store = CallStore(path)
    stored = await burst(store)
    assert used_bytes(path) > BURST * len(BODY)
    await asyncio.gather(*(store.finish(call) for call in stored[1:]))
    await until(lambda: used_bytes(path) <= KEPT_BYTES + len(BODY) + SPARE_BYTES)
    assert await store.body(stored[0]) == BODY
    await store.close()
    assert path.stat().st_size <= KEPT_BYTES + len(BODY) + SPARE_BYTES


async def test_closing_does_not_wait_until_the_file_is_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "GIVEN_BACK_PAGES", 1)
    path = tmp_path / "calls.db"
    store = CallStore(path)
    stored = await burst(store)
    await asyncio.gather(*(store.finish(call) for call in stored))
    await store.close()
    assert used_bytes(path) > KEPT_BYTES + SPARE_BYTES


async def test_file_of_an_earlier_version_shrinks_when_it_is_opened(tmp_path: Path) -> None:
    path = tmp_path / "calls.db"
    earlier_version(path)
    store = CallStore(path)
    assert [call.call_id for call in await store.unfinished()] == ["kept"]
    await store.close()
    assert path.stat().st_size < SPARE_BYTES


async def test_large_file_of_an_earlier_version_is_opened_without_delay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "QUICK_REBUILD_BYTES", 0)
    path = tmp_path / "calls.db"
    earlier_version(path)
    store = CallStore(path)
    stored = await burst(store)
    await asyncio.gather(*(store.finish(call) for call in stored))
    assert [call.call_id for call in await store.unfinished()] == ["kept"]
    await store.close()
    assert path.stat().st_size > 10 * SPARE_BYTES

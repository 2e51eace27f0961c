"""A row of the gateway's own files that cannot be read is reported and left there; all other rows are served."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from gnomon_core.functions import FunctionKey, read_deployment
from gnomon_core.interfaces import StoredFunction, StoredNamespace
from gnomon_gateway.asynchronous.calls import Call, CallStore, FunctionAnswer
from gnomon_gateway.store import SqliteStore

BROKEN = ['{"team": "visi', "[1]", '{"team": 1}', "null"]


def damage(path: Path, statement: str, *values: str) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute(statement, values)
    connection.close()


@pytest.mark.parametrize("column", ["labels", "annotations"])
@pytest.mark.parametrize("text", BROKEN)
def test_namespace_is_served_without_labels_that_cannot_be_read(
    tmp_path: Path, column: str, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "functions.db"
    store = SqliteStore(path)
    store.put_namespace(StoredNamespace("damaged", {"team": "vision"}))
    store.put_namespace(StoredNamespace("whole", {"team": "speech"}))
    damage(path, f"UPDATE namespace SET {column} = ? WHERE name = 'damaged'", text)
    assert list(store.namespaces()) == [StoredNamespace("damaged"), StoredNamespace("whole", {"team": "speech"})]
    assert str(path) in caplog.text
    assert "namespace damaged" in caplog.text
    store.close()


@pytest.mark.parametrize("text", BROKEN)
def test_function_that_cannot_be_read_is_reported_with_the_file(
    tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "functions.db"
    store = SqliteStore(path)
    for number, name in enumerate(("damaged", "whole")):
        store.put_function(StoredFunction(read_deployment({"service": name, "image": "i"}), number, 0.0))
    damage(path, "UPDATE function SET document = ? WHERE name = 'damaged'", text)
    assert [stored.spec.key.name for stored in store.functions()] == ["whole"]
    assert str(path) in caplog.text
    assert "damaged.openfaas-fn" in caplog.text
    store.close()


@pytest.mark.parametrize("column", ["headers", "answer_headers", "body_bytes"])
@pytest.mark.parametrize("text", ['[["x-', "[1]", "null"])
async def test_call_that_cannot_be_read_stays_in_the_file_and_the_others_are_executed(
    tmp_path: Path, column: str, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "calls.db"
    store = CallStore(path)
    for call_id in ("damaged", "whole"):
        call = await store.add(Call(call_id, FunctionKey("fn"), "/", "", (("x", "1"),), 4, "http://h/", 0.0), b"body")
        await store.note_answer(call, FunctionAnswer(200, (("y", "2"),), b"answer"), 1.0)
    damage(path, f"UPDATE call SET {column} = ? WHERE call_id = 'damaged'", text)
    assert [call.call_id for call in await store.unfinished()] == ["whole"]
    assert str(path) in caplog.text
    assert "call damaged in row 1" in caplog.text
    await store.close()
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT count(*) FROM call").fetchone() == (2,)
    connection.close()

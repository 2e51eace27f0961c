"""Stored functions at the start of a gateway: one that hangs, fails or cannot be read holds up no other."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gnomon_core.errors import GnomonError
from gnomon_core.functions import FunctionKey, FunctionSpec, read_deployment
from gnomon_core.interfaces import StoredFunction, StoredNamespace
from gnomon_gateway.asynchronous.calls import Call, CallStore, FunctionAnswer
from gnomon_gateway.functions import manager, pending_restore
from gnomon_gateway.functions.manager import Manager
from gnomon_gateway.functions.pending_restore import MOST_ATTEMPTS
from gnomon_gateway.store import SqliteStore
from tests.refusals import refused
from tests.unit.gateway.stage import Scaling, Scripted
from tests.waiting import until


def deployment(name: str, model: str = "", process: str = "first") -> FunctionSpec:
    annotations = {"gnomon/model": model} if model else {}
    return read_deployment({"service": name, "image": "i", "envProcess": process, "annotations": annotations})


class Stage:
    """A gateway whose model store hangs for the model `stuck` until `answers` is set."""

    def __init__(self, folder: Path) -> None:
        self.store = SqliteStore(folder / "functions.db")
        self.answers = asyncio.Event()
        self.fetching: list[str] = []
        self.manager = Manager(self.store, Scripted(), Scaling(), fetch_model=self._fetch)

    def stored(self, *specs: FunctionSpec) -> None:
        for number, spec in enumerate(specs, 1):
            self.store.put_function(StoredFunction(spec, number, 0.0))

    def served(self, name: str) -> bool:
        return self.manager.directory.lookup(name) is not None

    def problem(self, name: str) -> str:
        status = self.manager.status(FunctionKey(name))
        return "" if status is None or status.problem is None else status.problem.message

    async def _fetch(self, model: str) -> None:
        self.fetching.append(model)
        if model == "stuck":
            await self.answers.wait()
        if model == "missing":
            raise GnomonError(422, "no_such_model", "It is not there.")


@pytest.fixture
async def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Stage]:
    monkeypatch.setattr(pending_restore, "START_WAIT_S", 0.2)
    made = Stage(tmp_path)
    yield made
    await made.manager.stop()
    made.store.close()


async def test_function_whose_model_store_hangs_delays_neither_the_others_nor_the_gateway(stage: Stage) -> None:
    stage.stored(deployment("first", "stuck"), deployment("second"), deployment("third", "missing"))
    await stage.manager.start()
    assert "cannot be read yet" in stage.problem("first")
    await until(lambda: stage.served("second"))
    await until(lambda: "It is not there" in stage.problem("third"))
    assert [status.spec.key.name for status in stage.manager.list("openfaas-fn")] == ["first", "second", "third"]
    stage.answers.set()
    await until(lambda: stage.served("first"))
    assert stage.problem("first") == ""


async def test_gateway_starts_without_waiting_if_every_function_can_be_served(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pending_restore, "START_WAIT_S", 3600.0)
    stage.stored(*(deployment(f"fn{number}") for number in range(3 * MOST_ATTEMPTS)))
    await stage.manager.start()
    assert all(stage.served(f"fn{number}") for number in range(3 * MOST_ATTEMPTS))


async def test_functions_that_hang_leave_threads_for_everything_else(stage: Stage) -> None:
    stage.stored(*(deployment(f"fn{number}", "stuck") for number in range(2 * MOST_ATTEMPTS)))
    await stage.manager.start()
    await until(lambda: len(stage.fetching) >= MOST_ATTEMPTS)
    assert len(stage.fetching) == MOST_ATTEMPTS
    stage.answers.set()
    await until(lambda: all(stage.served(f"fn{number}") for number in range(2 * MOST_ATTEMPTS)))


async def test_function_whose_model_store_hangs_can_be_removed_and_changed(stage: Stage) -> None:
    stage.stored(deployment("changed", "stuck"), deployment("gone", "stuck"), deployment("kept", "stuck"))
    await stage.manager.start()
    await stage.manager.remove(FunctionKey("gone"))
    await stage.manager.update(deployment("changed", process="second"))
    with refused(409, "function_exists"):
        await stage.manager.deploy(deployment("kept"))
    stage.answers.set()
    status = stage.manager.status(FunctionKey("changed"))
    assert status is not None
    assert (status.spec.env_process, stage.served("changed")) == ("second", True)
    assert not stage.served("gone")
    assert sorted(function.spec.key.name for function in stage.store.functions()) == ["changed", "kept"]


async def test_deployment_whose_model_takes_long_to_come_is_answered_and_served_later(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manager, "ANSWER_S", 0.1)
    monkeypatch.setattr(pending_restore, "RETRY_RESTORE_S", 0.05)
    await stage.manager.start()
    await stage.manager.deploy(deployment("fn", "stuck"))
    assert "is being captured or downloaded" in stage.problem("fn")
    assert [function.spec.key.name for function in stage.store.functions()] == ["fn"], "a restart serves it too"
    with refused(409, "function_exists"):
        await stage.manager.deploy(deployment("fn", "stuck"))
    stage.answers.set()
    await until(lambda: stage.served("fn"))
    assert stage.problem("fn") == ""


async def test_update_to_a_model_that_takes_long_to_come_is_refused_for_now_and_changes_nothing(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manager, "ANSWER_S", 0.1)
    await stage.manager.start()
    await stage.manager.deploy(deployment("fn"))
    with refused(503, "model_not_here"):
        await stage.manager.update(deployment("fn", "stuck"))
    status = stage.manager.status(FunctionKey("fn"))
    assert status is not None
    assert (status.spec.settings.model, stage.served("fn")) == (None, True)


async def test_attempt_that_took_long_is_not_repeated_at_once(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending_restore, "RETRY_RESTORE_S", 0.01)
    monkeypatch.setattr(pending_restore, "REST", 1e6)
    stage.stored(deployment("slow", "missing"))
    await stage.manager.start()
    await until(lambda: stage.problem("slow"))
    stage.fetching.clear()
    await asyncio.sleep(0.1)
    assert not stage.fetching


async def test_gateway_whose_model_store_hangs_can_be_stopped(stage: Stage) -> None:
    stage.stored(deployment("fn", "stuck"))
    starting = asyncio.create_task(stage.manager.start())
    await until(lambda: stage.fetching)
    starting.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await starting
    await stage.manager.stop()


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

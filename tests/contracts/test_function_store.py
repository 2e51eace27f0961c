"""The contract of every `FunctionStore`. A store inherits `FunctionStoreContract` and provides a fixture that opens it."""

import os
import random
import signal
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

import pytest

from gnomon_core.errors import GnomonError
from gnomon_core.functions import FunctionKey, read_deployment
from gnomon_core.interfaces import FunctionStore, StoredFunction, StoredNamespace
from tests.refusals import refused

WRITER = """
import sys
from importlib import import_module
from pathlib import Path
from gnomon_core.functions import FunctionKey, read_deployment
from gnomon_core.interfaces import StoredFunction

module, _, name = sys.argv[1].partition(":")
store = getattr(import_module(module), name)(Path(sys.argv[2]))
for round_ in range(int(sys.argv[3]), 10**9):
    filler = str(round_) * 2000
    for name in ("a", "b"):
        spec = read_deployment({"service": name, "image": filler, "labels": {"round": str(round_)}})
        store.put_function(StoredFunction(spec, round_, 1.5))
    store.put_secret(FunctionKey("token"), filler.encode())
    if round_ % 2:
        store.delete_secret(FunctionKey("odd"))
    else:
        store.put_secret(FunctionKey("odd"), filler.encode())
    sys.stdout.write(f"{round_}\\n")
    sys.stdout.flush()
"""


def stored(name: str, *, namespace: str = "openfaas-fn", version: int = 1, **fields: Any) -> StoredFunction:
    document = {"service": name, "image": "functions/alpine:latest", "namespace": namespace, **fields}
    return StoredFunction(read_deployment(document), version, 1700000000.25)


class FunctionStoreContract:
    opener: ClassVar[str]
    """`module:name` of a callable that opens the store at a path, in this process or another."""

    def open(self, path: Path) -> FunctionStore:
        module, _, name = self.opener.partition(":")
        store: FunctionStore = getattr(import_module(module), name)(path)
        return store

    def close(self, store: FunctionStore) -> None:
        store.close()  # type: ignore[attr-defined]

    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        return tmp_path / "state" / "gnomon.db"

    @pytest.fixture
    def store(self, path: Path) -> Iterator[FunctionStore]:
        store = self.open(path)
        yield store
        self.close(store)

    def reopened(self, path: Path, store: FunctionStore) -> FunctionStore:
        self.close(store)
        return self.open(path)

    def test_a_new_store_is_empty(self, store: FunctionStore) -> None:
        assert list(store.functions()) == []
        assert list(store.secrets("openfaas-fn")) == []
        assert list(store.namespaces()) == []
        assert store.secret(FunctionKey("x")) is None

    def test_a_function_comes_back_exactly_as_it_was_sent(self, path: Path, store: FunctionStore) -> None:
        document = {
            "service": "fn",
            "image": "functions/alpine:latest",
            "envProcess": "cat",
            "labels": {"com.openfaas.scale.min": "2"},
            "annotations": {"some-json": '{\n\t"é": "☀",\n\t"n": 1 }', "gnomon/max-batch": "8"},
            "limits": {"memory": "5Mi", "cpu": "100m"},
        }
        store.put_function(StoredFunction(read_deployment(document), 7, 1700000000.25))
        again = self.reopened(path, store)
        (found,) = again.functions()
        assert found.spec.raw == document
        assert found.spec == read_deployment(document)
        assert (found.version, found.created_at) == (7, 1700000000.25)
        self.close(again)

    def test_a_function_keeps_its_namespace_although_the_document_names_none(self, path: Path, store: FunctionStore) -> None:
        spec = read_deployment({"service": "fn", "image": "i"}, default_namespace="staging")
        store.put_function(StoredFunction(spec, 1, 0.0))
        again = self.reopened(path, store)
        assert [found.spec.key for found in again.functions()] == [FunctionKey("fn", "staging")]
        self.close(again)

    def test_the_last_put_of_a_function_stays(self, store: FunctionStore) -> None:
        store.put_function(stored("fn", version=1, image="one"))
        store.put_function(stored("fn", version=2, image="two"))
        assert [(found.version, found.spec.image) for found in store.functions()] == [(2, "two")]

    def test_the_same_name_in_two_namespaces_is_two_functions(self, store: FunctionStore) -> None:
        store.put_function(stored("fn"))
        store.put_function(stored("fn", namespace="other"))
        assert store.delete_function(FunctionKey("fn", "other"))
        assert [found.spec.key for found in store.functions()] == [FunctionKey("fn")]

    def test_deleting_says_whether_it_was_there(self, path: Path, store: FunctionStore) -> None:
        store.put_function(stored("fn"))
        assert store.delete_function(FunctionKey("fn")) is True
        assert store.delete_function(FunctionKey("fn")) is False
        again = self.reopened(path, store)
        assert list(again.functions()) == []
        self.close(again)

    def test_secrets_are_bytes_by_name_and_namespace(self, path: Path, store: FunctionStore) -> None:
        store.put_secret(FunctionKey("b"), b"\x00\xff raw")
        store.put_secret(FunctionKey("a"), b"")
        store.put_secret(FunctionKey("b", "other"), b"elsewhere")
        again = self.reopened(path, store)
        assert list(again.secrets("openfaas-fn")) == ["a", "b"]
        assert again.secret(FunctionKey("b")) == b"\x00\xff raw"
        assert again.secret(FunctionKey("a")) == b""
        again.put_secret(FunctionKey("b"), b"new")
        assert again.secret(FunctionKey("b")) == b"new"
        assert again.delete_secret(FunctionKey("b")) is True
        assert again.delete_secret(FunctionKey("b")) is False
        assert again.secret(FunctionKey("b", "other")) == b"elsewhere"
        self.close(again)

    def test_namespaces_keep_their_labels(self, path: Path, store: FunctionStore) -> None:
        store.put_namespace(StoredNamespace("staging", {"team": "vision"}, {"note": "é"}))
        store.put_namespace(StoredNamespace("dev"))
        again = self.reopened(path, store)
        assert list(again.namespaces()) == [StoredNamespace("dev"), StoredNamespace("staging", {"team": "vision"}, {"note": "é"})]
        assert again.delete_namespace("dev") is True
        assert again.delete_namespace("dev") is False
        self.close(again)

    def test_watchers_hear_of_each_change_until_they_stop(self, store: FunctionStore) -> None:
        changes: list[FunctionKey] = []
        stop = store.watch(changes.append)
        store.put_function(stored("fn"))
        store.delete_function(FunctionKey("fn"))
        store.delete_function(FunctionKey("fn"))
        assert changes == [FunctionKey("fn")] * 2
        stop()
        stop()
        store.put_function(stored("fn"))
        assert len(changes) == 2

    def test_a_watcher_may_ask_the_store(self, store: FunctionStore) -> None:
        seen: list[int] = []
        store.watch(lambda _: seen.append(len(store.functions())))
        store.put_function(stored("fn"))
        assert seen == [1]

    def test_many_threads_may_call_it(self, store: FunctionStore) -> None:
        def work(number: int) -> None:
            for turn in range(10):
                store.put_function(stored(f"fn-{number}", version=turn + 1))
                store.functions()

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [found.version for found in store.functions()] == [10] * 8

    def test_killing_the_writer_at_any_moment_loses_nothing_that_was_acknowledged(self, path: Path) -> None:
        rng = random.Random(20)
        begin = 1
        for _ in range(6):
            with subprocess.Popen(
                [sys.executable, "-c", WRITER, self.opener, str(path), str(begin)], stdout=subprocess.PIPE, text=True
            ) as writer:
                acknowledged = int(writer.stdout.readline())
                time.sleep(rng.uniform(0.0, 0.05))
                writer.send_signal(signal.SIGKILL)
                # The pipe still holds what it said before it died, perhaps with half a line at the end.
                rest = writer.stdout.read()
                complete = rest[: rest.rfind("\n") + 1].split()
                acknowledged = int(complete[-1]) if complete else acknowledged
            begin = self.check_after_kill(path, acknowledged)

    def check_after_kill(self, path: Path, acknowledged: int) -> int:
        """Everything of the acknowledged round is there; what came after it is there whole or not at all."""
        store = self.open(path)
        found = {function.spec.key.name: function for function in store.functions()}
        for function in found.values():
            assert acknowledged <= function.version <= acknowledged + 1
            assert function.spec.image == str(function.version) * 2000
            assert function.spec.labels == {"round": str(function.version)}
        assert found["a"].version >= found["b"].version, "writes came out of order"
        token = store.secret(FunctionKey("token"))
        assert token in {str(round_).encode() * 2000 for round_ in (acknowledged, acknowledged + 1)}
        self.close(store)
        return acknowledged + 2


class TestSqliteStore(FunctionStoreContract):
    opener = "gnomon_gateway.store:SqliteStore"

    def test_only_its_owner_can_read_any_of_its_files(self, path: Path, store: FunctionStore) -> None:
        store.put_secret(FunctionKey("token"), b"s3cret")
        modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
        assert modes.keys() >= {"gnomon.db", "gnomon.db-wal"}
        assert set(modes.values()) == {0o600}
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700

    def test_a_file_that_others_could_read_is_closed_to_them(self, path: Path) -> None:
        path.parent.mkdir()
        path.touch(0o644)
        self.close(self.open(path))
        assert stat.S_IMODE(path.stat().st_mode) == 0o600

    def test_a_deleted_secret_is_not_left_in_the_file(self, path: Path, store: FunctionStore) -> None:
        store.put_secret(FunctionKey("token"), b"needle-in-a-haystack" * 100)
        self.close(store)
        store = self.open(path)
        store.delete_secret(FunctionKey("token"))
        self.close(store)
        assert b"needle-in-a-haystack" not in path.read_bytes()

    def test_a_newer_schema_is_refused_and_left_alone(self, path: Path) -> None:
        self.close(self.open(path))
        connection = sqlite3.connect(path)
        connection.execute("PRAGMA user_version = 99")
        connection.close()
        with refused(code="store_unreadable", message="schema 99"):
            self.open(path)

    def test_a_file_that_is_no_database_is_refused_and_left_alone(self, path: Path) -> None:
        path.parent.mkdir()
        path.write_bytes(b"not a database, but long enough to look like a file header" * 20)
        with pytest.raises(GnomonError, match="cannot be used"):
            self.open(path)
        assert path.read_bytes().startswith(b"not a database")

    def test_unreadable_function_does_not_hide_the_others(self, path: Path, caplog: pytest.LogCaptureFixture) -> None:
        store = self.open(path)
        store.put_function(stored("bad"))
        store.put_function(stored("good"))
        self.close(store)
        connection = sqlite3.connect(path)
        connection.execute("""UPDATE function SET document = '{"service": 3}' WHERE name = 'bad'""")
        connection.commit()
        connection.close()
        store = self.open(path)
        assert [found.spec.key.name for found in store.functions()] == ["good"]
        assert "bad.openfaas-fn cannot be read" in caplog.text
        self.close(store)

    def test_damaged_pages_are_reported_with_the_file(self, path: Path) -> None:
        store = self.open(path)
        for number in range(100):
            store.put_function(stored(f"f{number}", envVars={"FILLER": "x" * 1000}))
        self.close(store)
        data = bytearray(path.read_bytes())
        for page in range(4096, len(data), 4096):
            data[page : page + 64] = b"\xff" * 64
        path.write_bytes(data)
        store = self.open(path)
        with refused(500, "store_unreadable", message=str(path), hint="backup"):
            store.functions()
        with refused(500, "store_unreadable", message=str(path), hint="backup"):
            store.put_function(stored("new"))
        self.close(store)

    def test_a_disk_that_is_full_is_an_error_and_the_old_value_stays(self, store: FunctionStore) -> None:
        store.put_secret(FunctionKey("token"), b"old")
        store._connection.execute("PRAGMA max_page_count = 12")  # type: ignore[attr-defined]
        with refused(code="store_failed"):
            store.put_secret(FunctionKey("token"), os.urandom(1 << 20))
        assert store.secret(FunctionKey("token")) == b"old"

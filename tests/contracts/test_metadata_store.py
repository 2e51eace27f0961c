"""The promises of every `MetadataStore`. A store inherits `MetadataStoreContract` and says how it is opened."""

import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

import pytest

from gnomon_core.applications import MeasuredVariant, RegisteredModel
from gnomon_core.functions import FunctionKey
from gnomon_core.interfaces import MetadataStore
from tests.contracts.test_function_store import stored

FACES = FunctionKey("faces")
MEASURED = MeasuredVariant({1: 0.01, 8: 0.05}, load_s=0.4, memory_bytes=96 << 20, accuracy=0.71)
RESNET = RegisteredModel(FACES, "resnet50@1", 0.76, 1700000000.25, {"resnet50@1/torch/fp32/1": MEASURED})
MOBILENET = RegisteredModel(FACES, "mobilenet@2", None, 1700000001.5)


class MetadataStoreContract:
    opener: ClassVar[str]
    """`module:name` of a callable that opens the store at a path."""

    def open(self, path: Path) -> MetadataStore:
        module, _, name = self.opener.partition(":")
        store: MetadataStore = getattr(import_module(module), name)(path)
        return store

    def close(self, store: MetadataStore) -> None:
        store.close()  # type: ignore[attr-defined]

    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        return tmp_path / "state" / "gnomon.db"

    @pytest.fixture
    def store(self, path: Path) -> Iterator[MetadataStore]:
        store = self.open(path)
        yield store
        self.close(store)

    def test_new_store_has_no_models(self, store: MetadataStore) -> None:
        assert list(store.registered_models()) == []

    def test_registered_models_survive_a_restart_with_their_measurements(self, path: Path, store: MetadataStore) -> None:
        store.put_model(RESNET)
        store.put_model(MOBILENET)
        self.close(store)
        again = self.open(path)
        assert list(again.registered_models()) == [MOBILENET, RESNET]
        self.close(again)

    def test_last_put_of_a_model_stays(self, store: MetadataStore) -> None:
        store.put_model(RESNET)
        better = replace(RESNET, accuracy=0.8, variants={})
        store.put_model(better)
        assert list(store.registered_models()) == [better]

    def test_one_model_in_two_applications_is_registered_twice(self, store: MetadataStore) -> None:
        others = [replace(RESNET, application=FunctionKey("cats")), replace(RESNET, application=FunctionKey("faces", "staging"))]
        for registered in (RESNET, *others):
            store.put_model(registered)
        assert store.delete_model(FunctionKey("cats"), "resnet50@1")
        assert list(store.registered_models()) == [RESNET, others[1]]

    def test_deleting_says_whether_the_model_was_registered(self, store: MetadataStore) -> None:
        store.put_model(RESNET)
        assert store.delete_model(FACES, "resnet50@1") is True
        assert store.delete_model(FACES, "resnet50@1") is False


class TestSqliteStore(MetadataStoreContract):
    opener = "gnomon_gateway.store:SqliteStore"

    def test_file_of_the_first_version_keeps_its_functions_and_takes_models(self, path: Path) -> None:
        store: Any = self.open(path)
        store.put_function(stored("fn"))
        self.close(store)
        with sqlite3.connect(path) as connection:
            connection.executescript("DROP TABLE registered_model; PRAGMA user_version = 1;")
        connection.close()
        store = self.open(path)
        store.put_model(RESNET)
        assert [found.spec.key.name for found in store.functions()] == ["fn"]
        assert list(store.registered_models()) == [RESNET]
        self.close(store)

    def test_unreadable_measurements_cost_the_measurements_alone(self, path: Path, caplog: pytest.LogCaptureFixture) -> None:
        store = self.open(path)
        store.put_model(RESNET)
        self.close(store)
        with sqlite3.connect(path) as connection:
            connection.execute("UPDATE registered_model SET variants = '[1]'")
        connection.close()
        store = self.open(path)
        assert list(store.registered_models()) == [replace(RESNET, variants={})]
        assert "measurements of resnet50@1" in caplog.text
        self.close(store)

"""The promises of every `MetadataStore`. A store inherits `MetadataStoreContract` and says how it is opened.

What else Redis promises, while it is slow, gone or empty and when it comes back, is below it.
"""

import sqlite3
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gnomon_core.applications import MeasuredVariant, RegisteredModel
from gnomon_core.errors import GnomonError
from gnomon_core.functions import FunctionKey
from gnomon_core.interfaces import MetadataStore
from gnomon_gateway.redis_store import HASH, RedisStore, check_url
from gnomon_gateway.store import SqliteStore
from tests.contracts.test_function_store import stored
from tests.redis_process import RedisProcess, needs_redis
from tests.waiting import eventually

FACES = FunctionKey("faces")
MEASURED = MeasuredVariant({1: 0.01, 8: 0.05}, load_s=0.4, memory_bytes=96 << 20, accuracy=0.71)
RESNET = RegisteredModel(FACES, "resnet50@1", 0.76, 1700000000.25, {"resnet50@1/torch/fp32/1": MEASURED})
MOBILENET = RegisteredModel(FACES, "mobilenet@2", None, 1700000001.5)


class MetadataStoreContract:
    def open(self, path: Path) -> MetadataStore:
        """The store whose state on this machine is in the folder of `path`."""
        raise NotImplementedError

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

    def test_store_in_order_is_available_and_has_every_change(self, store: MetadataStore) -> None:
        store.put_model(RESNET)
        assert (store.health().available, store.health().unsent) == (True, 0)


class TestSqliteStore(MetadataStoreContract):
    def open(self, path: Path) -> MetadataStore:
        return SqliteStore(path)

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


class RedisWithCopy(RedisStore):
    """A Redis store that owns its copy, as the backends of a gateway do."""

    def __init__(self, url: str, path: Path) -> None:
        self.embedded = SqliteStore(path)
        super().__init__(url, self.embedded, path.with_name("redis.db"))

    def close(self) -> None:
        super().close()
        self.embedded.close()


@needs_redis
class TestRedisStore(MetadataStoreContract):
    @pytest.fixture(autouse=True)
    def redis(self, tmp_path: Path) -> Iterator[RedisProcess]:
        self.server = RedisProcess(tmp_path / "redis")
        yield self.server
        self.server.close()

    def open(self, path: Path) -> MetadataStore:
        return RedisWithCopy(self.server.url, path)

    @pytest.fixture
    def other(self, tmp_path: Path) -> Iterator[MetadataStore]:
        """The store of a gateway on another machine."""
        store = self.open(tmp_path / "other" / "gnomon.db")
        yield store
        self.close(store)

    def test_gateway_on_a_new_machine_finds_the_registered_models(self, store: MetadataStore, tmp_path: Path) -> None:
        store.put_model(RESNET)
        new = self.open(tmp_path / "new" / "gnomon.db")
        assert list(new.registered_models()) == [RESNET]
        self.close(new)

    def test_models_of_the_embedded_store_are_added(self, path: Path) -> None:
        embedded = SqliteStore(path)
        embedded.put_model(RESNET)
        embedded.close()
        store = self.open(path)
        assert list(store.registered_models()) == [RESNET]
        assert self.server.client.hexists(HASH, "openfaas-fn/faces/resnet50@1")
        self.close(store)

    def test_changes_of_another_gateway_are_followed_and_reported(self, store: MetadataStore, other: MetadataStore) -> None:
        reported: list[int] = []
        stop = other.watch_models(lambda: reported.append(len(other.registered_models())))
        store.put_model(RESNET)
        eventually(lambda: reported == [1])
        assert list(other.registered_models()) == [RESNET]
        stop()
        store.delete_model(FACES, "resnet50@1")
        eventually(lambda: list(other.registered_models()) == [])
        assert reported == [1]

    @pytest.mark.parametrize("outage", ["killed", "suspended"])
    def test_changes_during_an_outage_reach_redis_after_it(self, store: MetadataStore, other: MetadataStore, outage: str) -> None:
        store.put_model(RESNET)
        eventually(lambda: list(other.registered_models()) == [RESNET])
        self.server.save()
        self.server.kill() if outage == "killed" else self.server.suspend()
        store.put_model(MOBILENET)
        assert store.delete_model(FACES, "resnet50@1")
        assert list(store.registered_models()) == [MOBILENET], "commands work on the last known state"
        health = store.health()
        assert (health.available, health.unsent) == (False, 2)
        assert health.problem
        assert list(other.registered_models()) == [RESNET], "what was known last is served"
        self.server.start() if outage == "killed" else self.server.resume()
        eventually(lambda: list(other.registered_models()) == [MOBILENET])
        eventually(lambda: store.health().available and store.health().unsent == 0)

    def test_commands_during_an_outage_do_not_wait_for_redis(self, store: MetadataStore) -> None:
        self.server.suspend()
        store.put_model(RESNET)  # finds out
        begin_s = time.monotonic()
        for _ in range(20):
            store.put_model(RESNET)
        assert time.monotonic() - begin_s < 1.0
        self.server.resume()

    def test_change_during_an_outage_survives_a_restart_of_the_gateway(self, path: Path, store: MetadataStore) -> None:
        self.server.kill()
        store.put_model(RESNET)
        self.close(store)
        again = self.open(path)
        assert list(again.registered_models()) == [RESNET]
        assert (again.health().available, again.health().unsent) == (False, 1)
        self.server.start()
        eventually(lambda: again.health().unsent == 0)
        assert self.server.client.hexists(HASH, "openfaas-fn/faces/resnet50@1")
        self.close(again)

    def test_redis_without_its_data_gets_it_from_the_gateways(self, store: MetadataStore, other: MetadataStore) -> None:
        store.put_model(RESNET)
        store.put_model(MOBILENET)
        eventually(lambda: len(other.registered_models()) == 2)
        self.server.kill()
        self.server.start()
        eventually(lambda: self.server.client.hexists(HASH, "openfaas-fn/faces/mobilenet@2"))
        store.delete_model(FACES, "mobilenet@2")
        eventually(lambda: list(other.registered_models()) == [RESNET])

    def test_model_deleted_after_redis_lost_its_data_is_not_brought_back_by_a_gateway_that_was_away(
        self, store: MetadataStore, tmp_path: Path
    ) -> None:
        other = self.open(tmp_path / "away" / "gnomon.db")
        store.put_model(RESNET)
        store.put_model(MOBILENET)
        eventually(lambda: len(other.registered_models()) == 2)
        self.close(other)
        self.server.kill()
        self.server.start()
        eventually(lambda: self.server.client.hexists(HASH, "openfaas-fn/faces/mobilenet@2"))
        store.delete_model(FACES, "mobilenet@2")
        eventually(lambda: store.health().unsent == 0)
        other = self.open(tmp_path / "away" / "gnomon.db")
        eventually(lambda: list(other.registered_models()) == [RESNET])
        assert list(store.registered_models()) == [RESNET]
        # It may be registered once more.
        other.put_model(MOBILENET)
        eventually(lambda: len(store.registered_models()) == 2)
        self.close(other)

    def test_redis_of_an_older_snapshot_gets_what_it_had_lost(self, store: MetadataStore, other: MetadataStore) -> None:
        store.put_model(RESNET)
        self.server.save()
        store.put_model(MOBILENET)
        store.delete_model(FACES, "resnet50@1")
        eventually(lambda: list(other.registered_models()) == [MOBILENET])
        self.server.kill()
        self.server.start()
        eventually(lambda: self.server.client.hexists(HASH, "openfaas-fn/faces/mobilenet@2"))
        assert not self.server.client.hget(HASH, "openfaas-fn/faces/resnet50@1")
        better = replace(MOBILENET, accuracy=0.7)
        other.put_model(better)
        eventually(lambda: list(store.registered_models()) == [better])

    def test_unreadable_document_is_left_in_redis_and_reported(
        self, path: Path, store: MetadataStore, caplog: pytest.LogCaptureFixture
    ) -> None:
        store.put_model(RESNET)
        self.server.client.hset(HASH, "openfaas-fn/faces/newer@1", '{"form": 2}')
        self.close(store)
        again = self.open(path)
        assert list(again.registered_models()) == [RESNET]
        assert "openfaas-fn/faces/newer@1" in caplog.text
        assert self.server.client.hexists(HASH, "openfaas-fn/faces/newer@1")
        self.close(again)

    def test_refusal_of_redis_is_reported_as_it_is(self, store: MetadataStore, caplog: pytest.LogCaptureFixture) -> None:
        self.server.client.delete(HASH)
        self.server.client.set(HASH, "of another program")
        eventually(lambda: not store.health().available)
        assert "WRONGTYPE" in store.health().problem
        assert "WRONGTYPE" in caplog.text
        self.server.client.delete(HASH)
        eventually(lambda: store.health().available)


@pytest.mark.parametrize("url", ["", "http://127.0.0.1:6379", "redis://", "redis://:secret@h:port/0", "127.0.0.1:6379"])
def test_address_of_no_redis_is_refused_without_its_password(url: str, tmp_path: Path) -> None:
    with pytest.raises(GnomonError) as refused:
        check_url(url)
    assert refused.value.code == "invalid_store"
    assert "secret" not in str(refused.value)


def test_password_is_not_part_of_the_stores_name() -> None:
    assert check_url("redis://user:secret@redis.example:6380/1") == "redis://redis.example:6380/1"
    assert check_url("unix:///run/redis.sock") == "unix:///run/redis.sock"

"""The registered models in Redis, with the embedded store as the copy that serves while Redis does not answer.

    put_model, delete_model ─▶ copy and journal, on disk ─▶ exchange ─▶ one hash in Redis ◀─ exchange ◀─ other gateways
                               registered_models ◀─ copy ◀────┘

A thread exchanges with Redis every second and after each change; nothing else talks to Redis, so a slow one delays no query. A
command waits for its exchange, at most `TIMEOUT_S`, and not at all while Redis is known to be gone. Its change is in the journal
until Redis has it, over restarts of both.

The hash holds a document for each registered model, its `generation`, a random name from when the hash was made, and its
`revision`, which counts the changes. So the exchange knows what Redis has lost:

    generation and revision as known      nothing to fetch
    the same generation, later revision   another gateway has made changes: the copy follows
    the same generation, earlier revision Redis restarted from an older snapshot: the copy replaces the hash
    no generation, or another one         Redis lost the hash, or is another Redis: what only the copy has is added

Changes of the journal are made last in all cases. One hash is evicted, renamed or deleted as a whole, never in part. A deleted
model leaves an empty document, so that a gateway that adds what a hash lacks does not bring it back.
"""

from __future__ import annotations

import json
import logging
import sqlite3
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from gnomon_core.applications import RegisteredModel, variants_from_json, variants_to_json
from gnomon_core.clock import utc_now_s
from gnomon_core.errors import GnomonError, bad_request
from gnomon_core.functions import FunctionKey
from gnomon_core.interfaces import MetadataStore, StoreHealth
from gnomon_core.packaging import import_package
from gnomon_gateway.store import open_database, store_failed

HASH = "gnomon:applications"
"""The key of the hash. Fields of models contain slashes, `generation` and `revision` do not."""
SCHEMES = ("redis", "rediss", "unix")
TIMEOUT_S = 1.0
"""The longest wait for one answer of Redis, and of a command for its exchange."""
EXCHANGE_S = 1.0
"""Seconds between two exchanges where nothing has changed here."""
SCHEMA_VERSION = 1
_SCHEMA = """
CREATE TABLE unsent (seq INTEGER PRIMARY KEY AUTOINCREMENT, field TEXT NOT NULL);
CREATE TABLE seen (id INTEGER PRIMARY KEY CHECK (id = 0), generation TEXT NOT NULL, revision INTEGER NOT NULL);
INSERT INTO seen VALUES (0, '', 0);
"""
_GENERATION, _REVISION = "generation", "revision"
_DELETED = ""
"""The document of a model that has been deleted."""
_MODEL = "/"
"""The separator that occurs only in the fields of models."""
_LOG = logging.getLogger("gnomon.store")


class RedisStore:
    """A `MetadataStore` in Redis. `copy` is a store of this process alone, `journal` the file of changes that Redis lacks."""

    def __init__(self, url: str, copy: MetadataStore, journal: Path) -> None:
        self.name = check_url(url)
        redis = import_package("redis", "redis")
        # An idle connection that a firewall or a restart has closed is opened once more; a timeout is not repeated.
        retry = redis.retry.Retry(redis.backoff.NoBackoff(), 1, supported_errors=(redis.exceptions.ConnectionError,))
        self._client: Any = redis.Redis.from_url(
            url, socket_timeout=TIMEOUT_S, socket_connect_timeout=TIMEOUT_S, retry=retry, decode_responses=True, protocol=2
        )
        self._expected: tuple[type[Exception], ...] = (redis.exceptions.RedisError, GnomonError, OSError)
        self._copy = copy
        self._journal = Journal(journal)
        self._lock = threading.Condition()
        """Guards the copy together with the journal; notified after each exchange."""
        self._watchers: list[Callable[[], None]] = []
        self._health = StoreHealth("redis", since_s=utc_now_s(), unsent=len(self._journal.unsent))
        self._equal = False
        """True if this process has made the copy equal to the hash."""
        self._wake = threading.Event()
        self._closed = False
        self._attempt()
        self._thread = threading.Thread(target=self._run, name="metadata-store", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the exchange. The copy belongs to its owner."""
        self._closed = True
        self._wake.set()
        self._thread.join()
        self._client.close()
        self._journal.close()

    def put_model(self, registered: RegisteredModel) -> None:
        with self._lock:
            # The journal first: a crash in between sends what Redis has already.
            change = self._journal.add(field_of(registered.application, registered.model))
            self._copy.put_model(registered)
            self._sent(change)

    def delete_model(self, application: FunctionKey, model: str) -> bool:
        with self._lock:
            change = self._journal.add(field_of(application, model))
            there = self._copy.delete_model(application, model)
            self._sent(change)
        return there

    def registered_models(self) -> Sequence[RegisteredModel]:
        return self._copy.registered_models()

    def watch_models(self, changed: Callable[[], None]) -> Callable[[], None]:
        with self._lock:
            self._watchers.append(changed)

        def stop() -> None:
            with self._lock, suppress(ValueError):
                self._watchers.remove(changed)

        return stop

    def health(self) -> StoreHealth:
        return self._health

    def _sent(self, change: int) -> None:
        """Begin an exchange, and wait until Redis has the change or cannot be reached. `_lock` is held."""
        self._health = replace(self._health, unsent=len(self._journal.unsent))
        self._wake.set()
        self._lock.wait_for(lambda: not self._health.available or self._journal.sent_up_to >= change, TIMEOUT_S)

    def _run(self) -> None:
        while not self._closed:
            self._wake.wait(EXCHANGE_S)
            self._wake.clear()
            if not self._closed:
                self._attempt()

    def _attempt(self) -> None:
        """Exchange once, and report a change of the store's health."""
        failure: Exception | None = None
        changed = False
        try:
            changed = self._exchange()
        except Exception as error:  # noqa: BLE001 - the thread must go on, whatever Redis answers
            failure = error
        problem = "" if failure is None else (str(failure) or type(failure).__name__).rstrip(".")
        with self._lock:
            previous = self._health
            since_s = previous.since_s if previous.available is (failure is None) else utc_now_s()
            self._health = StoreHealth("redis", failure is None, since_s, len(self._journal.unsent), problem)
            self._lock.notify_all()
            watchers = tuple(self._watchers) if changed else ()
        if previous.available and failure is not None:
            unexpected = None if isinstance(failure, self._expected) else failure
            _LOG.warning("%s: %s. Applications are served from the last known state", self.name, problem, exc_info=unexpected)
        elif failure is None and not previous.available:
            _LOG.warning("%s answers again", self.name)
        for watcher in watchers:  # outside the lock, because a watcher may read the store
            watcher()

    def _exchange(self) -> bool:
        """Send what Redis lacks and fetch what it has. Returns whether another gateway has changed anything."""
        generation, revision = self._client.hmget(HASH, _GENERATION, _REVISION)
        if generation is None:
            # Of several gateways that find no hash, the first one names it (HSETNX); all read that name.
            self._client.hsetnx(HASH, _GENERATION, uuid.uuid4().hex)
            generation, revision = self._client.hmget(HASH, _GENERATION, _REVISION)
        before = Seen(generation, int(revision or 0))
        with self._lock:
            last, unsent = self._journal.last, set(self._journal.unsent)
            local = {
                field_of(registered.application, registered.model): to_document(registered)
                for registered in self._copy.registered_models()
            }
        if self._equal and not unsent and before == self._journal.seen:
            return False
        # MULTI … EXEC: what is read back includes these writes, and no other gateway's write comes in between.
        with self._client.pipeline(transaction=True) as pipe:
            self._write(pipe, before, local, unsent)
            pipe.hgetall(HASH)
            documents = pipe.execute()[-1]
        after = Seen(documents.get(_GENERATION, ""), int(documents.get(_REVISION, 0)))
        if after.generation != before.generation or after.revision < before.revision:
            return False  # Redis lost its state between both requests: the next exchange restores it
        with self._lock:
            # Changes after `last` came during the exchange: they stay in the journal, and `_merge` leaves their fields alone.
            self._journal.remove(last)
            changed = self._merge(documents)
            self._journal.see(after)
            self._equal = True
        return changed

    def _write(self, pipe: Any, remote: Seen, local: Mapping[str, str], unsent: set[str]) -> None:
        """Add the commands for what Redis lacks. `local` are the documents of the copy, `unsent` the fields of the journal."""
        last_seen = self._journal.seen
        lost_changes = 0
        if remote.generation != last_seen.generation:
            # HSETNX adds only what the hash lacks: another gateway may have restored or changed the rest already.
            for field, document in local.items():
                pipe.hsetnx(HASH, field, document)
        elif remote.revision < last_seen.revision:
            lost_changes = last_seen.revision - remote.revision
            # The copy replaces the hash: a field that only the older snapshot has is deleted below.
            unsent = unsent | local.keys() | {field for field in self._client.hkeys(HASH) if _MODEL in field}
        for field in unsent:
            pipe.hset(HASH, field, local.get(field, _DELETED))
        if len(pipe):
            # Beyond what other gateways have seen before Redis went back, so that they see a change.
            pipe.hincrby(HASH, _REVISION, len(pipe) + lost_changes)

    def _merge(self, documents: Mapping[str, str]) -> bool:
        """Make the copy equal to the hash, apart from changes of the journal. Returns whether it differed."""
        unsent, changed = self._journal.unsent, False
        documents = {field: document for field, document in documents.items() if document != _DELETED}
        for registered in self._copy.registered_models():
            field = field_of(registered.application, registered.model)
            if field not in documents and field not in unsent:
                changed |= self._copy.delete_model(registered.application, registered.model)
        local = {field_of(model.application, model.model): model for model in self._copy.registered_models()}
        for field, document in documents.items():
            if _MODEL not in field or field in unsent:
                continue
            registered_there = from_document(field, document)
            if registered_there is not None and registered_there != local.get(field):
                self._copy.put_model(registered_there)
                changed = True
        return changed


@dataclass(frozen=True, slots=True)
class Seen:
    """The generation of the hash and the number of its changes."""

    generation: str
    revision: int


class Journal:
    """The file of the changes that Redis does not have, and of the last known state of the hash."""

    def __init__(self, path: Path) -> None:
        self._connection = open_database(path, _SCHEMA, SCHEMA_VERSION)
        self._lock = threading.Lock()
        self.unsent: dict[str, int] = dict(self._execute("SELECT field, max(seq) FROM unsent GROUP BY field"))
        """The fields that have changed, with the number of their last change."""
        self.sent_up_to = 0
        """Changes with a number up to this one are in Redis."""
        ((generation, revision),) = self._execute("SELECT generation, revision FROM seen")
        self.seen = Seen(generation, revision)

    @property
    def last(self) -> int:
        """The number of the last change; 0 if there is none."""
        return max(self.unsent.values(), default=0)

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    def add(self, field: str) -> int:
        """Store that this field changes. Returns the number of the change."""
        ((number,),) = self._execute("INSERT INTO unsent (field) VALUES (?) RETURNING seq", field)
        self.unsent[field] = number
        return int(number)

    def remove(self, last: int) -> None:
        """Remove the changes up to this number: Redis has them."""
        if last > self.sent_up_to:
            self._execute("DELETE FROM unsent WHERE seq <= ?", last)
            self.unsent = {field: number for field, number in self.unsent.items() if number > last}
            self.sent_up_to = last

    def see(self, state: Seen) -> None:
        """Store that the copy is equal to the hash in this state."""
        self._execute("UPDATE seen SET generation = ?, revision = ?", state.generation, state.revision)
        self.seen = state

    def _execute(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        with self._lock:
            try:
                return self._connection.execute(statement, values).fetchall()
            except sqlite3.OperationalError as error:
                raise store_failed(error) from error


def check_url(url: str) -> str:
    """The address of a Redis without its password, for logs.

    Raises:
        GnomonError: 400 `invalid_store`.

    """
    try:
        parts = urlsplit(url)
        place = f"{parts.hostname or ''}{f':{parts.port}' if parts.port is not None else ''}{parts.path}"
    except ValueError:
        parts, place = urlsplit(""), ""
    if parts.scheme not in SCHEMES or not place:
        raise bad_request(
            "invalid_store",
            "The metadata store is not the URL of a Redis server.",
            "Name it as redis://HOST:PORT/DATABASE, rediss:// for TLS or unix:///PATH; with a login as redis://USER:PASSWORD@HOST.",
        )
    return f"{parts.scheme}://{place}"


def field_of(application: FunctionKey, model: str) -> str:
    """The field of a registered model. Names of namespaces and applications have no slash."""
    return f"{application.namespace}/{application.name}/{model}"


def to_document(registered: RegisteredModel) -> str:
    """The document of a registered model."""
    document = {
        "accuracy": registered.accuracy,
        "registered_at": registered.registered_at,
        "variants": variants_to_json(registered.variants),
    }
    return json.dumps(document)


def from_document(field: str, text: str) -> RegisteredModel | None:
    """The registered model of a field; None for one that cannot be read, which stays in Redis."""
    try:
        namespace, name, model = field.split("/", 2)
        document = json.loads(text)
        accuracy = document["accuracy"]
        return RegisteredModel(
            FunctionKey(name, namespace),
            model,
            None if accuracy is None else float(accuracy),
            float(document["registered_at"]),
            variants_from_json(document["variants"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        _LOG.warning("The registered model %s in the metadata store cannot be read and is not served", field)
        return None

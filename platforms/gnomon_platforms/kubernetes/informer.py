"""Informers: a local cache of one kind of object, kept by list and watch, with lookup by name and label and change callbacks.

The cache applies the API server's events in their order, and may be slightly stale. A write therefore carries the
resourceVersion that it was decided from (`writes`), and a stale one is refused. A caller that needs the current state, such as a
newly elected leader, waits for `resync`.

`Cache` is the dictionary with its label index. The uid identifies an object: one that was deleted and created again under its
name is reported as removed and as added, even if the watch has shown only the new one. An event with the cached resourceVersion
changes nothing.

`Watcher` is the thread behind an informer: it lists, watches, and lists again if a watch cannot continue.

    list (pages of 500) ▶ watch from its version ─┬─ ended, silent or broken off ▶ watch from the last version that was seen
                                                  ├─ 410 Gone ▶ list
                                                  └─ refused, no answer ▶ back-off, doubling to 10 s, or the server's Retry-After

A list is consistent (no `resourceVersion=0`): another API server's cache may be behind, and the state must not go back in time.
A watch ends by itself after half a minute, and its socket times out a little later, so that a dead connection is noticed by
then. No event is lost between two watches: the next begins at the version where the last one stopped.

Memory is bounded: a line has at most `MAX_LINE_BYTES`, only the value that `keep` returns is held of each object, and at most
`MAX_UNDER_WAY` batches of events wait for the event loop; then the thread blocks, and TCP flow control slows the API server.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import random
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from gnomon_platforms.kubernetes.client import Api, Refused, Stream, Unreachable, from_status, to_gnomon_error
from gnomon_platforms.kubernetes.resources import Resource

T = TypeVar("T")

Name = tuple[str, str]
"""Namespace, empty for objects without one, and name."""


@dataclass(frozen=True, slots=True)
class Item(Generic[T]):
    """A cached object: its identity, its indexed labels, and the value that is kept of it."""

    name: Name
    uid: str
    resource_version: str
    labels: Mapping[str, str]
    value: T


@dataclass(frozen=True, slots=True)
class Change(Generic[T]):
    """A change of an object: added if `old` is None, removed if `new` is None."""

    name: Name
    old: T | None
    new: T | None


class Reader(Generic[T]):
    """Converts documents to items: `keep` returns the value to cache, `index` names the labels to index."""

    def __init__(self, keep: Callable[[dict[str, Any]], T], index: Sequence[str] = ()) -> None:
        self._keep = keep
        self._index = index

    def identity(self, document: dict[str, Any]) -> Item[None]:
        """The identity of an object, without its value.

        Raises ValueError if the document is not an object.
        """
        try:
            metadata = document["metadata"]
            labels = metadata.get("labels") or {}
            return Item(
                (metadata.get("namespace", ""), metadata["name"]),
                metadata["uid"],
                metadata["resourceVersion"],
                {label: labels[label] for label in self._index if label in labels},
                None,
            )
        except (KeyError, TypeError, AttributeError) as error:
            msg = f"an object without {error}"
            raise ValueError(msg) from error

    def item(self, document: dict[str, Any]) -> Item[T]:
        """The item of an object as the API server sends it, with its value.

        Raises ValueError if the document cannot be read.
        """
        identity = self.identity(document)
        try:
            value = self._keep(document)
        except Exception as error:
            # Any user may write to an object: one malformed object must not break the others.
            msg = f"{'/'.join(identity.name)} cannot be read: {type(error).__name__}: {error}"
            raise ValueError(msg) from error
        return Item(identity.name, identity.uid, identity.resource_version, identity.labels, value)


class Cache(Generic[T]):
    """The objects by name and by label. Not thread-safe: only the event loop's thread uses it."""

    def __init__(self) -> None:
        self._items: dict[Name, Item[T]] = {}
        self._by_label: dict[tuple[str, str], dict[Name, Item[T]]] = {}

    def __len__(self) -> int:
        return len(self._items)

    def get(self, namespace: str, name: str) -> T | None:
        item = self._items.get((namespace, name))
        return None if item is None else item.value

    def values(self) -> tuple[T, ...]:
        return tuple(item.value for item in self._items.values())

    def changes(self) -> list[Change[T]]:
        """All cached objects as additions."""
        return [Change(item.name, None, item.value) for item in self._items.values()]

    def labelled(self, label: str, value: str) -> tuple[T, ...]:
        """The objects that have an indexed label with this value."""
        return tuple(item.value for item in self._by_label.get((label, value), {}).values())

    def replace(self, items: Iterable[Item[T]]) -> list[Change[T]]:
        """Replace the content by a list; the changes that this makes."""
        listed = {item.name: item for item in items}
        gone = [self._items[name] for name in self._items.keys() - listed.keys()]
        changes = [change for item in gone for change in self.remove(item)]
        return changes + [change for item in listed.values() for change in self.put(item)]

    def put(self, item: Item[T]) -> list[Change[T]]:
        """Add or update an object; the changes that this makes."""
        cached = self._items.get(item.name)
        if cached is not None and cached.uid == item.uid and cached.resource_version == item.resource_version:
            return []
        changes = [] if cached is None or cached.uid == item.uid else self.remove(cached)
        old = None if cached is None or changes else cached.value
        if cached is not None:
            self._unlabel(cached)
        self._items[item.name] = item
        for pair in item.labels.items():
            self._by_label.setdefault(pair, {})[item.name] = item
        return [*changes, Change(item.name, old, item.value)]

    def remove(self, item: Item[Any]) -> list[Change[T]]:
        """Remove an object. A removal with another uid than the cached object's is ignored: that one has been replaced."""
        cached = self._items.get(item.name)
        if cached is None or cached.uid != item.uid:
            return []
        self._unlabel(cached)
        del self._items[item.name]
        return [Change(item.name, cached.value, None)]

    def _unlabel(self, item: Item[T]) -> None:
        for pair in item.labels.items():
            bucket = self._by_label.get(pair)
            if bucket is not None:
                bucket.pop(item.name, None)
                if not bucket:
                    del self._by_label[pair]


PAGE = "500"
MAX_LINE_BYTES = 8 * 2**20
"""The longest line of a watch that is read: five times etcd's limit for an object."""
MAX_UNDER_WAY = 8
MAX_LISTS = 5
SHORT_WATCH_S = 1.0
"""A watch that ends sooner without an event counts as a failure: otherwise a server that closes at once gets no back-off."""

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Timing:
    """Timeouts of the watch thread. `watch_s` is the duration of a watch, `silence_s` what its socket's timeout adds to it."""

    watch_s: int = 30
    silence_s: float = 5.0
    first_pause_s: float = 0.2
    longest_pause_s: float = 10.0


@dataclass(frozen=True, slots=True)
class Source:
    """The objects to watch: a kind, one namespace or all, with label and field selectors."""

    resource: Resource
    namespace: str | None = None
    labels: str = ""
    fields: str = ""

    @property
    def path(self) -> str:
        return self.resource.path(self.namespace)

    def query(self, **more: str) -> dict[str, str]:
        """The query parameters of a list or a watch."""
        given = {"labelSelector": self.labels, "fieldSelector": self.fields, **more}
        return {name: value for name, value in given.items() if value}


@dataclass(frozen=True, slots=True)
class Listed(Generic[T]):
    """A complete list. `requested` is the number of the last `relist` that it answers."""

    items: tuple[Item[T], ...]
    requested: int


@dataclass(frozen=True, slots=True)
class Event(Generic[T]):
    """An event for one object: `item` is its present state, None if it was deleted or cannot be read."""

    identity: Item[None]
    item: Item[T] | None


Update = Listed[T] | tuple[Event[T], ...]


class Watcher(threading.Thread, Generic[T]):
    """The thread that lists and watches. `deliver` passes events to the event loop without waiting; `took` acknowledges them.

    `now_s` is a monotonic clock.
    """

    def __init__(
        self,
        api: Api,
        source: Source,
        reader: Reader[T],
        deliver: Callable[[Update[T]], None],
        *,
        now_s: Callable[[], float],
        rng: random.Random,
        timing: Timing,
    ) -> None:
        super().__init__(name=f"watch {source.resource.plural}", daemon=True)
        self._api, self._source, self._reader = api, source, reader
        self._deliver = deliver
        self._now_s, self._rng, self._timing = now_s, rng, timing
        self._places = threading.Semaphore(MAX_UNDER_WAY)
        self._wake = threading.Event()
        self._stopping = False
        self._requested = self._answered = 0
        self._stream: Stream | None = None
        self._version: str | None = None
        self._failures = 0
        self.trouble: Exception | None = None
        """The last list's or watch's error; None once one has succeeded again."""
        self.last_contact_s = now_s()
        """The time at which the API server last sent anything."""

    def relist(self) -> int:
        """Request a new list; the number that its `Listed.requested` will reach."""
        self._requested += 1
        self._interrupt()
        return self._requested

    def stop(self) -> None:
        """Ask the thread to end: at once if it waits, after a read timeout at the latest."""
        self._stopping = True
        self._interrupt()
        self._places.release()

    def took(self) -> None:
        """Acknowledge a batch that the event loop has taken."""
        self._places.release()

    def run(self) -> None:
        """List and watch until stopped."""
        while not self._stopping:
            self._wake.clear()
            try:
                if self._version is None or self._answered < self._requested:
                    self._list()
                self._watch()
            except (Refused, Unreachable) as error:
                self._failed(error)
            except Exception as error:  # noqa: BLE001 - whatever the error, this thread alone watches
                _LOG.exception("Internal error while watching %s", self._source.resource.plural)
                self._failed(error)

    def _failed(self, error: Exception) -> None:
        if isinstance(error, Refused) and error.expired:
            self._version = None
            if self._failures == 0:
                # The server's event history was compacted during our pause: list again at once, without back-off or warning.
                self._failures = 1
                return
        if self._wake.is_set():
            # `relist` or `stop` has interrupted the watch: this is no failure.
            return
        self.trouble = error
        self._failures += 1
        _LOG.warning("the watch of %s failed and is retried: %s", self._source.resource.plural, error)
        self._pause(error.retry_after_s if isinstance(error, Refused) else None)

    def _pause(self, retry_after_s: float | None) -> None:
        """Wait for the server's Retry-After, or for an exponential back-off with jitter (half to all of it), if longer."""
        bound_s = min(self._timing.longest_pause_s, self._timing.first_pause_s * 2 ** min(self._failures - 1, 20))
        self._wake.wait(max(retry_after_s or 0.0, bound_s * self._rng.uniform(0.5, 1.0)))

    def _interrupt(self) -> None:
        self._wake.set()
        stream = self._stream
        if stream is not None:
            stream.end()

    def _list(self) -> None:
        requested = self._requested
        for attempt in range(MAX_LISTS):
            try:
                items, version = self._pages("" if attempt == MAX_LISTS - 1 else PAGE)
                break
            except Refused as error:
                # The continue token has expired: list from the start again, the last attempt without pagination.
                if not error.expired or attempt == MAX_LISTS - 1:
                    raise
        self._record_contact()
        self._send(Listed(tuple(items), requested))
        self._version, self._answered = version, requested

    def _pages(self, limit: str) -> tuple[list[Item[T]], str]:
        items: list[Item[T]] = []
        following = ""
        while True:
            document = self._api.call("GET", self._source.path, query=self._source.query(limit=limit, **{"continue": following}))
            metadata = document.get("metadata") or {}
            # Items of a list have no apiVersion and kind: `keep` must not rely on them.
            items += [item for entry in document.get("items") or () if (item := self._item(entry)) is not None]
            following = metadata.get("continue") or ""
            if not following:
                version = metadata.get("resourceVersion")
                if not version:
                    raise Unreachable("a list without a resourceVersion")
                return items, str(version)

    def _watch(self) -> None:
        began_s, first_version = self._now_s(), self._version
        seconds = self._timing.watch_s
        query = self._source.query(
            watch="true", allowWatchBookmarks="true", resourceVersion=self._version or "", timeoutSeconds=str(seconds)
        )
        with self._api.stream(self._source.path, query, silence_s=seconds + self._timing.silence_s) as stream:
            self._stream = stream
            try:
                self._record_contact()
                self._follow(stream)
            finally:
                self._stream = None
        if self._version == first_version and self._now_s() - began_s < SHORT_WATCH_S:
            raise Unreachable("the watch was ended as soon as it had begun")
        self._failures, self.trouble = 0, None

    def _follow(self, stream: Stream) -> None:
        partial_line = b""
        while not self._stopping and self._answered == self._requested:
            data = stream.read()
            if not data:
                # An incomplete line is sent again: the next watch begins before its event.
                return
            *lines, partial_line = (partial_line + data).split(b"\n")
            if len(partial_line) > MAX_LINE_BYTES:
                msg = f"an event of more than {MAX_LINE_BYTES} bytes"
                raise Unreachable(msg)
            self._record_contact()
            self._events(lines)

    def _events(self, lines: list[bytes]) -> None:
        events: list[Event[T]] = []
        version = self._version
        try:
            for line in lines:
                if not line.strip():
                    continue
                kind, document = self._event(line)
                if kind == "BOOKMARK":
                    version = str(document["metadata"]["resourceVersion"])
                    continue
                identity = self._identity(document)
                events.append(Event(identity, None if kind == "DELETED" else self._item(document)))
                version = identity.resource_version
        finally:
            # The events before a malformed line are valid: deliver them.
            if events:
                self._failures, self.trouble = 0, None
                self._send(tuple(events))
            self._version = version

    def _event(self, line: bytes) -> tuple[str, dict[str, Any]]:
        try:
            event = json.loads(line)
            kind, document = event["type"], event["object"]
        except (ValueError, KeyError, TypeError) as error:
            msg = f"an event that cannot be read: {line[:100]!r}"
            raise Unreachable(msg) from error
        if kind == "ERROR":
            raise from_status(document)
        return kind, document

    def _identity(self, document: dict[str, Any]) -> Item[None]:
        try:
            return self._reader.identity(document)
        except ValueError as error:
            raise Unreachable(str(error)) from error

    def _item(self, document: dict[str, Any]) -> Item[T] | None:
        """The item of an object; None, with a warning, if it cannot be read: the other objects are still followed."""
        try:
            return self._reader.item(document)
        except ValueError as error:
            _LOG.warning("an invalid object of %s is ignored: %s", self._source.resource.plural, error)
            return None

    def _record_contact(self) -> None:
        self.last_contact_s = self._now_s()

    def _send(self, update: Update[T]) -> None:
        self._places.acquire()
        if not self._stopping:
            self._deliver(update)


START_TIMEOUT_S = 30.0


class Informer(Generic[T]):
    """A cache of the objects of a source.

    `keep` returns the value to cache of a document, `index` names the labels to index. `rng` draws the jitter of back-off.
    """

    def __init__(
        self,
        api: Api,
        source: Source,
        keep: Callable[[dict[str, Any]], T],
        *,
        index: Sequence[str] = (),
        rng: random.Random | None = None,
        timing: Timing | None = None,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._source = source
        self._cache: Cache[T] = Cache()
        self._listeners: list[Callable[[Change[T]], None]] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._answered = -1
        self._updated = asyncio.Event()
        self._now_s = now_s
        self._watcher: Watcher[T] = Watcher(
            api,
            source,
            Reader(keep, index),
            self._deliver,
            now_s=now_s,
            rng=rng or random.SystemRandom(),
            timing=timing or Timing(),
        )

    async def start(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Start the thread and wait for the first list.

        Raises:
            GnomonError: 503 `kubernetes_…` if the first list has not arrived in time, with the API server's error.

        """
        self._loop = asyncio.get_running_loop()
        self._watcher.start()
        try:
            await self.until(lambda: self.synced, timeout_s)
        except TimeoutError:
            await self.stop()
            cause = self._watcher.trouble or TimeoutError(f"no answer for {timeout_s:g} s")
            raise to_gnomon_error(cause, f"list {self._source.resource.plural}") from None

    async def stop(self) -> None:
        """End the thread. The cache keeps its content."""
        self._watcher.stop()
        if self._watcher.ident is not None:
            await asyncio.to_thread(self._watcher.join)

    @property
    def synced(self) -> bool:
        """True if the first list has arrived."""
        return self._answered >= 0

    @property
    def trouble(self) -> Exception | None:
        """The last error of the list or watch; None while it works."""
        return self._watcher.trouble

    @property
    def silent_s(self) -> float:
        """Seconds since the API server last sent anything. A healthy watch is renewed at least twice a minute."""
        return self._now_s() - self._watcher.last_contact_s

    def __len__(self) -> int:
        return len(self._cache)

    def get(self, namespace: str, name: str) -> T | None:
        """An object's value, None if there is none; the namespace is empty for cluster-scoped objects."""
        return self._cache.get(namespace, name)

    def values(self) -> tuple[T, ...]:
        """Every object."""
        return self._cache.values()

    def labelled(self, label: str, value: str) -> tuple[T, ...]:
        """The objects that have an indexed label with this value."""
        return self._cache.labelled(label, value)

    def listen(self, changed: Callable[[Change[T]], None]) -> Callable[[], None]:
        """Call `changed` for each change, on the event loop, until the returned function is called.

        It is first called for each cached object, as an addition.
        """
        for value in self._cache.changes():
            changed(value)
        self._listeners.append(changed)
        return lambda: self._forget(changed)

    async def until(self, condition: Callable[[], bool], timeout_s: float) -> None:
        """Wait until `condition` holds. It is evaluated after each batch of events.

        Raises:
            TimeoutError: it did not hold within `timeout_s`.

        """
        async with asyncio.timeout(timeout_s):
            while not condition():
                self._updated.clear()
                await self._updated.wait()

    async def resync(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Wait for a list that was requested after this call, so that the cache is at least as recent as the call.

        Raises:
            GnomonError: 503 `kubernetes_…`: the list did not arrive in time.

        """
        requested = self._watcher.relist()
        try:
            await self.until(lambda: self._answered >= requested, timeout_s)
        except TimeoutError:
            cause = self._watcher.trouble or TimeoutError(f"no answer for {timeout_s:g} s")
            raise to_gnomon_error(cause, f"list {self._source.resource.plural}") from None

    def _forget(self, changed: Callable[[Change[T]], None]) -> None:
        with contextlib.suppress(ValueError):
            self._listeners.remove(changed)

    def _deliver(self, update: Update[T]) -> None:
        """Pass events from the thread to the loop."""
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):  # the loop has been closed
            self._loop.call_soon_threadsafe(self._take, update)

    def _take(self, update: Update[T]) -> None:
        self._watcher.took()
        if isinstance(update, Listed):
            changes = self._cache.replace(update.items)
            self._answered = max(self._answered, update.requested)
        else:
            changes = []
            for event in update:
                changes += self._cache.remove(event.identity) if event.item is None else self._cache.put(event.item)
        for change in changes:
            for listener in tuple(self._listeners):
                try:
                    listener(change)
                except Exception:  # noqa: BLE001 - whatever the error, other listeners are called
                    _LOG.exception("a listener for %s failed", self._source.resource.plural)
        self._updated.set()

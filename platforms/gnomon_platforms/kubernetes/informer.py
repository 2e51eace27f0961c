"""A kind of object as it is now, on the event loop: kept by list and watch, looked up by name and label, told when it changes.

What it holds is what the API server has told, in its order, and may be a moment behind: a decision that is made from it is sent
with the version it was made from (`writes`), so that a stale one is refused. Who must not act on less than all that is true
now, such as a leader that was just elected, waits for `resync`.

The objects of one kind as they are now: a dictionary with an index by labels, and what each piece of news changes in it.

An object is the same as long as its uid is: one that was removed and made again under its name is told as gone and as new, even
where a watch has shown only the new one. News of a version that is held already changes nothing.

The thread behind an informer: it lists, watches, and lists again where a watch cannot go on.

    list (pages of 500) ▶ watch from its version ─┬─ ended, silent or broken off ▶ watch from the last version that was seen
                                                  ├─ 410 Gone ▶ list
                                                  └─ refused, no answer ▶ a pause, doubling to 10 s, or as long as it asks

A list asks for what is true now, never for what a server happens to remember: a second server may be behind, and time must not
go back. A watch ends by itself after half a minute, and its socket gives up a little later: a connection whose other end has
vanished is noticed by then, whatever the network does. Between two watches nothing is lost: the next begins at the version
where the last one stopped.

Memory is bounded: a line has at most `MAX_LINE_BYTES`, of each object only what the informer keeps is held, and at most
`MAX_UNDER_WAY` batches wait for the event loop; the thread then waits for it, and the API server for the thread.
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

from gnomon_platforms.kubernetes.client import Api, Refused, Stream, Unreachable, from_status, told
from gnomon_platforms.kubernetes.resources import Resource

T = TypeVar("T")

Name = tuple[str, str]
"""Namespace, empty for objects without one, and name."""


@dataclass(frozen=True, slots=True)
class Item(Generic[T]):
    """One object: what identifies it, the labels that are looked up, and what is kept of it."""

    name: Name
    uid: str
    resource_version: str
    labels: Mapping[str, str]
    value: T


@dataclass(frozen=True, slots=True)
class Change(Generic[T]):
    """What has become of an object: new without an old value, gone without a new one."""

    name: Name
    old: T | None
    new: T | None


class Reader(Generic[T]):
    """Makes items of documents: `keep` says what is kept of one, `index` which labels are looked up."""

    def __init__(self, keep: Callable[[dict[str, Any]], T], index: Sequence[str] = ()) -> None:
        self._keep = keep
        self._index = index

    def identity(self, document: dict[str, Any]) -> Item[None]:
        """Which object this is.

        Raises ValueError for what is no object.
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
        """An object as the API server sends it, with what is kept of it.

        Raises ValueError for what cannot be read.
        """
        known = self.identity(document)
        try:
            value = self._keep(document)
        except Exception as error:
            # Anybody may write into an object: what is in it must cost nobody else's.
            msg = f"{'/'.join(known.name)} cannot be read: {type(error).__name__}: {error}"
            raise ValueError(msg) from error
        return Item(known.name, known.uid, known.resource_version, known.labels, value)


class Cache(Generic[T]):
    """The dictionary. It is used by one thread, the event loop's."""

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
        """What is held, as if it had just come."""
        return [Change(item.name, None, item.value) for item in self._items.values()]

    def labelled(self, label: str, value: str) -> tuple[T, ...]:
        """The objects that have an indexed label with this value."""
        return tuple(item.value for item in self._by_label.get((label, value), {}).values())

    def replace(self, items: Iterable[Item[T]]) -> list[Change[T]]:
        """This is all there is now."""
        listed = {item.name: item for item in items}
        gone = [self._items[name] for name in self._items.keys() - listed.keys()]
        changes = [change for item in gone for change in self.remove(item)]
        return changes + [change for item in listed.values() for change in self.put(item)]

    def put(self, item: Item[T]) -> list[Change[T]]:
        """This is there, as it says."""
        held = self._items.get(item.name)
        if held is not None and held.uid == item.uid and held.resource_version == item.resource_version:
            return []
        changes = [] if held is None or held.uid == item.uid else self.remove(held)
        old = None if held is None or changes else held.value
        if held is not None:
            self._unlabel(held)
        self._items[item.name] = item
        for pair in item.labels.items():
            self._by_label.setdefault(pair, {})[item.name] = item
        return [*changes, Change(item.name, old, item.value)]

    def remove(self, item: Item[Any]) -> list[Change[T]]:
        """This is gone. News of the end of one that has a successor already changes nothing."""
        held = self._items.get(item.name)
        if held is None or held.uid != item.uid:
            return []
        self._unlabel(held)
        del self._items[item.name]
        return [Change(item.name, held.value, None)]

    def _unlabel(self, item: Item[T]) -> None:
        for pair in item.labels.items():
            bucket = self._by_label.get(pair)
            if bucket is not None:
                bucket.pop(item.name, None)
                if not bucket:
                    del self._by_label[pair]


PAGE = "500"
MAX_LINE_BYTES = 8 * 2**20
"""Five times what etcd takes for an object."""
MAX_UNDER_WAY = 8
MAX_LISTS = 5
SHORT_WATCH_S = 1.0
"""A watch that ends sooner and brings nothing is a failure, or a server that closes at once would be asked without a pause."""

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Timing:
    """How long the thread waits for what. `watch_s` is how long a watch lasts, `silence_s` how much longer its socket waits."""

    watch_s: int = 30
    silence_s: float = 5.0
    first_pause_s: float = 0.2
    longest_pause_s: float = 10.0


@dataclass(frozen=True, slots=True)
class Source:
    """What is watched: a kind of object, of one namespace or of all, by labels and fields."""

    resource: Resource
    namespace: str | None = None
    labels: str = ""
    fields: str = ""

    @property
    def path(self) -> str:
        return self.resource.path(self.namespace)

    def query(self, **more: str) -> dict[str, str]:
        """The query of a list or a watch."""
        given = {"labelSelector": self.labels, "fieldSelector": self.fields, **more}
        return {name: value for name, value in given.items() if value}


@dataclass(frozen=True, slots=True)
class Listed(Generic[T]):
    """All objects. `asked` is the last request for a new list that it answers."""

    items: tuple[Item[T], ...]
    asked: int


@dataclass(frozen=True, slots=True)
class Event(Generic[T]):
    """What has become of one object: `item` is it as it is now, None where it is gone, or cannot be read."""

    identity: Item[None]
    item: Item[T] | None


News = Listed[T] | tuple[Event[T], ...]


class Watcher(threading.Thread, Generic[T]):
    """The thread. `deliver` takes news to the event loop and does not wait; `took` gives its place back.

    `now_s` is a clock that never goes back.
    """

    def __init__(
        self,
        api: Api,
        source: Source,
        reader: Reader[T],
        deliver: Callable[[News[T]], None],
        *,
        now_s: Callable[[], float],
        chance: random.Random,
        timing: Timing,
    ) -> None:
        super().__init__(name=f"watch {source.resource.plural}", daemon=True)
        self._api, self._source, self._reader = api, source, reader
        self._deliver = deliver
        self._now_s, self._chance, self._timing = now_s, chance, timing
        self._places = threading.Semaphore(MAX_UNDER_WAY)
        self._wake = threading.Event()
        self._stopping = False
        self._asked = self._answered = 0
        self._stream: Stream | None = None
        self._version: str | None = None
        self._failures = 0
        self.trouble: Exception | None = None
        """What keeps it from getting on; None while it does."""
        self.heard_s = now_s()
        """When the API server was last heard."""

    def relist(self) -> int:
        """Ask for a new list; the number that its `Listed.asked` will have reached."""
        self._asked += 1
        self._interrupt()
        return self._asked

    def stop(self) -> None:
        """End soon: at once where it waits, after a read timeout at the latest."""
        self._stopping = True
        self._interrupt()
        self._places.release()

    def took(self) -> None:
        """The event loop has taken a batch."""
        self._places.release()

    def run(self) -> None:
        """List and watch until stopped."""
        while not self._stopping:
            self._wake.clear()
            try:
                if self._version is None or self._answered < self._asked:
                    self._list()
                self._watch()
            except (Refused, Unreachable) as error:
                self._failed(error)
            except Exception as error:  # noqa: BLE001 - whatever it is, nobody else watches
                _LOG.exception("watching %s", self._source.resource.plural)
                self._failed(error)

    def _failed(self, error: Exception) -> None:
        if isinstance(error, Refused) and error.expired:
            self._version = None
            if self._failures == 0:
                # Its history is shorter than our pause was: that is no fault of anybody.
                self._failures = 1
                return
        if self._wake.is_set():
            # We have ended it ourselves.
            return
        self.trouble = error
        self._failures += 1
        _LOG.warning("watching %s: %s", self._source.resource.plural, error)
        self._pause(error.retry_after_s if isinstance(error, Refused) else None)

    def _pause(self, asked_s: float | None) -> None:
        """Wait as long as the server asks, or a doubling time of which chance takes up to half."""
        bound_s = min(self._timing.longest_pause_s, self._timing.first_pause_s * 2 ** min(self._failures - 1, 20))
        self._wake.wait(max(asked_s or 0.0, bound_s * self._chance.uniform(0.5, 1.0)))

    def _interrupt(self) -> None:
        self._wake.set()
        stream = self._stream
        if stream is not None:
            stream.end()

    def _list(self) -> None:
        asked = self._asked
        for attempt in range(MAX_LISTS):
            try:
                items, version = self._pages("" if attempt == MAX_LISTS - 1 else PAGE)
                break
            except Refused as error:
                # The next page is of a state that the server has forgotten: from the start, and at last in one piece.
                if not error.expired or attempt == MAX_LISTS - 1:
                    raise
        self._heard()
        self._send(Listed(tuple(items), asked))
        self._version, self._answered = version, asked

    def _pages(self, limit: str) -> tuple[list[Item[T]], str]:
        items: list[Item[T]] = []
        following = ""
        while True:
            document = self._api.call("GET", self._source.path, query=self._source.query(limit=limit, **{"continue": following}))
            metadata = document.get("metadata") or {}
            # In a list, objects do not say what they are.
            items += [item for one in document.get("items") or () if (item := self._item(one)) is not None]
            following = metadata.get("continue") or ""
            if not following:
                version = metadata.get("resourceVersion")
                if not version:
                    raise Unreachable("a list without a resourceVersion")
                return items, str(version)

    def _watch(self) -> None:
        began_s, seen = self._now_s(), self._version
        seconds = self._timing.watch_s
        query = self._source.query(
            watch="true", allowWatchBookmarks="true", resourceVersion=self._version or "", timeoutSeconds=str(seconds)
        )
        with self._api.stream(self._source.path, query, silence_s=seconds + self._timing.silence_s) as stream:
            self._stream = stream
            try:
                self._heard()
                self._follow(stream)
            finally:
                self._stream = None
        if self._version == seen and self._now_s() - began_s < SHORT_WATCH_S:
            raise Unreachable("the watch was ended as soon as it had begun")
        self._failures, self.trouble = 0, None

    def _follow(self, stream: Stream) -> None:
        rest = b""
        while not self._stopping and self._answered == self._asked:
            data = stream.read()
            if not data:
                # What is left of a line that broke off comes again: the next watch begins before it.
                return
            *lines, rest = (rest + data).split(b"\n")
            if len(rest) > MAX_LINE_BYTES:
                msg = f"an event of more than {MAX_LINE_BYTES} bytes"
                raise Unreachable(msg)
            self._heard()
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
            # What came before the line that cannot be read is true.
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
        """An object; None for one that cannot be read, which is left out: the others are looked after all the same."""
        try:
            return self._reader.item(document)
        except ValueError as error:
            _LOG.warning("one of the %s is left out: %s", self._source.resource.plural, error)
            return None

    def _heard(self) -> None:
        self.heard_s = self._now_s()

    def _send(self, news: News[T]) -> None:
        self._places.acquire()
        if not self._stopping:
            self._deliver(news)


START_TIMEOUT_S = 30.0


class Informer(Generic[T]):
    """The objects of a source.

    `keep` makes of a document what is kept of it, `index` names the labels that are looked up. `chance` draws pauses.
    """

    def __init__(
        self,
        api: Api,
        source: Source,
        keep: Callable[[dict[str, Any]], T],
        *,
        index: Sequence[str] = (),
        chance: random.Random | None = None,
        timing: Timing | None = None,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._source = source
        self._cache: Cache[T] = Cache()
        self._listeners: list[Callable[[Change[T]], None]] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._answered = -1
        self._told = asyncio.Event()
        self._now_s = now_s
        self._watcher: Watcher[T] = Watcher(
            api,
            source,
            Reader(keep, index),
            self._deliver,
            now_s=now_s,
            chance=chance or random.SystemRandom(),
            timing=timing or Timing(),
        )

    async def start(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Begin, and return when all that is there now is known.

        Raises:
            GnomonError: 503 `kubernetes_…` where the first list has not come in time, with what the API server has said.

        """
        self._loop = asyncio.get_running_loop()
        self._watcher.start()
        try:
            await self.until(lambda: self.synced, timeout_s)
        except TimeoutError:
            await self.stop()
            cause = self._watcher.trouble or TimeoutError(f"nothing was heard for {timeout_s:g} s")
            raise told(cause, f"list {self._source.resource.plural}") from None

    async def stop(self) -> None:
        """End the thread. What is held stays."""
        self._watcher.stop()
        if self._watcher.ident is not None:
            await asyncio.to_thread(self._watcher.join)

    @property
    def synced(self) -> bool:
        """Whether all that was there at some time is known."""
        return self._answered >= 0

    @property
    def trouble(self) -> Exception | None:
        """What keeps it from hearing more; None while nothing does."""
        return self._watcher.trouble

    @property
    def silent_s(self) -> float:
        """How long nothing was heard. A watch that is well is heard at least twice a minute."""
        return self._now_s() - self._watcher.heard_s

    def __len__(self) -> int:
        return len(self._cache)

    def get(self, namespace: str, name: str) -> T | None:
        """One object; the namespace is empty for those without one."""
        return self._cache.get(namespace, name)

    def values(self) -> tuple[T, ...]:
        """Every object."""
        return self._cache.values()

    def labelled(self, label: str, value: str) -> tuple[T, ...]:
        """The objects that have an indexed label with this value."""
        return self._cache.labelled(label, value)

    def listen(self, changed: Callable[[Change[T]], None]) -> Callable[[], None]:
        """Call `changed` for each change, on the event loop, until the returned function is called.

        What is held already is told first, as new.
        """
        for value in self._cache.changes():
            changed(value)
        self._listeners.append(changed)
        return lambda: self._forget(changed)

    async def until(self, condition: Callable[[], bool], timeout_s: float) -> None:
        """Return when this holds. It is asked after each piece of news.

        Raises:
            TimeoutError: it did not.

        """
        async with asyncio.timeout(timeout_s):
            while not condition():
                self._told.clear()
                await self._told.wait()

    async def resync(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Return when everything that was true when this was called is known.

        Raises:
            GnomonError: 503 `kubernetes_…`: the API server could not be asked in time.

        """
        asked = self._watcher.relist()
        try:
            await self.until(lambda: self._answered >= asked, timeout_s)
        except TimeoutError:
            cause = self._watcher.trouble or TimeoutError(f"nothing was heard for {timeout_s:g} s")
            raise told(cause, f"list {self._source.resource.plural}") from None

    def _forget(self, changed: Callable[[Change[T]], None]) -> None:
        with contextlib.suppress(ValueError):
            self._listeners.remove(changed)

    def _deliver(self, news: News[T]) -> None:
        """From the thread: hand news to the loop."""
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):  # the loop has been closed
            self._loop.call_soon_threadsafe(self._take, news)

    def _take(self, news: News[T]) -> None:
        self._watcher.took()
        if isinstance(news, Listed):
            changes = self._cache.replace(news.items)
            self._answered = max(self._answered, news.asked)
        else:
            changes = []
            for event in news:
                changes += self._cache.remove(event.identity) if event.item is None else self._cache.put(event.item)
        for change in changes:
            for listener in tuple(self._listeners):
                try:
                    listener(change)
                except Exception:  # noqa: BLE001 - whatever it is, the others are told
                    _LOG.exception("a listener for %s failed", self._source.resource.plural)
        self._told.set()

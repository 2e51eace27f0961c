"""The thread behind an informer: it lists, watches, and lists again where a watch cannot go on.

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

import json
import logging
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from gnomon_platforms.kubernetes.api import Api, Stream
from gnomon_platforms.kubernetes.cache import Item, Reader
from gnomon_platforms.kubernetes.errors import Refused, Unreachable, from_status
from gnomon_platforms.kubernetes.resources import Resource

T = TypeVar("T")

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

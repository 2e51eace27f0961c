"""A kind of object as it is now, on the event loop: kept by list and watch, looked up by name and label, told when it changes.

What it holds is what the API server has told, in its order, and may be a moment behind: a decision that is made from it is sent
with the version it was made from (`writes`), so that a stale one is refused. Who must not act on less than all that is true
now, such as a leader that was just elected, waits for `resync`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from gnomon_platforms.kubernetes.api import Api
from gnomon_platforms.kubernetes.cache import Cache, Change, Reader
from gnomon_platforms.kubernetes.errors import told
from gnomon_platforms.kubernetes.watching import Listed, News, Source, Timing, Watcher

T = TypeVar("T")

START_TIMEOUT_S = 30.0

_LOG = logging.getLogger(__name__)


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

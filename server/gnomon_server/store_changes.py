"""Follows changes by others in a store: the store reports a change in a thread of its own, and the event loop acts on it.

A change is reported once. If it cannot be followed, because a secret or a model cannot be read at that moment, it is tried again
after 1 s, then 2, 4, … at most 60 s: a gateway that missed an update would find none of the pods that replace its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Protocol, TypeAlias

from gnomon_core.background import Background
from gnomon_core.clock import Clock
from gnomon_core.errors import GnomonError
from gnomon_core.functions import FunctionKey

Work: TypeAlias = Coroutine[Any, Any, None]
FIRST_BACKOFF_S, LONGEST_BACKOFF_S = 1.0, 60.0

_LOG = logging.getLogger("gnomon")


class WatchedStore(Protocol):
    """A store that other processes change as well."""

    def watch(self, changed: Callable[[FunctionKey], None]) -> Callable[[], None]: ...

    def watch_namespaces(self, changed: Callable[[], None]) -> Callable[[], None]: ...


class StoreChanges:
    """The background tasks that changes of one store have begun."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._background = Background()

    def follow(
        self,
        store: WatchedStore,
        function: Callable[[FunctionKey], Work],
        namespaces: Callable[[], Work] | None = None,
    ) -> None:
        """Start `function` on this loop for each changed function, and `namespaces` whenever a namespace has changed."""
        loop = asyncio.get_running_loop()

        def begin(make: Callable[[], Work]) -> None:
            self._background.begin(self._follow(make))

        def changed(make: Callable[[], Work]) -> None:
            # The store's thread may report a change after our loop has ended.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(begin, make)

        store.watch(lambda key: changed(partial(function, key)))
        if namespaces is not None:
            store.watch_namespaces(lambda: changed(namespaces))

    async def _follow(self, make: Callable[[], Work]) -> None:
        backoff_s = FIRST_BACKOFF_S
        while True:
            try:
                await make()
            except GnomonError as error:
                _LOG.warning("a change in the store is not followed yet, retry in %g s: %s", backoff_s, error)
            except Exception:  # noqa: BLE001 - as a change that could not be followed for a known reason
                _LOG.exception("a change in the store is not followed yet, retry in %g s: internal error", backoff_s)
            else:
                return
            await self._clock.sleep(backoff_s)
            backoff_s = min(2 * backoff_s, LONGEST_BACKOFF_S)

"""Follows changes by others in a store: the store reports a change in a thread of its own, and the event loop acts on it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Protocol, TypeAlias

from gnomon_core.background import Background
from gnomon_core.functions import FunctionKey

Work: TypeAlias = Coroutine[Any, Any, None]


class WatchedStore(Protocol):
    """A store that other processes change as well."""

    def watch(self, changed: Callable[[FunctionKey], None]) -> Callable[[], None]: ...

    def watch_namespaces(self, changed: Callable[[], None]) -> Callable[[], None]: ...


class StoreChanges:
    """The background tasks that changes of one store have begun."""

    def __init__(self) -> None:
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
            self._background.begin(make())

        def changed(make: Callable[[], Work]) -> None:
            # The store's thread may report a change after our loop has ended.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(begin, make)

        store.watch(lambda key: changed(partial(function, key)))
        if namespaces is not None:
            store.watch_namespaces(lambda: changed(namespaces))

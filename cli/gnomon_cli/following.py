"""Serving what somebody else has changed in a store: it is told in a thread of the store's, and done on our event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Protocol, TypeAlias

from gnomon_core.background import Background
from gnomon_core.functions import FunctionKey

Work: TypeAlias = Coroutine[Any, Any, None]


class ToldStore(Protocol):
    """A store that others change as well."""

    def watch(self, changed: Callable[[FunctionKey], None]) -> Callable[[], None]: ...

    def watch_namespaces(self, changed: Callable[[], None]) -> Callable[[], None]: ...


class Following:
    """What is under way because of such changes."""

    def __init__(self) -> None:
        self._background = Background()

    def begin(self, store: ToldStore, function: Callable[[FunctionKey], Work], namespaces: Callable[[], Work]) -> None:
        """Do one of these on this loop whenever a function, or a namespace, has changed."""
        loop = asyncio.get_running_loop()

        def do(make: Callable[[], Work]) -> None:
            self._background.begin(make())

        def told(make: Callable[[], Work]) -> None:
            # Perhaps after our loop has ended.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(do, make)

        store.watch(lambda key: told(partial(function, key)))
        store.watch_namespaces(lambda: told(namespaces))

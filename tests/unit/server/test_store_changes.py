"""Changes that others make in a store are followed, if not at once, then later."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gnomon_core.clock import VirtualClock
from gnomon_core.errors import GnomonError
from gnomon_core.functions import FunctionKey
from gnomon_server.store_changes import StoreChanges

KEY = FunctionKey("fn")


class Store:
    """A store that tells of a change when the test says so."""

    def __init__(self) -> None:
        self.changed: Callable[[FunctionKey], None] = lambda _: None

    def watch(self, changed: Callable[[FunctionKey], None]) -> Callable[[], None]:
        self.changed = changed
        return lambda: None

    def watch_namespaces(self, changed: Callable[[], None]) -> Callable[[], None]:
        del changed
        return lambda: None


@pytest.mark.parametrize(
    "error", [GnomonError(503, "kubernetes_unreachable", "Away."), OSError(116, "Stale file handle")], ids=["known", "unforeseen"]
)
async def test_update_that_cannot_be_followed_at_once_is_followed_later(error: Exception) -> None:
    """Its secret or model could not be read. The store tells of it only once, and the leader replaces all pods."""
    clock, store, attempts_s = VirtualClock(), Store(), list[float]()

    async def follow(key: FunctionKey) -> None:
        assert key == KEY
        attempts_s.append(clock.now_s())
        if len(attempts_s) < 4:
            raise error

    StoreChanges(clock).follow(store, follow)
    store.changed(KEY)
    await clock.advance(100.0)
    assert attempts_s == [0.0, 1.0, 3.0, 7.0]
